//! f32 values stored as f16 in memory ([`Precision::F16`](crate::options::Precision)).
//!
//! This is a pass over fused kernels. f32 tensors between kernels, weights and caches become f16: kernels widen the
//! values that they load and round those that they store. Computations inside a kernel stay f32, among them sums,
//! norms and softmax. Inputs and outputs keep their types. The following stay f32 as well:
//!
//! - tensors of fewer than [`LITTLE`] elements;
//! - partial sums of products; values that a row reduction stores once if rows are long, such as statistics, means and
//!   partial sums, which take little memory; parts of attention, prefix sums, values that repeated kernels keep for
//!   the next repetition, and states that are not caches;
//! - values from which integers, angles beyond a few turns, or tests for equality are computed;
//! - bit patterns that are not numbers, integers beyond [`MOST_WHOLE`], which f16 does not have, squares and
//!   exponentials of unbounded values, and values that exceed the range of f16 for certain or as soon as the values
//!   from which they are computed reach [`TYPICAL`] ([`values`]), among them masks of -3.4e38 or infinity; and
//!   likewise values smaller than [`LEAST`];
//! - sums of three and more values of which a norm or a variance is computed: the residual stream of a network, which may grow from layer to
//!   layer, as nothing that reads it depends on its size;
//! - weights that f16 cannot hold: with a value that is outside of its range or not finite, with integers that would
//!   change, or whose norm changes by more than [`MOST_LOST`] of it, as happens for values below 6e-5;
//! - values that the optimizer of a training step computes from gradients, once the [scale of the loss](crate::loss_scale) is taken out of
//!   them; of scaled gradients no range is presumed, as the scale adapts to it;
//! - values of nodes that the user [names](crate::Options::keep_f32).
//!
//! If the device has no f16, only weights and caches become f16: stores of 16 bits would have to be combined by
//! atomics. If it has matrix units, operands of products that these support are rounded to f16 when they are loaded.

pub mod scaled;
pub mod values;

use crate::device::DeviceProfile;
use crate::error::{Diagnostic, Errors, close_names};
use crate::kernel::{
    Attention, Body, Expr, ExprId, Family, Kernel, KernelGraph, Matmul, PrefixScan, ReduceKind, Row,
    TensorId, TensorKind, renumbered,
};
use crate::options::{CacheType, Options};
use crate::schedule::products::few_rows;
use crate::schedule::products::problem::{half, in_fields, sides, suits};
use rustc_hash::{FxHashMap, FxHashSet};
use scaled::{Part, Parts};
use std::collections::BTreeMap;
use std::sync::Arc;
use values::{Value, Values};
use wgfc_ir::program::{Halved, Kept};
use wgfc_ir::{BinaryOp, DType, Poly, Scalar, Tensor, UnaryOp};

/// The minimum number of elements of a tensor that is stored as f16.
pub const LITTLE: i64 = 4096;
/// All integers up to this magnitude are exact in f16.
pub const MOST_WHOLE: f64 = 2048.0;
/// The greatest finite f16.
pub const MOST: f64 = 65504.0;
/// Values up to this magnitude are too small for f16, because parts of them may be lost below its least normal number,
/// 6e-5.
pub const LEAST: f64 = 1.0 / 1024.0;
/// The assumed magnitude of values about which nothing is known, for estimating the values computed from them.
pub const TYPICAL: f64 = 16.0;
/// The maximum relative change of a weight's norm: twice the cost of rounding if no value is too small.
pub const MOST_LOST: f64 = 1.0 / 1024.0;
/// The maximum number of terms of a sum that becomes f16 though it is normalised where it is read: a residual around one operator has two.
const STREAM: u32 = 2;
/// The minimum length of a long row, whose single stored values are a small share of its memory.
const LONG_ROW: i64 = 32;
/// The magnitude of angles from which on the error in f16 matters: here it is 0.03.
const MOST_ANGLE: f64 = 64.0;

