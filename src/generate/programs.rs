//! The programs of a decoder: for prompts, for a single token, and for sampling within limits.

use super::choose::Limits;
use super::head::Chosen;
use super::roles::{self, Context, Input};
use super::{Decoder, GeneratorOptions, fixed, head};
use crate::model::device_error;
use crate::value_info::{ValueInfo, graph_values, program_values};
use crate::{Bundle, Error, ModelFile, Options, Program, Tensor};
use wgfc_compiler::decoding::{self, joined};
use wgfc_compiler::pipeline::{Fused, compile_graph};
use wgfc_compiler::{
    Activations, CacheType, DeviceProfile, Diagnostic, Errors, Precision, States, WeightBits,
};
use wgfc_ir::graph::State;
use wgfc_ir::program::Stats;
use wgfc_ir::{Atom, BinaryOp, DType, Dim, GatherAxis, Graph, Op, Poly, ScalarNode, TensorType};
use wgfc_runtime::Gpu;

/// The number of cached positions for which attention over several sequences is optimised unless the caller expects another.
/// With few positions attention costs little; with many, the caches are most of the bytes that a step reads.
const PAST_OF_SEVERAL: i64 = 1024;
/// The most tokens of a run that verifies a proposal.
const MOST_VERIFIED: i64 = 64;

/// The options of a decoder's programs.
pub(super) struct Compilations {
    /// The program for prompts; absent if the model takes one token at a time, or prompts are to be processed so.
    pub long: Option<Options>,
    /// The program for a single token.
    pub single: Options,
    /// The symbol for the number of tokens of a run; `None` if it is 1.
    seq: Option<String>,
    /// Whether the first axis of past keys and values is that of the sequences.
    pub rows_lead: bool,
}

impl Compilations {
    /// The options of the program that takes `positions` tokens and chooses the token behind each.
    pub fn verification(&self, positions: usize) -> Result<Options, Error> {
        let count = i64::try_from(positions).ok().filter(|n| (2..=MOST_VERIFIED).contains(n));
        let count = count.ok_or_else(|| {
            let message = format!("{} tokens cannot be proposed for a run", positions.saturating_sub(1));
            Error::usage(message, format!("give a number from 1 to {}", MOST_VERIFIED - 1))
        })?;
        let seq = self.seq.clone().ok_or_else(|| {
            Error::usage(
                "the model takes one token a run, so proposed tokens cannot be verified together",
                "generate without speculation, or export the model with a symbolic sequence length",
            )
        })?;
        let mut options = self.single.clone();
        options.dims.insert(seq, count);
        Ok(options)
    }
}

/// The options of the programs for `batch` sequences.
pub(super) fn compilations(
    gpu: &Gpu,
    decoder: &Decoder,
    options: &GeneratorOptions,
    batch: usize,
) -> Result<Compilations, Error> {
    let common = common(gpu, decoder, options)?;
    let mut all = both(decoder.source()?, common, batch, options.chunk())?;
    all.long = all.long.filter(|_| options.chunk() > 1);
    Ok(all)
}

/// The options of the programs of a decoder whose cache is in pages.
pub(super) struct PagedCompilations {
    /// The program for parts of prompts; absent if prompts are to be processed token by token.
    pub prompts: Option<Options>,
    /// The programs for a single token of each of several sequences.
    pub each: Vec<Options>,
}

/// The options of the programs for the given numbers of sequences, in pages of `page` positions.
pub(super) fn paged(
    gpu: &Gpu,
    decoder: &Decoder,
    options: &GeneratorOptions,
    rows: &[usize],
    page: usize,
) -> Result<PagedCompilations, Error> {
    let extent = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
    let mut common = common(gpu, decoder, options)?;
    common.page = Some(extent(page));
    // Expectations of positions are those of a cache that grows.
    let past = common.expect.0.remove("past").unwrap_or(PAST_OF_SEVERAL);
    common.expect.0.entry("blocks".into()).or_insert(past / extent(page) + 1);
    let of = |batch: usize| {
        let mut one = common.clone();
        one.dims.insert("batch".into(), extent(batch));
        one
    };
    let single = |batch: usize| {
        let mut one = of(batch);
        one.dims.insert("seq".into(), 1);
        one
    };
    let prompts = (options.chunk() > 1).then(|| {
        let mut long = of(1);
        long.expect.0.entry("seq".into()).or_insert(extent(options.chunk()));
        long
    });
    Ok(PagedCompilations { prompts, each: rows.iter().copied().map(single).collect() })
}

