//! Special functions.

use super::super::prelude::*;
use crate::lower::special::{self, Base, Logarithm};
use wgfc_ir::{Special, Special2};

pub const OPS: &[OpDef] = &[
    OpDef::new("aten.arctan2.default", |cx| of_two(cx, Special2::Atan2)),
    OpDef::new("aten.atan2.default", |cx| of_two(cx, Special2::Atan2)),
    OpDef::new("aten.copysign.Scalar|Tensor", |cx| pair(cx, special::copy_sign)),
    OpDef::new("aten.digamma.default", |cx| of_one(cx, Special::Digamma)),
    OpDef::new("aten.erfc.default", |cx| of_one(cx, Special::Erfc)),
    OpDef::new("aten.erfinv.default", |cx| of_one(cx, Special::Erfinv)),
    OpDef::new("aten.exp2.default", |cx| of_one(cx, Special::Exp2)),
    OpDef::new("aten.expm1.default", |cx| of_one(cx, Special::Expm1)),
    OpDef::new("aten.frexp.Tensor", frexp),
    OpDef::new("aten.gcd.default", |cx| integers(cx, special::gcd)),
    OpDef::new("aten.hypot.default", |cx| of_two(cx, Special2::Hypot)),
    OpDef::new("aten.i0.default", |cx| of_one(cx, Special::BesselI0)),
    OpDef::new("aten.igamma.default", |cx| of_two(cx, Special2::GammaP)),
    OpDef::new("aten.igammac.default", |cx| of_two(cx, Special2::GammaQ)),
    OpDef::new("aten.lcm.default", |cx| integers(cx, special::lcm)),
    OpDef::new("aten.lgamma.default", |cx| of_one(cx, Special::LogGamma)),
    OpDef::new("aten.log10.default", |cx| of_one(cx, Special::Log10)),
    OpDef::new("aten.log1p.default", |cx| of_one(cx, Special::Log1p)),
    OpDef::new("aten.log2.default", |cx| of_one(cx, Special::Log2)),
    OpDef::new("aten.logaddexp.default", |cx| pair(cx, |cx, a, b| special::log_add_exp(cx, a, b, Base::E))),
    OpDef::new("aten.logaddexp2.default", |cx| pair(cx, |cx, a, b| special::log_add_exp(cx, a, b, Base::Two))),
    OpDef::new("aten.mvlgamma.default", multivariate),
    OpDef::new("aten.nextafter.default", |cx| pair(cx, special::next_after)),
    OpDef::new("aten.polygamma.default", polygamma),
    OpDef::new("aten.signbit.default", sign_bit),
    OpDef::new("aten.sinc.default", |cx| formula(cx, special::sinc)),
    OpDef::new("aten.special_airy_ai.default", |cx| of_one(cx, Special::AiryAi)),
    OpDef::new("aten.special_bessel_j0.default", |cx| of_one(cx, Special::BesselJ0)),
    OpDef::new("aten.special_bessel_j1.default", |cx| of_one(cx, Special::BesselJ1)),
    OpDef::new("aten.special_bessel_y0.default", |cx| of_one(cx, Special::BesselY0)),
    OpDef::new("aten.special_bessel_y1.default", |cx| of_one(cx, Special::BesselY1)),
    OpDef::new("aten.special_chebyshev_polynomial_t.default|n_scalar|x_scalar", |cx| polynomial(cx, Special2::ChebyshevT)),
    OpDef::new("aten.special_chebyshev_polynomial_u.default|n_scalar|x_scalar", |cx| polynomial(cx, Special2::ChebyshevU)),
    OpDef::new("aten.special_chebyshev_polynomial_v.default|n_scalar|x_scalar", |cx| polynomial(cx, Special2::ChebyshevV)),
    OpDef::new("aten.special_chebyshev_polynomial_w.default|n_scalar|x_scalar", |cx| polynomial(cx, Special2::ChebyshevW)),
    OpDef::new("aten.special_digamma.default", |cx| of_one(cx, Special::Digamma)),
    OpDef::new("aten.special_entr.default", |cx| formula(cx, special::entropy)),
    OpDef::new("aten.special_erfc.default", |cx| of_one(cx, Special::Erfc)),
    OpDef::new("aten.special_erfcx.default", |cx| of_one(cx, Special::Erfcx)),
    OpDef::new("aten.special_erfinv.default", |cx| of_one(cx, Special::Erfinv)),
    OpDef::new("aten.special_exp2.default", |cx| of_one(cx, Special::Exp2)),
    OpDef::new("aten.special_expm1.default", |cx| of_one(cx, Special::Expm1)),
    OpDef::new("aten.special_gammainc.default", |cx| of_two(cx, Special2::GammaP)),
    OpDef::new("aten.special_gammaincc.default", |cx| of_two(cx, Special2::GammaQ)),
    OpDef::new("aten.special_gammaln.default", |cx| of_one(cx, Special::LogGamma)),
    OpDef::new("aten.special_hermite_polynomial_h.default|n_scalar|x_scalar", |cx| polynomial(cx, Special2::HermiteH)),
    OpDef::new("aten.special_hermite_polynomial_he.default|n_scalar|x_scalar", |cx| polynomial(cx, Special2::HermiteHe)),
    OpDef::new("aten.special_i0.default", |cx| of_one(cx, Special::BesselI0)),
    OpDef::new("aten.special_i0e.default", |cx| of_one(cx, Special::ScaledI0)),
    OpDef::new("aten.special_i1.default", |cx| of_one(cx, Special::BesselI1)),
    OpDef::new("aten.special_i1e.default", |cx| of_one(cx, Special::ScaledI1)),
    OpDef::new("aten.special_laguerre_polynomial_l.default|n_scalar|x_scalar", |cx| polynomial(cx, Special2::LaguerreL)),
    OpDef::new("aten.special_legendre_polynomial_p.default|n_scalar|x_scalar", |cx| polynomial(cx, Special2::LegendreP)),
    OpDef::new("aten.special_log1p.default", |cx| of_one(cx, Special::Log1p)),
    OpDef::new("aten.special_log_ndtr.default", |cx| of_one(cx, Special::LogNdtr)),
    OpDef::new("aten.special_modified_bessel_i0.default", |cx| of_one(cx, Special::BesselI0)),
    OpDef::new("aten.special_modified_bessel_i1.default", |cx| of_one(cx, Special::BesselI1)),
    OpDef::new("aten.special_modified_bessel_k0.default", |cx| of_one(cx, Special::BesselK0)),
    OpDef::new("aten.special_modified_bessel_k1.default", |cx| of_one(cx, Special::BesselK1)),
    OpDef::new("aten.special_multigammaln.default", multivariate),
    OpDef::new("aten.special_ndtr.default", |cx| formula(cx, special::ndtr)),
    OpDef::new("aten.special_ndtri.default", |cx| of_one(cx, Special::Ndtri)),
    OpDef::new("aten.special_polygamma.default", polygamma),
    OpDef::new("aten.special_psi.default", |cx| of_one(cx, Special::Digamma)),
    OpDef::new("aten.special_scaled_modified_bessel_k0.default", |cx| of_one(cx, Special::ScaledK0)),
    OpDef::new("aten.special_scaled_modified_bessel_k1.default", |cx| of_one(cx, Special::ScaledK1)),
    OpDef::new("aten.special_shifted_chebyshev_polynomial_t.default|n_scalar|x_scalar", |cx| shifted(cx, Special2::ChebyshevT)),
    OpDef::new("aten.special_shifted_chebyshev_polynomial_u.default|n_scalar|x_scalar", |cx| shifted(cx, Special2::ChebyshevU)),
    OpDef::new("aten.special_shifted_chebyshev_polynomial_v.default|n_scalar|x_scalar", |cx| shifted(cx, Special2::ChebyshevV)),
    OpDef::new("aten.special_shifted_chebyshev_polynomial_w.default|n_scalar|x_scalar", |cx| shifted(cx, Special2::ChebyshevW)),
    OpDef::new("aten.special_sinc.default", |cx| formula(cx, special::sinc)),
    OpDef::new("aten.special_spherical_bessel_j0.default", |cx| of_one(cx, Special::SphericalJ0)),
    OpDef::new("aten.special_xlog1py.default|other_scalar|self_scalar", |cx| pair(cx, |cx, a, b| special::x_log(cx, a, b, Logarithm::OfOnePlus))),
    OpDef::new("aten.special_xlogy.default|other_scalar|self_scalar", |cx| pair(cx, |cx, a, b| special::x_log(cx, a, b, Logarithm::Of))),
    OpDef::new("aten.special_zeta.default", |cx| of_two(cx, Special2::Zeta)),
    OpDef::new("aten.xlogy.Scalar_Other|Scalar_Self|Tensor", |cx| pair(cx, |cx, a, b| special::x_log(cx, a, b, Logarithm::Of))),
];

