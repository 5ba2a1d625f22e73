//! Random numbers, which depend on the name of the node and on the seed and offset of the run.

use super::super::messages::{Argument, Graph};
use super::super::op::target;
use super::super::prelude::*;
use crate::lower::random::{self, Distribution, Seed};
use wgfc_ir::{Body, Scalar};

pub const OPS: &[OpDef] = &[
    OpDef::new("aten.alpha_dropout.default", kept).views("input").notes("Outside of training."),
    OpDef::new("aten.bernoulli.Tensor", |cx| {
        let (ty, p) = (cx.result(0)?, cx.tensor("p")?);
        let p = cx.expand(p, &ty.shape)?;
        likely(cx, p)
    }),
    OpDef::new("aten.bernoulli.default", |cx| {
        let p = cx.tensor("self")?;
        likely(cx, p)
    }),
    OpDef::new("aten.bernoulli.float|p", bernoulli),
    OpDef::new("aten.cauchy.default", |cx| {
        let d = Distribution::Cauchy(cx.float("median")?, cx.float("sigma")?);
        distributed(cx, d)
    }),
    OpDef::new("aten.dropout.default", |cx| Ok(vec![dropped(cx)?[0]])).views("input"),
    OpDef::new("aten.exponential.default", |cx| {
        let d = Distribution::Exponential(cx.float("lambd")?);
        distributed(cx, d)
    }),
    OpDef::new("aten.feature_alpha_dropout.default", kept).views("input").notes("Outside of training."),
    OpDef::new("aten.feature_dropout.default", whole_features).views("input"),
    OpDef::new("aten.geometric.default", |cx| {
        let d = Distribution::Geometric(cx.float("p")?);
        distributed(cx, d)
    }),
    OpDef::new("aten.log_normal.default", |cx| {
        let (ty, moments) = (cx.result(0)?, (cx.float("mean")?, cx.float("std")?));
        let seed = seed(cx);
        let y = random::normal(cx, ty.shape, DType::F32, moments, seed)?;
        let y = cx.unary(UnaryOp::Exp, y)?;
        Ok(vec![cx.converted(y, ty.dtype)?])
    }),
    OpDef::new("aten.multinomial.default", multinomial),
    OpDef::new("aten.native_dropout.default", |cx| Ok(dropped(cx)?.to_vec())),
    OpDef::new("aten.normal.Tensor_Tensor|Tensor_float|float_Tensor", around),
    OpDef::new("aten.normal.default|float_float", normal),
    OpDef::new("aten.normal_functional.default", normal),
    OpDef::new("aten.rand.default|generator", |cx| uniform(cx, (0.0, 1.0))),
    OpDef::new("aten.rand_like.default|generator", |cx| uniform(cx, (0.0, 1.0))),
    OpDef::new("aten.randint.default|generator|low|low_generator", integers),
    OpDef::new("aten.randint_like.default|generator|low_dtype|low_generator_dtype", integers),
    OpDef::new("aten.randn.default|generator", standard),
    OpDef::new("aten.randn_like.default|generator", standard),
    OpDef::new("aten.random.default|from|to", any_integers),
    OpDef::new("aten.randperm.default|generator", permuted),
    OpDef::new("aten.rrelu.default", leaky),
    OpDef::new("aten.rrelu_with_noise.default", leaky).writes(&["noise"]),
    OpDef::new("aten.rrelu_with_noise_functional.default", leaky),
    OpDef::new("aten.uniform.default", |cx| {
        let range = (cx.float("from")?, cx.float("to")?);
        uniform(cx, range)
    }),
    OpDef::new("wgfc.seed.default", |cx| {
        let given = cx.tensor("seed")?;
        random::reseed(cx, given)?;
        Ok(vec![])
    })
    .notes("The seed of the random numbers behind it."),
];

/// Whether a graph or an inner graph draws random numbers.
pub fn draws(graph: &Graph) -> bool {
    graph.nodes.iter().any(|n| {
        // Dropout and RReLU draw only in training, which a bool argument selects.
        let trains = n.inputs.iter().any(|i| matches!(i.arg, Argument::Bool(true)));
        let inner = n.inputs.iter().any(|i| matches!(&i.arg, Argument::Graph(g) if draws(&g.graph)));
        let drawn = super::find(target(n)).is_some_and(|f| {
            let name = f.def.target;
            OPS.iter().any(|d| d.target == name) && (trains || !(name.contains("dropout") || name.contains("rrelu")))
        });
        inner || drawn
    })
}

