//! Recurrent networks: a loop over the positions for each direction.

use super::dequantize::{Zero, dequantized};
use super::gates::Activation;
use super::{Lowered, Lowering, OpError, Result};
use wgfc_ir::build::{Builder, Built};
use wgfc_ir::op::show;
use wgfc_ir::{
    BinaryOp as B, Border, DType, Dim, Graph, Op, Poly, ReduceOp, Scalar, TensorType, UnaryOp as U, Value,
};

/// The kind of recurrent network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cell {
    /// One gate.
    Rnn,
    /// Update gate, reset gate and new value.
    Gru,
    /// Input, output and forget gates and the new value; a cell state is carried beside the output.
    Lstm,
}

impl Cell {
    /// The number of gates.
    pub fn gates(self) -> i64 {
        match self {
            Cell::Rnn => 1,
            Cell::Gru => 3,
            Cell::Lstm => 4,
        }
    }
    /// The default activations, by names that [`Activation::named`] knows.
    pub fn activations(self) -> &'static [&'static str] {
        match self {
            Cell::Rnn => &["Tanh"],
            Cell::Gru => &["Sigmoid", "Tanh"],
            Cell::Lstm => &["Sigmoid", "Tanh", "Tanh"],
        }
    }
}

/// Parameters of [`recurrent`].
#[derive(Clone, Debug)]
pub struct Recurrent {
    /// The kind of network.
    pub cell: Cell,
    /// The activations of the gates of each direction.
    pub activations: Vec<Activation>,
    /// The magnitude to which the arguments of activations are clipped.
    pub clip: Option<f64>,
    /// Whether each direction runs backwards.
    pub backwards: Vec<bool>,
    /// Whether the first axis is the batch rather than the positions.
    pub batch_first: bool,
    /// Whether the reset gate of a GRU is applied after the recurrent product.
    pub linear_before_reset: bool,
    /// Whether the forget gate of an LSTM is coupled to its input gate.
    pub input_forget: bool,
    /// Whether the operand of the recurrent product is rounded to 8 bits first.
    pub rounded: bool,
}

/// Operands of [`recurrent`]. Axis 0 of each is the directions, except for `x` and the lengths.
#[derive(Clone, Copy, Debug)]
pub struct Operands {
    /// The input, `[T, B, I]`.
    pub x: Value,
    /// The input weights, `[D, gates·H, I]`.
    pub w: Value,
    /// The recurrent weights, `[D, gates·H, H]`.
    pub r: Value,
    /// The input biases followed by the recurrent biases, `[D, 2·gates·H]`.
    pub bias: Option<Value>,
    /// The length of each sequence, `[B]`.
    pub lengths: Option<Value>,
    /// The initial output, `[D, B, H]`; by default 0.
    pub output: Option<Value>,
    /// The initial cell state, `[D, B, H]`; by default 0.
    pub cell: Option<Value>,
    /// The peephole weights of an LSTM, `[D, 3·H]`.
    pub peepholes: Option<Value>,
}

struct Network<'a> {
    p: &'a Recurrent,
    hidden: Dim,
    batch: Dim,
    dtype: DType,
}

/// The values that a step reads besides the carried ones.
struct Step {
    /// The input times its weights, plus biases, `[B, gates·H]`.
    x: Value,
    /// Recurrent weights `[gates·H, H]`.
    r: Value,
    /// The recurrent bias `[gates·H]`, if a GRU must add it separately.
    bias: Option<Value>,
    /// The peephole weights `[3·H]`.
    peepholes: Option<Value>,
}

