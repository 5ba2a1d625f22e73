//! The graph of a decoder.

use super::pages::Paging;
use super::{Activation, Description, LayerPart, Part, Weights};
use crate::assemble::packed;
use crate::import::{Imported, close_names};
use crate::lower::heads::{Attend, Mask, Offset, append, join, split};
use crate::lower::inside::Names;
use crate::lower::{Lowering, OpError, Place, Result, activation, check_dims, norm, rotary, split as parts};
use crate::{Diagnostic, Errors, Location, Options};
use std::collections::BTreeMap;
use std::sync::Arc;
use wgfc_ir::{
    BinaryOp as B, Border, Contract, DType, Dim, Graph, Op, Poly, ScalarFn, ScalarNode as N, TensorType,
    UnaryOp as U, Value,
};

/// The symbolic dimensions of a decoder whose caches grow, and of one whose caches are pools of pages.
const SYMBOLS: [&str; 3] = ["batch", "seq", "past"];
const SYMBOLS_OF_PAGES: [&str; 4] = ["batch", "seq", "blocks", "pages"];

/// The names of the symbolic dimensions.
fn symbols(options: &Options) -> &'static [&'static str] {
    if options.page.is_some() { &SYMBOLS_OF_PAGES } else { &SYMBOLS }
}

impl Activation {
    /// Its value.
    pub(super) fn of(self, cx: &mut Lowering, x: Value) -> Result<Value> {
        match self {
            Activation::Silu => activation::swish(cx, x, 1.0),
            Activation::Gelu => activation::gelu(cx, x),
            Activation::GeluTanh => activation::gelu_tanh(cx, x),
        }
    }
}

/// `x · wᵀ` of `x`, `[batch, seq, from]`, and `w`, `[to, from]`.
pub(super) fn linear(cx: &mut Lowering, x: Value, w: Value) -> Result<Value> {
    let c = Contract { a: vec![0, 1, 2], b: vec![3, 2], out: vec![0, 1, 3] };
    Ok(cx.push(Op::Contract(c), &[x, w])?)
}

/// Makes the graph of a decoder. `help` advises on faults of the model's weights.
///
/// # Errors
/// The weights that the model lacks or whose shapes are wrong; options that name dimensions or tensors that it does not have.
pub fn build(
    d: &Description,
    weights: &mut dyn Weights,
    options: &Options,
    help: &str,
) -> std::result::Result<Imported, Errors> {
    let mut graph = Graph::new();
    let mut cx = Lowering::new(&mut graph);
    cx.look_inside(options);
    let dim = |name: &str| options.dims.get(name).map_or_else(|| Dim::sym(name), |n| Dim::from(*n));
    let mut b = Build {
        d,
        weights,
        errors: wrong_dims(options),
        help,
        names: vec![],
        operators: BTreeMap::new(),
        batch: dim("batch"),
        seq: dim("seq"),
        past: dim("past"),
        page: options.page,
        blocks: dim("blocks"),
        pages: dim("pages"),
        moved: Dim::ZERO,
    };
    if b.errors.is_empty() {
        b.decoder(&mut cx);
    }
    let failed = b.errors.len();
    let inside = Names {
        kind: "tensor",
        names: b.names.iter().map(String::as_str).collect(),
        failed: &|_| failed > 0,
        inner: &|_| false,
        help: "`wgfc inspect` lists the tensors of the model",
    };
    b.errors.extend(cx.finish_inside(&inside));
    let notes = cx.finish();
    match b.errors.is_empty() {
        false => Err(Errors(b.errors)),
        true => {
            let nodes = b.operators.len();
            Ok(Imported::of(graph, nodes, &b.moved, notes.warnings, (0, 0), b.operators))
        }
    }
}

/// Errors of options that fix dimensions.
fn wrong_dims(options: &Options) -> Vec<Diagnostic> {
    let unknown = options.dims.keys().filter(|n| !symbols(options).contains(&n.as_str())).map(|name| {
        let d = Diagnostic::model(format!("the model has no symbolic dimension `{name}`"));
        let known = symbols(options);
        let close = close_names(name, known.iter().copied());
        let all = if close.is_empty() { known.join(", ") } else { close.join(", ") };
        d.help(format!("its dimensions are {all}"))
    });
    let wrong = options.dims.iter().filter(|(_, n)| **n < 0 || **n > i64::from(i32::MAX)).map(|(name, n)| {
        Diagnostic::model(format!("the dimension `{name}` cannot be {n}")).help("give a number below 2^31")
    });
    let values = options.values.keys().map(|name| {
        Diagnostic::unsupported(format!("a value is given for `{name}` while compiling"))
            .help("pass it to the run: the graph of this model does not depend on values")
    });
    unknown.chain(wrong).chain(values).collect()
}

