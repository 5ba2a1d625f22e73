//! Tensors that hold sizes and are computed while compiling, and the limits of a tensor's sizes.

use wgfc_ir::build::Built;
use wgfc_ir::tensor::checked_numel;
use wgfc_ir::{
    Atom, BinaryOp, Builder, DType, Dim, Op, Poly, Scalar, ScalarFn, ScalarNode, Tensor, TensorType,
};

/// The maximum rank of a tensor.
const MAX_RANK: usize = 32;

/// Whether an expression fits into 31 bits for all values of its symbols up to 2²⁹: index expressions are computed in
/// 32 bits.
pub(super) fn is_short(p: &Poly) -> bool {
    if let Some(c) = p.as_const() {
        return i32::try_from(c).is_ok();
    }
    let mut multiples = 0u64;
    p.terms().iter().all(|(m, c)| match m.as_slice() {
        [] => c.unsigned_abs() <= 1 << 29,
        [atom] => {
            multiples = multiples.saturating_add(c.unsigned_abs());
            let inside = match atom {
                Atom::Sym(_) => true,
                Atom::Div(x, y) | Atom::Mod(x, y) | Atom::Max(x, y) | Atom::Min(x, y) => {
                    is_short(x) && is_short(y)
                }
                Atom::Var(_) | Atom::Data(_) | Atom::TooLarge => false,
            };
            inside && multiples <= 3
        }
        _ => false,
    })
}

/// A tensor whose elements are expressions of dimensions: a constant, or a map without operands. Fails if there are
/// too many expressions.
pub(super) fn shape_value(b: &mut Builder, elements: &[Dim], shape: &[usize], dtype: DType) -> Built {
    if let Some(c) = elements.iter().map(Poly::as_const).collect::<Option<Vec<_>>>() {
        let s: Vec<Scalar> = c.iter().map(|v| Scalar::from_i64(dtype, *v)).collect();
        if s.len() != shape.iter().product::<usize>() {
            return Err(format!("{} elements for shape {shape:?}", s.len()));
        }
        return Ok(b.constant(Tensor::from_scalars(dtype, shape.to_vec(), &s)));
    }
    let fits = |p: &Poly| !p.is_too_large() && p.terms().iter().all(|(_, c)| i32::try_from(*c).is_ok());
    if elements.len() > 32 || dtype == DType::Bool || !elements.iter().all(fits) {
        return Err("too long to write as one expression".into());
    }
    let dims: Vec<Dim> = shape.iter().map(|d| Dim::from(*d)).collect();
    let mut flat = Poly::ZERO;
    for (i, d) in dims.iter().enumerate() {
        flat = &(&flat * d) + &if d.is(1) { Poly::ZERO } else { Poly::var(i) };
    }
    let mut f = ScalarFn::default();
    let position = f.push(ScalarNode::Index(flat));
    let mut value = None;
    for (i, e) in elements.iter().enumerate().rev() {
        let this = f.push(ScalarNode::Index(e.clone()));
        value = Some(match value {
            None => this,
            Some(rest) => {
                let k = f.push(ScalarNode::Const(Scalar::from_i64(DType::I32, i as i64)));
                let here = f.push(ScalarNode::Binary(BinaryOp::Eq, position, k));
                f.push(ScalarNode::Select(here, this, rest))
            }
        });
    }
    let Some(mut root) = value else { return Err("no elements".into()) };
    if elements.len() == 1 {
        return b.iota(&dims, elements[0].clone(), dtype);
    }
    if dtype != DType::I32 {
        root = f.push(ScalarNode::Cast(dtype, root));
    }
    if root as usize + 1 != f.nodes.len() {
        // The result must be the last node; a repeated expression may have been found earlier.
        f.nodes.push(ScalarNode::Select(root, root, root));
        return Err("the result is not the last node".into());
    }
    b.push(Op::Map { body: f, shape: dims }, &[])
}

/// Rejects impossible dimensions: too many, negative, or with too many elements in total.
///
/// # Errors
/// Describes the first impossible dimension.
pub fn check_dims(ty: &TensorType) -> Result<(), String> {
    if ty.rank() > MAX_RANK {
        return Err(format!("{} dimensions; at most {MAX_RANK} are possible", ty.rank()));
    }
    for d in &ty.shape {
        if d.is_too_large() {
            return Err(
                "a dimension is an expression with too many terms; fix dimensions to make it simpler".into(),
            );
        }
        if d.as_const().is_some_and(|c| c < 0) || (!d.is(0) && (&-d - 1).proves_nonneg(&[])) {
            return Err(format!("dimension {d} is negative"));
        }
    }
    // The product of the constant extents alone must fit, whatever the symbols are.
    let fixed: Vec<usize> = ty
        .shape
        .iter()
        .filter_map(|d| d.as_const().and_then(|c| usize::try_from(c).ok()))
        .map(|d| d.max(1))
        .collect();
    if checked_numel(&fixed).is_none_or(|n| n as i64 > wgfc_ir::verify::MAX_ELEMENTS) {
        return Err("it is too large to exist".into());
    }
    Ok(())
}
