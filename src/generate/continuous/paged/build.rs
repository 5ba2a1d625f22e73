//! The programs of sequences in pages, and their sessions.

use super::pages::Pages;
use super::{PAGE, Paged, Width};
use crate::generate::chooser::Chooser;
use crate::generate::fits::Sizes;
use crate::generate::programs::{self, Features, PagedCompilations, compile, share_weights, vocabulary};
use crate::generate::{Decoder, GeneratorOptions};
use crate::model::device_error;
use crate::{Error, Options, Program};
use std::collections::VecDeque;
use std::sync::OnceLock;
use wgfc_ir::{DType, Graph};
use wgfc_runtime::kernel::Checks;
use wgfc_runtime::session::SessionOptions;
use wgfc_runtime::{Gpu, RunError, Session};

/// The positions of each sequence for which the pool has room at first.
const ROOM: usize = 64;
/// The stack size in bytes of a thread that compiles a program.
const STACK: usize = 64 << 20;

/// The numbers of rows for which there are programs, so that a run of few sequences computes few rows: powers of 4, and `batch`.
fn widths(batch: usize) -> Vec<usize> {
    let powers = std::iter::successors(Some(1usize), |n| n.checked_mul(4));
    powers.take_while(|n| *n < batch).chain([batch]).collect()
}

impl Paged {
    /// See [`ContinuousGenerator::on_device`](super::super::ContinuousGenerator::on_device).
    pub fn on_device(
        gpu: Gpu,
        decoder: &Decoder,
        batch: usize,
        options: &GeneratorOptions,
    ) -> Result<Paged, Error> {
        let file = decoder.model();
        let rows = widths(batch);
        let PagedCompilations { prompts, each } = programs::paged(&gpu, decoder, options, &rows, PAGE)?;
        let blocks = options.capacity.div_ceil(PAGE);
        let have = options.device_memory.into_iter().chain(gpu.memory()).min();
        let least = options.capacity.min(PAGE);
        let sizes = OnceLock::new();
        let check = |graph: &Graph| sizes.get_or_init(|| Sizes::of(graph, PAGE)).check(options, have, least);
        let profile = each.first().map(|o| o.profile.clone()).unwrap_or_default();
        let all: Vec<&Options> = prompts.iter().chain(&each).collect();
        let programs: Result<Vec<Program>, Error> = std::thread::scope(|scope| {
            let compile = |o: &Options| {
                compile(file, o, &options.context, Features::None, &check).map(|(program, _)| program)
            };
            let threads = all.iter().map(|o| {
                let thread = std::thread::Builder::new().name("programs".into()).stack_size(STACK);
                thread.spawn_scoped(scope, move || compile(o)).map_err(|_| *o)
            });
            let threads: Vec<_> = threads.collect();
            let join = |thread: Result<std::thread::ScopedJoinHandle<'_, _>, &Options>| match thread {
                Ok(t) => t.join().unwrap_or_else(|_| Err(Error::Internal("the compiler panicked".into()))),
                Err(options) => compile(options),
            };
            threads.into_iter().map(join).collect()
        });
        let mut programs = programs?;
        if let Some((first, others)) = programs.split_first_mut() {
            others.iter_mut().for_each(|p| share_weights(first, p));
        }
        let warnings = programs.last().map(|p| p.stats.warnings.clone()).unwrap_or_default();
        let vocabulary = programs.last().map(vocabulary).transpose()?.unwrap_or_default();
        let first = 1 + batch.saturating_mul(options.capacity.min(ROOM).div_ceil(PAGE));
        let how = SessionOptions {
            checks: Checks::Trusted,
            capacity: first,
            memory: options.device_memory,
            ..SessionOptions::default()
        };
        let refused = |have| sizes.get().map(|s: &Sizes| s.refused(options, have, least));
        let programs: Vec<&Program> = programs.iter().collect();
        let sessions = Session::family_blocking(&gpu, &programs, how).map_err(|e| {
            let refused = match &e {
                RunError::DoesNotFit { have, .. } => refused(*have),
                _ => None,
            };
            refused.unwrap_or_else(|| device_error(e))
        });
        let mut sessions = sessions?.into_iter();
        let prompts = prompts.and_then(|_| sessions.next());
        let compile = Options { fusion: options.fusion, profile, ..Options::default() };
        let widths = rows.into_iter().zip(sessions).map(|(rows, session)| {
            let chooser = Chooser::new(&session, DType::I64, compile.clone())?;
            Ok(Width { rows, session, chooser })
        });
        let widths = widths.collect::<Result<Vec<Width>, Error>>()?;
        if widths.is_empty() {
            return Err(Error::Internal("a decoder without a program".into()));
        }
        let mut pages = Pages::new(PAGE);
        pages.grow(first);
        Ok(Paged {
            chunk: if prompts.is_some() { options.chunk() } else { 1 },
            prompts,
            widths,
            vocabulary,
            capacity: options.capacity,
            batch,
            warnings,
            pages,
            limit: 1 + batch.saturating_mul(blocks),
            sequences: vec![],
            flights: VecDeque::new(),
            after_prompt: false,
            next: 0,
            recomputed: 0,
            reused: 0,
        })
    }
}