/// Converts f32 tensors of kernels to f16. `operators` are the model's nodes. Outputs from index `taps` on are taps:
/// they keep their type, but are rounded like the tensors that they show would be without them. Also returns the
/// kernels that may be converted by [`for_units`].
///
/// # Errors
/// If a node to keep does not exist.
pub fn halve(
    graph: &mut KernelGraph,
    options: &Options,
    operators: &BTreeMap<String, String>,
    taps: usize,
) -> Result<(Halved, Vec<bool>), Errors> {
    let named = named(graph, options, operators)?;
    let (mut decided, computed) = decide(graph, options, &named, taps);
    decided.share(graph);
    let mut out = Halved::default();
    let own = computing(graph);
    let mut halved: Vec<bool> = decided.why.iter().map(|w| matches!(w, Choice::Half)).collect();
    for (i, choice) in decided.why.iter().enumerate() {
        let t = &graph.tensors[i];
        match choice {
            Choice::Other => {}
            Choice::Small => out.small += 1,
            Choice::Keep(why) => out.kept.push(Kept {
                tensor: t.ty.to_string(),
                name: t.name.as_deref().unwrap_or_default().to_owned(),
                nodes: nodes_of(graph, &own, i),
                why: why.clone(),
            }),
            Choice::Half => match t.kind {
                TensorKind::Const(_) => out.weights += 1,
                TensorKind::State { after, .. } => out.states += usize::from(!after),
                TensorKind::Under(_) => {}
                _ => out.between += 1,
            },
        }
    }
    let is_output = |t: TensorId| matches!(graph.tensors[t].kind, TensorKind::Output(_));
    let shown: Vec<bool> = halved.iter().enumerate().map(|(t, h)| *h && is_output(t)).collect();
    halved.iter_mut().zip(&shown).for_each(|(h, s)| *h &= !s);
    let mut converted: FxHashMap<usize, Arc<Tensor>> = FxHashMap::default();
    for (t, _) in graph.tensors.iter_mut().zip(&halved).filter(|(_, h)| **h) {
        t.ty.dtype = DType::F16;
        if let TensorKind::Const(data) = &mut t.kind {
            let own = converted.entry(Arc::as_ptr(data) as usize).or_insert_with(|| Arc::new(data.in_half()));
            *data = own.clone();
        }
    }
    let units = options.profile.has_matrix_units();
    let mut rounds = vec![];
    for (i, (k, values)) in graph.kernels.iter_mut().zip(&computed).enumerate() {
        let round = units && !decided.named.contains(&i) && operands_fit(k, values, &decided.exact);
        if round {
            bound(k, &decided.parts.kernel(k), &halved);
        }
        rounds.push(round);
        *k = widened(k, &halved);
        let mut body = std::mem::take(&mut k.body);
        for s in k.all_stores_mut().filter(|s| shown.get(s.tensor) == Some(&true)) {
            s.value = rounded(&mut body, s.value);
        }
        k.body = body;
    }
    Ok((out, rounds))
}

/// The nodes to keep, all of which must exist in the model.
fn named(
    graph: &KernelGraph,
    options: &Options,
    operators: &BTreeMap<String, String>,
) -> Result<FxHashSet<Arc<str>>, Errors> {
    let known: FxHashSet<&str> = graph.kernels.iter().flat_map(|k| &k.nodes).map(|n| &**n).collect();
    let mut errors = vec![];
    for node in options.keep_f32.iter().filter(|n| !known.contains(n.as_str())) {
        let d = match operators.contains_key(node) {
            true => Diagnostic::model(format!("node \"{node}\" has no kernel (--keep-f32 {node})"))
                .help("it only moves elements, or was folded into others; `wgfc inspect` lists the nodes of each kernel"),
            false => unknown(node, known.iter().copied().chain(operators.keys().map(String::as_str))),
        };
        errors.push(d);
    }
    if errors.is_empty() {
        return Ok(options.keep_f32.iter().map(|n| Arc::from(n.as_str())).collect());
    }
    Err(Errors(errors))
}