impl Network<'_> {
    /// Applies activation `which` of a direction to clipped values.
    fn activate(&self, b: &mut Builder, direction: usize, which: usize, x: Value) -> Built {
        let x = match self.p.clip {
            None => x,
            Some(c) => {
                let x = b.binary_scalar(B::Max, x, -c)?;
                b.binary_scalar(B::Min, x, c)?
            }
        };
        self.p.activations[direction * self.p.cell.activations().len() + which].of(b, x)
    }

    /// The `count` gates from `first` on of `[B, gates·H]`, `[gates·H]` or `[gates·H, H]`.
    fn gate(&self, b: &mut Builder, v: Value, axis: usize, first: i64, count: i64) -> Built {
        b.slice(v, axis, &(&self.hidden * first), 1, &(&self.hidden * count))
    }

    /// `h · rᵀ` with `r [n, H]`.
    fn recurrent(&self, b: &mut Builder, h: Value, r: Value) -> Built {
        let h = if self.p.rounded { rounded(b, h, &[1])? } else { h };
        let r = b.transpose(r, &[1, 0])?;
        b.matmul(h, r)
    }

    /// The next carried values: the output and, for an `LSTM`, the cell state.
    fn step(&self, b: &mut Builder, d: usize, s: &Step, carried: &[Value]) -> Built<Vec<Value>> {
        let h = carried[0];
        match self.p.cell {
            Cell::Rnn => {
                let y = self.recurrent(b, h, s.r)?;
                let y = b.binary(B::Add, s.x, y)?;
                Ok(vec![self.activate(b, d, 0, y)?])
            }
            Cell::Gru => {
                let early = if s.bias.is_some() { s.r } else { self.gate(b, s.r, 0, 0, 2)? };
                let all = self.recurrent(b, h, early)?;
                let (x, y) = (self.gate(b, s.x, 1, 0, 2)?, self.gate(b, all, 1, 0, 2)?);
                let zr = b.binary(B::Add, x, y)?;
                let zr = self.activate(b, d, 0, zr)?;
                let (z, reset) = (self.gate(b, zr, 1, 0, 1)?, self.gate(b, zr, 1, 1, 1)?);
                let y = match s.bias {
                    Some(bias) => {
                        let y = self.gate(b, all, 1, 2, 1)?;
                        let y = b.binary(B::Add, y, bias)?;
                        b.binary(B::Mul, reset, y)?
                    }
                    None => {
                        let h = b.binary(B::Mul, reset, h)?;
                        let late = self.gate(b, s.r, 0, 2, 1)?;
                        self.recurrent(b, h, late)?
                    }
                };
                let x = self.gate(b, s.x, 1, 2, 1)?;
                let new = b.binary(B::Add, x, y)?;
                let new = self.activate(b, d, 1, new)?;
                // (1 − z)·new + z·h
                let change = b.binary(B::Sub, h, new)?;
                let change = b.binary(B::Mul, z, change)?;
                Ok(vec![b.binary(B::Add, new, change)?])
            }
            Cell::Lstm => {
                let c = carried[1];
                let y = self.recurrent(b, h, s.r)?;
                let all = b.binary(B::Add, s.x, y)?;
                let peep = |b: &mut Builder, x: Value, which: i64, c: Value| match s.peepholes {
                    None => Ok(x),
                    Some(p) => {
                        let p = self.gate(b, p, 0, which, 1)?;
                        let p = b.binary(B::Mul, p, c)?;
                        b.binary(B::Add, x, p)
                    }
                };
                let i = self.gate(b, all, 1, 0, 1)?;
                let i = peep(b, i, 0, c)?;
                let i = self.activate(b, d, 0, i)?;
                let f = if self.p.input_forget {
                    let minus = b.unary(U::Neg, i)?;
                    b.binary_scalar(B::Add, minus, 1.0)?
                } else {
                    let f = self.gate(b, all, 1, 2, 1)?;
                    let f = peep(b, f, 2, c)?;
                    self.activate(b, d, 0, f)?
                };
                let new = self.gate(b, all, 1, 3, 1)?;
                let new = self.activate(b, d, 1, new)?;
                let (kept, new) = (b.binary(B::Mul, f, c)?, b.binary(B::Mul, i, new)?);
                let c = b.binary(B::Add, kept, new)?;
                let o = self.gate(b, all, 1, 1, 1)?;
                let o = peep(b, o, 1, c)?;
                let o = self.activate(b, d, 0, o)?;
                // The cell state is not clipped before the output activation.
                let shown = self.p.activations[d * 3 + 2].of(b, c)?;
                Ok(vec![b.binary(B::Mul, o, shown)?, c])
            }
        }
    }
}

