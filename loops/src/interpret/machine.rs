//! The state of a workgroup and the execution of statements.

use super::memory::{Cells, Who};
use super::{Buffers, Counts, Fault, Options, levels};
use crate::text::statement;
use crate::{Combined, Expr, For, Kernel, Space, Stmt, Store, TensorId, Write};
use wgfc_ir::eval::{binary_scalar, bitcast_scalar, cast_scalar, unary_scalar};
use wgfc_ir::{Atom, DType, Poly, Scalar};

/// Which invocations execute a statement.
type Mask = Vec<bool>;
type Executed<T> = Result<T, (usize, String)>;

pub(super) struct Machine<'k> {
    kernel: &'k Kernel,
    options: &'k Options,
    memory: Vec<Cells>,
    shapes: Vec<Vec<i64>>,
    lanes: usize,
    /// The value of each variable in each invocation.
    vars: Vec<Vec<i64>>,
    /// The loops that are under way.
    open: Vec<usize>,
    /// The value of each name in each invocation.
    values: Vec<Vec<Scalar>>,
    group: u32,
    phases: (u32, u32),
    counts: Counts,
}

impl<'k> Machine<'k> {
    pub(super) fn new(
        kernel: &'k Kernel,
        buffers: &mut Buffers,
        options: &'k Options,
    ) -> Result<Machine<'k>, Fault> {
        let fault =
            |message: String| Fault { message, statement: "kernel".into(), invocation: 0, point: vec![] };
        let size = |p: &Poly| {
            let value = p.as_const().filter(|v| (0..=wgfc_ir::poly::MAX_EXTENT).contains(v));
            value.ok_or_else(|| fault(format!("`{p}` is no size")))
        };
        let (_, invocations, _) = levels(kernel);
        let lanes = invocations.iter().map(|l| size(&l.extent)).product::<Result<i64, Fault>>()? as usize;
        if lanes > 1 << 16 {
            return Err(fault(format!("{lanes} invocations a workgroup")));
        }
        buffers.resize(kernel.tensors.len(), vec![]);
        let (mut memory, mut shapes) = (vec![], vec![]);
        for (t, given) in kernel.tensors.iter().zip(buffers) {
            let shape: Vec<i64> = t.shape.iter().map(size).collect::<Result<_, _>>()?;
            let len = shape.iter().product::<i64>() as usize;
            if let Space::Storage(_) = t.space
                && (given.len() != len || given.iter().any(|s| s.dtype != t.dtype))
            {
                return Err(fault(format!("`{}` has other than {len} elements of {}", t.name, t.dtype)));
            }
            memory.push(Cells::new(t, len, lanes, std::mem::take(given)));
            shapes.push(shape);
        }
        let none = vec![0; kernel.tensors.len()];
        Ok(Machine {
            kernel,
            options,
            memory,
            shapes,
            lanes,
            vars: vec![vec![0; lanes]; kernel.vars.len()],
            open: vec![],
            values: kernel.values.iter().map(|v| vec![Scalar { dtype: v.dtype, bits: 0 }; lanes]).collect(),
            group: 0,
            phases: (0, 0),
            counts: Counts { loads: none.clone(), stores: none, ..Counts::default() },
        })
    }

    pub(super) fn run(mut self, buffers: &mut Buffers) -> Result<Counts, Fault> {
        let (grid, invocations, body) = levels(self.kernel);
        // Invocations are numbered with the innermost loop's variable running fastest.
        let mut below = 1;
        for l in invocations.iter().rev() {
            let extent = l.extent.as_const().unwrap_or(0).max(0) as usize;
            for lane in 0..self.lanes {
                self.vars[l.var][lane] = (lane / below % extent) as i64;
            }
            below *= extent;
        }
        let result = self.groups(&grid, &invocations, body);
        for (cells, b) in self.memory.into_iter().zip(buffers) {
            if cells.is_storage() {
                *b = cells.into_elements();
            }
        }
        result.map(|()| self.counts)
    }

    fn groups(&mut self, grid: &[&For], invocations: &[&For], body: &[Stmt]) -> Result<(), Fault> {
        if let [outer, inner @ ..] = grid {
            let extent = self
                .extent(outer, &vec![true; self.lanes])
                .map_err(|e| self.fault(&Stmt::For((*outer).clone()), e))?;
            self.open.push(outer.var);
            for i in 0..extent.first().copied().unwrap_or(0) {
                self.vars[outer.var].fill(i);
                self.groups(inner, invocations, body)?;
            }
            self.open.pop();
            return Ok(());
        }
        self.group += 1;
        self.counts.workgroups += 1;
        self.phases = (0, 0);
        self.memory.iter_mut().for_each(Cells::next_group);
        let opened = self.open.len();
        self.open.extend(invocations.iter().map(|l| l.var));
        self.block(body, &vec![true; self.lanes])?;
        self.open.truncate(opened);
        Ok(())
    }

    fn fault(&self, s: &Stmt, (invocation, message): (usize, String)) -> Fault {
        let value = |v: &usize| self.vars[*v].get(invocation).copied().unwrap_or(0);
        Fault {
            message,
            statement: statement(self.kernel, s),
            invocation,
            point: self.open.iter().map(|v| (self.kernel.vars[*v].clone(), value(v))).collect(),
        }
    }

    fn block(&mut self, body: &[Stmt], mask: &Mask) -> Result<(), Fault> {
        for s in body {
            self.counts.statements += 1;
            if self.counts.statements > self.options.max_statements {
                let message = format!("more than {} statements are executed", self.options.max_statements);
                return Err(self.fault(s, (0, message)));
            }
            match s {
                Stmt::For(l) => self.repeat(s, l, mask)?,
                Stmt::If { condition, then, otherwise } => {
                    let c = self.truth(condition, mask).map_err(|e| self.fault(s, e))?;
                    for (body, wanted) in [(then, true), (otherwise, false)] {
                        let inner: Mask = mask.iter().zip(&c).map(|(m, c)| *m && *c == wanted).collect();
                        if inner.contains(&true) {
                            self.block(body, &inner)?;
                        }
                    }
                }
                Stmt::Let { value, expr } => {
                    for lane in (0..self.lanes).filter(|l| mask[*l]) {
                        let v = self.eval(expr, lane, mask).map_err(|e| self.fault(s, e))?;
                        self.values[*value as usize][lane] = v;
                    }
                }
                Stmt::Store(store) => self.store(store, mask).map_err(|e| self.fault(s, e))?,
                Stmt::Barrier { storage } => {
                    if let Some(lane) = mask.iter().position(|m| !m) {
                        let message = "a barrier that this invocation does not reach".to_owned();
                        return Err(self.fault(s, (lane, message)));
                    }
                    self.counts.barriers += 1;
                    self.phases.0 += u32::from(*storage);
                    self.phases.1 += 1;
                }
            }
        }
        Ok(())
    }

    fn repeat(&mut self, s: &Stmt, l: &For, mask: &Mask) -> Result<(), Fault> {
        let extent = self.extent(l, mask).map_err(|e| self.fault(s, e))?;
        let most = extent.iter().copied().max().unwrap_or(0);
        let mut going = mask.clone();
        self.open.push(l.var);
        for i in 0..most {
            for lane in 0..self.lanes {
                going[lane] &= i < extent[lane];
                self.vars[l.var][lane] = if l.down { extent[lane] - 1 - i } else { i };
            }
            if let Some(c) = &l.condition {
                let c = self.truth(c, &going).map_err(|e| self.fault(s, e))?;
                going.iter_mut().zip(c).for_each(|(g, c)| *g &= c);
            }
            if !going.contains(&true) {
                break;
            }
            self.block(&l.body, &going)?;
        }
        self.open.pop();
        Ok(())
    }

    /// The number of points of a loop in each invocation; 0 in those that do not execute it.
    fn extent(&self, l: &For, mask: &Mask) -> Executed<Vec<i64>> {
        (0..self.lanes).map(|lane| if mask[lane] { self.index(&l.extent, lane) } else { Ok(0) }).collect()
    }

    /// The value of an index expression in an invocation.
    fn index(&self, p: &Poly, lane: usize) -> Executed<i64> {
        if let Some(c) = p.as_const() {
            return Ok(c);
        }
        let atom = |a: &Atom| match a {
            Atom::Var(i) => self.vars.get(*i as usize)?.get(lane).copied(),
            Atom::Data(i) => Some(self.values.get(*i as usize)?.get(lane)?.as_i64()),
            _ => None,
        };
        p.eval(&atom).ok_or_else(|| {
            let shown = p.named(&|a| self.kernel.name_of(a)).to_string();
            (lane, format!("`{shown}` has no value"))
        })
    }

    /// The offset of an element, if it is inside its tensor.
    fn offset(&self, tensor: TensorId, at: &[Poly], lane: usize) -> Executed<usize> {
        let mut offset = 0;
        for (axis, (p, extent)) in at.iter().zip(&self.shapes[tensor]).enumerate() {
            let i = self.index(p, lane)?;
            if !(0..*extent).contains(&i) {
                let name = &self.kernel.tensors[tensor].name;
                return Err((
                    lane,
                    format!("position {i} along axis {axis} of `{name}`, whose extent is {extent}"),
                ));
            }
            offset = offset * extent + i;
        }
        Ok(offset as usize)
    }

    fn who(&self, lane: usize) -> Who {
        Who { group: self.group, lane: lane as u32, phases: self.phases }
    }

    fn truth(&mut self, e: &Expr, mask: &Mask) -> Executed<Mask> {
        let mut out = vec![false; self.lanes];
        for lane in (0..self.lanes).filter(|l| mask[*l]) {
            out[lane] = self.eval(e, lane, mask)?.bits != 0;
        }
        Ok(out)
    }

    fn store(&mut self, s: &Store, mask: &Mask) -> Executed<()> {
        let guarded;
        let mask = match &s.guard {
            Some(g) => {
                guarded = self.truth(g, mask)?;
                &guarded
            }
            None => mask,
        };
        let dtype = self.kernel.tensors[s.tensor].dtype;
        // All invocations compute the value before any stores its own.
        let mut ready = Vec::with_capacity(self.lanes);
        for lane in (0..self.lanes).filter(|l| mask[*l]) {
            let value = self.eval(&s.value, lane, mask)?;
            let value = if value.dtype == dtype { Some(value) } else { cast_scalar(dtype, value) };
            ready.push((lane, self.offset(s.tensor, &s.at, lane)?, value.ok_or_else(|| mistyped(lane))?));
        }
        for (lane, to, new) in ready {
            let replaced = |old: Scalar| match s.write {
                Write::Replace | Write::Any => Some(new),
                Write::Combine(op) => binary_scalar(op.operator(), old, new),
            };
            let who = self.who(lane);
            let stored = self.memory[s.tensor].store(to, who, s.write, replaced);
            stored.map_err(|why| self.element(why, lane, to, s.tensor))?;
            self.counts.stores[s.tensor] += 1;
        }
        Ok(())
    }

    fn element(&self, why: String, lane: usize, element: usize, tensor: TensorId) -> (usize, String) {
        (lane, format!("{why}: element {element} of `{}`", self.kernel.tensors[tensor].name))
    }

    /// The value of an expression in an invocation, with which those of the mask execute it.
    fn eval(&mut self, e: &Expr, lane: usize, mask: &Mask) -> Executed<Scalar> {
        let typed = |s: Option<Scalar>| s.ok_or_else(|| mistyped(lane));
        match e {
            Expr::Const(s) => return Ok(*s),
            Expr::Index(p) => return Ok(Scalar::from_i64(DType::I32, self.index(p, lane)?)),
            Expr::Value(v) => return typed(self.values.get(*v as usize).and_then(|v| v.get(lane)).copied()),
            Expr::Load { tensor, at, guard } => {
                if let Some(g) = guard
                    && self.eval(g, lane, mask)?.bits == 0
                {
                    return Ok(arbitrary(self.kernel.tensors[*tensor].dtype));
                }
                let (from, who) = (self.offset(*tensor, at, lane)?, self.who(lane));
                let value = self.memory[*tensor].load(from, who);
                self.counts.loads[*tensor] += 1;
                return value.map_err(|why| self.element(why, lane, from, *tensor));
            }
            _ => self.counts.operations += 1,
        }
        match e {
            Expr::Unary(op, a) => {
                let a = self.eval(a, lane, mask)?;
                typed(unary_scalar(*op, a))
            }
            Expr::Binary(op, a, b) => {
                let (a, b) = (self.eval(a, lane, mask)?, self.eval(b, lane, mask)?);
                typed(binary_scalar(*op, a, b))
            }
            Expr::Select(c, a, b) => {
                let c = self.eval(c, lane, mask)?;
                let (a, b) = (self.eval(a, lane, mask)?, self.eval(b, lane, mask)?);
                Ok(if c.bits != 0 { a } else { b })
            }
            Expr::Cast(t, a) => {
                let a = self.eval(a, lane, mask)?;
                typed(cast_scalar(*t, a))
            }
            Expr::Bitcast(t, a) => {
                let a = self.eval(a, lane, mask)?;
                typed(bitcast_scalar(*t, a))
            }
            Expr::Subgroup(op, a) => self.subgroup(*op, a, lane, mask),
            Expr::Const(_) | Expr::Index(_) | Expr::Value(_) | Expr::Load { .. } => Err(mistyped(lane)),
        }
    }

    fn subgroup(&mut self, op: Combined, a: &Expr, lane: usize, mask: &Mask) -> Executed<Scalar> {
        let size = self.options.subgroup.max(1);
        let start = lane / size * size;
        let group = start..(start + size).min(self.lanes);
        if let Some(lane) = group.clone().find(|i| !mask[*i]) {
            return Err((lane, "a subgroup operation that this invocation does not reach".into()));
        }
        match op {
            Combined::All(op) => {
                let mut all: Option<Scalar> = None;
                for i in group {
                    let x = self.eval(a, i, mask)?;
                    all = match all {
                        None => Some(x),
                        Some(y) => binary_scalar(op.operator(), y, x),
                    };
                }
                all.ok_or_else(|| mistyped(lane))
            }
            Combined::Xor(bits) => {
                let from = start + ((lane - start) ^ bits as usize);
                if !group.contains(&from) {
                    return Err((lane, format!("the subgroup has no invocation {}", from - start)));
                }
                self.eval(a, from, mask)
            }
        }
    }
}

/// An expression that the verifier rejects.
fn mistyped(lane: usize) -> (usize, String) {
    (lane, "an operator on other types than it has".into())
}

/// A value on which nothing should depend.
fn arbitrary(dtype: DType) -> Scalar {
    if dtype.is_float() { Scalar::from_f64(dtype, f64::NAN) } else { Scalar::from_i64(dtype, 0x55) }
}
