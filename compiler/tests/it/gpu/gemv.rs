//! Products with few rows, as in decoding.

use super::*;

/// `out = x · w₀`, or the gated `(x · w₀) * (x · w₁)`, where `x` may be normalised.
#[derive(Clone, Copy, Debug)]
pub struct Gemv {
    pub rows: i64,
    pub depth: i64,
    pub cols: i64,
    /// Whether adjacent columns of the weights are adjacent in memory; otherwise adjacent k are.
    pub by_column: bool,
    /// The type of `x`.
    pub input: DType,
    /// The type of the weights. Integers stand for `(w - zero) * scale` with a scale, of the type of `x`, for each block of
    /// [`BLOCK`] k.
    pub weights: DType,
    pub products: usize,
    /// Whether rows are divided by their root mean square.
    pub norm: bool,
    /// The first column that goes to a second tensor.
    pub split: Option<i64>,
    /// Whether rows may be rounded to 8 bits.
    pub rounded: bool,
}

/// The number of k in a block of quantised weights.
pub const BLOCK: i64 = 32;

/// The second operand of product `i` reads `weights[i]`, and if quantised also `scales[i]` and `zeros[i]`.
pub struct GemvTensors {
    pub x: TensorId,
    pub weights: Vec<TensorId>,
    pub scales: Vec<TensorId>,
    pub zeros: Vec<TensorId>,
    pub outs: Vec<TensorId>,
}

impl Gemv {
    /// One product with f32 weights.
    pub const fn plain(depth: i64, cols: i64, by_column: bool) -> Gemv {
        Gemv {
            rows: 1,
            depth,
            cols,
            by_column,
            input: DType::F32,
            weights: DType::F32,
            products: 1,
            norm: false,
            split: None,
            rounded: false,
        }
    }
    pub fn blocks(self) -> i64 {
        (self.depth + BLOCK - 1) / BLOCK
    }
    /// The index of the weight for a k (or block of k, of which there are `deep`) and a column.
    pub fn at(self, k: &Poly, deep: i64, col: &Poly) -> Poly {
        if self.by_column { &(k * &c(self.cols)) + col } else { &(col * &c(deep)) + k }
    }
    /// The number of bytes of the weights.
    pub fn bytes(self) -> f64 {
        let block =
            if self.weights.is_float() { 0.0 } else { (32 + self.weights.bits()) as f64 / BLOCK as f64 };
        (self.depth * self.cols) as f64 * (self.weights.bits() as f64 + block) * self.products as f64 / 8.0
    }

    pub fn kernel(self, case: &mut Case) -> (Kernel, GemvTensors) {
        let (rows, depth, cols) = (self.rows, self.depth, self.cols);
        let domain = [c(1), c(rows), c(cols), c(depth)];
        let mut t = GemvTensors { x: 0, weights: vec![], scales: vec![], zeros: vec![], outs: vec![] };
        t.x = case.typed(self.input, &[c(rows), c(depth)], TensorKind::Input(0));
        let mut body = Body::default();
        let load = |body: &mut Body, case: &Case, tensor: TensorId, offset: Poly| {
            let dtype = case.graph.tensors[tensor].ty.dtype;
            let l = body.push(Expr::Load { tensor, offset, guard: None }, dtype);
            if dtype == DType::F32 { l } else { body.push(Expr::Cast(DType::F32, l), DType::F32) }
        };
        let binary = |body: &mut Body, op, p, q| body.push(Expr::Binary(op, p, q), DType::F32);
        let a = load(&mut body, case, t.x, &(&v(1) * &c(depth)) + &v(3));
        let mut b = vec![];
        for _ in 0..self.products {
            let w = case.typed(self.weights, &[c(depth * cols)], TensorKind::Input(1));
            t.weights.push(w);
            let mut e = load(&mut body, case, w, self.at(&v(3), depth, &v(2)));
            if !self.weights.is_float() {
                let n = [c(self.blocks() * cols)];
                let zero = case.typed(self.weights, &n, TensorKind::Input(2));
                let scale = case.typed(self.input, &n, TensorKind::Input(3));
                let at = self.at(&v(3).div(&c(BLOCK), &domain), self.blocks(), &v(2));
                let z = load(&mut body, case, zero, at.clone());
                let s = load(&mut body, case, scale, at);
                e = binary(&mut body, BinaryOp::Sub, e, z);
                e = binary(&mut body, BinaryOp::Mul, e, s);
                t.zeros.push(zero);
                t.scales.push(scale);
            }
            b.push(e);
        }
        let sums = if self.norm { vec![binary(&mut body, BinaryOp::Mul, a, a)] } else { vec![] };
        let mut value = body.push(Expr::Acc(0), DType::F32);
        for i in 1..self.products {
            let acc = body.push(Expr::Acc(i as u32), DType::F32);
            value = binary(&mut body, BinaryOp::Mul, value, acc);
        }
        if self.norm {
            let sum = body.push(Expr::Acc(self.products as u32), DType::F32);
            let each = body.push(Expr::Const(Scalar::from_f64(DType::F32, 1.0 / depth as f64)), DType::F32);
            let eps = body.push(Expr::Const(Scalar::from_f64(DType::F32, 1e-6)), DType::F32);
            let mean = binary(&mut body, BinaryOp::Mul, sum, each);
            let mean = binary(&mut body, BinaryOp::Add, mean, eps);
            let scale = body.push(Expr::Unary(wgfc_ir::UnaryOp::Rsqrt, mean), DType::F32);
            for _ in 0..self.products {
                value = binary(&mut body, BinaryOp::Mul, value, scale);
            }
        }
        let mut stores = vec![];
        let mut store = |case: &mut Case, from: i64, width: i64, guard| {
            let out = case.tensor(&[c(rows), c(width)], TensorKind::Output(t.outs.len()));
            t.outs.push(out);
            let offset = &(&(&v(1) * &c(width)) + &v(2)) - &c(from);
            stores.push(Store { tensor: out, offset, value, guard, combine: None });
        };
        match self.split {
            None => store(case, 0, cols, None),
            Some(at) => {
                let (n, end) = (
                    body.push(Expr::Index(v(2)), DType::I32),
                    body.push(Expr::Const(Scalar::from_i64(DType::I32, at)), DType::I32),
                );
                let guard = |body: &mut Body, op| Some(body.push(Expr::Binary(op, n, end), DType::Bool));
                let (first, second) = (guard(&mut body, BinaryOp::Lt), guard(&mut body, BinaryOp::Ge));
                store(case, 0, at, first);
                store(case, at, cols - at, second);
            }
        }
        let [batch, m, n, k] = domain;
        let family = Family::Matmul(Matmul { batch, m, n, k, a, b, sums, rounded: self.rounded });
        (Kernel { family, body, stores, nodes: vec![] }, t)
    }
}

/// `n` elements of a type, and the bytes that hold them.
pub fn elements(dtype: DType, n: usize, seed: u32) -> (Vec<f64>, Vec<u8>) {
    let scalar = |x: f32| {
        if dtype.is_float() {
            return Scalar::from_f64(dtype, f64::from(x));
        }
        let half = f64::from(1u32 << (dtype.bits() - 1));
        let low = if dtype.class() == wgfc_ir::Class::Int { 0.0 } else { half };
        Scalar::from_i64(dtype, (f64::from(x) * half + low).floor() as i64)
    };
    let bytes = wgfc_ir::storage::encode(dtype, noise(n, seed).into_iter().map(scalar));
    let values = wgfc_ir::storage::decode(dtype, &bytes, n).into_iter().map(Scalar::as_f64).collect();
    (values, bytes)
}