/// The options that all programs of a decoder have in common.
pub(super) fn common(gpu: &Gpu, decoder: &Decoder, options: &GeneratorOptions) -> Result<Options, Error> {
    check_capacity(options)?;
    Ok(Options {
        fusion: options.fusion,
        without: options.without.clone(),
        profile: DeviceProfile { speeds: options.speeds, ..DeviceProfile::default() }
            .with_limits(gpu.profile()),
        tuning: options.tuning.clone(),
        expect: options.expect.clone(),
        precision: options.precision,
        keep_f32: options.keep_f32.clone(),
        weights: options.weights,
        activations: options.activations,
        cache: options.cache,
        added: options.added.clone(),
        replaced: options.replaced.clone(),
        memory_limit: decoder.memory_limit(),
        ..Options::default()
    })
}

fn check_capacity(options: &GeneratorOptions) -> Result<(), Error> {
    if options.capacity == 0 || i32::try_from(options.capacity).is_err() {
        let message = format!("the cache cannot have room for {} positions", options.capacity);
        return Err(Error::usage(message, "give a capacity between 1 and 2147483647"));
    }
    Ok(())
}

/// Compiles a decoder into a bundle with the plan `decode` for a single token and, unless the model takes one token at a
/// time, the plan `prefill` for prompts. The cache is their state, with as many positions as each session allocates.
/// Dimensions in `options` are ignored if they are the decoder's own.
///
/// # Errors
/// As for [`Generator::new`](super::Generator::new), and [`Options::page`].
///
/// ```
/// # fn main() -> Result<(), wgfc::Error> {
/// # let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/small/decoder/model.onnx");
/// # let folder = tempfile::tempdir().unwrap();
/// # let out = folder.path().join("decoder.wgfc");
/// use wgfc::generate::compile_decoder;
/// use wgfc::{Decoder, Options};
/// let bundle = compile_decoder(&Decoder::open(&path)?, &Options::default())?;
/// let names: Vec<&str> = bundle.plans.iter().map(|p| p.name.as_str()).collect();
/// assert!(names.contains(&"decode") && names.contains(&"prefill"));
/// wgfc::save_bundle(&bundle, &out, &Default::default())?;
/// assert!(Decoder::open(&out)?.compiled().is_some());
/// # Ok(()) }
/// ```
pub fn compile_decoder(decoder: &Decoder, options: &Options) -> Result<Bundle, Error> {
    let file = decoder.source()?;
    if options.page.is_some() {
        return Err(Error::usage(
            "a folder that generates one sequence has a cache that grows, and no pages",
            "leave out --page, or leave out --generate and give the program its block_table",
        ));
    }
    let symbols = roles::symbols(file, options.memory_limit)?;
    let plans = decoding::plans(&symbols, Options { dims: Default::default(), ..options.clone() });
    let one = |(name, options): (String, Options)| {
        let (program, caches) = compile(file, &options, &Context::new(), Features::None, &|_| Ok(()))?;
        match caches.fixed {
            None => Ok((name, program)),
            Some(_) => Err(Error::file_help(
                decoder.path(),
                "has a cache of fixed size, whose positions a compiled folder does not tell",
                "generate with the model itself, or compile it without --generate and run it with Session",
            )),
        }
    };
    let programs = plans.into_iter().map(one).collect::<Result<Vec<_>, Error>>()?;
    Ok(Bundle::new(programs))
}

