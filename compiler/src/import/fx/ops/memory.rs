//! Copies, conversions, and filled tensors.

use super::super::prelude::*;
use crate::lower::{complex, elementwise, shape};
use wgfc_ir::Poly;

pub const OPS: &[OpDef] = &[
    OpDef::new("aten._assert_scalar.default", assert_sizes),
    OpDef::new("aten._assert_tensor_metadata.default", nothing).complex(),
    OpDef::new("aten._local_scalar_dense.default", number),
    OpDef::new("aten._to_copy.default", convert).complex(),
    OpDef::new("aten.alias.default", same).complex(),
    OpDef::new("aten.arange.default|start|start_step", arange),
    OpDef::new("aten.clone.default", same).complex(),
    OpDef::new("aten.contiguous.default", same).complex(),
    OpDef::new("aten.copy.default", copy).complex(),
    OpDef::new("aten.detach.default", same).complex(),
    OpDef::new("aten._assert_async.default|msg", nothing),
    OpDef::new("aten.empty.memory_format", |cx| filled(cx, "size", 0.0)).complex(),
    OpDef::new("aten.empty_like.default", |cx| like(cx, 0.0)).complex(),
    OpDef::new("aten.empty_permuted.default", |cx| filled(cx, "size", 0.0)),
    OpDef::new("aten.empty_strided.default", |cx| filled(cx, "size", 0.0)).complex(),
    OpDef::new("aten.fill.Scalar|Tensor", fill).complex(),
    OpDef::new("aten.full.default", full).complex(),
    OpDef::new("aten.full_like.default", full_like).complex(),
    OpDef::new("aten.item.default", number),
    OpDef::new("aten.lift_fresh_copy.default", same),
    OpDef::new("aten.new_empty.default", |cx| filled(cx, "size", 0.0)).complex(),
    OpDef::new("aten.new_empty_strided.default", |cx| filled(cx, "size", 0.0)).complex(),
    OpDef::new("aten.new_full.default", full).complex(),
    OpDef::new("aten.new_ones.default", |cx| filled(cx, "size", 1.0)).complex(),
    OpDef::new("aten.new_zeros.default", |cx| filled(cx, "size", 0.0)).complex(),
    OpDef::new("aten.ones.default", |cx| filled(cx, "size", 1.0)).complex(),
    OpDef::new("aten.ones_like.default", |cx| like(cx, 1.0)).complex(),
    OpDef::new("aten.scalar_tensor.default", scalar_tensor).complex(),
    OpDef::new("prims.convert_element_type.default", |cx| {
        let (x, to) = (cx.tensor("a")?, cx.result_dtype(0)?);
        Ok(vec![cx.converted(x, to)?])
    }),
    OpDef::new("prims.scalar_tensor.default", scalar_tensor),
    OpDef::new("aten.sym_constrain_range.default", nothing),
    OpDef::new("aten.sym_constrain_range_for_size.default", nothing),
    OpDef::new("aten.to.device|dtype|dtype_layout|other", convert),
    OpDef::new("aten.type_as.default", convert).views("self"),
    OpDef::new("aten.view.dtype", |cx| {
        let (x, ty) = (cx.tensor("self")?, cx.result(0)?);
        let from = cx.dtype(x);
        if from != ty.dtype && [from, ty.dtype].contains(&DType::F64) {
            return Err(OpError::unsupported(
                format!("elements of {from} as {}: f64 is computed in f32, which has other bits", ty.dtype),
                "view f32",
            ));
        }
        if from.bits() == ty.dtype.bits() {
            return Ok(vec![elementwise::bit_cast(cx, x, ty.dtype)?]);
        }
        let last = cx.shape(x).len().checked_sub(1).ok_or_else(|| OpError::model("a scalar of elements of another size"))?;
        if from.bits() > ty.dtype.bits() {
            let parts = elementwise::split_bits(cx, x, ty.dtype)?;
            let whole = shape::concat(cx, &parts, last + 1)?;
            return Ok(vec![shape::reshape(cx, whole, &ty.shape)?]);
        }
        let mut apart = ty.shape;
        apart.push(((ty.dtype.bits() / from.bits()) as i64).into());
        let x = shape::reshape(cx, x, &apart)?;
        Ok(vec![elementwise::joined_bits(cx, x, ty.dtype)?])
    })
    .notes("Of f64 only as itself."),
    OpDef::new("aten.zero.default", |cx| like(cx, 0.0)),
    OpDef::new("aten.zeros.default", |cx| filled(cx, "size", 0.0)).complex(),
    OpDef::new("aten.zeros_like.default", |cx| like(cx, 0.0)).complex(),
];

/// An assertion about sizes becomes a constraint. The program's ranges also state those about sizes that a run computes.
fn assert_sizes(cx: &mut Cx) -> Lowered {
    cx.require("self")?;
    Ok(vec![])
}

/// An assertion that the program's types and ranges already state.
fn nothing(_: &mut Cx) -> Lowered {
    Ok(vec![])
}

fn same(cx: &mut Cx) -> Lowered {
    Ok(vec![cx.tensor("self")?])
}

/// The only element, as a tensor of rank 0.
fn number(cx: &mut Cx) -> Lowered {
    let x = cx.tensor("self")?;
    Ok(vec![cx.reshape(x, vec![])?])
}

