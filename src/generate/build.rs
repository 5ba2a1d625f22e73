//! The creation of a generator: its programs are compiled side by side, checked against the device's memory, and uploaded.

use super::chooser::Chooser;
use super::chunks::Chunks;
use super::fits::Sizes;
use super::programs::{
    self, Compilations, Features, Verifier, compilations, compile, share_weights, vocabulary,
};
use super::speculate::Speculation;
use super::vision::Pictures;
use super::{Decoder, Generator, GeneratorOptions, Setup, head, roles, saved};
use crate::model::device_error;
use crate::value_info::program_values;
use crate::{Error, Options, Program};
use std::sync::OnceLock;
use std::time::Instant;
use wgfc_compiler::decoding::joined::FEATURES;
use wgfc_compiler::{DeviceProfile, Errors};
use wgfc_ir::Graph;
use wgfc_runtime::kernel::Checks;
use wgfc_runtime::session::SessionOptions;
use wgfc_runtime::{Gpu, RunError, Session};

/// The number of positions that the cache has room for at first.
const ROOM: usize = 64;
/// The stack size in bytes of the thread that compiles the program for prompts.
const STACK: usize = 64 << 20;

/// How the cache of a generator is laid out.
pub(super) struct Built {
    /// Whether each sequence has its own end in the cache.
    pub own_ends: bool,
    /// Whether the first axis of the cache is that of the sequences.
    pub rows_lead: bool,
}

/// The programs of a generator.
struct Programs {
    /// The one for prompts.
    long: Option<Program>,
    /// The one for a single token.
    short: Program,
    /// The one that verifies proposals.
    verifier: Option<Verifier>,
    /// The tokens of runs of the one for prompts.
    chunks: Chunks,
    /// The fingerprint of the model's file.
    model: String,
}

impl Generator {
    /// A generator for `batch` sequences, and how its cache is laid out.
    pub(super) fn build(
        gpu: Gpu,
        decoder: &Decoder,
        options: &GeneratorOptions,
        batch: usize,
    ) -> Result<(Generator, Built), Error> {
        let start = Instant::now();
        if let Some(bundle) = decoder.compiled() {
            if batch != 1 {
                let message = format!("the decoder was compiled for one sequence at a time, not {batch}");
                return Err(Error::usage(message, "give the model itself"));
            }
            let (long, short) = programs::compiled(&gpu, decoder, bundle, options)?;
            let long = long.filter(|_| options.chunk() > 1);
            let profile = DeviceProfile::default().with_limits(gpu.profile());
            let chunks = long.as_ref().map_or(Chunks::single(), |p| Chunks::of(p, options, &gpu, None));
            let programs = Programs { long, short, verifier: None, chunks, model: saved::fingerprint(&[]) };
            // A compiled folder is not trusted.
            let made =
                Generator::of(&gpu, programs, options, profile, (Checks::default(), None, start), &|_| None);
            let made = made.map_err(|e| crate::model::edited(decoder.path(), e))?;
            return Ok((made, Built { own_ends: false, rows_lead: true }));
        }
        let file = decoder.model();
        let all = compilations(&gpu, decoder, options, batch)?;
        let verification = match options.speculate {
            n if n > 0 && batch == 1 => Some(all.verification(n.saturating_add(1))?),
            _ => None,
        };
        let Compilations { long: common, single, rows_lead, .. } = all;
        let have = options.device_memory.into_iter().chain(gpu.memory()).min();
        let least = options.capacity.min(ROOM);
        let sizes = OnceLock::new();
        let check = |graph: &Graph| sizes.get_or_init(|| Sizes::of(graph, 1)).check(options, have, least);
        let (long, short, verifier) = std::thread::scope(|scope| {
            let compile = |common, features| compile(file, common, &options.context, features, &check);
            let long = common.as_ref().map(|common| {
                let thread = std::thread::Builder::new().name("prompts".into()).stack_size(STACK);
                (common, thread.spawn_scoped(scope, move || compile(common, Features::Taken)))
            });
            let short = compile(&single, Features::None);
            // A cache of fixed size does not count its positions.
            let grows = short.as_ref().is_ok_and(|(_, caches)| caches.fixed.is_none());
            let verification = verification.as_ref().filter(|_| grows);
            let verifier = verification.map(|v| programs::verifier(file, v, &options.context));
            let long = long.map(|(common, t)| match t.map(std::thread::ScopedJoinHandle::join) {
                Ok(Ok(program)) => program,
                Ok(Err(_)) => Err(Error::Internal("the compiler of the prompts' program panicked".into())),
                Err(_) => compile(common, Features::Taken),
            });
            (long.transpose(), short, verifier.transpose())
        });
        let (long, (mut short, caches), mut verifier) = (long?.map(|l| l.0), short?, verifier?);
        if let Some(long) = &long {
            share_weights(long, &mut short);
        }
        if let Some(v) = &mut verifier {
            long.iter().chain([&short]).for_each(|p| share_weights(p, &mut v.program));
        }
        let model = saved::fingerprint(file.bytes());
        let room = sizes.get().and_then(|s| s.room(options, have));
        let chunks = long.as_ref().map_or(Chunks::single(), |p| Chunks::of(p, options, &gpu, room));
        let programs = Programs { long, short, verifier, chunks, model };
        // The programs have just been compiled in this process.
        let refused = |have| Some(sizes.get()?.refused(options, have, least));
        let how = (Checks::Trusted, caches.fixed, start);
        let mut made = Generator::of(&gpu, programs, options, single.profile, how, &refused)?;
        made.warnings.extend(sizes.get().and_then(|s| s.warning(options, have)));
        Ok((made, Built { own_ends: caches.own_ends, rows_lead }))
    }