/// The seed of a node, derived from the name of its first result unless the graph has given one.
fn seed(cx: &mut Cx) -> Seed {
    let name = cx.node.results().next().unwrap_or_default();
    random::next_seed(cx, name.bytes())
}

fn uniform(cx: &mut Cx, range: (f64, f64)) -> Lowered {
    let ty = cx.result(0)?;
    let seed = seed(cx);
    Ok(vec![random::uniform(cx, ty.shape, ty.dtype, range, seed)?])
}

fn standard(cx: &mut Cx) -> Lowered {
    let ty = cx.result(0)?;
    let seed = seed(cx);
    Ok(vec![random::normal(cx, ty.shape, ty.dtype, (0.0, 1.0), seed)?])
}

fn normal(cx: &mut Cx) -> Lowered {
    let (ty, moments) = (cx.result(0)?, (cx.float("mean")?, cx.float("std")?));
    let seed = seed(cx);
    Ok(vec![random::normal(cx, ty.shape, ty.dtype, moments, seed)?])
}

/// Normal numbers with a mean or a deviation per element.
fn around(cx: &mut Cx) -> Lowered {
    let ty = cx.result(0)?;
    let [mean, deviation] = cx.all_in(["mean", "std"], ty.dtype)?;
    let seed = seed(cx);
    let y = random::normal(cx, ty.shape, ty.dtype, (0.0, 1.0), seed)?;
    let y = cx.binary(BinaryOp::Mul, y, deviation)?;
    Ok(vec![cx.binary(BinaryOp::Add, y, mean)?])
}

fn distributed(cx: &mut Cx, d: Distribution) -> Lowered {
    let ty = cx.result(0)?;
    let seed = seed(cx);
    Ok(vec![random::of(cx, ty.shape, ty.dtype, d, seed)?])
}

fn integers(cx: &mut Cx) -> Lowered {
    let ty = cx.result(0)?;
    let low = if cx.declares("low") { cx.int("low")? } else { 0 };
    let range = (low, cx.int("high")?);
    let seed = seed(cx);
    Ok(vec![random::integers(cx, ty.shape, ty.dtype, range, seed)?])
}

/// Random integers; by default from 0 to the largest one up to which the type represents every integer.
fn any_integers(cx: &mut Cx) -> Lowered {
    let ty = cx.result(0)?;
    let most = match ty.dtype {
        DType::Bool => 2,
        DType::F16 => (1 << 11) + 1,
        DType::BF16 => (1 << 8) + 1,
        t if t.is_float() => (1 << 24) + 1,
        t if t.bits() == 64 => i64::MAX,
        t if t.class() == wgfc_ir::Class::Uint => 1 << t.bits(),
        t => 1 << (t.bits() - 1),
    };
    let given = |cx: &Cx, name: &str| if cx.declares(name) { cx.opt_int(name) } else { Ok(None) };
    let range = (given(cx, "from")?.unwrap_or(0), given(cx, "to")?.unwrap_or(most));
    let seed = seed(cx);
    Ok(vec![random::integers(cx, ty.shape, ty.dtype, range, seed)?])
}

/// The operand: dropout without training.
fn kept(cx: &mut Cx) -> Lowered {
    if cx.flag("train")? && cx.float("p")? != 0.0 {
        return Err(OpError::unsupported("it drops elements", "call eval() on the module before exporting it"));
    }
    Ok(vec![cx.tensor("input")?])
}

fn permuted(cx: &mut Cx) -> Lowered {
    let (n, to) = (cx.size("n")?, cx.result_dtype(0)?);
    let seed = seed(cx);
    Ok(vec![random::permutation(cx, n, to, seed)?])
}

fn likely(cx: &mut Cx, p: Value) -> Lowered {
    let (p, to) = (cx.as_float(p)?, cx.result_dtype(0)?);
    let seed = seed(cx);
    Ok(vec![random::bernoulli(cx, p, to, seed)?])
}

