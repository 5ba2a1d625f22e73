//! Types of results, and conversion of operands to their common type.

use super::{Cx, Number, OpError, Operand, Result};
use crate::import::fx::expr;
use crate::import::fx::messages::{self, SymInt};
use crate::import::fx::promote::{self, Kind};
use wgfc_ir::{DType, Dim, Scalar, TensorType, Value};

/// Types and promotion.
impl<'m> Cx<'_, '_, 'm> {
    /// How many results the node has.
    pub fn result_count(&self) -> usize {
        self.node.results().count()
    }
    /// The declared type of a result.
    pub fn result(&self, i: usize) -> Result<TensorType> {
        let meta = self.node.results().nth(i).and_then(|n| self.graph.tensor_values.get(n));
        let meta = meta.ok_or_else(|| {
            OpError::model(format!("the program does not declare the type of its result {i}"))
        })?;
        let mut ty = self.importer.tensor_type(meta)?;
        if self.part.is_some() && messages::is_complex(meta.dtype) {
            ty.shape.pop();
        }
        ty.dtype = self.computed_in(ty.dtype);
        Ok(ty)
    }
    /// The upper bound of an extent of a result that depends on data.
    pub fn most(&self, i: usize, axis: usize) -> Result<Dim> {
        let meta = self.node.results().nth(i).and_then(|n| self.graph.tensor_values.get(n));
        let text = match meta.and_then(|m| m.sizes.get(axis)) {
            Some(SymInt::Int(n)) => return Ok((*n).into()),
            Some(SymInt::Expr(text)) => text,
            None => return Err(OpError::model(format!("its result {i} is declared without axis {axis}"))),
        };
        let symbol = match expr::parse(text)? {
            expr::Expr::Symbol(s) if !self.importer.symbols.contains_key(&s) => s,
            _ => return self.importer.size(text),
        };
        let most = self.importer.ranges.get(&symbol).and_then(|r| r.max_val).filter(|m| *m < 1 << 31);
        most.map(Dim::from).ok_or_else(|| {
            OpError::unsupported(
                format!("the number of elements, `{symbol}`, depends on data and has no upper bound"),
                "state an upper bound in the module: torch._check(result.shape[0] <= 4096)",
            )
        })
    }
    /// The declared element type of a result.
    pub fn result_dtype(&self, i: usize) -> Result<DType> {
        let meta = self.node.results().nth(i).and_then(|n| self.graph.tensor_values.get(n));
        let code = meta.map_or(0, |m| m.dtype);
        messages::dtype(code)
            .map(|dtype| self.computed_in(dtype))
            .map_err(|e| OpError::unsupported(format!("a result of type {e}"), "convert to f32 first"))
    }
    /// The type in which results of the given type are computed.
    fn computed_in(&self, dtype: DType) -> DType {
        if self.in_f32 && dtype.is_float() && dtype.bits() < 32 { DType::F32 } else { dtype }
    }
    /// Switches to computing in f32 if an argument is a constant that the type of the first result, a narrower float, does not represent
    /// to its full precision: one that would become infinite, zero or subnormal.
    pub fn keep_numbers(&mut self, names: &[&str]) -> Result<()> {
        let Ok(dtype) = self.result_dtype(0) else { return Ok(()) };
        if self.in_f32 || !dtype.is_float() || dtype.bits() >= 32 {
            return Ok(());
        }
        for name in names {
            let a = self.argument(name)?;
            if let Some(v) = self.number_of(&a)?.and_then(|n| n.known()) {
                let wide = Scalar::from_f64(DType::F32, v);
                let held = wgfc_ir::eval::cast_scalar(dtype, wide).map_or(f64::INFINITY, |h| h.as_f64());
                let (wide, precision) = (wide.as_f64(), if dtype == DType::F16 { 11 } else { 9 });
                let off = (held - wide).abs();
                self.in_f32 |= held != wide && (off.is_nan() || off > wide.abs() * 2f64.powi(-precision));
            }
        }
        Ok(())
    }
    /// The kind of an operand for [`promote::common`].
    pub fn kind(&self, o: &Operand) -> Kind {
        match o {
            Operand::Tensor(v) if self.rank(*v) == 0 => Kind::Scalar(self.dtype(*v)),
            Operand::Tensor(v) => Kind::Tensor(self.dtype(*v)),
            Operand::Number(n) => Kind::Number(n.dtype(self.lowering)),
        }
    }
    /// An operand as a tensor of the given type.
    pub fn in_type(&mut self, o: &Operand, dtype: DType) -> Result {
        match o {
            Operand::Tensor(v) => self.converted(*v, dtype),
            Operand::Number(n) => self.number_in(n, dtype),
        }
    }
    /// Elements in another type, as torch converts them.
    pub fn converted(&mut self, v: Value, dtype: DType) -> Result {
        Ok(self.lowering.cast(v, dtype)?)
    }
    /// An integer as a tensor of rank 0 ([`Builder::int`](wgfc_ir::Builder::int), which [`Cx::int`] hides).
    pub fn int_const(&mut self, dtype: DType, v: i64) -> Value {
        self.lowering.int(dtype, v)
    }
    /// A constant as a tensor of rank 0.
    pub fn scalar(&mut self, dtype: DType, v: f64) -> Value {
        self.lowering.scalar(dtype, v)
    }
    /// A number as a tensor of rank 0.
    pub fn number_in(&mut self, n: &Number, dtype: DType) -> Result {
        let to = &mut *self.lowering;
        Ok(match n {
            Number::Bool(b) => {
                let v = to.constant(wgfc_ir::Tensor::scalar(Scalar::bool(*b)));
                to.cast(v, dtype)?
            }
            Number::Int(d) => match d.as_const() {
                Some(n) if dtype.is_float() => to.scalar(dtype, n as f64),
                Some(n) if dtype == DType::Bool => to.constant(wgfc_ir::Tensor::scalar(Scalar::bool(n != 0))),
                Some(n) => to.int(dtype, n),
                None => to.dim_scalar(d, dtype)?,
            },
            Number::Float(x) if dtype.is_float() => to.scalar(dtype, *x),
            Number::Float(x) if dtype == DType::Bool => {
                to.constant(wgfc_ir::Tensor::scalar(Scalar::bool(*x != 0.0)))
            }
            Number::Float(x) => to.int(dtype, x.trunc() as i64),
            Number::Computed(v) => to.cast(*v, dtype)?,
        })
    }
    /// Arguments as tensors of their common type, by type promotion.
    pub fn promoted<const N: usize>(&mut self, names: [&str; N]) -> Result<[Value; N]> {
        let mut operands = vec![];
        for name in names {
            operands.push(self.operand(name)?);
        }
        let kinds: Vec<Kind> = operands.iter().map(|o| self.kind(o)).collect();
        let dtype = promote::common(&kinds);
        let mut out = [Value { node: Default::default(), port: 0 }; N];
        for (slot, o) in out.iter_mut().zip(&operands) {
            *slot = self.in_type(o, dtype)?;
        }
        Ok(out)
    }
    /// Arguments as tensors of one type.
    pub fn all_in<const N: usize>(&mut self, names: [&str; N], dtype: DType) -> Result<[Value; N]> {
        let mut out = [Value { node: Default::default(), port: 0 }; N];
        for (slot, name) in out.iter_mut().zip(names) {
            let o = self.operand(name)?;
            *slot = self.in_type(&o, dtype)?;
        }
        Ok(out)
    }
    /// A tensor as floats: integers and bools in the default type.
    pub fn as_float(&mut self, v: Value) -> Result {
        if self.dtype(v).is_float() { Ok(v) } else { self.converted(v, promote::DEFAULT) }
    }
}
