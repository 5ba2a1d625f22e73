//! `LSTM`, `GRU`, `RNN`, and the first with weights of 8 bits: a scan for each direction.

use crate::lower::dequantize::{Zero, dequantized};
use crate::import::onnx::Cx;
use crate::import::onnx::op::{AtAttribute, Lowered, OpDef, OpError};
use crate::lower::gates::Activation;
use wgfc_ir::build::{Builder, Built};
use wgfc_ir::op::show;
use wgfc_ir::{
    BinaryOp as B, Border, DType, Dim, Graph, Op, Poly, ReduceOp, Scalar, TensorType, UnaryOp as U, Value,
};

type Result<T = Value> = std::result::Result<T, OpError>;

/// Which network.
#[derive(Clone, Copy, PartialEq)]
enum Cell {
    Rnn,
    Gru,
    Lstm,
}

impl Cell {
    fn gates(self) -> i64 {
        match self {
            Cell::Rnn => 1,
            Cell::Gru => 3,
            Cell::Lstm => 4,
        }
    }
    fn activations(self) -> &'static [&'static str] {
        match self {
            Cell::Rnn => &["Tanh"],
            Cell::Gru => &["Sigmoid", "Tanh"],
            Cell::Lstm => &["Sigmoid", "Tanh", "Tanh"],
        }
    }
}

/// What the node says.
struct Network {
    cell: Cell,
    activations: Vec<Activation>,
    clip: Option<f64>,
    /// Of each direction: whether it runs backwards.
    backwards: Vec<bool>,
    hidden: Dim,
    batch: Dim,
    linear_before_reset: bool,
    input_forget: bool,
    /// What the recurrent weights are multiplied with is rounded to 8 bits first.
    quantised: bool,
    dtype: DType,
}

/// What a step reads besides the values carried.
struct Step {
    /// Products of the input with its weights, biases added, `[B, gates·H]`.
    x: Value,
    /// Recurrent weights `[gates·H, H]`.
    r: Value,
    /// Recurrent bias `[gates·H]`, of a `GRU` that needs it apart.
    bias: Option<Value>,
    /// Peepholes `[3·H]`.
    peepholes: Option<Value>,
}

fn read(cx: &Cx, cell: Cell, hidden: Dim, batch: Dim, dtype: DType) -> Result<Network> {
    let backwards = match cx.string("direction", "forward")?.as_str() {
        "forward" => vec![false],
        "reverse" => vec![true],
        "bidirectional" => vec![false, true],
        other => return Err(OpError::model(format!("`{other}`")).attribute("direction")),
    };
    let defaults = cell.activations();
    let n = defaults.len() * backwards.len();
    let names = match cx.strings("activations")? {
        Some(v) if v.len() == n => v,
        Some(v) => {
            return Err(OpError::model(format!("{} activations, not {n}", v.len())).attribute("activations"));
        }
        None => (0..n).map(|i| defaults[i % defaults.len()].to_owned()).collect(),
    };
    // The lists have values for the activations that take one, in order.
    let mut alphas = cx.floats("activation_alpha")?.unwrap_or_default().into_iter();
    let mut betas = cx.floats("activation_beta")?.unwrap_or_default().into_iter();
    let mut activations = vec![];
    for name in &names {
        let mut a = Activation::named(name)
            .ok_or_else(|| OpError::model(format!("`{name}`")).attribute("activations"))?;
        if let Some(v) = a.has_alpha().then(|| alphas.next()).flatten() {
            a.alpha = v.into();
        }
        if let Some(v) = a.has_beta().then(|| betas.next()).flatten() {
            a.beta = v.into();
        }
        activations.push(a);
    }
    if let Some(h) = cx.int_opt("hidden_size")?
        && hidden.as_const().is_some_and(|d| d != h)
    {
        let e = format!("{h}, and the weights have {hidden}");
        return Err(OpError::model(e).attribute("hidden_size"));
    }
    let clip = match cx.float_opt("clip")? {
        Some(c) if c > 0.0 => Some(c.into()),
        Some(c) => return Err(OpError::model(format!("{c}")).attribute("clip")),
        None => None,
    };
    Ok(Network {
        cell,
        activations,
        clip,
        backwards,
        hidden,
        batch,
        linear_before_reset: cell == Cell::Gru && cx.flag("linear_before_reset", false)?,
        input_forget: cell == Cell::Lstm && cx.flag("input_forget", false)?,
        quantised: false,
        dtype,
    })
}