/// The nodes of the kernels that write a tensor or, if there are none, of those that read it. `own` are the nodes that
/// each kernel computes.
fn nodes_of(graph: &KernelGraph, own: &[Vec<&Arc<str>>], t: TensorId) -> Vec<String> {
    let of = |uses: &dyn Fn(&Kernel) -> bool| {
        let mut all: Vec<String> = vec![];
        for n in graph.kernels.iter().zip(own).filter(|(k, _)| uses(k)).flat_map(|(_, own)| own) {
            if !all.iter().any(|a| **a == ***n) {
                all.push(n.to_string());
            }
        }
        all
    };
    let writers = of(&|k| k.writes().contains(&t));
    if writers.is_empty() { of(&|k| k.reads().contains(&t)) } else { writers }
}

/// The decision for a tensor.
#[derive(Clone, Debug, PartialEq)]
enum Choice {
    /// It is not f32, or is an input or output.
    Other,
    /// It is f32 and stays so because it is small.
    Small,
    /// It stays f32 for this reason.
    Keep(String),
    /// It becomes f16.
    Half,
}

struct Decided {
    why: Vec<Choice>,
    /// Tensors that f16 cannot hold exactly enough, or that are named by the user: products must not round them
    /// either.
    exact: FxHashSet<TensorId>,
    /// Kernels of nodes named by the user.
    named: FxHashSet<usize>,
    /// The parts of a training step.
    parts: Parts,
}

impl Decided {
    fn keep(&mut self, t: TensorId, why: impl FnOnce() -> String) {
        if let Some(c) = self.why.get_mut(t).filter(|c| **c == Choice::Half) {
            *c = Choice::Keep(why());
        }
    }

    /// Tensors that share memory get the same decision.
    fn share(&mut self, graph: &KernelGraph) {
        let key = |t: TensorId| match graph.tensors[t].kind {
            TensorKind::State { state, .. } => (1, state),
            TensorKind::Under(over) => match graph.tensors.get(over).map(|o| &o.kind) {
                Some(TensorKind::State { state, .. }) => (1, *state),
                _ => (0, over),
            },
            _ => (0, t),
        };
        let mut worst: FxHashMap<(usize, usize), Choice> = FxHashMap::default();
        for (t, c) in self.why.iter().enumerate().filter(|(_, c)| **c != Choice::Half) {
            worst.entry(key(t)).or_insert_with(|| c.clone());
        }
        for (t, c) in self.why.iter_mut().enumerate() {
            if let Some(w) = worst.get(&key(t)).filter(|_| *c == Choice::Half) {
                *c = w.clone();
            }
        }
    }
}

