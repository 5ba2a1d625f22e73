//! `wgfc train`.

mod log;
mod report;

use super::args::{DataArgs, ImageNorm, TrainArgs};
use super::compile::{opened_file, say_random_weights};
use super::device_cache::DeviceCache;
use super::terminal::Terminal;
use super::{adapter, curve, inputs, is_program, shown, signals};
use log::Log;
use report::Report;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;
use std::time::Instant;
use wgfc::artefact::{ReadOptions, load_with};
use wgfc::compiler::budget::Budget;
use wgfc::runtime::Gpu;
use wgfc::train::{Ports, Roles, read_tensors_within};
use wgfc::value_info::{ValueInfo, no_such_input};
use wgfc::{Error, Options, Problem, Tensor, Trainer, Training, memory, npy, output, random};

/// Trains up to the last step, and reports the result.
pub fn main(a: &TrainArgs, t: &Terminal) -> Result<(), Error> {
    if let Some(path) = a.plot.as_deref().filter(|p| p.extension().is_none_or(|e| e != "svg")) {
        let message = format!("{}: pictures of this kind are not made", path.display());
        return Err(Error::usage(message, "give FILE.svg"));
    }
    let kind = a.log.as_deref().map(Log::kind).transpose()?;
    let gpu = adapter::open(&a.adapter, t)?;
    let mut cache = DeviceCache::open(&a.cache, &gpu, t);
    let mut trainer = ready(a, &gpu, &mut cache, t)?;
    cache.save(t);
    begin(a, &mut trainer, t)?;
    let mut log = Log::open(a.log.as_deref().zip(kind), trainer.step())?;

    let from = trainer.step();
    if from >= a.steps && a.resume.is_some() {
        t.note_always(&format!("{from} steps are done already, of {}: nothing was trained", a.steps));
    }
    let deferral = signals::defer();
    let started = Instant::now();
    let mut report = Report::new(from);
    let mut saved = None;
    {
        let bar = t.steps(shown(&a.model), from, a.steps);
        while trainer.step() < a.steps && signals::pending().is_none() {
            let next = a.every.map_or(a.steps, |k| (trainer.step() / k + 1).saturating_mul(k).min(a.steps));
            let mut unwritten = None;
            let ran = trainer.run(next - trainer.step(), |step| {
                report.add(step, started.elapsed().as_secs_f64());
                unwritten = log.add(step).err();
                bar.says(format!("{} {}", shown(&a.model), super::results::number(step.loss)));
                bar.at(step.number);
                match unwritten.is_some() || signals::pending().is_some() {
                    true => ControlFlow::Break(()),
                    false => ControlFlow::Continue(()),
                }
            });
            log.flush()?;
            ran.and(unwritten.map_or(Ok(()), Err)).inspect_err(|_| {
                if let Some(step) = saved {
                    t.note(&format!("the last checkpoint is of step {step}"));
                }
            })?;
            let whole = a.every.is_some_and(|k| trainer.step().is_multiple_of(k));
            if let Some(path) = a.checkpoint.as_deref().filter(|_| whole) {
                trainer.save(path)?;
                saved = Some(trainer.step());
            }
        }
    }
    if let Some(path) = a.checkpoint.as_deref().filter(|_| saved != Some(trainer.step())) {
        trainer.save(path)?;
    }
    drop(deferral);
    if let Some(path) = &a.plot {
        output::write_whole(path, curve::svg(&shown(&a.model), log.losses())?.as_bytes())?;
    }
    let chosen_for = cache.source.to_string();
    match t.json {
        true => t.print_json(&report.json(a, &mut trainer, &gpu, &chosen_for)),
        false => t.print(&report.text(a, &mut trainer, &gpu)),
    }
    Ok(())
}

/// Compiles or loads the model and uploads it.
fn ready(a: &TrainArgs, gpu: &Gpu, cache: &mut DeviceCache, t: &Terminal) -> Result<Trainer, Error> {
    if is_program(&a.model) {
        super::load::refuse_compile_options(&a.compile, a.random_weights)?;
        let program = {
            let _progress = t.spinner(format!("loading {}", shown(&a.model)));
            let read = ReadOptions { memory_limit: a.compile.memory_limit, ..ReadOptions::default() };
            load_with(&a.model, &read)?
        };
        let ports = Ports::of_program(&program);
        let training = training(a, &ports, t)?;
        let roles = ports.roles(&training)?;
        let _progress = super::load::compiling(gpu, &a.model, t);
        return Trainer::new_as(gpu, &program, training, roles);
    }
    let file = opened_file(&a.model, a.random_weights, t)?;
    say_random_weights(&file, t);
    let mut options: Options = a.compile.options()?;
    options.tuning = std::mem::take(&mut cache.tuning);
    options.profile.speeds = cache.speeds;
    let clear = |e| super::load::without_weights(e, &file);
    let ports = Ports::of_file(&file, &options).map_err(clear)?;
    let training = training(a, &ports, t)?;
    let roles = ports.roles(&training)?;
    say_order(&roles, t);
    let _progress = super::load::compiling(gpu, &a.model, t);
    Trainer::compile_as(gpu, &file, training, roles, &options).map_err(clear)
}

