//! Scalar functions as they are written.

use wgfc_ir::{BinaryOp, DType, Poly, Scalar, ScalarFn, ScalarNode, UnaryOp};

/// A scalar function as it is written. Operands and results are its nodes.
#[derive(Default)]
pub struct Body(pub ScalarFn);

/// What a logit is beside a number.
pub struct Class {
    /// NaN or +∞.
    pub wrong: u32,
    /// −∞.
    pub never: u32,
}

impl Body {
    pub fn arg(&mut self, i: u32) -> u32 {
        self.0.push(ScalarNode::Arg(i))
    }
    pub fn constant(&mut self, s: Scalar) -> u32 {
        self.0.push(ScalarNode::Const(s))
    }
    pub fn f32(&mut self, v: f64) -> u32 {
        self.constant(Scalar::from_f64(DType::F32, v))
    }
    pub fn i32(&mut self, v: i64) -> u32 {
        self.constant(Scalar::from_i64(DType::I32, v))
    }
    pub fn u32(&mut self, v: i64) -> u32 {
        self.constant(Scalar::from_i64(DType::U32, v))
    }
    pub fn u64(&mut self, v: i64) -> u32 {
        self.constant(Scalar::from_i64(DType::U64, v))
    }
    pub fn index(&mut self, p: Poly) -> u32 {
        self.0.push(ScalarNode::Index(p))
    }
    pub fn unary(&mut self, op: UnaryOp, a: u32) -> u32 {
        self.0.push(ScalarNode::Unary(op, a))
    }
    pub fn binary(&mut self, op: BinaryOp, a: u32, b: u32) -> u32 {
        self.0.push(ScalarNode::Binary(op, a, b))
    }
    pub fn select(&mut self, c: u32, a: u32, b: u32) -> u32 {
        self.0.push(ScalarNode::Select(c, a, b))
    }
    pub fn cast(&mut self, to: DType, a: u32) -> u32 {
        self.0.push(ScalarNode::Cast(to, a))
    }
    pub fn bitcast(&mut self, to: DType, a: u32) -> u32 {
        self.0.push(ScalarNode::Bitcast(to, a))
    }
    pub fn flipped(&mut self, x: u32, mask: u32) -> u32 {
        let mask = self.u32(i64::from(mask));
        self.binary(BinaryOp::Xor, x, mask)
    }

    /// By bits: arithmetic may presume that neither occurs.
    pub fn class(&mut self, x: u32) -> Class {
        let bits = self.bitcast(DType::U32, x);
        let rest = self.u32(i64::from(i32::MAX));
        let size = self.binary(BinaryOp::And, bits, rest);
        let (infinite, below) = (self.u32(0x7f80_0000), self.u32(0xff80_0000));
        let nan = self.binary(BinaryOp::Gt, size, infinite);
        let above = self.binary(BinaryOp::Eq, bits, infinite);
        let wrong = self.binary(BinaryOp::Or, nan, above);
        Class { wrong, never: self.binary(BinaryOp::Eq, bits, below) }
    }

    /// A Gumbel variate of position `at` and the random bits in arguments `low` and `high`.
    pub fn gumbel(&mut self, at: Poly, low: u32, high: u32) -> u32 {
        let at = self.index(at);
        let at = self.cast(DType::U32, at);
        let mut v = [at, self.arg(low), self.arg(high)];
        let (a, c, by) = (self.u32(1_664_525), self.u32(1_013_904_223), self.u32(16));
        for x in &mut v {
            let ax = self.binary(BinaryOp::Mul, *x, a);
            *x = self.binary(BinaryOp::Add, ax, c);
        }
        self.stir(&mut v);
        for x in &mut v {
            let shifted = self.binary(BinaryOp::Shr, *x, by);
            *x = self.binary(BinaryOp::Xor, *x, shifted);
        }
        self.stir(&mut v);
        // u = (bits + ½)/2³² is fine near 0, where the likely winners are; so must −ln(1 − u) be.
        let bits = self.cast(DType::F32, v[0]);
        let (half, unit) = (self.f32(0.5), self.f32(1.0 / (1u64 << 32) as f64));
        let u = self.binary(BinaryOp::Add, bits, half);
        let u = self.binary(BinaryOp::Mul, u, unit);
        let most = self.f32(1.0 - f64::from(f32::EPSILON) / 2.0);
        let u = self.binary(BinaryOp::Min, u, most);
        let one = self.f32(1.0);
        let rest = self.binary(BinaryOp::Sub, one, u);
        let log = self.unary(UnaryOp::Log, rest);
        let large = self.unary(UnaryOp::Neg, log);
        // u + u²/2 + u³/3 + u⁴/4 + u⁵/5.
        let mut small = self.f32(0.2);
        for c in [0.25, 1.0 / 3.0, 0.5, 1.0] {
            let c = self.f32(c);
            small = self.binary(BinaryOp::Mul, small, u);
            small = self.binary(BinaryOp::Add, small, c);
        }
        let small = self.binary(BinaryOp::Mul, small, u);
        let edge = self.f32(0.05);
        let near = self.binary(BinaryOp::Lt, u, edge);
        let e = self.select(near, small, large);
        let log = self.unary(UnaryOp::Log, e);
        self.unary(UnaryOp::Neg, log)
    }

    fn stir(&mut self, v: &mut [u32; 3]) {
        for i in 0..3 {
            let product = self.binary(BinaryOp::Mul, v[(i + 1) % 3], v[(i + 2) % 3]);
            v[i] = self.binary(BinaryOp::Add, v[i], product);
        }
    }
}