/// Decides for each tensor, from the value ranges of each kernel's expressions.
fn decide(
    graph: &KernelGraph,
    options: &Options,
    named: &FxHashSet<Arc<str>>,
    taps: usize,
) -> (Decided, Vec<Vec<Value>>) {
    let little = |t: TensorId| graph.tensors[t].ty.numel().as_const().is_some_and(|n| n < LITTLE);
    let factors = factors(graph);
    let parts = &Parts::new(graph);
    let own = |t: TensorId| match &graph.tensors[t].kind {
        _ if graph.tensors[t].ty.dtype != DType::F32 => Choice::Other,
        TensorKind::Output(i) if *i >= taps && options.profile.f16 && !little(t) => Choice::Half,
        TensorKind::Input(_) | TensorKind::Output(_) | TensorKind::Withheld(_) => Choice::Other,
        TensorKind::State { grows: true, .. } if options.cache != CacheType::Own => {
            Choice::Keep(format!("--cache {}", options.cache))
        }
        TensorKind::State { grows: true, .. } => Choice::Half,
        TensorKind::State { .. } => Choice::Keep("a state that is no cache".into()),
        TensorKind::Intermediate | TensorKind::Under(_) if !options.profile.f16 => {
            Choice::Keep("the device has no f16".into())
        }
        // Products round their operands for matrix units anyway, so small weights are rounded in advance, and small gradients so that the
        // check for overflow reads what products do.
        TensorKind::Const(_) if little(t) && !(options.profile.f16 && factors.contains(&t)) => Choice::Small,
        TensorKind::Intermediate if factors.contains(&t) && parts.of(t) == Part::Scaled => Choice::Half,
        TensorKind::Intermediate | TensorKind::Under(_) if little(t) => Choice::Small,
        TensorKind::Const(_) | TensorKind::Intermediate | TensorKind::Under(_) => Choice::Half,
    };
    let mut d = Decided {
        why: (0..graph.tensors.len()).map(own).collect(),
        exact: FxHashSet::default(),
        named: FxHashSet::default(),
        parts: parts.clone(),
    };
    let mut of = Values::new(graph);
    for (t, loss) in of.losses() {
        let (low, high) = loss.range;
        if !loss.finite || (loss.whole && loss.rounded) || loss.relative > MOST_LOST {
            d.exact.insert(t);
        }
        if !loss.finite {
            d.keep(t, || format!("its values reach from {low:.3e} to {high:.3e}"));
        } else if loss.whole && loss.rounded {
            d.keep(t, || format!("whole numbers beyond {MOST_WHOLE}"));
        } else if loss.relative > MOST_LOST {
            d.keep(t, || format!("its values are too small: f16 changes them by {:.1e}", loss.relative));
        }
    }
    for r in &graph.repeats {
        for t in r.keeps.iter().copied().chain(r.until.iter().map(|u| u.word)) {
            d.keep(t, || "kept from one repetition to the next".into());
        }
    }
    let mut computed = vec![];
    let normalised = normalised(graph);
    for k in &graph.kernels {
        let values = of.kernel(k);
        structure(graph, k, parts, &mut d);
        for s in k.all_stores() {
            let Some(v) = values.get(s.value as usize) else { continue };
            if parts.is_of_optimizer(s.tensor) {
                d.exact.insert(s.tensor);
                d.keep(s.tensor, || {
                    "the optimizer computes or reads it, of gradients that are not scaled".into()
                });
            } else if parts.is_last(s.tensor) {
                d.keep(s.tensor, || "a gradient that the optimizer reads, or a sum of one".into());
            } else if parts.of(s.tensor) == Part::Scaled {
                // The scale adapts to the range of gradients.
            } else if let Some(why) = unfit(v) {
                d.keep(s.tensor, || why);
            } else if v.terms > STREAM && normalised.contains(&s.tensor) {
                d.keep(s.tensor, || {
                    format!("a sum of {} values that is normalised where it is read", v.terms)
                });
            }
        }
        for (root, why) in delicate(k, &values) {
            for e in k.body.reachable(&[root]) {
                if let Expr::Load { tensor, .. } = k.body.expr(e) {
                    d.keep(*tensor, || why.to_owned());
                }
            }
        }
        computed.push(
            parts
                .kernel(k)
                .into_iter()
                .zip(values)
                .map(|(part, v)| match part {
                    Part::Scaled => Value::unknown(),
                    _ => v,
                })
                .collect(),
        );
    }
    // Nodes named by the user keep the tensors that their kernels write, and the weights that no other kernel reads.
    let mut kept: Vec<(&Kernel, &Arc<str>)> = vec![];
    let mut elsewhere: FxHashSet<TensorId> = FxHashSet::default();
    for (i, (k, own)) in graph.kernels.iter().zip(computing(graph)).enumerate() {
        match own.into_iter().find(|n| named.contains(*n)) {
            Some(node) => {
                d.named.insert(i);
                kept.push((k, node));
            }
            None => elsewhere.extend(k.reads()),
        }
    }
    for (k, node) in kept {
        let weights = k
            .reads()
            .into_iter()
            .filter(|t| matches!(graph.tensors[*t].kind, TensorKind::Const(_)) && !elsewhere.contains(t));
        for t in k.writes().into_iter().chain(weights) {
            d.exact.insert(t);
            d.keep(t, || format!("--keep-f32 {node}"));
        }
    }
    (d, computed)
}

