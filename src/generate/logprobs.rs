//! Log-probabilities of tokens, computed on the device from the logits of a step.

use super::{head, no_output};
use crate::model::device_error;
use crate::{Error, Options, Program, Tensor};
use wgfc_compiler::pipeline::compile_graph;
use wgfc_compiler::{Diagnostic, Errors};
use wgfc_ir::op::GatherAxis;
use wgfc_ir::program::Stats;
use wgfc_ir::{BinaryOp, Body, Border, Builder, DType, Dim, Graph, Op, Poly, ReduceOp, TensorType, UnaryOp};
use wgfc_runtime::session::Started;

/// The most tokens of a step whose log-probabilities are reported beside that of the chosen one.
pub const MOST_LOGPROBS: usize = 20;
/// The output with the log-probabilities of the chosen token and of the most likely ones: f32 `[rows, 1 + n]`.
const VALUES: &str = "log-probabilities";
/// The output with the most likely tokens: i64 `[rows, n]`.
const TOKENS: &str = "likely tokens";
/// Logits are at least this, so that the sum of their exponentials meets no infinity.
const LEAST: f64 = -1e30;

/// Log-probabilities of a step: logarithms of the softmax of the model's logits, before temperature, penalties and all else
/// that restricts the choice. A logit of −∞ has -1e30.
///
/// ```no_run
/// # fn likely(generator: &mut wgfc::Generator) -> Result<(), wgfc::Error> {
/// let request = wgfc::Request { max_new_tokens: 5, logprobs: Some(3), ..Default::default() };
/// let mut tokens = generator.generate(&[3, 1, 36], &request)?;
/// while let Some(token) = tokens.next() {
///     println!("{}: {:?}", token?, tokens.logprobs());
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct LogProbs {
    /// That of the chosen token.
    pub chosen: f32,
    /// The most likely tokens, as many as were asked for, and theirs. The first one is the most likely.
    pub top: Vec<(i64, f32)>,
}

/// A graph from [`head::LOGITS`] of this type and [`head::TOKEN`] `[rows, 1]` to [`VALUES`] and [`TOKENS`].
fn graph(logits: TensorType, ids: DType) -> Result<Graph, String> {
    let mut graph = Graph::new();
    let (len, rows) = logits.shape.split_last().ok_or("logits without a vocabulary")?;
    let (len, rows) = (len.clone(), rows.iter().fold(Dim::ONE, |n, d| &n * d));
    let most = len.as_const().unwrap_or(1).min(MOST_LOGPROBS as i64);
    let logits = graph.add_input(head::LOGITS, logits);
    let token = graph.add_input(head::TOKEN, TensorType::new(ids, [rows.clone(), Dim::ONE]));
    let mut b = Builder::new(&mut graph, "log-probabilities");
    let x = b.reshape(logits, vec![rows.clone(), len])?;
    let x = b.cast(x, DType::F32)?;
    let x = b.binary_scalar(BinaryOp::Max, x, LEAST)?;
    let top = b.reduce(ReduceOp::Max, x, &[1], true)?;
    let mut f = Body::default();
    let (x0, top0) = (f.arg(0), f.arg(1));
    let d = f.binary(BinaryOp::Sub, x0, top0);
    f.unary(UnaryOp::Exp, d);
    let e = b.map(f.0, &[x, top])?;
    let sum = b.reduce(ReduceOp::Sum, e, &[1], true)?;
    let index = vec![
        GatherAxis::Affine(Poly::var(0)),
        GatherAxis::Data { input: 1, at: vec![Poly::var(0), Poly::var(1)] },
    ];
    let chosen = b.push(Op::Gather { shape: vec![rows, Dim::ONE], index }, &[x, token])?;
    let values = b.push(Op::TopK { axis: 1, k: most.into(), largest: true }, &[x])?;
    let tokens = wgfc_ir::graph::Value { port: 1, ..values };
    let all = b.concat(&[chosen, values], 1)?;
    let mut f = Body::default();
    let (x0, top0, sum0) = (f.arg(0), f.arg(1), f.arg(2));
    let log = f.unary(UnaryOp::Log, sum0);
    let d = f.binary(BinaryOp::Sub, x0, top0);
    f.binary(BinaryOp::Sub, d, log);
    let all = b.map(f.0, &[all, top, sum])?;
    let border = |name: &str, value| Border { name: name.into(), value };
    graph.outputs = vec![border(VALUES, all), border(TOKENS, tokens)];
    Ok(graph)
}