/// The plans of a compiled decoder that the device can run: for prompts if there is one, and for a single token.
pub(super) fn compiled(
    gpu: &Gpu,
    decoder: &Decoder,
    bundle: &Bundle,
    options: &GeneratorOptions,
) -> Result<(Option<Program>, Program), Error> {
    check_capacity(options)?;
    if options.speculate > 0 {
        return Err(Error::usage(
            "the decoder is compiled, and has no program that verifies proposed tokens",
            "give the model itself, or generate without speculation",
        ));
    }
    if options.precision != Precision::F32
        || options.weights != WeightBits::Own
        || options.activations != Activations::Own
        || options.cache != CacheType::Own
        || !options.keep_f32.is_empty()
    {
        return Err(Error::usage(
            "the decoder is compiled: its precision and the bits of its weights, activations and cache are fixed",
            "give --precision, --weights, --activations, --cache and --keep-f32 to `wgfc compile --generate`, or give the model itself",
        ));
    }
    let (plans, _) = wgfc_runtime::plans::choose(bundle, gpu.summary()).map_err(device_error)?;
    let program = |single| {
        let tokens = |p: &Program| {
            let ports = program_values(&p.inputs);
            let ids = roles::ids(&ports)?;
            let one = ids.shape.last().and_then(Dim::as_const) == Some(1);
            let open = ids.shape.last().is_some_and(|d| d.as_const().is_none());
            Some(if single { one } else { open })
        };
        let found = plans.iter().find(|p| tokens(&p.program) == Some(true))?;
        Some(found.program.clone())
    };
    let short = program(true).filter(|p| {
        let outputs = [head::LOGITS, head::TOKEN].iter().all(|n| p.outputs.iter().any(|o| o.name == **n));
        outputs && p.inputs.iter().any(|i| i.name == head::CHOICE)
    });
    let short = short.ok_or_else(|| {
        Error::file_help(
            decoder.path(),
            "holds no plan that generates tokens",
            "compile the model with `wgfc compile --generate`, or give the model itself",
        )
    })?;
    Ok((program(false), short))
}

/// The options of the program for prompts, of which `prompt` tokens are expected in a run, unless the model takes one token at a time,
/// and of the program for a single token. [`Compilations::verification`] makes those of a third one from these.
fn both(file: &ModelFile, common: Options, batch: usize, prompt: usize) -> Result<Compilations, Error> {
    let symbols = roles::symbols(file, common.memory_limit)?;
    let rows = i64::try_from(batch).ok().filter(|b| (1..=i64::from(u16::MAX)).contains(b));
    let rows = rows.ok_or_else(|| {
        let message = format!("{batch} sequences at a time cannot be generated");
        Error::usage(message, "give a number between 1 and 65535")
    })?;
    if batch > 1 && symbols.batch.is_none() {
        return Err(Error::usage(
            format!("the model takes one sequence at a time, not {batch}"),
            "export it with a symbolic batch size",
        ));
    }
    let common = Options { dims: symbols.batch.iter().map(|b| (b.clone(), rows)).collect(), ..common };
    let one = symbols.seq.iter().map(|s| (s.clone(), 1));
    let mut single = Options { dims: common.dims.clone().into_iter().chain(one).collect(), ..common.clone() };
    let mut rows_lead = batch == 1;
    if let (2.., Some(seq)) = (batch, &symbols.seq) {
        let past = roles::past(file, common.memory_limit)?;
        let leads = |p: &ValueInfo| {
            let first = p.shape.first().and_then(Dim::as_atom);
            first.is_some_and(|a| matches!(a, Atom::Sym(s) if Some(&**s) == symbols.batch.as_deref()))
        };
        rows_lead = !past.is_empty() && past.iter().all(leads);
        for past in roles::symbols_of(&past, seq) {
            if !single.dims.contains_key(&past) {
                single.expect.0.entry(past).or_insert(PAST_OF_SEVERAL);
            }
        }
    }
    let long = symbols.seq.clone().map(|seq| {
        let mut long = common;
        let tokens = i64::try_from(prompt).unwrap_or(i64::MAX);
        long.expect.0.entry(seq).or_insert(tokens);
        long
    });
    Ok(Compilations { long, single, seq: symbols.seq, rows_lead })
}

/// The programs of a [`Generator`](super::Generator) before their kernels are generated, each with the options that it was
/// fused with. [`tune`](crate::tune::tune) measures them.
///
/// # Errors
/// As for [`Generator::new`](super::Generator::new).
///
/// ```no_run
/// use wgfc::generate::{Decoder, GeneratorOptions, fused};
/// use wgfc::tune::{TuneOptions, tune};
/// # fn main() -> Result<(), wgfc::Error> {
/// # let gpu = wgfc::runtime::testing::gpus()[0].clone();
/// let decoder = Decoder::open("qwen".as_ref())?;
/// for (program, options) in fused(&gpu, &decoder, &GeneratorOptions::default())? {
///     let tuned = tune(&gpu, &program, &options, &TuneOptions::default(), &|_| false, &|_, _| {})?;
///     println!("{} kernels measured", tuned.measured.len());
/// }
/// # Ok(()) }
/// ```
pub fn fused(
    gpu: &Gpu,
    decoder: &Decoder,
    options: &GeneratorOptions,
) -> Result<Vec<(Fused, Options)>, Error> {
    let all = compilations(gpu, decoder, options, 1)?;
    let verified = match options.speculate {
        0 => None,
        n => Some((all.verification(n.saturating_add(1))?, Chosen::All)),
    };
    let context = &options.context;
    let fuse = |(o, chosen, features): (Options, Chosen, Features)| {
        let amend = &mut |g: &mut Graph| decoder_graph(g, context, chosen, features, &o.taps).map(|_| ());
        let fused = decoder.source()?.fuse_amended(&o, amend)?;
        Ok((fused, o))
    };
    let single = (all.single, Chosen::Last, Features::None);
    let long = all.long.map(|o| (o, Chosen::Last, Features::Taken));
    let verified = verified.map(|(o, chosen)| (o, chosen, Features::None));
    [Some(single), long, verified].into_iter().flatten().map(fuse).collect()
}