    /// The generator that runs these programs, whose compilation began at `start`; `fixed` is the number of positions of a cache of fixed
    /// size. `refused` is the error of programs that do not fit the device's memory.
    fn of(
        gpu: &Gpu,
        programs: Programs,
        options: &GeneratorOptions,
        profile: DeviceProfile,
        (checks, fixed, start): (Checks, Option<usize>, Instant),
        refused: &dyn Fn(Option<u64>) -> Option<Error>,
    ) -> Result<Generator, Error> {
        let (compiled, before) = (Instant::now(), gpu.uploads());
        let Programs { long, short, verifier, chunks, model } = programs;
        let how = SessionOptions {
            checks,
            capacity: options.capacity.min(ROOM),
            memory: options.device_memory,
            ..SessionOptions::default()
        };
        let verified = verifier.as_ref().map(|v| &v.program);
        let programs: Vec<&Program> = long.iter().chain([&short]).chain(verified).collect();
        let sessions = Session::family_blocking(gpu, &programs, how).map_err(|e| {
            let refused = match &e {
                RunError::DoesNotFit { have, .. } => refused(*have),
                _ => None,
            };
            refused.unwrap_or_else(|| device_error(e))
        });
        let mut sessions = sessions?.into_iter();
        let prefill = long.as_ref().and_then(|_| sessions.next());
        let decode =
            sessions.next().ok_or_else(|| Error::Internal("a program without its session".into()))?;
        let verified = verifier.and_then(|v| Some((sessions.next()?, v.turns)));
        let speculation = verified.map(|(s, turns)| (s, options.speculate + 1, turns));
        let mut ports = program_values(&long.as_ref().unwrap_or(&short).inputs);
        ports.retain(|p| p.name != head::CHOICE && p.name != FEATURES);
        let vocabulary = vocabulary(&short)?;
        let inputs = roles::inputs(&ports, None, &options.context);
        let mut inputs = inputs.map_err(|problems| Error::from(Errors(problems)))?;
        inputs.iter_mut().try_for_each(|i| i.upload(gpu)).map_err(device_error)?;
        let compile = Options { fusion: options.fusion, profile, ..Options::default() };
        let ids = programs::ids_type(&inputs);
        let chooser = Chooser::new(&decode, ids, compile)?;
        let uploads = gpu.uploads();
        let speculation = speculation.map(|(session, positions, turns)| {
            let chooser = Chooser::new(&session, ids, chooser.options().clone())?;
            Speculation::new(session, chooser, positions, turns)
        });
        let speculation = speculation.transpose()?;
        let setup = Setup {
            compiling: compiled - start,
            uploading: compiled.elapsed(),
            copying: uploads.time.saturating_sub(before.time),
            copied: uploads.bytes.saturating_sub(before.bytes),
        };
        Ok(Generator {
            setup,
            speculation,
            chooser,
            inputs,
            vocabulary,
            capacity: options.capacity.min(fixed.unwrap_or(usize::MAX)),
            pictures: Pictures::new(long.as_ref()),
            chunks,
            kept: 0,
            written: fixed.map(|_| 0),
            pending: None,
            history: vec![],
            number: 0,
            warnings: short.stats.warnings.clone(),
            model,
            prefill,
            decode,
        })
    }
}