/// Notes which inputs were paired with outputs by their order alone.
fn say_order(roles: &Roles, t: &Terminal) {
    let named = roles.states.len() - roles.by_order;
    if let Some(((i, o), others)) = roles.states.get(named..).and_then(<[_]>::split_first) {
        let others = if others.is_empty() {
            String::new()
        } else {
            format!(", and {} more in their order", others.len())
        };
        t.note(&format!(
            "output `{o}` is input `{i}` of the next step{others}; the loss is `{}`",
            roles.loss
        ));
    }
}

/// The data options with which `--input` and `--init` are read.
fn sources(a: &TrainArgs, inputs: Vec<String>) -> DataArgs {
    let (random_weights, cast) = (a.random_weights, a.cast);
    let image_norm = ImageNorm::default();
    DataArgs { inputs, random_inputs: false, cast, random_weights, image_norm, trust: false }
}

/// The training that the options describe. Files of inputs are read; those of data are mapped into memory.
fn training(a: &TrainArgs, ports: &Ports, t: &Terminal) -> Result<Training, Error> {
    let given = sources(a, a.inputs.clone());
    let mut training = Training {
        inputs: inputs::make_given(ports.inputs(), &a.compile.dims, &given, a.compile.memory_limit, t)?,
        states: a.carry.iter().chain(&a.compile.states).cloned().collect(),
        loss: a.loss.clone(),
        batch: a.batch.map(|b| b as usize),
        seed: (!a.no_shuffle).then(|| a.seed.unwrap_or(0)),
        in_flight: a.in_flight as usize,
        any_loss: a.any_loss,
        ..Training::default()
    };
    let budget = Budget::of_data(a.compile.memory_limit);
    let mut problems = vec![];
    // Data with a name comes first, so that its inputs are no candidates for data without a name.
    let (named, plain): (Vec<&String>, Vec<&String>) =
        a.data.iter().partition(|text| inputs::named(ports.inputs(), text).is_some());
    for text in named.into_iter().chain(plain) {
        let (port, file) = match inputs::named(ports.inputs(), text) {
            Some((port, file)) => (port, file),
            None => match (ports.data_input(&training), text.split_once('=')) {
                (Some(port), None) => (port, text.as_str()),
                (_, Some((name, _))) => {
                    problems.push(no_such_input(name, ports.inputs()));
                    continue;
                }
                (None, None) => {
                    problems.push(Problem::with_help(
                        format!("`--data {text}` does not say which input it is for"),
                        format!("write --data NAME={text}"),
                    ));
                    continue;
                }
            },
        };
        match rows(port, file.as_ref(), a.cast, &budget, t) {
            Ok(_) if training.data.contains_key(&port.name) => {
                problems.push(Problem::with_help(
                    format!("input `{}` has data twice", port.name),
                    "give them once",
                ));
            }
            Ok(rows) => drop(training.data.insert(port.name.clone(), rows)),
            Err(Error::Usage(more)) => problems.extend(more),
            Err(e) => return Err(e),
        }
    }
    if !problems.is_empty() {
        return Err(Error::Usage(problems));
    }
    if let Some(rows) = a.random_data {
        make_up(rows, ports, &mut training)?;
        t.note_always("the data are random");
    }
    Ok(training)
}

/// Maps the rows of an input, converted to its type.
fn rows(port: &ValueInfo, file: &Path, cast: bool, budget: &Budget, t: &Terminal) -> Result<Tensor, Error> {
    let wrong = |p: Problem| {
        let message = format!("input `{}`: its file {}", port.name, p.message);
        Error::Usage(vec![Problem { message, ..p }])
    };
    let (tensor, changed) = npy::fit(npy::map_within(file, budget)?, port.dtype, cast).map_err(wrong)?;
    if let Some(c) = changed {
        t.note(&format!("input `{}`: {c}", port.name));
    }
    Ok(tensor)
}