/// The graph of a body under construction; its inputs have the types of outer values.
struct Body<'a, 'g> {
    cx: &'a Lowering<'g>,
    graph: Graph,
    /// The outer values that the captured inputs stand for.
    captured: Vec<Value>,
}

impl Body<'_, '_> {
    fn input(&mut self, name: &str, shape: &[Dim], dtype: DType) -> Value {
        self.graph.add_input(name, TensorType::new(dtype, shape))
    }
    fn capture(&mut self, name: &str, v: Option<Value>) -> Option<Value> {
        let v = v?;
        self.captured.push(v);
        let ty = self.cx.ty(v).clone();
        Some(self.graph.add_input(name, ty))
    }
}

/// Slice `d` of axis 0.
fn direction(cx: &mut Lowering, v: Value, d: usize) -> Result {
    let shape = cx.shape(v)[1..].to_vec();
    let index = std::iter::once(Poly::from(d)).chain((0..shape.len()).map(Poly::var)).collect();
    Ok(cx.view(v, shape, index)?)
}

/// One direction of a layer: the outputs `[T, B, H]`, then the final carried values.
fn run(cx: &mut Lowering, net: &Network, d: usize, o: &Operands) -> Lowered {
    let gates = net.p.cell.gates();
    let all = &net.hidden * gates;
    let (w, r) = (direction(cx, o.w, d)?, direction(cx, o.r, d)?);
    let w = cx.transpose(w, &[1, 0])?;
    let mut products = cx.matmul(o.x, w)?;
    let mut apart = None;
    if let Some(bias) = o.bias {
        let bias = direction(cx, bias, d)?;
        let of_x = cx.slice(bias, 0, &Poly::ZERO, 1, &all)?;
        let of_h = cx.slice(bias, 0, &all, 1, &all)?;
        products = cx.binary(B::Add, products, of_x)?;
        if net.p.linear_before_reset {
            // The recurrent bias of the last gate is added before the reset gate is applied.
            let early = cx.slice(of_h, 0, &Poly::ZERO, 1, &(&net.hidden * 2))?;
            let none = cx.full(std::slice::from_ref(&net.hidden), Scalar::from_f64(net.dtype, 0.0))?;
            let early = cx.concat(&[early, none], 0)?;
            products = cx.binary(B::Add, products, early)?;
            apart = Some(cx.slice(of_h, 0, &(&net.hidden * 2), 1, &net.hidden)?);
        } else {
            products = cx.binary(B::Add, products, of_h)?;
        }
    }
    if net.p.linear_before_reset && apart.is_none() {
        apart = Some(cx.full(std::slice::from_ref(&net.hidden), Scalar::from_f64(net.dtype, 0.0))?);
    }
    let state = [net.batch.clone(), net.hidden.clone()];
    let mut carried = vec![];
    let before = if net.p.cell == Cell::Lstm { vec![o.output, o.cell] } else { vec![o.output] };
    for given in before {
        carried.push(match given {
            Some(v) => {
                let one = direction(cx, v, d)?;
                cx.expand(one, &state).map_err(|e| OpError::from(e).operand(v))?
            }
            None => cx.full(&state, Scalar::from_f64(net.dtype, 0.0))?,
        });
    }
    let peepholes = match o.peepholes.filter(|_| net.p.cell == Cell::Lstm) {
        Some(p) => Some(direction(cx, p, d)?),
        None => None,
    };
    let lengths = o.lengths;

    let mut scanned = vec![products];
    let mut body = Body { cx, graph: Graph::new(), captured: vec![] };
    let before: Vec<Value> =
        (0..carried.len()).map(|i| body.input(&format!("kept{i}"), &state, net.dtype)).collect();
    let x = body.input("x", &[net.batch.clone(), all], net.dtype);
    // The number of the position, which is compared with the lengths of the sequences.
    let number = lengths.map(|_| body.input("position", &[], DType::I32));
    let r = body.capture("r", Some(r)).ok_or("no weights")?;
    let bias = body.capture("bias", apart);
    let peepholes = body.capture("peepholes", peepholes);
    let lengths_in = body.capture("lengths", lengths);
    let Body { mut graph, captured, .. } = body;
    let mut b = Builder { graph: &mut graph, origin: cx.origin.clone() };
    let mut after = net.step(&mut b, d, &Step { x, r, bias, peepholes }, &before)?;
    let mut shown = after[0];
    if let (Some(t), Some(lengths)) = (number, lengths_in) {
        let valid = b.binary(B::Lt, t, lengths)?;
        let valid = b.unsqueeze(valid, &[1])?;
        let zero = b.scalar(net.dtype, 0.0);
        shown = b.select(valid, shown, zero)?;
        for (a, old) in after.iter_mut().zip(&before) {
            *a = b.select(valid, *a, *old)?;
        }
    }
    for v in after.iter().chain([&shown]) {
        graph.outputs.push(Border { name: "next".into(), value: *v });
    }
    if lengths.is_some() {
        let steps = cx.shape(products)[0].clone();
        scanned.push(cx.iota(&[steps], Poly::var(0), DType::I32)?);
    }
    let way = net.p.backwards[d];
    let op = Op::Scan {
        body: Box::new(graph),
        carried: carried.len(),
        scanned: scanned.len(),
        reverse_inputs: vec![way; scanned.len()],
        reverse_outputs: vec![way],
    };
    let inputs: Vec<Value> = carried.iter().chain(&scanned).chain(&captured).copied().collect();
    let node = cx.push(op, &inputs)?.node;
    let mut out = vec![Value { node, port: carried.len() as u32 }];
    out.extend((0..carried.len() as u32).map(|port| Value { node, port }));
    Ok(out)
}

