//! Special functions of random operands, within the ranges for which their errors are stated.

use super::draw::hash;
use super::subject::{Rule, Source, Subject};
use std::collections::BTreeMap;
use wgfc_compiler::lower::special::{self, Base, Logarithm};
use wgfc_compiler::lower::{Lowering, Result};
use wgfc_ir::special::{Error, Range, Special, Special2, within};
use wgfc_ir::testing::Rng;
use wgfc_ir::{BinaryOp, Border, DType, Dim, Graph, Scalar, Tensor, TensorType, Value};

/// The prefix of the names of these cases.
const PREFIX: &str = "special ";

/// The factor by which a device may exceed the stated error, which holds for division and roots that round to nearest.
const SLACK: f64 = 4.0;

/// The cases of a function: the types and ranges of operands, the function itself, and the bound of its error.
struct Function {
    types: &'static [DType],
    ranges: Vec<Range>,
    apply: Box<Apply>,
    error: Error,
}

const FLOATS: &[DType] = &[DType::F32, DType::F32, DType::F16, DType::BF16];
const INTS: &[DType] = &[DType::I32, DType::I64, DType::U8, DType::I16, DType::U64];
const EXACT: Error = Error { relative: 0.0, absolute: 0.0 };
const USUAL: Error = Error { relative: 1e-5, absolute: 1e-5 };

