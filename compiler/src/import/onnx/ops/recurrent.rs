//! `LSTM`, `GRU`, `RNN`, and the LSTM with weights of 8 bits.

use crate::import::onnx::prelude::*;
use crate::lower::gates::Activation;
use crate::lower::recurrent::{self, Cell, Operands, Recurrent};
use wgfc_ir::Dim;

/// The attributes of a recurrent network with a hidden size that follows from its weights.
fn attributes(cx: &Cx, cell: Cell, hidden: Option<&Dim>) -> Result<Recurrent> {
    let backwards = match cx.string("direction", "forward")?.as_str() {
        "forward" => vec![false],
        "reverse" => vec![true],
        "bidirectional" => vec![false, true],
        other => return Err(OpError::model(format!("unknown value `{other}`")).attribute("direction")),
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
    // The lists hold values in order for those activations that have the parameter.
    let mut alphas = cx.floats("activation_alpha")?.unwrap_or_default().into_iter();
    let mut betas = cx.floats("activation_beta")?.unwrap_or_default().into_iter();
    let mut activations = vec![];
    for name in &names {
        let mut a = Activation::named(name)
            .ok_or_else(|| OpError::model(format!("unknown activation `{name}`")).attribute("activations"))?;
        if let Some(v) = a.has_alpha().then(|| alphas.next()).flatten() {
            a.alpha = v.into();
        }
        if let Some(v) = a.has_beta().then(|| betas.next()).flatten() {
            a.beta = v.into();
        }
        activations.push(a);
    }
    if let Some(h) = cx.int_opt("hidden_size")?
        && let Some(hidden) = hidden
        && hidden.as_const().is_some_and(|d| d != h)
    {
        let e = format!("it is {h}, but the weights have {hidden}");
        return Err(OpError::model(e).attribute("hidden_size"));
    }
    let clip = match cx.float_opt("clip")? {
        Some(c) if c > 0.0 => Some(c.into()),
        Some(c) => return Err(OpError::model(format!("{c} is not positive")).attribute("clip")),
        None => None,
    };
    Ok(Recurrent {
        cell,
        activations,
        clip,
        backwards,
        batch_first: cx.since >= 14 && cx.flag("layout", false)?,
        linear_before_reset: cell == Cell::Gru && cx.flag("linear_before_reset", false)?,
        input_forget: cell == Cell::Lstm && cx.flag("input_forget", false)?,
        rounded: false,
    })
}

fn operands(cx: &Cx) -> Result<Operands> {
    Ok(Operands {
        x: cx.input_of_rank(0, 3)?,
        w: cx.input_of_rank(1, 3)?,
        r: cx.input_of_rank(2, 3)?,
        bias: cx.opt(3),
        lengths: cx.opt(4),
        output: cx.opt(5),
        cell: cx.opt(6),
        peepholes: cx.opt(7),
    })
}

fn network(cx: &mut Cx, cell: Cell) -> Lowered {
    let o = operands(cx)?;
    let p = attributes(cx, cell, cx.shape(o.r).last())?;
    recurrent::recurrent(cx, &o, &p)
}

/// An `LSTM` with transposed, quantised weights and quantised inputs.
fn dynamic_quantised(cx: &mut Cx) -> Lowered {
    let mut o = operands(cx)?;
    o.x = recurrent::rounded_whole(cx, o.x)?;
    let (scale_w, scale_r) = (cx.input(8)?, cx.input(10)?);
    let (zero_w, zero_r) = (cx.opt(9), cx.opt(11));
    o.w = recurrent::dequantized_weights(cx, o.w, scale_w, zero_w)?;
    o.r = recurrent::dequantized_weights(cx, o.r, scale_r, zero_r)?;
    let p = attributes(cx, Cell::Lstm, cx.shape(o.r).last())?;
    recurrent::recurrent(cx, &o, &Recurrent { rounded: true, ..p })
}

/// `GRU`, `LSTM`, `RNN`, `DynamicQuantizeLSTM`.
pub const OPS: &[OpDef] = &[
    OpDef::new("DynamicQuantizeLSTM", &[1], dynamic_quantised)
        .domain(MICROSOFT)
        .notes(
            "what is carried is quantised for each sequence by itself, as ONNX Runtime does for a batch of 1",
        )
        .cases(&["dynamic_quantize_lstm"]),
    OpDef::new("GRU", &[7, 14, 22], |cx| network(cx, Cell::Gru)).cases(&["test_gru_"]),
    OpDef::new("LSTM", &[7, 14, 22], |cx| network(cx, Cell::Lstm)).cases(&["test_lstm_"]),
    OpDef::new("RNN", &[7, 14, 22], |cx| network(cx, Cell::Rnn)).cases(&["test_rnn_", "test_simple_rnn_"]),
];
