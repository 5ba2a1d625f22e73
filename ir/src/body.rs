//! Construction of scalar functions, and random bits in them.

use crate::dtype::DType;
use crate::poly::Poly;
use crate::scalar::{BinaryOp, Scalar, ScalarFn, ScalarNode, UnaryOp};

/// Builds a scalar function: each method adds a node and returns its index, and the last node added is the function's
/// result. A node equal to an earlier one is not added again, so the result must be a new node.
///
/// ```
/// use wgfc_ir::{BinaryOp, Body, DType, UnaryOp};
/// // The logistic function, 1/(1 + exp(−x)).
/// let mut f = Body::default();
/// let (x, one) = (f.arg(0), f.f32(1.0));
/// let minus = f.unary(UnaryOp::Neg, x);
/// let e = f.unary(UnaryOp::Exp, minus);
/// let sum = f.binary(BinaryOp::Add, one, e);
/// f.binary(BinaryOp::Div, one, sum);
/// let types = f.0.types(&[DType::F32])?;
/// assert_eq!(types.last(), Some(&DType::F32));
/// # Ok::<(), String>(())
/// ```
#[derive(Default)]
pub struct Body(pub ScalarFn);

impl Body {
    /// Operand `i` of the Map.
    pub fn arg(&mut self, i: u32) -> u32 {
        self.0.push(ScalarNode::Arg(i))
    }
    /// Adds a constant.
    pub fn constant(&mut self, s: Scalar) -> u32 {
        self.0.push(ScalarNode::Const(s))
    }
    /// A constant of this type.
    pub fn number(&mut self, t: DType, v: f64) -> u32 {
        self.constant(Scalar::from_f64(t, v))
    }
    /// An integer constant of this type, exact.
    pub fn int(&mut self, t: DType, v: i64) -> u32 {
        self.constant(Scalar::from_i64(t, v))
    }
    /// Adds a constant of type `f32`.
    pub fn f32(&mut self, v: f64) -> u32 {
        self.number(DType::F32, v)
    }
    /// Adds a constant of type `i32`.
    pub fn i32(&mut self, v: i64) -> u32 {
        self.int(DType::I32, v)
    }
    /// Adds a constant of type `u32`.
    pub fn u32(&mut self, v: i64) -> u32 {
        self.int(DType::U32, v)
    }
    /// Adds a constant of type `u64`.
    pub fn u64(&mut self, v: i64) -> u32 {
        self.int(DType::U64, v)
    }
    /// An index expression over the output's variables, as an `i32`.
    pub fn index(&mut self, p: Poly) -> u32 {
        self.0.push(ScalarNode::Index(p))
    }
    /// A scalar operator with one operand.
    pub fn unary(&mut self, op: UnaryOp, a: u32) -> u32 {
        self.0.push(ScalarNode::Unary(op, a))
    }
    /// A scalar operator with two operands of the same type.
    pub fn binary(&mut self, op: BinaryOp, a: u32, b: u32) -> u32 {
        self.0.push(ScalarNode::Binary(op, a, b))
    }
    /// `if c { a } else { b }`.
    pub fn select(&mut self, c: u32, a: u32, b: u32) -> u32 {
        self.0.push(ScalarNode::Select(c, a, b))
    }
    /// Converts `a` to another type.
    pub fn cast(&mut self, to: DType, a: u32) -> u32 {
        self.0.push(ScalarNode::Cast(to, a))
    }
    /// Reinterprets the bits of `a` as another type.
    pub fn bitcast(&mut self, to: DType, a: u32) -> u32 {
        self.0.push(ScalarNode::Bitcast(to, a))
    }
    /// A `u32` with the bits of `mask` flipped.
    pub fn flipped(&mut self, x: u32, mask: u32) -> u32 {
        let mask = self.u32(i64::from(mask));
        self.binary(BinaryOp::Xor, x, mask)
    }
    /// A `u32` whose order is that of an `f32`: its bits with the sign flipped, and for negative numbers all bits
    /// flipped. Both zeros are equal, and NaN is the greatest.
    pub fn float_order(&mut self, x: u32) -> u32 {
        let zero = self.f32(0.0);
        let is_zero = self.binary(BinaryOp::Eq, x, zero);
        let x = self.select(is_zero, zero, x);
        let bits = self.bitcast(DType::U32, x);
        let (none, sign, top) = (self.u32(0), self.u32(1 << 31), self.u32(i64::from(u32::MAX)));
        let masked = self.binary(BinaryOp::And, bits, sign);
        let positive = self.binary(BinaryOp::Eq, masked, none);
        let (up, down) = (self.flipped(bits, 1 << 31), self.flipped(bits, u32::MAX));
        let order = self.select(positive, up, down);
        let nan = self.unary(UnaryOp::IsNan, x);
        self.select(nan, top, order)
    }

