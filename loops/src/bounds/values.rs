//! The expressions of a kernel by number.

use crate::{Expr, Kernel, Name, Space, Store, TensorId, Write};
use std::collections::{BTreeMap, BTreeSet};
use wgfc_ir::bounds::{Node, Values};
use wgfc_ir::{BinaryOp, DType, Poly, ReduceOp, Scalar, UnaryOp};

/// The form of an expression.
#[derive(Clone, Debug)]
pub(crate) enum Form {
    Index(Poly),
    Const(Scalar),
    Cast(DType, u32),
    Unary(UnaryOp, u32),
    Binary(BinaryOp, u32, u32),
    Select(u32, u32, u32),
    Sum(u32),
    /// An element of a tensor.
    Load(TensorId),
    Other,
}

/// A store to a register.
struct Stored {
    write: Write,
    value: u32,
    guarded: bool,
    /// The variables of the loops around it.
    around: Vec<usize>,
}

/// The expressions of a kernel: first its named values, by their number.
pub(crate) struct Table {
    all: Vec<(Form, DType)>,
    /// Whether each named value has been computed by a statement.
    named: Vec<bool>,
    stored: BTreeMap<TensorId, Vec<Stored>>,
}

impl Table {
    pub(crate) fn new(kernel: &Kernel) -> Table {
        let all = kernel.values.iter().map(|v| (Form::Other, v.dtype)).collect();
        Table { all, named: vec![false; kernel.values.len()], stored: BTreeMap::new() }
    }

    /// The number of an expression whose operands have these numbers.
    pub(crate) fn add(&mut self, kernel: &Kernel, e: &Expr, operands: &[u32]) -> u32 {
        let form = match (e, operands) {
            (Expr::Value(v), _) if (*v as usize) < self.named.len() => return *v,
            (Expr::Const(s), _) => Form::Const(*s),
            (Expr::Index(p), _) => Form::Index(p.clone()),
            (Expr::Load { tensor, .. }, _) => Form::Load(*tensor),
            (Expr::Cast(to, _), [a]) => Form::Cast(*to, *a),
            (Expr::Unary(op, _), [a]) => Form::Unary(*op, *a),
            (Expr::Binary(op, ..), [a, b]) => Form::Binary(*op, *a, *b),
            (Expr::Select(..), [c, a, b]) => Form::Select(*c, *a, *b),
            _ => Form::Other,
        };
        let typed = e.dtype(kernel);
        let form = if typed.is_ok() { form } else { Form::Other };
        self.all.push((form, typed.unwrap_or(DType::F32)));
        self.all.len() as u32 - 1
    }

    /// The number of an expression.
    pub(crate) fn expr(&mut self, kernel: &Kernel, e: &Expr) -> u32 {
        let operands: Vec<u32> = match e {
            Expr::Load { .. } => vec![],
            _ => e.operands().into_iter().map(|e| self.expr(kernel, e)).collect(),
        };
        self.add(kernel, e, &operands)
    }

    /// Names an expression. A value that several statements compute may be any.
    pub(crate) fn name(&mut self, value: u32, e: u32) {
        let Some(known) = self.named.get_mut(value as usize) else { return };
        self.all[value as usize].0 = if *known { Form::Other } else { self.all[e as usize].0.clone() };
        *known = true;
    }

    /// Notes a store of an expression.
    pub(crate) fn stored(&mut self, s: &Store, value: u32, around: &[usize]) {
        self.stored.entry(s.tensor).or_default().push(Stored {
            write: s.write,
            value,
            guarded: s.guard.is_some(),
            around: around.to_vec(),
        });
    }

    /// Gives the values of registers their form, when all stores are known.
    pub(crate) fn finish(&mut self, kernel: &Kernel) {
        for i in 0..self.all.len() {
            if let Form::Load(t) = self.all[i].0
                && let Some(value) = self.sum(kernel, t)
            {
                self.all[i].0 = Form::Sum(value);
            }
        }
    }

    /// The term of a register that is a sum over the points of one loop, beginning with 0.
    fn sum(&self, kernel: &Kernel, t: TensorId) -> Option<u32> {
        let tensor = kernel.tensors.get(t).filter(|t| t.space == Space::Register && t.dtype.is_int())?;
        let [first, term] = &self.stored.get(&t)?[..] else { return None };
        let zero = matches!(self.all[first.value as usize].0, Form::Const(s) if s.as_i64() == 0);
        let begun = first.write == Write::Replace && !first.guarded && zero && tensor.shape.is_empty();
        let inside = term.around.starts_with(&first.around) && term.around.len() == first.around.len() + 1;
        (begun && inside && term.write == Write::Combine(ReduceOp::Sum)).then_some(term.value)
    }

    /// Collects the symbols that an expression reads.
    pub(crate) fn symbols(&self, e: u32, seen: &mut BTreeSet<u32>, out: &mut BTreeSet<Name>) {
        let mut open = vec![e];
        while let Some(e) = open.pop() {
            if !seen.insert(e) {
                continue;
            }
            match self.form(e) {
                Form::Index(p) => {
                    out.extend(p.symbols());
                    open.extend(p.data());
                }
                Form::Cast(_, a) | Form::Unary(_, a) | Form::Sum(a) => open.push(*a),
                Form::Binary(_, a, b) => open.extend([a, b]),
                Form::Select(c, a, b) => open.extend([c, a, b]),
                Form::Const(_) | Form::Load(_) | Form::Other => {}
            }
        }
    }

    pub(crate) fn form(&self, e: u32) -> &Form {
        self.all.get(e as usize).map_or(&Form::Other, |e| &e.0)
    }
}

impl Values for Table {
    fn node(&self, e: u32) -> Node<'_> {
        match self.form(e) {
            Form::Index(p) => Node::Index(p),
            Form::Const(s) => Node::Const(*s),
            Form::Cast(to, a) => Node::Cast(*to, *a),
            Form::Unary(op, a) => Node::Unary(*op, *a),
            Form::Binary(op, a, b) => Node::Binary(*op, *a, *b),
            Form::Select(c, a, b) => Node::Select(*c, *a, *b),
            Form::Sum(value) => Node::Sum(*value),
            Form::Load(_) | Form::Other => Node::Other,
        }
    }
    fn dtype(&self, e: u32) -> DType {
        self.all.get(e as usize).map_or(DType::F32, |e| e.1)
    }
}