/// Converts to the declared type; devices and layouts are ignored.
fn convert(cx: &mut Cx) -> Lowered {
    let x = cx.tensor("self")?;
    let to = cx.result_dtype(0)?;
    let x = cx.converted(x, to)?;
    Ok(vec![match (cx.is_complex("self"), cx.makes_complex(0)) {
        (false, true) => complex::from_real(cx, x)?,
        (true, false) => complex::part(cx, x, 0)?,
        _ => x,
    }])
}

/// `src` with the type and shape of `self`.
fn copy(cx: &mut Cx) -> Lowered {
    let (old, src) = (cx.tensor("self")?, cx.tensor("src")?);
    let (dtype, want) = (cx.dtype(old), cx.shape(old));
    let mut v = cx.converted(src, dtype)?;
    match (cx.is_complex("src"), cx.is_complex("self")) {
        (false, true) => v = complex::from_real(cx, v)?,
        (true, false) => v = complex::part(cx, v, 0)?,
        _ => {}
    }
    Ok(vec![shape::expand(cx, v, &want)?])
}

/// A tensor filled with a real number, possibly of complex type.
fn spread(cx: &mut Cx, n: &Number, dtype: DType, want: &[Dim]) -> Result {
    let v = cx.number_in(n, dtype)?;
    let v = cx.expand(v, want)?;
    if cx.makes_complex(0) { complex::from_real(cx, v) } else { Ok(v) }
}

/// The shape of `self`, without the axis of parts of complex numbers.
fn shape_of(cx: &Cx, x: Value) -> Vec<Dim> {
    let mut dims = cx.shape(x);
    if cx.is_complex("self") {
        dims.pop();
    }
    dims
}

fn filled(cx: &mut Cx, size: &str, v: f64) -> Lowered {
    let (dtype, want) = (cx.result_dtype(0)?, cx.sizes(size)?);
    Ok(vec![spread(cx, &Number::Float(v), dtype, &want)?])
}

fn like(cx: &mut Cx, v: f64) -> Lowered {
    let x = cx.tensor("self")?;
    let (dtype, want) = (cx.result_dtype(0)?, shape_of(cx, x));
    let filled = spread(cx, &Number::Float(v), dtype, &want)?;
    note_ones(cx, &Number::Float(v), filled, x);
    Ok(vec![filled])
}

/// Notes a scalar of 1 that is made like another value.
fn note_ones(cx: &mut Cx, n: &Number, filled: Value, like: Value) {
    let one = match n {
        Number::Int(n) => n.is(1),
        Number::Float(v) => *v == 1.0,
        _ => false,
    };
    if one && cx.dtype(filled).is_float() && cx.shape(filled).iter().all(|d| d.is(1)) {
        cx.ones.push((filled, like));
    }
}

fn full(cx: &mut Cx) -> Lowered {
    let (dtype, want, n) = (cx.result_dtype(0)?, cx.sizes("size")?, cx.number("fill_value")?);
    Ok(vec![spread(cx, &n, dtype, &want)?])
}

fn full_like(cx: &mut Cx) -> Lowered {
    let x = cx.tensor("self")?;
    let (dtype, want, n) = (cx.result_dtype(0)?, shape_of(cx, x), cx.number("fill_value")?);
    let filled = spread(cx, &n, dtype, &want)?;
    note_ones(cx, &n, filled, x);
    Ok(vec![filled])
}

fn fill(cx: &mut Cx) -> Lowered {
    let x = cx.tensor("self")?;
    let (dtype, want, value) = (cx.dtype(x), cx.shape(x), cx.operand("value")?);
    let mut v = cx.in_type(&value, dtype)?;
    if cx.is_complex("self") && !cx.is_complex("value") {
        v = complex::from_real(cx, v)?;
    }
    Ok(vec![cx.expand(v, &want)?])
}

fn scalar_tensor(cx: &mut Cx) -> Lowered {
    let (dtype, n) = (cx.result_dtype(0)?, cx.number("s")?);
    Ok(vec![spread(cx, &n, dtype, &[])?])
}

/// `start + step * i`, with the declared number of elements.
fn arange(cx: &mut Cx) -> Lowered {
    let given = |cx: &mut Cx, name: &str, default: i64| match cx.declares(name) {
        true => cx.number(name),
        false => Ok(Number::Int(default.into())),
    };
    let (start, step) = (given(cx, "start", 0)?, given(cx, "step", 1)?);
    let ty = cx.result(0)?;
    if let (Number::Int(start), Number::Int(step)) = (&start, &step)
        && !ty.dtype.is_float()
    {
        let at = start + &(step * &Poly::var(0));
        return Ok(vec![cx.iota(&ty.shape, at, ty.dtype)?]);
    }
    // If a number or the result is a float, elements are computed in f32 and rounded once, as in torch.
    let whole = [&start, &step].iter().all(|n| !n.dtype(cx).is_float()) && !ty.dtype.is_float();
    let dtype = if whole { DType::I64 } else { DType::F32 };
    let i = cx.iota(&ty.shape, Poly::var(0), dtype)?;
    let (start, step) = (cx.number_in(&start, dtype)?, cx.number_in(&step, dtype)?);
    let far = cx.binary(BinaryOp::Mul, i, step)?;
    let v = cx.binary(BinaryOp::Add, far, start)?;
    Ok(vec![cx.converted(v, ty.dtype)?])
}
