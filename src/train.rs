//! Training: a program that is one optimiser step, run batch after batch.
//!
//! A step is an ordinary program. It computes a loss, and the values that it updates (parameters, moments, the step count)
//! are its states, which stay on the device. [`Trainer`] gathers rows of the data into batches, uploads each batch while the
//! device works on the previous one, and reads losses as steps end. If a model takes its state as inputs and returns it as
//! outputs, these pairs become states.

mod checkpoint;
mod order;
mod roles;

use crate::model::device_error;
use crate::value_info::ValueInfo;
use crate::{Error, ModelFile, Options, Program, Tensor};
pub use checkpoint::{read_tensors, read_tensors_within};
use order::Order;
pub use roles::Roles;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use wgfc_compiler::loss_scale::SCALE;
use wgfc_compiler::lower::random::purpose;
use wgfc_compiler::{Precision, States};
use wgfc_runtime::session::{Finished, StreamOptions, Value};
use wgfc_runtime::{DeviceTensor, Gpu, Session};

/// A count with its noun: `1 row`, `2 rows`.
fn counted(n: usize, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

/// The data that a program is trained on, and how.
///
/// ```
/// use std::collections::BTreeMap;
/// use wgfc::{Tensor, Training};
/// // 100 rows of 6 numbers, in batches of 8, and a learning rate.
/// let rows = Tensor::from_f32(vec![100, 6], &[0.5; 600]);
/// let training = Training {
///     data: BTreeMap::from([("x".to_owned(), rows)]),
///     inputs: BTreeMap::from([("rate".to_owned(), Tensor::from_f32(vec![], &[0.01]))]),
///     batch: Some(8),
///     seed: Some(1),
///     ..Training::default()
/// };
/// # drop(training);
/// ```
#[derive(Clone, Debug, Default)]
pub struct Training {
    /// The inputs that change from step to step, with all rows along their first axis. A step takes the same rows of each.
    /// See [`npy::map`](crate::npy::map) for data that is larger than the memory.
    pub data: BTreeMap<String, Tensor>,
    /// Inputs that are the same in each step.
    pub inputs: BTreeMap<String, Tensor>,
    /// Pairs of an input and the output that is its value in the next step, in addition to those that [`Ports::roles`]
    /// finds.
    pub states: Vec<(String, String)>,
    /// The output that is the loss. By default it is the one called `loss`, else the first one that is a single float.
    pub loss: Option<String>,
    /// The number of rows of a step, if the program leaves it open.
    pub batch: Option<usize>,
    /// The seed by which rows are shuffled, anew in each epoch; `None` keeps their order. Rows at the end of an epoch that
    /// do not fill a batch are the first ones of the next epoch's first batch.
    pub seed: Option<u64>,
    /// The most steps that are in flight at a time; 0 stands for 2.
    pub in_flight: usize,
    /// Whether training continues after a loss that is infinite or NaN.
    pub any_loss: bool,
}

/// A step that has ended. See the example of [`Trainer::run`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Step {
    /// The number of the step, from 1 on.
    pub number: u64,
    /// The loss on the step's batch, with the parameters before the update.
    pub loss: f64,
}