fn operand(cx: &mut Cx) -> Result {
    let x = cx.tensor(if cx.declares("x") { "x" } else { "self" })?;
    cx.as_float(x)
}

/// Both operands as floats of their promoted type.
fn operands(cx: &mut Cx, [a, b]: [&str; 2]) -> Result<[Value; 2]> {
    let [a, b] = cx.promoted([a, b])?;
    Ok([cx.as_float(a)?, cx.as_float(b)?])
}

fn of_one(cx: &mut Cx, f: Special) -> Lowered {
    let x = operand(cx)?;
    Ok(vec![special::function(cx, f, x)?])
}

fn formula(cx: &mut Cx, f: fn(&mut Lowering, Value) -> Result) -> Lowered {
    let x = operand(cx)?;
    Ok(vec![f(cx, x)?])
}

fn of_two(cx: &mut Cx, f: Special2) -> Lowered {
    let [a, b] = operands(cx, ["self", "other"])?;
    Ok(vec![special::function2(cx, f, a, b)?])
}

fn pair(cx: &mut Cx, f: fn(&mut Lowering, Value, Value) -> Result) -> Lowered {
    let [a, b] = operands(cx, ["self", "other"])?;
    Ok(vec![f(cx, a, b)?])
}

fn integers(cx: &mut Cx, f: fn(&mut Lowering, Value, Value) -> Result) -> Lowered {
    let [a, b] = cx.promoted(["self", "other"])?;
    Ok(vec![f(cx, a, b)?])
}