fn bernoulli(cx: &mut Cx) -> Lowered {
    let (ty, p) = (cx.result(0)?, cx.float("p")?);
    let p = cx.full(&ty.shape, Scalar::from_f64(DType::F32, p))?;
    likely(cx, p)
}

/// Samples of classes with probabilities proportional to their weights.
fn multinomial(cx: &mut Cx) -> Lowered {
    let (x, samples) = (cx.tensor("self")?, cx.size("num_samples")?);
    let x = cx.as_float(x)?;
    let single = cx.rank(x) == 1;
    let x = if single { cx.unsqueeze(x, &[0])? } else { x };
    let logits = cx.unary(UnaryOp::Log, x)?;
    let y = if cx.flag("replacement")? {
        let samples = cx.int("num_samples")?;
        let seed = seed(cx);
        random::multinomial(cx, logits, samples, DType::I64, seed)?
    } else {
        let seed = seed(cx);
        random::distinct(cx, logits, &samples, DType::I64, seed)?
    };
    Ok(vec![if single { cx.squeeze(y, &[0])? } else { y }])
}

/// The result of dropout, and the mask of the elements that are kept.
fn dropped(cx: &mut Cx) -> Result<[Value; 2]> {
    let x = cx.tensor(if cx.declares("input") { "input" } else { "self" })?;
    let (p, train) = (cx.float("p")?, cx.flag("train")?);
    let dims = cx.shape(x);
    if !train || p == 0.0 {
        return Ok([x, cx.full(&dims, Scalar::bool(true))?]);
    }
    if p >= 1.0 {
        let zero = Scalar::from_f64(cx.dtype(x), 0.0);
        return Ok([cx.full(&dims, zero)?, cx.full(&dims, Scalar::bool(false))?]);
    }
    let ratio = cx.scalar(DType::F32, p);
    let seed = seed(cx);
    let (y, kept) = random::drop(cx, x, ratio, seed)?;
    Ok([y, kept])
}

/// Dropout of whole channels of each sample.
fn whole_features(cx: &mut Cx) -> Lowered {
    let (x, p) = (cx.tensor("input")?, cx.float("p")?);
    if !cx.flag("train")? || p == 0.0 {
        return Ok(vec![x]);
    }
    let dtype = cx.dtype(x);
    let mut dims = cx.shape(x);
    dims.iter_mut().skip(2).for_each(|d| *d = Dim::ONE);
    let factor = if p >= 1.0 {
        cx.scalar(dtype, 0.0)
    } else {
        let (ones, ratio) = (cx.full(&dims, Scalar::from_f64(dtype, 1.0))?, cx.scalar(DType::F32, p));
        let seed = seed(cx);
        random::drop(cx, ones, ratio, seed)?.0
    };
    Ok(vec![cx.binary(BinaryOp::Mul, x, factor)?])
}

/// RReLU: elements up to 0 times a random slope, and the slopes. Without training the slope is the mean of the bounds.
fn leaky(cx: &mut Cx) -> Lowered {
    let x = cx.tensor("self")?;
    let (low, high) = (cx.float("lower")?, cx.float("upper")?);
    let (dtype, dims) = (cx.dtype(x), cx.shape(x));
    let (training, seed) = (cx.flag("training")?, seed(cx));
    let slope = match training {
        true => random::uniform(cx, dims, dtype, (low, high), seed)?,
        false => cx.scalar(dtype, (low + high) / 2.0),
    };
    let chosen = |cx: &mut Cx, product: bool| {
        let mut f = Body::default();
        let (x0, slope0, zero, one) = (f.arg(0), f.arg(1), f.number(dtype, 0.0), f.number(dtype, 1.0));
        let low = f.binary(BinaryOp::Le, x0, zero);
        let scaled = f.binary(BinaryOp::Mul, x0, slope0);
        if product {
            f.select(low, scaled, x0);
        } else {
            f.select(low, slope0, one);
        }
        cx.map(f.0, &[x, slope])
    };
    let y = chosen(cx, true)?;
    if !cx.declares("noise") {
        return Ok(vec![y]);
    }
    let noise = if training { chosen(cx, false)? } else { cx.tensor("noise")? };
    if cx.result_count() > 1 {
        return Ok(vec![y, noise]);
    }
    cx.write("noise", noise)?;
    Ok(vec![y])
}