impl Network {
    /// Activation `which` of a direction, of clipped values.
    fn activate(&self, b: &mut Builder, direction: usize, which: usize, x: Value) -> Built {
        let x = match self.clip {
            None => x,
            Some(c) => {
                let x = b.binary_scalar(B::Max, x, -c)?;
                b.binary_scalar(B::Min, x, c)?
            }
        };
        self.activations[direction * self.cell.activations().len() + which].of(b, x)
    }

    /// Gates `first` to `last` of `[B, gates·H]`, `[gates·H]` or `[gates·H, H]`.
    fn gate(&self, b: &mut Builder, v: Value, axis: usize, first: i64, count: i64) -> Built {
        b.slice(v, axis, &(&self.hidden * first), 1, &(&self.hidden * count))
    }

    /// `h · rᵀ` with `r [n, H]`.
    fn recurrent(&self, b: &mut Builder, h: Value, r: Value) -> Built {
        let h = if self.quantised { rounded(b, h, &[1])? } else { h };
        let r = b.transpose(r, &[1, 0])?;
        b.matmul(h, r)
    }

    /// The next values carried: the output, and the cell of an `LSTM`.
    fn step(&self, b: &mut Builder, d: usize, s: &Step, carried: &[Value]) -> Built<Vec<Value>> {
        let h = carried[0];
        match self.cell {
            Cell::Rnn => {
                let y = self.recurrent(b, h, s.r)?;
                let y = b.binary(B::Add, s.x, y)?;
                Ok(vec![self.activate(b, d, 0, y)?])
            }
            Cell::Gru => {
                let r = self.gate(b, s.r, 0, 0, 2)?;
                let (x, y) = (self.gate(b, s.x, 1, 0, 2)?, self.recurrent(b, h, r)?);
                let zr = b.binary(B::Add, x, y)?;
                let zr = self.activate(b, d, 0, zr)?;
                let (z, reset) = (self.gate(b, zr, 1, 0, 1)?, self.gate(b, zr, 1, 1, 1)?);
                let r = self.gate(b, s.r, 0, 2, 1)?;
                let x = self.gate(b, s.x, 1, 2, 1)?;
                let y = match s.bias {
                    Some(bias) => {
                        let y = self.recurrent(b, h, r)?;
                        let y = b.binary(B::Add, y, bias)?;
                        b.binary(B::Mul, reset, y)?
                    }
                    None => {
                        let h = b.binary(B::Mul, reset, h)?;
                        self.recurrent(b, h, r)?
                    }
                };
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
                let f = if self.input_forget {
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
                // The cell is not clipped on its way out.
                let shown = self.activations[d * 3 + 2].of(b, c)?;
                Ok(vec![b.binary(B::Mul, o, shown)?, c])
            }
        }
    }
}

/// A body's graph while it is made: its inputs have the types of outer values.
struct Body<'a, 'c, 'g, 'm> {
    cx: &'a Cx<'c, 'g, 'm>,
    graph: Graph,
    /// The outer values of the captured inputs.
    captured: Vec<Value>,
}

impl Body<'_, '_, '_, '_> {
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
fn direction(cx: &mut Cx, v: Value, d: usize) -> Result {
    let shape = cx.shape(v)[1..].to_vec();
    let index = std::iter::once(Poly::from(d)).chain((0..shape.len()).map(Poly::var)).collect();
    Ok(cx.view(v, shape, index)?)
}

/// One direction of one layer: `[T, B, H]`, then the last values.
fn run(cx: &mut Cx, net: &Network, d: usize, x: Value, lengths: Option<Value>) -> Result<Vec<Value>> {
    let gates = net.cell.gates();
    let all = &net.hidden * gates;
    let (w, r) = (cx.input(1)?, cx.input(2)?);
    let (w, r) = (direction(cx, w, d)?, direction(cx, r, d)?);
    let w = cx.transpose(w, &[1, 0])?;
    let mut products = cx.matmul(x, w)?;
    let mut apart = None;
    if let Some(bias) = cx.opt(3) {
        let bias = direction(cx, bias, d)?;
        let of_x = cx.slice(bias, 0, &Poly::ZERO, 1, &all)?;
        let of_h = cx.slice(bias, 0, &all, 1, &all)?;
        products = cx.binary(B::Add, products, of_x)?;
        if net.linear_before_reset {
            // The last gate's is added before the reset.
            let early = cx.slice(of_h, 0, &Poly::ZERO, 1, &(&net.hidden * 2))?;
            let none = cx.full(std::slice::from_ref(&net.hidden), Scalar::from_f64(net.dtype, 0.0))?;
            let early = cx.concat(&[early, none], 0)?;
            products = cx.binary(B::Add, products, early)?;
            apart = Some(cx.slice(of_h, 0, &(&net.hidden * 2), 1, &net.hidden)?);
        } else {
            products = cx.binary(B::Add, products, of_h)?;
        }
    }
    if net.linear_before_reset && apart.is_none() {
        apart = Some(cx.full(std::slice::from_ref(&net.hidden), Scalar::from_f64(net.dtype, 0.0))?);
    }
    let state = [net.batch.clone(), net.hidden.clone()];
    let mut carried = vec![];
    let kept: &[usize] = if net.cell == Cell::Lstm { &[5, 6] } else { &[5] };
    for i in kept {
        carried.push(match cx.opt(*i) {
            Some(v) => {
                let v = direction(cx, v, d)?;
                cx.expand(v, &state).map_err(|e| cx.at_input(*i, e.into()))?
            }
            None => cx.full(&state, Scalar::from_f64(net.dtype, 0.0))?,
        });
    }
    let peepholes = match cx.opt(7).filter(|_| net.cell == Cell::Lstm) {
        Some(p) => Some(direction(cx, p, d)?),
        None => None,
    };

    let mut scanned = vec![products];
    let mut body = Body { cx, graph: Graph::new(), captured: vec![] };
    let before: Vec<Value> =
        (0..carried.len()).map(|i| body.input(&format!("kept{i}"), &state, net.dtype)).collect();
    let x = body.input("x", &[net.batch.clone(), all], net.dtype);
    // Which position this is, and of which sequences it is one.
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
    let way = net.backwards[d];
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

/// `x` rounded to one of 256 numbers that span what there is along `axes`, and 0.
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

/// An `LSTM` whose weights lie the other way, are quantised, and are multiplied with what is quantised as well.
fn dynamic_quantised(cx: &mut Cx) -> Lowered {
    let x = cx.input_of_rank(0, 3)?;
    if cx.dtype(x) != DType::F32 {
        return Err(cx.at_input(0, OpError::model(format!("needs floats of 32 bits, got {}", cx.ty(x)))));
    }
    cx.inputs[0] = Some(rounded(cx, x, &[0, 1, 2])?);
    for (i, scale, zero) in [(1, 8, 9), (2, 10, 11)] {
        let w = cx.input_of_rank(i, 3)?;
        if !matches!(cx.dtype(w), DType::I8 | DType::U8) {
            return Err(cx.at_input(i, OpError::model(format!("needs integers of 8 bits, got {}", cx.ty(w)))));
        }
        let shape = cx.shape(w);
        let spread = |cx: &mut Cx, i: usize| {
            let v = cx.input(i)?;
            let columns = match cx.shape(v).as_slice() {
                [ways] if *ways == shape[0] => Dim::ONE,
                [ways, columns] if *ways == shape[0] && *columns == shape[2] => columns.clone(),
                _ => {
                    let e = format!(
                        "needs one for each direction, or each column, of {}, got {}",
                        cx.ty(w),
                        cx.ty(v)
                    );
                    return Err(cx.at_input(i, OpError::model(e)));
                }
            };
            Ok(cx.reshape(v, vec![shape[0].clone(), Dim::ONE, columns])?)
        };
        let scale = spread(cx, scale)?;
        let zero = match cx.opt(zero) {
            Some(_) => Zero::Of(spread(cx, zero)?),
            None => Zero::Is(0),
        };
        let w = dequantized(cx, w, scale, &zero, DType::F32)?;
        cx.inputs[i] = Some(cx.transpose(w, &[0, 2, 1])?);
    }
    lower_as(cx, Cell::Lstm, true)
}

fn lower(cx: &mut Cx, cell: Cell) -> Lowered {
    lower_as(cx, cell, false)
}

fn lower_as(cx: &mut Cx, cell: Cell, quantised: bool) -> Lowered {
    let (mut x, w, r) = (cx.input_of_rank(0, 3)?, cx.input_of_rank(1, 3)?, cx.input_of_rank(2, 3)?);
    let batch_first = cx.since >= 14 && cx.flag("layout", false)?;
    if batch_first {
        x = cx.transpose(x, &[1, 0, 2])?;
    }
    let (sx, sw, sr) = (cx.shape(x), cx.shape(w), cx.shape(r));
    let dtype = cx.dtype(x);
    let net = Network { quantised, ..read(cx, cell, sr[2].clone(), sx[1].clone(), dtype)? };
    let all = &net.hidden * cell.gates();
    let ways = Dim::from(net.backwards.len());
    let fits = sw[..] == [ways.clone(), all.clone(), sx[2].clone()] && sr[..2] == [ways.clone(), all.clone()];
    if !fits || !dtype.is_float() || cx.dtype(w) != dtype || cx.dtype(r) != dtype {
        return Err(OpError::model(format!(
            "weights {} and {} for an input {} in {ways} directions",
            show(&sw),
            show(&sr),
            show(&sx)
        )));
    }
    if let Some(b) = cx.opt(3)
        && cx.shape(b)[..] != [ways.clone(), &all * 2]
    {
        let e = OpError::model(format!("needs shape {}, got {}", show(&[ways, &all * 2]), cx.ty(b)));
        return Err(cx.at_input(3, e));
    }
    let lengths = match cx.opt(4) {
        None => None,
        Some(_) => {
            let l = cx.input_of_rank(4, 1)?;
            Some(cx.cast(l, DType::I32)?)
        }
    };
    for i in [5, 6] {
        if let Some(v) = cx.opt(i).filter(|_| i == 5 || cell == Cell::Lstm) {
            cx.input_of_rank(i, 3)?;
            let of = cx.shape(v)[usize::from(!batch_first)].clone();
            if of != net.batch {
                cx.require_equal(&of, &net.batch);
            }
            if batch_first {
                let v = cx.transpose(v, &[1, 0, 2])?;
                cx.inputs[i] = Some(v);
            }
        }
    }
    let mut results: Vec<Vec<Value>> = vec![];
    for d in 0..net.backwards.len() {
        results.push(run(cx, &net, d, x, lengths)?);
    }
    // All positions `[T, D, B, H]`, then the last `[D, B, H]`.
    let mut out = vec![];
    for i in 0..results[0].len() {
        let axis = usize::from(i == 0);
        let mut parts = vec![];
        for r in &results {
            parts.push(cx.unsqueeze(r[i], &[axis])?);
        }
        let v = cx.concat(&parts, axis)?;
        out.push(match (batch_first, i) {
            (false, _) => v,
            (true, 0) => cx.transpose(v, &[2, 0, 1, 3])?,
            (true, _) => cx.transpose(v, &[1, 0, 2])?,
        });
    }
    Ok(out)
}

/// `GRU`, `LSTM`, `RNN`, `DynamicQuantizeLSTM`.
pub const OPS: &[OpDef] = &[
    OpDef::new("DynamicQuantizeLSTM", &[1], dynamic_quantised)
        .domain("com.microsoft")
        .notes(
            "what is carried is quantised for each sequence by itself, as ONNX Runtime does for a batch of 1",
        )
        .cases(&["dynamic_quantize_lstm"]),
    OpDef::new("GRU", &[7, 14, 22], |cx| lower(cx, Cell::Gru)).cases(&["test_gru_"]),
    OpDef::new("LSTM", &[7, 14, 22], |cx| lower(cx, Cell::Lstm)).cases(&["test_lstm_"]),
    OpDef::new("RNN", &[7, 14, 22], |cx| lower(cx, Cell::Rnn)).cases(&["test_rnn_", "test_simple_rnn_"]),
];