/// The cache of a program.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Caches {
    /// Whether each sequence has its own end in the states.
    pub own_ends: bool,
    /// The number of positions of states of fixed size; `None` for states that grow.
    pub fixed: Option<usize>,
}

/// Whether tokens of a program may stand for features of pictures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Features {
    /// They are tokens of the vocabulary.
    None,
    /// They may, if the model has the embeddings of its tokens from a model in front: see [`joined`].
    Taken,
}

/// A decoder's program and its cache. `check` may refuse the graph before weights are read.
pub(super) fn compile(
    file: &ModelFile,
    options: &Options,
    context: &Context,
    features: Features,
    check: &dyn Fn(&Graph) -> Result<(), Error>,
) -> Result<(Program, Caches), Error> {
    let (mut caches, mut refused) = (Caches::default(), None);
    let program = file.compile_amended(options, &mut |graph| {
        caches = decoder_graph(graph, context, Chosen::Last, features, &options.taps)?;
        check(graph).map_err(|e| {
            let words = Diagnostic::unsupported(e.to_string());
            refused = Some(e);
            Errors(vec![words])
        })
    });
    match refused {
        Some(e) => Err(e),
        None => Ok((program?, caches)),
    }
}

/// The program that verifies a proposal.
pub(super) struct Verifier {
    pub program: Program,
    /// Polynomials in the number of tokens before the run. Where the sign of one changes, so do values that depend on the number
    /// of tokens so far and on nothing else.
    pub turns: Vec<Poly>,
}

/// Compiles the program that verifies a proposal.
pub(super) fn verifier(file: &ModelFile, options: &Options, context: &Context) -> Result<Verifier, Error> {
    let mut turns = vec![];
    let program = file.compile_amended(options, &mut |graph| {
        decoder_graph(graph, context, Chosen::All, Features::None, &[])?;
        turns = conditions(graph);
        Ok(())
    })?;
    Ok(Verifier { program, turns })
}

/// The differences that conditions compare with zero, of conditions that depend on the extents of the run only.
fn conditions(graph: &Graph) -> Vec<Poly> {
    let mut found = vec![];
    for id in graph.node_ids() {
        let Op::Map { body, .. } = &graph.node(id).op else { continue };
        let extent = |i: u32| match body.nodes.get(i as usize) {
            Some(ScalarNode::Index(p)) if p.vars().is_empty() => Some(p),
            _ => None,
        };
        for node in &body.nodes {
            use BinaryOp::{Ge, Gt, Le, Lt};
            let ScalarNode::Binary(op @ (Gt | Ge | Lt | Le), a, b) = node else { continue };
            let (Some(a), Some(b)) = (extent(*a), extent(*b)) else { continue };
            let difference = match op {
                Gt => a - b,
                Ge => &(a - b) + 1,
                Lt => b - a,
                _ => &(b - a) + 1,
            };
            if difference.as_const().is_none() && !found.contains(&difference) {
                found.push(difference);
            }
        }
    }
    found
}

/// The symbol of the number of tokens of a run.
pub(super) fn tokens_symbol(program: &Program) -> Option<String> {
    let ports = program_values(&program.inputs);
    Some(roles::ids(&ports)?.shape.last()?.symbols().into_iter().next()?.to_string())
}