/// The tensors that products of several rows and columns multiply directly.
fn factors(graph: &KernelGraph) -> FxHashSet<TensorId> {
    let of = |k: &Kernel| -> Vec<TensorId> {
        let Family::Matmul(Matmul { m, n, a, b, .. }) = &k.family else { return vec![] };
        if m.is(1) || n.is(1) {
            return vec![];
        }
        let load = |e: &ExprId| match k.body.expr(*e) {
            Expr::Load { tensor, .. } => Some(*tensor),
            _ => None,
        };
        [a].into_iter().chain(b).filter_map(load).collect()
    };
    graph.kernels.iter().flat_map(of).collect()
}

/// The error for a node to keep that does not exist.
pub(crate) fn unknown<'a>(node: &str, all: impl Iterator<Item = &'a str>) -> Diagnostic {
    let mut close = close_names(node, all);
    close.dedup();
    let help = match close.is_empty() {
        false => format!("close names: {}", close.join(", ")),
        true => "`wgfc inspect --dispatches` lists the nodes of each kernel".into(),
    };
    Diagnostic::model(format!("the model has no node \"{node}\" (--keep-f32 {node})")).help(help)
}

/// The nodes that each kernel computes: its nodes, without those whose result it only reads from another kernel.
fn computing(graph: &KernelGraph) -> Vec<Vec<&Arc<str>>> {
    let mut out: Vec<Vec<&Arc<str>>> = vec![];
    let mut writers: FxHashMap<TensorId, Vec<usize>> = FxHashMap::default();
    for (i, k) in graph.kernels.iter().enumerate() {
        let read: Vec<usize> = k.reads().iter().filter_map(|t| writers.get(t)).flatten().copied().collect();
        let own = k.nodes.iter().filter(|n| !read.iter().any(|w| out[*w].contains(n))).collect();
        out.push(own);
        k.writes().into_iter().for_each(|t| writers.entry(t).or_default().push(i));
    }
    out
}

/// The tensors of which a norm or a variance is computed: their elements, or sums with them, are squared or raised to a power, where they
/// are stored or where they are read.
fn normalised(graph: &KernelGraph) -> FxHashSet<TensorId> {
    let mut out = FxHashSet::default();
    for k in &graph.kernels {
        let mut linear: FxHashSet<ExprId> = FxHashSet::default();
        let mut stack: Vec<ExprId> = vec![];
        for (_, e, _) in k.body.iter().filter(|(_, _, dtype)| dtype.is_float()) {
            match e {
                Expr::Binary(BinaryOp::Mul, a, b) if a == b => stack.push(*a),
                Expr::Binary(BinaryOp::Pow, a, _) => stack.push(*a),
                _ => {}
            }
        }
        while let Some(e) = stack.pop() {
            if !linear.insert(e) {
                continue;
            }
            match *k.body.expr(e) {
                Expr::Binary(BinaryOp::Add | BinaryOp::Sub, a, b) | Expr::Select(_, a, b) => {
                    stack.extend([a, b])
                }
                Expr::Cast(to, a) if to.is_float() => stack.push(a),
                Expr::Load { tensor, .. } => {
                    out.insert(tensor);
                }
                _ => {}
            }
        }
        out.extend(k.all_stores().filter(|s| linear.contains(&s.value)).map(|s| s.tensor));
    }
    out
}

/// Marks the tensors that a kernel's family stores and that are not activations.
fn structure(graph: &KernelGraph, k: &Kernel, parts: &Parts, d: &mut Decided) {
    let long = |d: &wgfc_ir::Dim| d.as_const().is_none_or(|n| n >= LONG_ROW);
    if let Family::Row(Row { len, reductions, .. }) = &k.family {
        // The partial sums of a product, with the slices one after the other.
        for r in reductions.iter().filter(|r| r.kind == ReduceKind::Sum) {
            let Expr::Load { tensor, offset, .. } = k.body.expr(r.value) else { continue };
            let slice = graph.tensors[*tensor].ty.numel().div(len, &[]);
            let writer = graph.kernels.iter().find(|k| k.writes().contains(tensor));
            let product = writer.is_some_and(|k| matches!(k.family, Family::Matmul(_)));
            // The gradient of a bias is a sum of the rows of one product, too.
            let one = writer.is_some_and(|k| matches!(&k.family, Family::Matmul(m) if m.batch.is(1)));
            let whole = parts.of(*tensor) == Part::Scaled && one;
            if product && !whole && !(offset - &(&Poly::var(1) * &slice)).vars().contains(&1) {
                d.keep(*tensor, || "a slice of a sum".into());
            }
        }
    }
    match &k.family {
        Family::Row(Row { len, row_stores, .. }) if long(len) => {
            row_stores.iter().for_each(|s| d.keep(s.tensor, || "one value of each row".into()));
        }
        Family::PrefixScan(PrefixScan { .. }) => {
            k.stores.iter().for_each(|s| d.keep(s.tensor, || "sums of what comes before".into()));
        }
        Family::Attention(Attention { part_stores, .. }) if !part_stores.is_empty() => {
            k.all_stores().for_each(|s| d.keep(s.tensor, || "a part of attention".into()));
        }
        _ => {}
    }
}