/// Generates random rows for the inputs that may have data without a name, in turn. If there are none, for all inputs with a
/// symbolic number of rows.
fn make_up(rows: u64, ports: &Ports, training: &mut Training) -> Result<(), Error> {
    let mut found: Vec<ValueInfo> = vec![];
    let mut probe = training.clone();
    while let Some(port) = ports.data_input(&probe).cloned() {
        probe.data.insert(port.name.clone(), Tensor::zeros(port.dtype, vec![0]));
        found.push(port);
    }
    if found.is_empty() {
        let open = |p: &&ValueInfo| p.shape.first().is_some_and(|d| d.as_const().is_none());
        let free = ports.inputs().iter().filter(open);
        found.extend(free.filter(|p| !training.inputs.contains_key(&p.name)).cloned());
    }
    let given: Vec<_> = training.data.iter().chain(&training.inputs).collect();
    let mut dims = BTreeMap::new();
    let shapes: Vec<_> = ports
        .inputs()
        .iter()
        .filter_map(|p| Some((p, given.iter().find(|(n, _)| **n == p.name)?.1.shape.as_slice())))
        .collect();
    wgfc::value_info::bind(&shapes, &mut dims);
    for port in found {
        let row = ValueInfo { shape: port.shape.iter().skip(1).cloned().collect(), ..port.clone() };
        let shape = row.shape_at(&dims).map_err(|names| {
            let message = format!(
                "random data of input `{}` cannot be generated: {} has no value",
                port.name,
                names.join(", ")
            );
            Error::usage(message, "fix it with --dim, or give the data")
        })?;
        let count = usize::try_from(rows).unwrap_or(usize::MAX);
        let shape: Vec<usize> = std::iter::once(count).chain(shape).collect();
        memory::afford(random::cost(port.dtype, &shape)).map_err(|e| {
            let message =
                format!("data of shape {shape:?} for input `{}` cannot be generated: it {e}", port.name);
            Error::usage(message, "make up fewer rows")
        })?;
        let tensor = random::tensor(port.dtype, shape, &port.name, 0);
        training.data.insert(port.name.clone(), tensor);
    }
    Ok(())
}

/// Sets the states before the first step: from a checkpoint, or from `--init`.
fn begin(a: &TrainArgs, trainer: &mut Trainer, t: &Terminal) -> Result<(), Error> {
    if let Some(path) = &a.resume {
        let wanted = trainer.seed();
        trainer.resume_within(path, &Budget::of_data(a.compile.memory_limit))?;
        if (a.seed.is_some() || a.no_shuffle) && trainer.seed() != wanted {
            let had = trainer.seed().map_or("in their order".to_owned(), |s| format!("with --seed {s}"));
            return Err(Error::file_help(
                path,
                format!("was written by a training that took rows {had}"),
                "leave out --seed and --no-shuffle, or begin anew with its states: --init instead of --resume",
            ));
        }
        return Ok(());
    }
    let states: Vec<ValueInfo> = trainer
        .session()
        .program()
        .states
        .iter()
        .map(|s| ValueInfo { name: s.name.clone(), dtype: s.dtype, shape: s.shape.clone(), broadcast: None })
        .collect();
    if a.init.is_empty() && !trainer.roles().states.is_empty() {
        t.note("all states that are inputs of the model begin with zeros; --init gives them other values");
    }
    let (mut files, mut one, mut problems) = (vec![], vec![], vec![]);
    for text in &a.init {
        // `NAME*=SOURCE` stands for all states whose names begin with `NAME`.
        let many = text.split_once("*=").map(|(start, source)| {
            let fit = states.iter().filter(|s| s.name.starts_with(start));
            fit.map(|s| format!("{}={source}", s.name)).collect::<Vec<_>>()
        });
        match many {
            Some(many) if !many.is_empty() => one.extend(many),
            _ if inputs::named(&states, text).is_some() => one.push(text.clone()),
            _ if text.ends_with(".safetensors") => files.push(text),
            _ => {
                let all: Vec<String> = states.iter().map(|s| s.name.clone()).collect();
                problems.push(match text.split_once('=') {
                    Some((name, _)) => Problem::with_help(
                        format!("the model has no state `{name}`"),
                        format!("its states are {}", super::some_of(&all)),
                    ),
                    None => Problem::with_help(
                        format!("`--init {text}` is neither a file nor a state"),
                        "write --init FILE.safetensors, or --init NAME=SOURCE",
                    ),
                });
            }
        }
    }
    if !problems.is_empty() {
        return Err(Error::Usage(problems));
    }
    let mut tensors = BTreeMap::new();
    let budget = Budget::of_data(a.compile.memory_limit);
    for file in files {
        tensors.extend(read_tensors_within(file.as_ref(), &budget)?);
    }
    let is_random = |text: &String| inputs::named(&states, text).is_some_and(|(_, s)| random::is_source(s));
    let (random, others): (Vec<String>, Vec<String>) = one.into_iter().partition(is_random);
    tensors.extend(inputs::make_given(&states, &[], &sources(a, others), a.compile.memory_limit, t)?);
    for (state, source) in random.iter().filter_map(|text| inputs::named(&states, text)) {
        let shape = state.shape_at(&BTreeMap::new()).unwrap_or_default();
        tensors.insert(state.name.clone(), random::weight_like(&state.name, state.dtype, shape, source)?);
    }
    if tensors.is_empty() { Ok(()) } else { trainer.begin_with(&tensors) }
}