/// The tokens of a run for prompts: at most `most`, and at most as many as the model accepts.
pub(super) fn chunk(program: &Program, most: usize) -> usize {
    let symbol = tokens_symbol(program);
    let fits = |n: usize| {
        let value = |s: &str| if symbol.as_deref() == Some(s) { i64::try_from(n).ok() } else { None };
        // Requirements with other symbols are checked in each run.
        program
            .constraints
            .iter()
            .all(|c| c.a.eval_syms(&value).zip(c.b.eval_syms(&value)).is_none_or(|(a, b)| a == b))
    };
    let most = most.max(1);
    if fits(most) {
        return most;
    }
    // Models accept all numbers up to a bound.
    let (mut least, mut above) = (1, most);
    while above - least > 1 {
        let middle = least + (above - least) / 2;
        if fits(middle) { least = middle } else { above = middle }
    }
    least
}

/// A decoder's program that returns the logits of all positions of a run, and the number of positions of a cache of fixed size.
pub(super) fn compile_scoring(
    file: &ModelFile,
    options: &Options,
    context: &Context,
) -> Result<(Program, Option<usize>), Error> {
    let mut positions = None;
    let program = file.compile_amended(options, &mut |graph| {
        let inputs = cached(graph, context)?;
        positions = fixed::positions(graph, &inputs)?;
        head::all_logits(graph)
    })?;
    Ok((program, positions))
}

/// Turns the decoder's cache into states, and its outputs into the logits and the chosen token of the last position or of all, and `taps`.
fn decoder_graph(
    graph: &mut Graph,
    context: &Context,
    chosen: Chosen,
    features: Features,
    taps: &[String],
) -> Result<Caches, Errors> {
    let inputs = cached(graph, context)?;
    if features == Features::Taken && joined::width(graph).is_some() {
        joined::take_features(graph).map_err(Diagnostic::internal)?;
    }
    let own_ends = graph.states.iter().all(|s| ends_by_data(graph, s));
    let fixed = fixed::positions(graph, &inputs)?;
    head::replace_outputs(graph, ids_type(&inputs), chosen, taps)?;
    Ok(Caches { own_ends, fixed })
}

/// Turns the decoder's cache into states. Returns its other inputs.
fn cached(graph: &mut Graph, context: &Context) -> Result<Vec<Input>, Errors> {
    let introduced = wgfc_compiler::states::introduce(graph, &States::Auto { capacity: None });
    let ports = graph_values(graph, &graph.inputs);
    let why = introduced.as_ref().err().and_then(|e| e.0.first()).map(|d| d.message.clone());
    let inputs = roles::inputs(&ports, why.as_deref(), context).map_err(Errors)?;
    introduced.map_err(no_decoder)?;
    Ok(inputs)
}

/// Whether the position at which a state appends depends on data.
fn ends_by_data(graph: &Graph, s: &State) -> bool {
    match (&graph.node(s.after.node).op, &s.growth) {
        (Op::Scatter { index, .. }, Some(g)) => matches!(index.get(g.axis), Some(GatherAxis::Data { .. })),
        _ => false,
    }
}

/// The program that samples within limits.
pub(super) fn limited(
    logits: TensorType,
    limits: Limits,
    ids: DType,
    options: &Options,
) -> Result<Program, Error> {
    let graph = head::limited(logits, limits, ids).map_err(|m| Errors::from(Diagnostic::internal(m)))?;
    Ok(compile_graph(graph, Stats::default(), options, &mut |_, _| {})?)
}

/// The size of the vocabulary: the last extent of the logits.
pub(super) fn vocabulary(program: &Program) -> Result<usize, Error> {
    let logits = program.outputs.iter().find(|p| p.name == head::LOGITS);
    let size = logits.and_then(|p| usize::try_from(p.shape.last()?.as_const()?).ok());
    size.ok_or_else(|| Error::Internal("a vocabulary without a size".into()))
}

pub(super) fn ids_type(inputs: &[Input]) -> DType {
    inputs.iter().find(|i| i.is_ids()).map_or(DType::I64, |i| i.dtype)
}

/// Replaces the compiler's advice about states by advice that applies to decoders.
fn no_decoder(mut errors: Errors) -> Errors {
    for d in &mut errors.0 {
        d.help = Some(
            "export the model with its cache: past keys and values as inputs, present ones as outputs".into(),
        );
    }
    errors
}

/// Makes weights of `to` share the memory of equal ones in `from`, so that they are uploaded once.
pub(super) fn share_weights(from: &Program, to: &mut Program) {
    for (name, w) in &mut to.weights {
        let same = |o: &&Tensor| *o == w;
        if let Some(other) = from.weights.get(name).filter(same) {
            *w = other.clone();
        }
    }
}