fn polynomial(cx: &mut Cx, f: Special2) -> Lowered {
    let [x, n] = operands(cx, ["x", "n"])?;
    Ok(vec![special::function2(cx, f, x, n)?])
}

fn shifted(cx: &mut Cx, f: Special2) -> Lowered {
    let [x, n] = operands(cx, ["x", "n"])?;
    Ok(vec![special::shifted(cx, f, x, n)?])
}

fn polygamma(cx: &mut Cx) -> Lowered {
    let (n, x) = (cx.int("n")?, operand(cx)?);
    Ok(vec![special::polygamma(cx, n, x)?])
}

fn sign_bit(cx: &mut Cx) -> Lowered {
    let x = cx.tensor("self")?;
    Ok(vec![match cx.dtype(x) {
        DType::Bool => {
            let shape = cx.shape(x);
            cx.full(&shape, wgfc_ir::Scalar::bool(false))?
        }
        d if d.is_float() => special::sign_bit(cx, x)?,
        _ => cx.binary_scalar(BinaryOp::Lt, x, 0.0)?,
    }])
}

fn frexp(cx: &mut Cx) -> Lowered {
    let x = operand(cx)?;
    let (mantissa, exponent) = special::mantissa_and_exponent(cx, x)?;
    Ok(vec![mantissa, cx.converted(exponent, DType::I32)?])
}

/// `p (p - 1) / 4 · ln π + Σ lgamma(x - i / 2)` for `i` below `p`.
fn multivariate(cx: &mut Cx) -> Lowered {
    let (x, p) = (operand(cx)?, cx.int("p")?);
    if !(1..=64).contains(&p) {
        return Err(OpError::unsupported(format!("{p} dimensions"), "1 to 64 are supported").param("p"));
    }
    let mut sum = special::function(cx, Special::LogGamma, x)?;
    for i in 1..p {
        let x = cx.binary_scalar(BinaryOp::Sub, x, i as f64 / 2.0)?;
        let part = special::function(cx, Special::LogGamma, x)?;
        sum = cx.binary(BinaryOp::Add, sum, part)?;
    }
    let rest = (p * (p - 1)) as f64 / 4.0 * std::f64::consts::PI.ln();
    Ok(vec![cx.binary_scalar(BinaryOp::Add, sum, rest)?])
}