/// The program that computes the log-probabilities of each row's token, of type `ids`, from logits of this type.
pub(super) fn program(logits: TensorType, ids: DType, options: &Options) -> Result<Program, Error> {
    let graph = graph(logits, ids).map_err(|m| Errors::from(Diagnostic::internal(m)))?;
    Ok(compile_graph(graph, Stats::default(), options, &mut |_, _| {})?)
}

/// The log-probabilities of each row, with all [`MOST_LOGPROBS`] tokens.
pub(super) fn read(started: Started) -> Result<Vec<LogProbs>, Error> {
    let read = started.read_blocking().map_err(device_error)?;
    let of =
        |name| read.iter().find(|(n, _): &&(String, Tensor)| n == name).map(|(_, t)| t).ok_or_else(no_output);
    let (values, tokens) = (of(VALUES)?, of(TOKENS)?);
    let most = tokens.shape.last().copied().unwrap_or(0);
    let values = values.to_f32s().ok_or_else(no_output)?;
    let tokens = tokens.to_i64s().ok_or_else(no_output)?;
    let row = |(values, tokens): (&[f32], &[i64])| {
        let (chosen, likely) = values.split_first()?;
        Some(LogProbs { chosen: *chosen, top: tokens.iter().copied().zip(likely.iter().copied()).collect() })
    };
    let rows = values.chunks(most + 1).zip(tokens.chunks(most.max(1)));
    rows.map(row).collect::<Option<_>>().ok_or_else(no_output)
}

impl LogProbs {
    /// The log-probabilities of the chosen token and of the `count` most likely ones.
    pub(super) fn most(mut self, count: usize) -> LogProbs {
        self.top.truncate(count);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wgfc_runtime::Session;
    use wgfc_runtime::testing::gpus;

    #[test]
    fn they_are_those_of_the_softmax() {
        for (len, dtype) in [(5usize, DType::F32), (37, DType::F16), (1301, DType::F32)] {
            let x: Vec<f32> = (0..3 * len).map(|i| ((i * 7919 % 4001) as f32 * 0.01).sin() * 6.0).collect();
            let mut x: Vec<f32> = x.iter().map(|x| (x * 256.0).round() / 256.0).collect();
            x[1] = f32::NEG_INFINITY;
            let chosen = [2i64, 0, len as i64 - 1];
            let made =
                graph(TensorType::new(dtype, [3i64, 1, len as i64].map(Dim::from)), DType::I64).unwrap();
            let scalars: Vec<_> = x.iter().map(|x| wgfc_ir::Scalar::from_f64(dtype, f64::from(*x))).collect();
            let x = Tensor::from_scalars(dtype, vec![3, 1, len], &scalars);
            let rounded = x.to_f32s().unwrap();
            let token = Tensor::from_i64(vec![3, 1], &chosen);
            let options = crate::Options::default();
            let program = compile_graph(made, Stats::default(), &options, &mut |_, _| {}).unwrap();
            for gpu in gpus() {
                let mut session = Session::new_blocking(gpu, &program).unwrap();
                let given = [(head::LOGITS, x.clone().into()), (head::TOKEN, token.clone().into())];
                let got = read(session.start_blocking(&given, None).unwrap()).unwrap();
                for (row, got) in got.iter().enumerate() {
                    let x: Vec<f64> = rounded[row * len..][..len].iter().map(|x| f64::from(*x)).collect();
                    let most = x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                    let sum = x.iter().map(|x| (x - most).exp()).sum::<f64>().ln() + most;
                    let mut order: Vec<usize> = (0..len).collect();
                    order.sort_by(|a, b| x[*b].total_cmp(&x[*a]).then(a.cmp(b)));
                    let near = |got: f32, token: usize| {
                        let want = (x[token] - sum).max(LEAST);
                        assert!((f64::from(got) - want).abs() <= 1e-5 * (1.0 + want.abs()), "{got} {want}");
                    };
                    near(got.chosen, chosen[row] as usize);
                    assert_eq!(got.top.len(), len.min(MOST_LOGPROBS));
                    for ((token, value), want) in got.top.iter().zip(&order) {
                        assert_eq!(*token, *want as i64);
                        near(*value, *want);
                    }
                }
            }
        }
    }
}