/// `x` rounded to one of 256 evenly spaced numbers that span 0 and its range along `axes`.
fn rounded(b: &mut Builder, x: Value, axes: &[usize]) -> Built {
    let high = b.reduce(ReduceOp::Max, x, axes, true)?;
    let high = b.binary_scalar(B::Max, high, 0.0)?;
    let low = b.reduce(ReduceOp::Min, x, axes, true)?;
    let low = b.binary_scalar(B::Min, low, 0.0)?;
    let span = b.binary(B::Sub, high, low)?;
    let empty = b.binary_scalar(B::Eq, span, 0.0)?;
    let one = b.scalar(DType::F32, 1.0);
    let span = b.select(empty, one, span)?;
    let scale = b.binary_scalar(B::Div, span, 255.0)?;
    let saturated = |b: &mut Builder, x: Value, zero: Option<Value>| {
        let mut x = b.unary(U::Round, x)?;
        if let Some(zero) = zero {
            x = b.binary(B::Add, x, zero)?;
        }
        let x = b.binary_scalar(B::Max, x, 0.0)?;
        b.binary_scalar(B::Min, x, 255.0)
    };
    let zero = b.binary(B::Div, low, scale)?;
    let zero = b.unary(U::Neg, zero)?;
    let zero = saturated(b, zero, None)?;
    let q = b.binary(B::Div, x, scale)?;
    let q = saturated(b, q, Some(zero))?;
    let q = b.binary(B::Sub, q, zero)?;
    b.binary(B::Mul, q, scale)
}

/// `x` rounded to one of 256 evenly spaced numbers that span 0 and its whole range.
pub fn rounded_whole(cx: &mut Lowering, x: Value) -> Result {
    if cx.dtype(cx.require_rank(x, 3)?) != DType::F32 {
        return Err(OpError::model(format!("needs floats of 32 bits, got {}", cx.ty(x))).operand(x));
    }
    Ok(rounded(cx, x, &[0, 1, 2])?)
}

