//! Recurrent networks of several layers.

use super::super::prelude::*;
use crate::lower::gates::Activation;
use crate::lower::recurrent::{self, Cell, Operands, Recurrent};
use wgfc_ir::Poly;

pub const OPS: &[OpDef] = &[
    OpDef::new("aten.gru_cell.default", gru_cell),
    OpDef::new("aten.gru.input", |cx| network(cx, Cell::Gru, &["Sigmoid", "Tanh"])),
    OpDef::new("aten.lstm_cell.default", lstm_cell),
    OpDef::new("aten.lstm.input", |cx| network(cx, Cell::Lstm, &["Sigmoid", "Tanh", "Tanh"])),
    OpDef::new("aten.rnn_relu_cell.default", |cx| rnn_cell(cx, false)),
    OpDef::new("aten.rnn_tanh_cell.default", |cx| rnn_cell(cx, true)),
    OpDef::new("aten.rnn_relu.input", |cx| network(cx, Cell::Rnn, &["Relu"])),
    OpDef::new("aten.rnn_tanh.input", |cx| network(cx, Cell::Rnn, &["Tanh"])),
];

/// For each gate in the lowering's order, which is ONNX's, its number in torch's: torch stores the gates of an LSTM as
/// input, forget, cell, output, and those of a GRU as reset, update, new.
fn order(cell: Cell) -> &'static [i64] {
    match cell {
        Cell::Rnn => &[0],
        Cell::Gru => &[1, 0, 2],
        Cell::Lstm => &[0, 3, 1, 2],
    }
}

/// A weight whose first axis holds torch's gates one after another, with them in the lowering's order.
fn gates(cx: &mut Cx, v: Value, cell: Cell) -> Result {
    let order = order(cell);
    let extent = cx.shape(v)[0].clone();
    let hidden = extent.div(&(order.len() as i64).into(), &[]);
    let mut parts = vec![];
    for gate in order {
        let start: Poly = &hidden * *gate;
        parts.push(cx.slice(v, 0, &start, 1, &hidden)?);
    }
    Ok(if parts.len() == 1 { v } else { cx.concat(&parts, 0)? })
}

/// The weights of each direction, stacked along a new first axis.
fn stacked(cx: &mut Cx, each: &[Value]) -> Result {
    let mut parts = vec![];
    for v in each {
        parts.push(cx.unsqueeze(*v, &[0])?);
    }
    Ok(if parts.len() == 1 { parts[0] } else { cx.concat(&parts, 0)? })
}

fn network(cx: &mut Cx, cell: Cell, activations: &[&str]) -> Lowered {
    let layers = usize::try_from(cx.int("num_layers")?).unwrap_or(0);
    let (biases, both, batch_first) = (cx.flag("has_biases")?, cx.flag("bidirectional")?, cx.flag("batch_first")?);
    if cx.flag("train")? && cx.float("dropout")? != 0.0 && layers > 1 {
        return Err(OpError::unsupported(
            "it drops out values between layers",
            "export the module after eval(), or with dropout=0",
        )
        .param("dropout"));
    }
    let directions = if both { 2 } else { 1 };
    let params = cx.tensors("params")?;
    let per_direction = if biases { 4 } else { 2 };
    if params.len() != layers * directions * per_direction {
        let e = format!("{} weights for {layers} layers in {directions} directions; projections are not supported", params.len());
        return Err(OpError::unsupported(e, "export the network without proj_size").param("params"));
    }
    let mut x = cx.tensor("input")?;
    let before = cx.tensors("hx")?;
    // An input without a batch axis is a batch of one sequence.
    let unbatched = cx.rank(x) == 2;
    let mut hx = vec![];
    for v in before {
        hx.push(if unbatched { cx.unsqueeze(v, &[1])? } else { v });
    }
    if unbatched {
        x = cx.unsqueeze(x, &[1])?;
    } else if batch_first {
        x = cx.transpose(x, &[1, 0, 2])?;
    }
    let mut activation = vec![];
    for _ in 0..directions {
        for name in activations {
            activation.push(Activation::named(name).ok_or_else(|| OpError::internal(format!("no activation {name}")))?);
        }
    }
    let p = Recurrent {
        cell,
        activations: activation,
        clip: None,
        backwards: (0..directions).map(|d| d == 1).collect(),
        batch_first: false,
        linear_before_reset: cell == Cell::Gru,
        input_forget: false,
        rounded: false,
    };
    let (mut outputs, mut cells) = (vec![], vec![]);
    for layer in params.chunks_exact(directions * per_direction) {
        let part = |cx: &mut Cx, i: usize| -> Result {
            let mut each = vec![];
            for direction in layer.chunks_exact(per_direction) {
                each.push(gates(cx, direction[i], cell)?);
            }
            stacked(cx, &each)
        };
        let (w, r) = (part(cx, 0)?, part(cx, 1)?);
        let bias = match biases {
            true => {
                let (a, b) = (part(cx, 2)?, part(cx, 3)?);
                Some(cx.concat(&[a, b], 1)?)
            }
            false => None,
        };
        let at = Poly::from(outputs.len() * directions);
        let state = |cx: &mut Cx, i: usize| -> Result<Option<Value>> {
            let Some(v) = hx.get(i).copied() else { return Ok(None) };
            Ok(Some(cx.slice(v, 0, &at, 1, &directions.into())?))
        };
        let (output, carried) = (state(cx, 0)?, state(cx, 1)?);
        let o = Operands { x, w, r, bias, lengths: None, output, cell: carried, peepholes: None };
        let out = recurrent::recurrent(cx, &o, &p)?;
        // The next layer reads the results of both directions: [T, D, B, H] becomes [T, B, D·H].
        let y = cx.transpose(out[0], &[0, 2, 1, 3])?;
        let dims = cx.shape(y);
        x = cx.reshape(y, vec![dims[0].clone(), dims[1].clone(), &dims[2] * &dims[3]])?;
        outputs.push(out[1]);
        cells.extend(out.get(2));
    }
    let mut results = vec![match (unbatched, batch_first) {
        (true, _) => cx.squeeze(x, &[1])?,
        (false, true) => cx.transpose(x, &[1, 0, 2])?,
        (false, false) => x,
    }];
    for parts in [outputs, cells] {
        if !parts.is_empty() {
            let v = cx.concat(&parts, 0)?;
            results.push(if unbatched { cx.squeeze(v, &[1])? } else { v });
        }
    }
    Ok(results)
}