/// A program in training.
///
/// ```no_run
/// use wgfc::runtime::{AdapterChoice, Gpu};
/// use wgfc::{ModelFile, Options, Trainer, Training, npy};
/// # fn main() -> Result<(), wgfc::Error> {
/// let training = Training {
///     data: [("x".to_owned(), npy::map("x.npy".as_ref())?)].into(),
///     batch: Some(64),
///     seed: Some(0),
///     ..Training::default()
/// };
/// let gpu = Gpu::request_blocking(&AdapterChoice::from_env()).map_err(wgfc::model::device_error)?;
/// let file = ModelFile::open("step.pt2".as_ref())?;
/// let mut trainer = Trainer::compile(&gpu, &file, training, &Options::default())?;
/// trainer.run(1000, |step| {
///     println!("{} {}", step.number, step.loss);
///     std::ops::ControlFlow::Continue(())
/// })?;
/// trainer.save("trained.safetensors".as_ref())?;
/// # Ok(()) }
/// ```
pub struct Trainer {
    session: Session,
    training: Training,
    roles: Roles,
    /// The inputs that are the same in each step.
    fixed: Vec<(String, DeviceTensor)>,
    /// The optional inputs that seed the step's random numbers and are not given: the name, and its purpose (`seed` or the
    /// step's number).
    draws: Vec<(String, &'static str)>,
    order: Order,
    /// Steps done, and the number of rows that they took.
    step: u64,
    samples: u64,
}

/// The inputs and outputs of a step, apart from its states.
///
/// ```
/// # fn main() -> Result<(), wgfc::Error> {
/// # let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/torch/train_step.pt2");
/// use wgfc::train::Ports;
/// use wgfc::{ModelFile, Options, Tensor, Training};
/// let ports = Ports::of_file(&ModelFile::open(&path)?, &Options::default())?;
/// let training = Training {
///     data: [("x".to_owned(), Tensor::from_f32(vec![20, 6], &[0.5; 120]))].into(),
///     inputs: [("rate".to_owned(), Tensor::from_f32(vec![], &[0.01]))].into(),
///     batch: Some(8),
///     ..Training::default()
/// };
/// let roles = ports.roles(&training)?;
/// assert_eq!((roles.batch, roles.rows), (8, 20));
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Ports(wgfc_compiler::training::Ports);

impl Ports {
    /// The ports of a model that is not compiled yet.
    pub fn of_file(file: &ModelFile, options: &Options) -> Result<Ports, Error> {
        Ok(Ports(wgfc_compiler::training::Ports::of_graph(&file.import(options)?.graph)))
    }
    /// The ports of a program.
    pub fn of_program(program: &Program) -> Ports {
        Ports(wgfc_compiler::training::Ports::of_program(program))
    }
    /// Inputs, in the model's order.
    pub fn inputs(&self) -> &[ValueInfo] {
        &self.0.inputs
    }
    /// Outputs, in the model's order.
    pub fn outputs(&self) -> &[ValueInfo] {
        &self.0.outputs
    }
}

/// The error for a program in f16 that does not scale its loss.
fn in_half() -> Error {
    Error::usage(
        "this program stores values as f16 and does not scale its loss: gradients may be too small for f16",
        "compile the step with --loss-scale, or train the model itself with --precision f16",
    )
}

impl Trainer {
    /// Compiles a model for a device, with the values that it updates as states, and uploads it. With [`Precision::F16`] the loss is scaled
    /// ([`Options::loss_scale`]).
    ///
    /// # Errors
    /// Errors of [`Ports::roles`], of the compilation and of the device.
    ///
    /// ```no_run
    /// # fn compile(gpu: &wgfc::runtime::Gpu, training: wgfc::Training) -> Result<(), wgfc::Error> {
    /// use wgfc::{ModelFile, Options, Trainer};
    /// let file = ModelFile::open("step.pt2".as_ref())?;
    /// let trainer = Trainer::compile(gpu, &file, training, &Options::default())?;
    /// println!("the loss is {}, and {} states stay on the device", trainer.roles().loss, trainer.roles().states.len());
    /// # Ok(()) }
    /// ```
    pub fn compile(
        gpu: &Gpu,
        file: &ModelFile,
        training: Training,
        options: &Options,
    ) -> Result<Trainer, Error> {
        let roles = Ports::of_file(file, options)?.roles(&training)?;
        Trainer::compile_as(gpu, file, training, roles, options)
    }

    /// [`Trainer::compile`] with given roles of inputs and outputs.
    ///
    /// # Errors
    /// Errors of the compilation and of the device.
    pub fn compile_as(
        gpu: &Gpu,
        file: &ModelFile,
        training: Training,
        roles: Roles,
        options: &Options,
    ) -> Result<Trainer, Error> {
        let mut options = roles.options(gpu, options);
        if options.precision == Precision::F16 {
            options.loss_scale.get_or_insert_default();
        }
        let program = file.compile(&options)?;
        Trainer::new_as(gpu, &program, training, roles)
    }