    /// Three `u32` of random bits, a hash of three `u32`: pcg3d by Jarzynski and Olano, *Hash Functions for GPU
    /// Rendering*, JCGT 9(3), 2020.
    pub fn pcg3d(&mut self, mut v: [u32; 3]) -> [u32; 3] {
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
        v
    }

    /// Four `u32` of random bits, computed from a counter and a key: Philox4x32-10 by Salmon, Moraes, Dror and Shaw,
    /// *Parallel Random Numbers: As Easy as 1, 2, 3*, SC 2011.
    pub fn philox(&mut self, mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
        const ROUNDS: usize = 10;
        let factors = [0xd251_1f53, 0xcd9e_8d57].map(|m| self.u64(m));
        let weyl = [0x9e37_79b9, 0xbb67_ae85].map(|w| self.u32(w));
        let by = self.u64(32);
        for round in 0..ROUNDS {
            if round > 0 {
                key = [0, 1].map(|i| self.binary(BinaryOp::Add, key[i], weyl[i]));
            }
            let [(high_0, low_0), (high_1, low_1)] = [(0, 0), (1, 2)].map(|(factor, word)| {
                let wide = self.cast(DType::U64, counter[word]);
                let product = self.binary(BinaryOp::Mul, wide, factors[factor]);
                let high = self.binary(BinaryOp::Shr, product, by);
                (self.cast(DType::U32, high), self.cast(DType::U32, product))
            });
            let mut mixed = |high, word, key| {
                let x = self.binary(BinaryOp::Xor, high, word);
                self.binary(BinaryOp::Xor, x, key)
            };
            counter = [mixed(high_1, counter[1], key[0]), low_1, mixed(high_0, counter[3], key[1]), low_0];
        }
        counter
    }

    fn stir(&mut self, v: &mut [u32; 3]) {
        for i in 0..3 {
            let product = self.binary(BinaryOp::Mul, v[(i + 1) % 3], v[(i + 2) % 3]);
            v[i] = self.binary(BinaryOp::Add, v[i], product);
        }
    }

    /// Random bits (a `u32`) as an `f32` in `(0, 1)`: `(bits + ½)/2³²`, at most `1 − 2⁻²⁴`.
    pub fn unit(&mut self, bits: u32) -> u32 {
        let bits = self.cast(DType::F32, bits);
        let (half, unit) = (self.f32(0.5), self.f32(1.0 / (1u64 << 32) as f64));
        let u = self.binary(BinaryOp::Add, bits, half);
        let u = self.binary(BinaryOp::Mul, u, unit);
        let most = self.f32(1.0 - f64::from(f32::EPSILON) / 2.0);
        self.binary(BinaryOp::Min, u, most)
    }

    /// `−ln(−ln(1 − u))` for `u` in `(0, 1)`: a Gumbel variate if `u` is uniform. It is accurate for `u` near 0, where
    /// the largest results lie.
    pub fn gumbel(&mut self, u: u32) -> u32 {
        let one = self.f32(1.0);
        let rest = self.binary(BinaryOp::Sub, one, u);
        let log = self.unary(UnaryOp::Log, rest);
        let large = self.unary(UnaryOp::Neg, log);
        // ln(1/(1 − u)) as the series u + u²/2 + u³/3 + u⁴/4 + u⁵/5.
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
}