/// The reason for which a value cannot be stored in f16, if there is one.
fn unfit(v: &Value) -> Option<String> {
    let most = |(low, high): (f64, f64)| low.abs().max(high.abs());
    let (proven, typical) = (most(v.proven), most(v.typical));
    if v.bits {
        Some("bits that are no number".into())
    } else if v.whole && typical > MOST_WHOLE && (typical <= MOST || typical.is_infinite()) {
        Some(format!("whole numbers beyond {MOST_WHOLE}"))
    } else if typical > MOST {
        let range = format!("its values may reach {typical:.3e}");
        let where_ = format!(" where those that it is computed from reach {TYPICAL}");
        Some(if proven == typical { range } else { range + &where_ })
    } else if v.square && proven > MOST {
        Some("a square".into())
    } else if typical > 0.0 && typical < LEAST {
        Some(format!("its values are too small: at most {typical:.3e}"))
    } else {
        None
    }
}

/// The expressions whose error must stay small, with the reasons.
fn delicate(k: &Kernel, values: &[Value]) -> Vec<(ExprId, &'static str)> {
    let b = &k.body;
    let float = |e: ExprId| b.dtype(e) == DType::F32;
    let constant = |e: ExprId| matches!(b.expr(e), Expr::Const(_));
    let mut out = vec![];
    for id in b.reachable(&k.roots()) {
        match *b.expr(id) {
            Expr::Cast(to, a) if to.is_int() && to.bits() > 8 && float(a) => {
                out.push((a, "an integer is computed from it"));
            }
            Expr::Bitcast(_, a) if float(a) => out.push((a, "its bits are looked at")),
            Expr::Binary(BinaryOp::Eq | BinaryOp::Ne, x, y) if float(x) && !constant(x) && !constant(y) => {
                out.extend([x, y].map(|e| (e, "it is tested for equality")));
            }
            Expr::Binary(BinaryOp::Rem | BinaryOp::Mod, x, y) if float(x) => {
                out.extend([x, y].map(|e| (e, "a remainder is computed from it")));
            }
            Expr::Unary(UnaryOp::Sin | UnaryOp::Cos | UnaryOp::Tan, a) => {
                let angle = values.get(a as usize).map_or((0.0, 0.0), |v| v.typical);
                if angle.0.abs().max(angle.1.abs()) > MOST_ANGLE {
                    out.push((a, "an angle is computed from it"));
                }
            }
            _ => {}
        }
    }
    out
}

/// The kernel with loads of tensors that became f16 widened to f32.
fn widened(k: &Kernel, halved: &[bool]) -> Kernel {
    let domain = k.domain();
    let mut body = Body::default();
    let mut ids: Vec<ExprId> = vec![];
    for (_, e, dtype) in k.body.iter() {
        let of = |id: ExprId| ids.get(id as usize).copied().unwrap_or(0);
        let new = e.mapped(of, |p| renumbered(p, of, &domain));
        let half = matches!(e, Expr::Load { tensor, .. } if halved.get(*tensor) == Some(&true));
        ids.push(match half {
            true => {
                let load = body.push(new, DType::F16);
                body.push(Expr::Cast(DType::F32, load), DType::F32)
            }
            false => body.push(new, dtype),
        });
    }
    let of = |id: ExprId| ids.get(id as usize).copied().unwrap_or(0);
    let mut new = k.over(body, &of, &mut |p| renumbered(p, of, &domain));
    let mut body = std::mem::take(&mut new.body);
    for s in new.all_stores_mut().filter(|s| halved.get(s.tensor) == Some(&true)) {
        s.value = exact(&mut body, s.value).unwrap_or(s.value);
    }
    new.body = body;
    new
}

