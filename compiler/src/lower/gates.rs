//! Activations of recurrent networks by name, with their parameters.

use wgfc_ir::build::{Builder, Built};
use wgfc_ir::special::Special;
use wgfc_ir::{BinaryOp as B, UnaryOp as U, Value};

/// An activation with its parameters.
#[derive(Clone, Copy, Debug)]
pub struct Activation {
    kind: Kind,
    /// Its first parameter.
    pub alpha: f64,
    /// Its second parameter.
    pub beta: f64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Affine,
    Elu,
    HardSigmoid,
    LeakyRelu,
    Relu,
    ScaledTanh,
    Sigmoid,
    Softplus,
    Softsign,
    Tanh,
    ThresholdedRelu,
}

impl Activation {
    /// The activation of that name (case-insensitive) with its default parameters.
    pub fn named(name: &str) -> Option<Activation> {
        let (kind, alpha, beta) = match name.to_ascii_lowercase().as_str() {
            "affine" => (Kind::Affine, 1.0, 0.0),
            "elu" => (Kind::Elu, 1.0, 0.0),
            "hardsigmoid" => (Kind::HardSigmoid, 0.2, 0.5),
            "leakyrelu" => (Kind::LeakyRelu, 0.01, 0.0),
            "relu" => (Kind::Relu, 0.0, 0.0),
            "scaledtanh" => (Kind::ScaledTanh, 1.0, 1.0),
            "sigmoid" => (Kind::Sigmoid, 0.0, 0.0),
            "softplus" => (Kind::Softplus, 0.0, 0.0),
            "softsign" => (Kind::Softsign, 0.0, 0.0),
            "tanh" => (Kind::Tanh, 0.0, 0.0),
            "thresholdedrelu" => (Kind::ThresholdedRelu, 1.0, 0.0),
            _ => return None,
        };
        Some(Activation { kind, alpha, beta })
    }

    /// Whether it has a second parameter.
    pub fn has_beta(self) -> bool {
        matches!(self.kind, Kind::Affine | Kind::HardSigmoid | Kind::ScaledTanh)
    }
    /// Whether it has a first parameter.
    pub fn has_alpha(self) -> bool {
        self.has_beta() || matches!(self.kind, Kind::Elu | Kind::LeakyRelu | Kind::ThresholdedRelu)
    }

    /// The activation applied to `x`.
    pub fn of(self, b: &mut Builder, x: Value) -> Built {
        let (alpha, beta) = (self.alpha, self.beta);
        let zero = |b: &mut Builder| {
            let dtype = b.dtype(x);
            b.scalar(dtype, 0.0)
        };
        match self.kind {
            Kind::Sigmoid => b.unary(U::Sigmoid, x),
            Kind::Tanh => b.unary(U::Tanh, x),
            Kind::Relu => b.binary_scalar(B::Max, x, 0.0),
            Kind::Affine | Kind::HardSigmoid => {
                let y = b.binary_scalar(B::Mul, x, alpha)?;
                let y = b.binary_scalar(B::Add, y, beta)?;
                if self.kind == Kind::Affine {
                    return Ok(y);
                }
                let y = b.binary_scalar(B::Max, y, 0.0)?;
                b.binary_scalar(B::Min, y, 1.0)
            }
            Kind::ScaledTanh => {
                let y = b.binary_scalar(B::Mul, x, beta)?;
                let y = b.unary(U::Tanh, y)?;
                b.binary_scalar(B::Mul, y, alpha)
            }
            Kind::Elu => {
                let low = b.binary_scalar(B::Min, x, 0.0)?;
                let low = b.unary(U::Exp, low)?;
                let low = b.binary_scalar(B::Sub, low, 1.0)?;
                let low = b.binary_scalar(B::Mul, low, alpha)?;
                let negative = b.binary_scalar(B::Le, x, 0.0)?;
                b.select(negative, low, x)
            }
            Kind::LeakyRelu => {
                let low = b.binary_scalar(B::Mul, x, alpha)?;
                let positive = b.binary_scalar(B::Gt, x, 0.0)?;
                b.select(positive, x, low)
            }
            Kind::ThresholdedRelu => {
                let above = b.binary_scalar(B::Gt, x, alpha)?;
                let zero = zero(b);
                b.select(above, x, zero)
            }
            Kind::Softsign => {
                let d = b.unary(U::Abs, x)?;
                let d = b.binary_scalar(B::Add, d, 1.0)?;
                b.binary(B::Div, x, d)
            }
            Kind::Softplus => {
                // ln(1 + eˣ) = max(x, 0) + ln(1 + e^−|x|)
                let e = b.unary(U::Abs, x)?;
                let e = b.unary(U::Neg, e)?;
                let e = b.unary(U::Exp, e)?;
                let e = b.unary(U::Special(Special::Log1p), e)?;
                let high = b.binary_scalar(B::Max, x, 0.0)?;
                b.binary(B::Add, high, e)
            }
        }
    }
}