type Apply = dyn Fn(&mut Lowering, &[Value]) -> Result;
type Made = (&'static str, &'static [DType], &'static [Range], Error, fn(&mut Lowering, &[Value]) -> Result);

/// Functions that are composed of others.
const MADE: &[Made] = &[
    ("polygamma", FLOATS, &[(0.2, 20.0)], USUAL, |cx, v| special::polygamma(cx, 2, v[0])),
    ("sinc", FLOATS, &[(-4.0, 4.0)], USUAL, |cx, v| special::sinc(cx, v[0])),
    ("ndtr", FLOATS, &[(-9.0, 4.0)], USUAL, |cx, v| special::ndtr(cx, v[0])),
    ("entropy", FLOATS, &[(-0.5, 4.0)], USUAL, |cx, v| special::entropy(cx, v[0])),
    ("x_log", FLOATS, &[(-2.0, 2.0), (0.1, 4.0)], USUAL, |cx, v| {
        special::x_log(cx, v[0], v[1], Logarithm::OfOnePlus)
    }),
    ("log_add_exp", FLOATS, &[(-9.0, 9.0), (-9.0, 9.0)], USUAL, |cx, v| {
        special::log_add_exp(cx, v[0], v[1], Base::Two)
    }),
    ("shifted", FLOATS, &[(0.0, 1.0), (0.0, 9.0)], Error { relative: 1e-4, absolute: 1e-4 }, |cx, v| {
        special::shifted(cx, Special2::ChebyshevT, v[0], v[1])
    }),
    ("sign_bit", FLOATS, &[(-1.0, 1.0)], EXACT, |cx, v| special::sign_bit(cx, v[0])),
    ("copy_sign", FLOATS, &[(-1.0, 1.0), (-1.0, 1.0)], EXACT, |cx, v| special::copy_sign(cx, v[0], v[1])),
    ("next_after", FLOATS, &[(-1.0, 1.0), (-1.0, 1.0)], EXACT, |cx, v| special::next_after(cx, v[0], v[1])),
    ("mantissa", FLOATS, &[(1e-3, 1e4)], EXACT, |cx, v| Ok(special::mantissa_and_exponent(cx, v[0])?.0)),
    ("exponent", FLOATS, &[(1e-3, 1e4)], EXACT, |cx, v| Ok(special::mantissa_and_exponent(cx, v[0])?.1)),
    ("gcd", INTS, &[(0.0, 120.0), (0.0, 120.0)], EXACT, |cx, v| special::gcd(cx, v[0], v[1])),
    ("lcm", INTS, &[(0.0, 120.0), (0.0, 120.0)], EXACT, |cx, v| special::lcm(cx, v[0], v[1])),
];

/// The names of cases, without their seeds.
pub(crate) fn names() -> impl Iterator<Item = String> {
    let one = Special::ALL.iter().map(|f| f.name());
    let two = Special2::ALL.iter().map(|f| f.name());
    one.chain(two).chain(MADE.iter().map(|m| m.0)).map(|name| format!("{PREFIX}{name}"))
}

/// Whether a name is that of a case in this module.
pub(crate) fn is(name: &str) -> bool {
    name.starts_with(PREFIX)
}

fn function(name: &str, rng: &mut Rng) -> Option<Function> {
    let error = |e: Error| Error { relative: SLACK * e.relative, absolute: SLACK * e.absolute };
    if let Some(f) = Special::from_name(name) {
        return Some(Function {
            types: FLOATS,
            ranges: vec![*rng.pick(f.over())?],
            apply: Box::new(move |cx, v| special::function(cx, f, v[0])),
            error: error(f.error()),
        });
    }
    if let Some(f) = Special2::from_name(name) {
        let (a, b) = *rng.pick(f.over())?;
        return Some(Function {
            types: FLOATS,
            ranges: vec![a, b],
            apply: Box::new(move |cx, v| special::function2(cx, f, v[0], v[1])),
            error: error(f.error()),
        });
    }
    let (_, types, ranges, error, apply) = *MADE.iter().find(|m| m.0 == name)?;
    Some(Function { types, ranges: ranges.to_vec(), apply: Box::new(apply), error })
}

/// In one case of two the function stands alone; in the others its result is combined with another operand.
pub(crate) fn drawn(name: &str, seed: u64) -> Option<Subject> {
    let mut rng = Rng::new(hash(name) ^ seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let f = function(name.strip_prefix(PREFIX)?, &mut rng)?;
    let dtype = *rng.pick(f.types)?;
    let shape: Vec<usize> = (0..rng.below(4)).map(|_| 1 + rng.below(9)).collect();
    let mut graph = Graph::new();
    let mut inputs = BTreeMap::new();
    let mut given =
        |graph: &mut Graph, rng: &mut Rng, name: String, dtype: DType, shape: &[usize], range: Range| {
            let n = shape.iter().product();
            let v: Vec<Scalar> =
                (0..n).map(|_| number(dtype, within(range, (f64::from(rng.unit()) + 1.0) / 2.0))).collect();
            inputs.insert(name.clone(), Tensor::from_scalars(dtype, shape.to_vec(), &v));
            graph.add_input(
                &name,
                TensorType::new(dtype, shape.iter().map(|d| Dim::from(*d)).collect::<Vec<_>>()),
            )
        };
    let mut operands = vec![];
    for (i, range) in f.ranges.iter().enumerate() {
        // All operands but the first may broadcast.
        let fewer = i > 0 && rng.one_in(3);
        let own = if fewer { &shape[shape.len().min(1)..] } else { &shape[..] };
        operands.push(given(&mut graph, &mut rng, format!("x{i}"), dtype, own, *range));
    }
    let among = rng.one_in(2);
    let other = among.then(|| given(&mut graph, &mut rng, "other".into(), dtype, &shape, (0.0, 2.0)));
    let mut cx = Lowering::new(&mut graph);
    let mut y = (f.apply)(&mut cx, &operands).ok()?;
    if let Some(other) = other {
        let to = cx.dtype(y);
        let other = cx.cast(other, to).ok()?;
        let op = if to == DType::Bool { BinaryOp::Or } else { BinaryOp::Add };
        y = cx.binary(op, y, other).ok()?;
    }
    graph.outputs.push(Border { name: "y".into(), value: y });
    let rule = Rule { error: (dtype == DType::F32 && !among).then_some(f.error), ..Rule::default() };
    Some(Subject { source: Source::Graph(Box::new(graph)), inputs, rule })
}

/// A number converted to the type. Floats are rounded to f32 first; integers are truncated.
fn number(dtype: DType, x: f64) -> Scalar {
    if dtype.is_float() {
        Scalar::from_f64(dtype, f64::from(x as f32))
    } else {
        Scalar::from_i64(dtype, x as i64)
    }
}
