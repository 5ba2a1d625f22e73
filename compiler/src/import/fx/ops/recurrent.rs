//! Recurrent networks of several layers.

use super::super::prelude::*;
use crate::lower::gates::Activation;
use crate::lower::recurrent::{self, Cell, Operands, Recurrent};
use wgfc_ir::Poly;

pub const OPS: &[OpDef] = &[
    OpDef::new("aten.gru.input", |cx| network(cx, Cell::Gru, &["Sigmoid", "Tanh"])),
    OpDef::new("aten.lstm.input", |cx| network(cx, Cell::Lstm, &["Sigmoid", "Tanh", "Tanh"])),
    OpDef::new("aten.rnn_relu.input", |cx| network(cx, Cell::Rnn, &["Relu"])),
    OpDef::new("aten.rnn_tanh.input", |cx| network(cx, Cell::Rnn, &["Tanh"])),
];

/// Where torch's gates are among those of the lowering: torch's LSTM has input, forgetting, new value, output, its GRU
/// reset, update, new value.
fn order(cell: Cell) -> &'static [i64] {
    match cell {
        Cell::Rnn => &[0],
        Cell::Gru => &[1, 0, 2],
        Cell::Lstm => &[0, 3, 1, 2],
    }
}

/// The gates of a weight in the lowering's order.
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

/// Weights of both directions with an axis for them in front.
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
    let ways = if both { 2 } else { 1 };
    let params = cx.tensors("params")?;
    let per = if biases { 4 } else { 2 };
    if params.len() != layers * ways * per {
        let e = format!("{} weights for {layers} layers in {ways} directions; projections are not supported", params.len());
        return Err(OpError::unsupported(e, "export the network without proj_size").param("params"));
    }
    let mut x = cx.tensor("input")?;
    let before = cx.tensors("hx")?;
    // Without a batch there is one of one.
    let alone = cx.rank(x) == 2;
    let mut hx = vec![];
    for v in before {
        hx.push(if alone { cx.unsqueeze(v, &[1])? } else { v });
    }
    if alone {
        x = cx.unsqueeze(x, &[1])?;
    } else if batch_first {
        x = cx.transpose(x, &[1, 0, 2])?;
    }
    let mut activation = vec![];
    for _ in 0..ways {
        for name in activations {
            activation.push(Activation::named(name).ok_or_else(|| OpError::internal(format!("no activation {name}")))?);
        }
    }
    let p = Recurrent {
        cell,
        activations: activation,
        clip: None,
        backwards: (0..ways).map(|d| d == 1).collect(),
        batch_first: false,
        linear_before_reset: cell == Cell::Gru,
        input_forget: false,
        rounded: false,
    };
    let (mut outputs, mut cells) = (vec![], vec![]);
    for layer in params.chunks_exact(ways * per) {
        let part = |cx: &mut Cx, i: usize| -> Result {
            let mut each = vec![];
            for direction in layer.chunks_exact(per) {
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
        let at = Poly::from(outputs.len() * ways);
        let state = |cx: &mut Cx, i: usize| -> Result<Option<Value>> {
            let Some(v) = hx.get(i).copied() else { return Ok(None) };
            Ok(Some(cx.slice(v, 0, &at, 1, &ways.into())?))
        };
        let (output, carried) = (state(cx, 0)?, state(cx, 1)?);
        let o = Operands { x, w, r, bias, lengths: None, output, cell: carried, peepholes: None };
        let out = recurrent::recurrent(cx, &o, &p)?;
        // Directions one behind the other: [T, D, B, H] becomes [T, B, D·H].
        let y = cx.transpose(out[0], &[0, 2, 1, 3])?;
        let dims = cx.shape(y);
        x = cx.reshape(y, vec![dims[0].clone(), dims[1].clone(), &dims[2] * &dims[3]])?;
        outputs.push(out[1]);
        cells.extend(out.get(2));
    }
    let mut results = vec![match (alone, batch_first) {
        (true, _) => cx.squeeze(x, &[1])?,
        (false, true) => cx.transpose(x, &[1, 0, 2])?,
        (false, false) => x,
    }];
    for parts in [outputs, cells] {
        if !parts.is_empty() {
            let v = cx.concat(&parts, 0)?;
            results.push(if alone { cx.squeeze(v, &[1])? } else { v });
        }
    }
    Ok(results)
}