/// Dequantises 8-bit weights `[D, I, gates·H]`, with a scale and a zero point per direction or per column, to
/// `[D, gates·H, I]` in f32.
pub fn dequantized_weights(cx: &mut Lowering, w: Value, scale: Value, zero: Option<Value>) -> Result {
    if !matches!(cx.dtype(cx.require_rank(w, 3)?), DType::I8 | DType::U8) {
        return Err(OpError::model(format!("needs integers of 8 bits, got {}", cx.ty(w))).operand(w));
    }
    let shape = cx.shape(w);
    let spread = |cx: &mut Lowering, v: Value| -> Result {
        let columns = match cx.shape(v).as_slice() {
            [ways] if *ways == shape[0] => Dim::ONE,
            [ways, columns] if *ways == shape[0] && *columns == shape[2] => columns.clone(),
            _ => {
                let e = format!(
                    "needs one for each direction, or each column, of {}, got {}",
                    cx.ty(w),
                    cx.ty(v)
                );
                return Err(OpError::model(e).operand(v));
            }
        };
        Ok(cx.reshape(v, vec![shape[0].clone(), Dim::ONE, columns])?)
    };
    let scale = spread(cx, scale)?;
    let zero = match zero {
        Some(z) => Zero::Of(spread(cx, z)?),
        None => Zero::Is(0),
    };
    let w = dequantized(cx, w, scale, &zero, DType::F32)?;
    Ok(cx.transpose(w, &[0, 2, 1])?)
}

/// The outputs at all positions `[T, D, B, H]`, then the last output `[D, B, H]` and, for an LSTM, the last cell
/// state.
pub fn recurrent(cx: &mut Lowering, given: &Operands, p: &Recurrent) -> Lowered {
    let mut o = *given;
    for v in [o.x, o.w, o.r] {
        cx.require_rank(v, 3)?;
    }
    if p.batch_first {
        o.x = cx.transpose(o.x, &[1, 0, 2])?;
    }
    let (sx, sw, sr) = (cx.shape(o.x), cx.shape(o.w), cx.shape(o.r));
    let (dtype, cell) = (cx.dtype(o.x), p.cell);
    let net = Network { p, hidden: sr[2].clone(), batch: sx[1].clone(), dtype };
    let all = &net.hidden * cell.gates();
    let ways = Dim::from(p.backwards.len());
    let fits = sw[..] == [ways.clone(), all.clone(), sx[2].clone()] && sr[..2] == [ways.clone(), all.clone()];
    if !fits || !dtype.is_float() || cx.dtype(o.w) != dtype || cx.dtype(o.r) != dtype {
        return Err(OpError::model(format!(
            "weights {} and {} for an input {} in {ways} directions",
            show(&sw),
            show(&sr),
            show(&sx)
        )));
    }
    if let Some(b) = o.bias
        && cx.shape(b)[..] != [ways.clone(), &all * 2]
    {
        let e = OpError::model(format!("needs shape {}, got {}", show(&[ways, &all * 2]), cx.ty(b)));
        return Err(e.operand(b));
    }
    if let Some(l) = o.lengths {
        cx.require_rank(l, 1)?;
        o.lengths = Some(cx.cast(l, DType::I32)?);
    }
    let cell_before = if cell == Cell::Lstm { o.cell.as_mut() } else { None };
    for before in [o.output.as_mut(), cell_before].into_iter().flatten() {
        cx.require_rank(*before, 3)?;
        let of = cx.shape(*before)[usize::from(!p.batch_first)].clone();
        if of != net.batch {
            cx.require_equal(&of, &net.batch);
        }
        if p.batch_first {
            *before = cx.transpose(*before, &[1, 0, 2])?;
        }
    }
    let mut results: Vec<Vec<Value>> = vec![];
    for d in 0..p.backwards.len() {
        results.push(run(cx, &net, d, &o)?);
    }
    let mut out = vec![];
    for i in 0..results[0].len() {
        let axis = usize::from(i == 0);
        let mut parts = vec![];
        for r in &results {
            parts.push(cx.unsqueeze(r[i], &[axis])?);
        }
        let v = cx.concat(&parts, axis)?;
        out.push(match (p.batch_first, i) {
            (false, _) => v,
            (true, 0) => cx.transpose(v, &[2, 0, 1, 3])?,
            (true, _) => cx.transpose(v, &[1, 0, 2])?,
        });
    }
    Ok(out)
}