    /// Uploads a compiled program, whose states must include all values that it updates.
    ///
    /// # Errors
    /// Errors of [`Ports::roles`] and of the device.
    ///
    /// ```no_run
    /// # fn new(gpu: &wgfc::runtime::Gpu, training: wgfc::Training) -> Result<(), wgfc::Error> {
    /// // A step that was compiled ahead, with its states.
    /// let program = wgfc::load("step.wgfc".as_ref())?;
    /// let trainer = wgfc::Trainer::new(gpu, &program, training)?;
    /// # Ok(()) }
    /// ```
    pub fn new(gpu: &Gpu, program: &Program, training: Training) -> Result<Trainer, Error> {
        let roles = Ports::of_program(program).roles(&training)?;
        Trainer::new_as(gpu, program, training, roles)
    }

    /// [`Trainer::new`] with given roles of inputs and outputs.
    ///
    /// # Errors
    /// An error of the device.
    pub fn new_as(gpu: &Gpu, program: &Program, training: Training, roles: Roles) -> Result<Trainer, Error> {
        if program.stats.halved.is_some() && !program.states.iter().any(|s| s.name == SCALE) {
            return Err(in_half());
        }
        let session = Session::new_blocking(gpu, program).map_err(device_error)?;
        let upload =
            |(n, t): (&String, &Tensor)| Ok((n.clone(), gpu.upload_blocking(t).map_err(device_error)?));
        let fixed = training.inputs.iter().map(upload).collect::<Result<_, Error>>()?;
        let order = Order::new(roles.rows, training.seed);
        let optional = program.inputs.iter().filter(|p| p.broadcast.is_some());
        let draws = optional
            .filter(|p| !training.inputs.contains_key(&p.name))
            .filter_map(|p| Some((p.name.clone(), purpose(&p.name)?)))
            .collect();
        Ok(Trainer { session, training, roles, fixed, draws, order, step: 0, samples: 0 })
    }

    /// The roles of inputs and outputs.
    pub fn roles(&self) -> &Roles {
        &self.roles
    }
    /// The session, whose states have the values that the last step has left.
    pub fn session(&mut self) -> &mut Session {
        &mut self.session
    }
    /// Steps done.
    pub fn step(&self) -> u64 {
        self.step
    }
    /// The seed by which rows are shuffled. After [`Trainer::resume`] it is the checkpoint's.
    pub fn seed(&self) -> Option<u64> {
        self.order.seed()
    }

    /// The scale of the loss after the last step, if the program scales it: see [`loss_scale`](wgfc_compiler::loss_scale).
    pub fn loss_scale(&self) -> Option<f64> {
        let states = self.session.states_named_blocking(&[SCALE]).ok()?;
        states.get(SCALE)?.scalars()?.first().map(|s| s.as_f64())
    }