/// The f16 expression to which an f32 expression is exactly equal, if there is one.
fn exact(body: &mut Body, e: ExprId) -> Option<ExprId> {
    match *body.expr(e) {
        Expr::Cast(DType::F32, a) if body.dtype(a) == DType::F16 => Some(a),
        Expr::Select(c, a, b) => {
            let (a, b) = (exact(body, a)?, exact(body, b)?);
            Some(body.push(Expr::Select(c, a, b), DType::F16))
        }
        Expr::Const(s) if s.dtype == DType::F32 => {
            let v = s.as_f64();
            let same = half::f16::from_f64(v).to_f64().to_bits() == v.to_bits();
            same.then(|| body.push(Expr::Const(Scalar::from_f64(DType::F16, v)), DType::F16))
        }
        _ => None,
    }
}

/// An f32 expression rounded to f16.
fn rounded(body: &mut Body, e: ExprId) -> ExprId {
    let half = match exact(body, e) {
        Some(half) => half,
        None => body.push(Expr::Cast(DType::F16, e), DType::F16),
    };
    body.push(Expr::Cast(DType::F32, half), DType::F32)
}

/// Whether a kernel is one product of two operands that fit f16. Operands that read a tensor in `exact` do not fit.
fn operands_fit(k: &Kernel, values: &[Value], exact: &FxHashSet<TensorId>) -> bool {
    let Family::Matmul(Matmul { a, b, sums, .. }) = &k.family else { return false };
    let fits = |e: &ExprId| {
        let reads_exact =
            |e: &ExprId| matches!(k.body.expr(*e), Expr::Load { tensor, .. } if exact.contains(tensor));
        let unfit = values.get(*e as usize).is_none_or(|v| unfit(v).is_some());
        !unfit && !k.body.reachable(&[*e]).iter().any(reads_exact)
    };
    b.len() == 1 && sums.is_empty() && fits(a) && b.iter().all(fits)
}

/// Bounds the operands of a product that are scaled gradients and are not f16 in memory, so that rounding them gives no infinity that the check
/// for overflow, which does not round them, does not see.
fn bound(k: &mut Kernel, parts: &[Part], halved: &[bool]) {
    let Family::Matmul(m) = &mut k.family else { return };
    for operand in [&mut m.a].into_iter().chain(&mut m.b) {
        let in_memory =
            matches!(k.body.expr(*operand), Expr::Load { tensor, .. } if halved.get(*tensor) == Some(&true));
        if parts.get(*operand as usize) == Some(&Part::Scaled) && !in_memory {
            for (op, most) in [(BinaryOp::Min, MOST), (BinaryOp::Max, -MOST)] {
                let most = k.body.push(Expr::Const(Scalar::from_f64(DType::F32, most)), DType::F32);
                *operand = k.body.push(Expr::Binary(op, *operand, most), DType::F32);
            }
        }
    }
}

/// The product with operands rounded to f16 where they are not, if the device's matrix units then support it and there are rows enough for
/// them.
pub fn for_units(k: Kernel, device: &DeviceProfile) -> Kernel {
    let mut new = k.clone();
    let mut quantised = false;
    if let Family::Matmul(m) = &mut new.family {
        for operand in [&mut m.a].into_iter().chain(&mut m.b) {
            quantised |= in_fields(&new.body, *operand);
            if !half(&new.body, *operand) {
                *operand = rounded(&mut new.body, *operand);
            }
        }
    }
    let few = few_rows(quantised, device);
    let taken = sides(&new)
        .is_some_and(|(x, y)| x.extent.as_const().is_none_or(|rows| rows > few) && suits(&new, &x, &y));
    if taken { new } else { k }
}