struct Build<'a> {
    d: &'a Description,
    weights: &'a mut dyn Weights,
    errors: Vec<Diagnostic>,
    help: &'a str,
    /// The names of tensors that can be tapped.
    names: Vec<String>,
    operators: BTreeMap<String, String>,
    batch: Dim,
    seq: Dim,
    past: Dim,
    /// The positions of a page, if caches are pools of pages.
    page: Option<i64>,
    /// The pages of the longest sequence, and those of a pool.
    blocks: Dim,
    pages: Dim,
    /// Bytes moved if every operator were a kernel of its own.
    moved: Dim,
}

/// The inputs that all layers share.
struct Shared {
    /// True where a key holds a token, `[batch, 1, 1, past + seq]`.
    visible: Option<Value>,
    /// Cosines and sines of each rotary embedding.
    angles: Vec<[Value; 2]>,
    /// The number of positions that queries may see, new ones included.
    total: Dim,
    /// The position of the first query.
    offset: Offset,
    /// The places of positions, if caches are pools of pages.
    paging: Option<Paging>,
}

impl Build<'_> {
    fn decoder(&mut self, cx: &mut Lowering) {
        if let Err(e) = self.all(cx) {
            self.report(e, String::new());
        }
    }

    fn report(&mut self, e: OpError, node: String) {
        if e.reported {
            return;
        }
        let operator = self.operators.get(&node).map(|o| o.as_str().into());
        let at = Location {
            node: Some(node.into()).filter(|n: &Arc<str>| !n.is_empty()),
            operator,
            ..Location::default()
        };
        let help = self.help;
        self.errors.push(crate::import::diagnostic(e, at, |_| help.to_owned()));
    }

    fn input(&self, cx: &mut Lowering, name: &str, dtype: DType, shape: Vec<Dim>) -> Result<Value> {
        let ty = TensorType::new(dtype, shape);
        check_dims(&ty).map_err(|e| OpError::model(e).at(format!("input \"{name}\"")))?;
        let v = cx.graph.add_input(name, ty);
        Ok(cx.named(name, v))
    }

    /// Lowers an operator; its errors name it.
    fn at(
        &mut self,
        cx: &mut Lowering,
        name: &str,
        operator: &str,
        f: impl FnOnce(&mut Build<'_>, &mut Lowering) -> Result<Value>,
    ) -> Result<Value> {
        self.operators.insert(name.to_owned(), operator.to_owned());
        let before = cx.at(Place::new(name, name));
        let made = f(self, cx);
        cx.at(before);
        match made {
            Ok(v) => {
                let v = cx.named(name, v);
                if let Some(slot @ None) = cx.graph.node_mut(v.node).names.get_mut(v.port as usize) {
                    *slot = Some(name.into());
                }
                self.names.push(name.to_owned());
                Ok(v)
            }
            Err(e) => {
                self.report(e, name.to_owned());
                Err(OpError::reported())
            }
        }
    }

    /// Counts the bytes of operands and results.
    fn count(&mut self, cx: &Lowering, values: &[Value]) {
        for v in values {
            self.moved = &self.moved + &packed(cx.dtype(*v), &cx.ty(*v).numel());
        }
    }

    /// A sum or a product of two tensors.
    fn joined(&mut self, cx: &mut Lowering, op: B, a: Value, b: Value) -> Result<Value> {
        let y = cx.binary(op, a, b)?;
        self.count(cx, &[a, b, y]);
        Ok(y)
    }

    /// A weight of a known shape.
    fn load(&mut self, cx: &mut Lowering, part: Part, shape: &[usize]) -> Result<Value> {
        let v = self.weights.load(cx, part)?;
        self.moved =
            &self.moved + &Dim::from(i64::try_from(self.weights.bytes(part)).unwrap_or(i64::MAX / 2));
        let want: Vec<Dim> = shape.iter().map(|d| (*d).into()).collect();
        if cx.shape(v) != want {
            let name = self.weights.name(part);
            let have = wgfc_ir::op::show(&cx.shape(v));
            return Err(OpError::model(format!(
                "the weight `{name}` is {have}, and the parameters of the model ask for {shape:?}"
            )));
        }
        Ok(v)
    }

    /// The name of a weight's operator: its own without the ending.
    fn operator(&self, part: Part) -> String {
        let name = self.weights.name(part);
        name.strip_suffix(".weight").map(str::to_owned).unwrap_or(name)
    }

    fn linear(&mut self, cx: &mut Lowering, x: Value, part: Part, [to, from]: [usize; 2]) -> Result<Value> {
        let name = self.operator(part);
        self.at(cx, &name, "Linear", |b, cx| {
            let w = b.load(cx, part, &[to, from])?;
            let y = linear(cx, x, w)?;
            b.count(cx, &[x, y]);
            Ok(y)
        })
    }

    fn norm(&mut self, cx: &mut Lowering, x: Value, part: Part, width: usize) -> Result<Value> {
        let name = self.operator(part);
        self.at(cx, &name, "RMSNorm", |b, cx| {
            let mut w = b.load(cx, part, &[width])?;
            if b.d.norms_add_one {
                w = cx.binary_scalar(B::Add, w, 1.0)?;
            }
            let last = cx.rank(x) - 1;
            let y = norm::scaled_rms(cx, x, w, &[last], b.d.epsilon)?;
            b.count(cx, &[x, y]);
            Ok(y)
        })
    }

    fn all(&mut self, cx: &mut Lowering) -> Result<()> {
        let d = self.d;
        let (batch, seq) = (self.batch.clone(), self.seq.clone());
        let total = match self.page {
            Some(page) => &self.blocks * page,
            None => &self.past + &seq,
        };
        let ids = self.input(cx, "input_ids", DType::I64, vec![batch.clone(), seq.clone()])?;
        let appended = self.page.is_none();
        let alone = batch.is(1) && appended;
        let (positions, given) = match alone {
            true => (cx.iota(&[batch.clone(), seq.clone()], &Poly::var(1) + &self.past, DType::I32)?, None),
            false => {
                let all = self.input(cx, "position_ids", DType::I64, vec![batch.clone(), seq.clone()])?;
                (all, Some(all))
            }
        };
        let positions = cx.cast(positions, DType::F32)?;
        let visible = match appended && !alone {
            false => None,
            true => {
                let mask =
                    self.input(cx, "attention_mask", DType::I64, vec![batch.clone(), total.clone()])?;
                let zero = cx.int(DType::I64, 0);
                let visible = cx.binary(B::Ne, mask, zero)?;
                Some(cx.unsqueeze(visible, &[1, 2])?)
            }
        };
        let paging = match (self.page, given) {
            (Some(page), Some(positions)) => {
                let table = vec![batch, self.blocks.clone()];
                let table = self.input(cx, "block_table", DType::I32, table)?;
                Some(Paging::new(cx, page, positions, table)?)
            }
            _ => None,
        };
        let offset = match &paging {
            Some(p) => Offset::Of(p.start),
            None => Offset::Is(self.past.clone()),
        };
        let angles = d.rotary.iter().map(|r| r.angles(cx, positions, &total)).collect::<Result<Vec<_>>>()?;
        let shared = Shared { visible, angles, total, offset, paging };

        let name = self.operator(Part::Embedding);
        let embedding = self.weights.load(cx, Part::Embedding)?;
        let vocabulary = match &cx.shape(embedding)[..] {
            [v, w] if w.is(d.width as i64) => v.clone(),
            _ => {
                let have = cx.ty(embedding).to_string();
                let message = format!("the embedding `{name}` is {have}, not [vocabulary, {}]", d.width);
                return Err(OpError::model(message));
            }
        };
        let mut x = self.at(cx, &name, "Gather", |_, cx| {
            let ids = cx.require_indices(ids)?;
            let x = cx.take(embedding, ids, 0)?;
            match d.embedding_scale {
                1.0 => Ok(x),
                s => Ok(cx.binary_scalar(B::Mul, x, f64::from(s as f32))?),
            }
        })?;
        let mut present = vec![];
        for layer in 0..d.layers {
            // The errors of all layers are collected, as their weights are wrong independently.
            match self.layer(cx, x, layer, &shared) {
                Ok((y, caches)) => {
                    x = y;
                    present.extend(caches);
                }
                Err(e) => self.report(e, String::new()),
            }
        }
        if !self.errors.is_empty() {
            return Err(OpError::reported());
        }
        let x = self.norm(cx, x, Part::FinalNorm, d.width)?;
        let head = if self.weights.has(Part::Head) { Part::Head } else { Part::Embedding };
        let vocabulary = vocabulary.as_const().and_then(|v| usize::try_from(v).ok()).unwrap_or_default();
        let logits = self.at(cx, "logits", "Linear", |b, cx| {
            let w = b.load(cx, head, &[vocabulary, d.width])?;
            let y = linear(cx, x, w)?;
            b.count(cx, &[x, y]);
            capped(cx, y, d.logit_cap)
        })?;
        cx.graph.outputs.insert(0, Border { name: "logits".into(), value: logits });
        cx.graph.outputs.extend(present);
        Ok(())
    }

    /// A layer's output, and the outputs of its cache.
    fn layer(
        &mut self,
        cx: &mut Lowering,
        x: Value,
        layer: usize,
        shared: &Shared,
    ) -> Result<(Value, Vec<Border>)> {
        use LayerPart as P;
        let d = self.d;
        let part = |p: P| Part::Layer(layer, p);
        let n = self.norm(cx, x, part(P::AttentionNorm), d.width)?;
        let (attended, caches) = self.attention(cx, n, layer, shared)?;
        let (heads, _) = d.heads;
        let mut y = self.linear(cx, attended, part(P::Output), [d.width, heads * d.head])?;
        if self.weights.has(part(P::AttentionOutputNorm)) {
            y = self.norm(cx, y, part(P::AttentionOutputNorm), d.width)?;
        }
        let x = self.joined(cx, B::Add, x, y)?;
        let n = self.norm(cx, x, part(P::FeedForwardNorm), d.width)?;
        let mut y = match (&d.experts, self.weights.has(part(P::Router))) {
            (Some(experts), true) => {
                let name = self.operator(part(P::Router));
                let (count, hidden, width) = (experts.count, experts.hidden, d.width);
                self.at(cx, &name, "MoE", |b, cx| {
                    experts.build(cx, n, d.activation, &mut |cx, p| {
                        let shape = match p {
                            P::Router => vec![count, width],
                            P::ExpertDowns => vec![count, width, hidden],
                            _ => vec![count, hidden, width],
                        };
                        b.load(cx, part(p), &shape)
                    })
                })?
            }
            _ => self.feed_forward(cx, n, layer)?,
        };
        if self.weights.has(part(P::FeedForwardOutputNorm)) {
            y = self.norm(cx, y, part(P::FeedForwardOutputNorm), d.width)?;
        }
        Ok((self.joined(cx, B::Add, x, y)?, caches))
    }

    fn feed_forward(&mut self, cx: &mut Lowering, x: Value, layer: usize) -> Result<Value> {
        use LayerPart as P;
        let Description { width, hidden, activation, .. } = *self.d;
        let part = |p: P| Part::Layer(layer, p);
        let (gate, up) = if self.weights.has(part(P::GateUp)) {
            let both = self.linear(cx, x, part(P::GateUp), [2 * hidden, width])?;
            match parts::split(cx, both, 2, &[hidden.into(), hidden.into()])?[..] {
                [gate, up] => (gate, up),
                _ => return Err(OpError::internal("a tensor in two parts")),
            }
        } else {
            let gate = self.linear(cx, x, part(P::Gate), [hidden, width])?;
            (gate, self.linear(cx, x, part(P::Up), [hidden, width])?)
        };
        let gate = activation.of(cx, gate)?;
        let hidden_state = self.joined(cx, B::Mul, gate, up)?;
        self.linear(cx, hidden_state, part(P::Down), [width, hidden])
    }

    /// Queries, keys and values, `[batch, heads, seq, head]`.
    fn projections(&mut self, cx: &mut Lowering, x: Value, layer: usize) -> Result<[Value; 3]> {
        use LayerPart as P;
        let Description { width, heads: (n, m), head, .. } = *self.d;
        let part = |p: P| Part::Layer(layer, p);
        let (q, kv) = (n * head, m * head);
        let made = if self.weights.has(part(P::QueryKeyValue)) {
            let all = self.linear(cx, x, part(P::QueryKeyValue), [q + 2 * kv, width])?;
            match parts::split(cx, all, 2, &[q.into(), kv.into(), kv.into()])?[..] {
                [q, k, v] => [q, k, v],
                _ => return Err(OpError::internal("a tensor in three parts")),
            }
        } else {
            [
                self.linear(cx, x, part(P::Query), [q, width])?,
                self.linear(cx, x, part(P::Key), [kv, width])?,
                self.linear(cx, x, part(P::Value), [kv, width])?,
            ]
        };
        let mut out = made;
        for (i, (bias, heads)) in
            [(P::QueryBias, n), (P::KeyBias, m), (P::ValueBias, m)].into_iter().enumerate()
        {
            if self.weights.has(part(bias)) {
                let b = self.load(cx, part(bias), &[heads * head])?;
                out[i] = cx.binary(B::Add, out[i], b)?;
            }
            out[i] = split(cx, out[i], heads as i64)?;
        }
        for (i, p) in [P::QueryNorm, P::KeyNorm].into_iter().enumerate() {
            if self.weights.has(part(p)) {
                out[i] = self.norm(cx, out[i], part(p), head)?;
            }
        }
        Ok(out)
    }

    fn attention(
        &mut self,
        cx: &mut Lowering,
        x: Value,
        layer: usize,
        shared: &Shared,
    ) -> Result<(Value, Vec<Border>)> {
        let d = self.d;
        let [mut q, mut k, v] = self.projections(cx, x, layer)?;
        let positions =
            d.positions.get(layer).copied().ok_or_else(|| OpError::internal("a layer without positions"))?;
        if let Some(r) = positions.rotary {
            let [cos, sin] =
                *shared.angles.get(r).ok_or_else(|| OpError::internal("no such rotary embedding"))?;
            let pairs = match d.rotary[r].interleaved {
                true => rotary::Pairs::NeighboursToHalves,
                false => rotary::Pairs::Halves,
            };
            q = rotary::rotate(cx, q, cos, sin, pairs)?;
            k = rotary::rotate(cx, k, cos, sin, pairs)?;
        }
        let (heads, head) = (d.heads.1.into(), d.head.into());
        let shape = match &shared.paging {
            Some(p) => vec![self.pages.clone(), heads, p.size.into(), head],
            None => vec![self.batch.clone(), heads, self.past.clone(), head],
        };
        let (mut caches, mut seen) = (vec![], vec![]);
        for (what, new) in [("key", k), ("value", v)] {
            let past =
                self.input(cx, &format!("past_key_values.{layer}.{what}"), DType::F32, shape.clone())?;
            let name = format!("present.{layer}.{what}");
            let all = match &shared.paging {
                Some(p) => p.written(cx, past, new)?,
                None => append(cx, past, new)?,
            };
            let all = cx.named(&name, all);
            self.names.push(name.clone());
            seen.push(match &shared.paging {
                Some(p) => p.read(cx, all, &shared.total)?,
                None => all,
            });
            caches.push(Border { name: name.into(), value: all });
        }
        let [k, v] = seen[..] else { return Err(OpError::internal("keys and values")) };
        let mut mask = Mask::default();
        let left = positions.window.map(|w| w as i64 - 1);
        mask.window(cx, (&self.seq, &shared.total), &shared.offset, left, Some(0))?;
        mask.allowed.extend(shared.visible);
        let name = format!("layers.{layer}.attention");
        let y = self.at(cx, &name, "Attention", |b, cx| {
            b.count(cx, &[q, k, v]);
            let attend =
                Attend { q, k, v, scale: d.score_scale, cap: d.score_cap, mask, sink: None, show: None };
            let (y, _) = attend.build(cx)?;
            b.count(cx, &[y]);
            join(cx, y)
        })?;
        Ok((y, caches))
    }
}

/// `cap · tanh(x / cap)`; `x` if the cap is 0.
fn capped(cx: &mut Lowering, x: Value, cap: f64) -> Result<Value> {
    if cap == 0.0 {
        return Ok(x);
    }
    let mut f = ScalarFn::default();
    let a = f.push(N::Arg(0));
    let c = f.push(N::Const(wgfc_ir::Scalar::from_f64(DType::F32, cap)));
    let y = f.push(N::Binary(B::Div, a, c));
    let y = f.push(N::Unary(U::Tanh, y));
    f.push(N::Binary(B::Mul, y, c));
    let shape = cx.shape(x);
    Ok(cx.map_to(f, &[x], shape)?)
}