    /// Runs this many steps, or fewer if `each` breaks off. `each` is called with every step in order, once its loss is
    /// known. Steps that are in flight when it breaks off are still completed.
    ///
    /// # Errors
    /// The error of a step, with its number; a loss that is not finite, unless [`Training::any_loss`] allows it.
    ///
    /// ```
    /// # fn main() -> Result<(), wgfc::Error> {
    /// # let Some(gpu) = wgfc::runtime::testing::gpus().first().cloned() else { return Ok(()) };
    /// # let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/torch/train_step.pt2");
    /// # use wgfc::{ModelFile, Options, Tensor, Trainer, Training};
    /// # let training = Training {
    /// #     data: [("x".to_owned(), wgfc::random::tensor(wgfc::DType::F32, vec![20, 6], "x", 0))].into(),
    /// #     inputs: [("rate".to_owned(), Tensor::from_f32(vec![], &[0.01]))].into(),
    /// #     batch: Some(8),
    /// #     ..Training::default()
    /// # };
    /// # let file = ModelFile::open(&path)?;
    /// use std::ops::ControlFlow;
    /// let mut trainer = Trainer::compile(&gpu, &file, training, &Options::default())?;
    /// trainer.run(5, |step| {
    ///     println!("step {}: loss {}", step.number, step.loss);
    ///     if step.loss < 1e-3 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    /// })?;
    /// assert!(trainer.step() <= 5);
    /// # Ok(()) }
    /// ```
    pub fn run(&mut self, steps: u64, mut each: impl FnMut(Step) -> ControlFlow<()>) -> Result<(), Error> {
        let Trainer { session, training, roles, fixed, draws, order, step, samples } = self;
        let options = StreamOptions {
            in_flight: if training.in_flight == 0 { 2 } else { training.in_flight },
            outputs: Some(vec![roles.loss.clone()]),
            first: *step + 1,
        };
        let mut inputs: Vec<(&str, Value)> =
            fixed.iter().map(|(n, t)| (n.as_str(), Value::Device(t.clone()))).collect();
        let same = inputs.len();
        let mut stream = session.stream(options).map_err(device_error)?;
        let mut wrong: Option<Step> = None;
        let mut ended = |run: Finished| {
            let loss = run.outputs.first().and_then(|(_, t)| t.scalars()?.first().map(|s| s.as_f64()));
            let s = Step { number: run.step, loss: loss.unwrap_or(f64::NAN) };
            if !s.loss.is_finite() && !training.any_loss {
                wrong.get_or_insert(s);
            }
            // Steps that were in flight when a loss was not finite are not reported.
            let told = wrong.is_none_or(|w| w.number >= s.number);
            match told && each(s).is_continue() && wrong.is_none() {
                true => ControlFlow::Continue(()),
                false => ControlFlow::Break(()),
            }
        };
        let (end, mut flow) = (step.saturating_add(steps), ControlFlow::Continue(()));
        while *step < end && flow.is_continue() {
            let rows: Vec<usize> = (0..roles.batch as u64).map(|i| order.row(*samples + i)).collect();
            for (name, all) in &training.data {
                let shape: Vec<usize> =
                    std::iter::once(rows.len()).chain(all.shape[1..].iter().copied()).collect();
                let bytes = all.bytes().unwrap_or_default();
                let size = bytes.len() / roles.rows;
                let filled = stream.upload_blocking(name, shape, |to| {
                    rows.iter().for_each(|r| to.put(bytes.get(r * size..(r + 1) * size).unwrap_or_default()));
                });
                inputs.push((name.as_str(), Value::Device(filled.map_err(device_error)?)));
            }
            inputs.extend(draws.iter().map(|(name, of)| {
                let number = if *of == "seed" { order.seed().unwrap_or(0) } else { *step };
                (name.as_str(), Value::Host(Tensor::from_i64(vec![], &[number.cast_signed()])))
            }));
            stream.push_blocking(&inputs).map_err(device_error)?;
            inputs.truncate(same);
            *step += 1;
            *samples += rows.len() as u64;
            while let (true, Some(run)) = (flow.is_continue(), stream.ended()) {
                flow = ended(run);
            }
        }
        while let Some(run) = stream.next_blocking().map_err(device_error)? {
            // All remaining steps are reported, even after a break.
            let _ = ended(run);
        }
        match wrong {
            None => Ok(()),
            Some(s) => Err(Error::usage(
                format!(
                    "the loss of step {} is {}",
                    s.number,
                    if s.loss.is_nan() { "not a number" } else { "infinite" }
                ),
                "try a smaller learning rate or other data; the states are useless now: resume from a checkpoint (--any-loss continues nevertheless)",
            )),
        }
    }
}

impl Roles {
    /// The options of a compilation in which the continued inputs are states and symbols have the values of a step.
    fn options(&self, gpu: &Gpu, options: &Options) -> Options {
        let mut options = Options { profile: options.profile.with_limits(gpu.profile()), ..options.clone() };
        let given = self.dims.iter().map(|(n, v)| (n.clone(), *v));
        given.for_each(|(n, v)| _ = options.dims.entry(n).or_insert(v));
        let capacity = match options.states {
            States::Auto { capacity } | States::Named { capacity, .. } => capacity,
            States::None => None,
        };
        if !self.states.is_empty() {
            options.states = States::Named { pairs: self.states.clone(), capacity };
        }
        options
    }
}
