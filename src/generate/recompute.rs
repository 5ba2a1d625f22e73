//! Greedy decoding without a cache: for each token the model runs on all earlier ones.
//!
//! It is a reference for measurements: papers that measure the cost of a dispatch decode in this way.

use super::head;
use super::programs::ids_type;
use super::roles::{self, Input};
use super::{Decoder, GeneratorOptions, choose};
use crate::model::device_error;
use crate::value_info::{ValueInfo, graph_values, program_values};
use crate::{Error, Options, Tensor};
use std::collections::BTreeMap;
use wgfc_compiler::{DeviceProfile, Errors};
use wgfc_runtime::kernel::Checks;
use wgfc_runtime::session::SessionOptions;
use wgfc_runtime::{Gpu, Profile, Session};

/// A decoder on a device, with one program for any number of tokens. See the [module](self).
///
/// ```
/// # fn main() -> Result<(), wgfc::Error> {
/// # let Some(gpu) = wgfc::runtime::testing::gpus().first().cloned() else { return Ok(()) };
/// # let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/small/decoder/model.onnx");
/// use wgfc::{Decoder, generate::recompute::Recompute};
/// let mut decoder = Recompute::on_device(gpu, &Decoder::open(&path)?, &Default::default())?;
/// let mut ids = vec![3, 1, 36];
/// for _ in 0..2 {
///     ids.push(decoder.next(&ids)?);
/// }
/// assert_eq!(ids.len(), 5);
/// # Ok(()) }
/// ```
pub struct Recompute {
    session: Session,
    inputs: Vec<Input>,
    /// Past keys and values of length 0.
    empty: Vec<(String, Tensor)>,
    vocabulary: usize,
}

impl Recompute {
    /// Compiles the decoder, with a past of length 0 if it has one, and uploads it. Precision, weight bits, capacity and
    /// chunk size in the options are ignored.
    ///
    /// # Errors
    /// As for [`Generator::new`](super::Generator::new).
    pub fn new(decoder: &Decoder, options: &GeneratorOptions) -> Result<Recompute, Error> {
        Recompute::on_device(Gpu::request_blocking(&options.adapter).map_err(device_error)?, decoder, options)
    }

    /// [`Recompute::new`] on this device.
    ///
    /// # Errors
    /// As for [`Recompute::new`].
    pub fn on_device(gpu: Gpu, decoder: &Decoder, options: &GeneratorOptions) -> Result<Recompute, Error> {
        let file = decoder.source()?;
        let symbols = roles::symbols(file, decoder.memory_limit())?;
        let mut dims: BTreeMap<String, i64> = symbols.batch.iter().map(|b| (b.clone(), 1)).collect();
        let seq = symbols.seq.ok_or_else(|| {
            Error::usage(
                "the model accepts one token per run, so --prefix-recompute cannot be used",
                "export it with a symbolic sequence length",
            )
        })?;
        for s in roles::past_symbols(file, &seq, decoder.memory_limit())? {
            dims.entry(s).or_insert(0);
        }
        let profile =
            DeviceProfile { speeds: options.speeds, ..DeviceProfile::default() }.with_limits(gpu.profile());
        let (fusion, without, expect) = (options.fusion, options.without.clone(), options.expect.clone());
        let context = options.context.clone();
        let options = Options {
            fusion,
            without,
            expect,
            dims,
            profile,
            tuning: options.tuning.clone(),
            memory_limit: decoder.memory_limit(),
            ..Options::default()
        };
        let program = file.compile_amended(&options, &mut |graph| {
            let (_, ports) = split(graph_values(graph, &graph.inputs));
            let inputs = roles::inputs(&ports, None, &context).map_err(Errors)?;
            head::replace_outputs(graph, ids_type(&inputs), head::Chosen::Last, &[])
        })?;
        let (empty, mut ports) = split(program_values(&program.inputs));
        ports.retain(|p| p.name != head::CHOICE);
        let empty = empty.into_iter().map(|p| {
            let shape =
                p.shape.iter().map(|d| d.as_const().and_then(|n| usize::try_from(n).ok()).unwrap_or(0));
            (p.name, Tensor::from_scalars(p.dtype, shape.collect(), &[]))
        });
        let session = Session::with_options_blocking(
            &gpu,
            &program,
            SessionOptions { checks: Checks::Trusted, ..SessionOptions::default() },
        );
        Ok(Recompute {
            inputs: roles::inputs(&ports, None, &context).map_err(Errors)?,
            empty: empty.collect(),
            vocabulary: super::programs::vocabulary(&program)?,
            session: session.map_err(device_error)?,
        })
    }

    /// The session that runs the decoder.
    pub fn session(&self) -> &Session {
        &self.session
    }
    /// The number of tokens in the vocabulary. Token ids are less than it.
    pub fn vocabulary(&self) -> usize {
        self.vocabulary
    }

    /// The most likely token after these, of which there must be at least one.
    ///
    /// # Errors
    /// An error of the device, or logits that are not finite.
    pub fn next(&mut self, ids: &[i64]) -> Result<i64, Error> {
        let given: Vec<_> = self.given(ids).into_iter().map(|(n, t)| (n, t.into())).collect();
        let given: Vec<_> = given.iter().map(|(n, v): &(String, _)| (n.as_str(), Clone::clone(v))).collect();
        let read = self.session.run_values_blocking(&given, Some(&[head::TOKEN])).map_err(device_error)?;
        super::token(&read, self.vocabulary)
    }

    /// Times runs on these tokens.
    pub fn profile(&mut self, ids: &[i64], runs: usize) -> Result<Profile, Error> {
        let given = self.given(ids);
        let given: Vec<_> = given.iter().map(|(n, t)| (n.as_str(), t.clone())).collect();
        self.session.profile_blocking(&given, runs).map_err(device_error)
    }

    /// The estimated bytes that a run on this many tokens reads and writes.
    pub fn bytes(&self, tokens: usize) -> u64 {
        let dispatches = self.session.program().dispatches.iter();
        let bytes =
            dispatches.filter_map(|d| u64::try_from(d.bytes.eval_syms(&|_| Some(tokens as i64))?).ok());
        bytes.fold(0, u64::saturating_add)
    }

    fn given(&self, ids: &[i64]) -> Vec<(String, Tensor)> {
        let own = self.inputs.iter().map(|i| (i.name.clone(), i.tensor(ids, 0)));
        let choice = (head::CHOICE.to_owned(), choose::greedy());
        own.chain(self.empty.iter().cloned()).chain([choice]).collect()
    }
}

/// The ports that have no elements, and the others.
fn split(ports: Vec<ValueInfo>) -> (Vec<ValueInfo>, Vec<ValueInfo>) {
    ports.into_iter().partition(|p| p.shape.iter().any(|d| d.is(0)))
}