/// `x · wᵀ + b`; `w` and `b` are the names of arguments, of which that of `b` is optional.
fn linear(cx: &mut Cx, x: Value, [w, b]: [&str; 2]) -> Result {
    let w = cx.tensor(w)?;
    let w = cx.transpose(w, &[1, 0])?;
    let y = crate::lower::matmul::matmul(cx, x, w)?;
    Ok(match cx.opt_tensor(b)? {
        Some(b) => cx.binary(BinaryOp::Add, y, b)?,
        None => y,
    })
}

/// The linear layers of a cell's input and of its hidden state `h`: `[batch, gates · hidden]` each.
fn projections(cx: &mut Cx, h: Value) -> Result<[Value; 2]> {
    let x = cx.tensor("input")?;
    Ok([linear(cx, x, ["w_ih", "b_ih"])?, linear(cx, h, ["w_hh", "b_hh"])?])
}

/// Gate `i` of `of`, which lie along the last axis of `v`.
fn gate(cx: &mut Cx, v: Value, i: i64, of: i64) -> Result {
    let last = cx.rank(v) - 1;
    let hidden = cx.shape(v)[last].div(&of.into(), &[]);
    Ok(cx.slice(v, last, &(&hidden * i), 1, &hidden)?)
}

fn rnn_cell(cx: &mut Cx, tanh: bool) -> Lowered {
    let h = cx.tensor("hx")?;
    let [x, h] = projections(cx, h)?;
    let y = cx.binary(BinaryOp::Add, x, h)?;
    Ok(vec![if tanh { cx.unary(UnaryOp::Tanh, y)? } else { cx.binary_scalar(BinaryOp::Max, y, 0.0)? }])
}

fn lstm_cell(cx: &mut Cx) -> Lowered {
    let hx = cx.tensors("hx")?;
    let [h, c] = hx[..] else { return Err(OpError::model("is not two tensors").param("hx")) };
    let [x, h] = projections(cx, h)?;
    let all = cx.binary(BinaryOp::Add, x, h)?;
    let mut gates = vec![];
    for (i, activation) in [UnaryOp::Sigmoid, UnaryOp::Sigmoid, UnaryOp::Tanh, UnaryOp::Sigmoid].into_iter().enumerate() {
        let v = gate(cx, all, i as i64, 4)?;
        gates.push(cx.unary(activation, v)?);
    }
    let kept = cx.binary(BinaryOp::Mul, gates[1], c)?;
    let new = cx.binary(BinaryOp::Mul, gates[0], gates[2])?;
    let c = cx.binary(BinaryOp::Add, kept, new)?;
    let shown = cx.unary(UnaryOp::Tanh, c)?;
    Ok(vec![cx.binary(BinaryOp::Mul, gates[3], shown)?, c])
}

fn gru_cell(cx: &mut Cx) -> Lowered {
    let before = cx.tensor("hx")?;
    let [x, h] = projections(cx, before)?;
    let mut gates = vec![];
    for i in 0..2 {
        let (a, b) = (gate(cx, x, i, 3)?, gate(cx, h, i, 3)?);
        let v = cx.binary(BinaryOp::Add, a, b)?;
        gates.push(cx.unary(UnaryOp::Sigmoid, v)?);
    }
    let (new, old) = (gate(cx, x, 2, 3)?, gate(cx, h, 2, 3)?);
    let old = cx.binary(BinaryOp::Mul, gates[0], old)?;
    let new = cx.binary(BinaryOp::Add, new, old)?;
    let new = cx.unary(UnaryOp::Tanh, new)?;
    let difference = cx.binary(BinaryOp::Sub, before, new)?;
    let kept = cx.binary(BinaryOp::Mul, gates[1], difference)?;
    Ok(vec![cx.binary(BinaryOp::Add, new, kept)?])
}
