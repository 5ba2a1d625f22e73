//! Statements for a kernel's expressions.

use crate::kernel::in_place::reads_of_written;
use crate::kernel::{Expr as KernelExpr, ExprId, Kernel, KernelGraph, Store as KernelStore, TensorId};
use rustc_hash::FxHashMap;
use std::collections::BTreeSet;
use wgfc_ir::{Atom, DType, Dim, Poly, ReduceOp};
use wgfc_loops::{Access, Expr, For, Kind, Name, Space, Stmt, Store, Write};

/// Expressions of more nested operations have parts that are named values.
const DEPTH: usize = 16;

/// The tensors that a kernel reads or writes, in order.
pub fn tensors(kernel: &Kernel) -> Vec<TensorId> {
    kernel.reads().into_iter().chain(kernel.writes()).collect::<BTreeSet<_>>().into_iter().collect()
}

/// A nest under construction.
pub(super) struct Builder<'k> {
    pub(super) kernel: &'k Kernel,
    pub(super) out: wgfc_loops::Kernel,
    /// The number in the nest of each tensor.
    of: FxHashMap<TensorId, usize>,
    /// The loads of memory that the kernel writes.
    changing: BTreeSet<ExprId>,
    /// The value of each variable of the kernel.
    vars: Vec<Option<Poly>>,
    /// The results of the family that have a value.
    pub(super) accs: FxHashMap<u32, Expr>,
    /// The arrays of a staged loop.
    pub(super) arrays: Vec<usize>,
}

impl<'k> Builder<'k> {
    pub(super) fn new(kernel: &'k Kernel, graph: &KernelGraph, named: bool) -> Builder<'k> {
        let (reads, writes): (BTreeSet<_>, BTreeSet<_>) =
            (kernel.reads().into_iter().collect(), kernel.writes().into_iter().collect());
        let mut out = wgfc_loops::Kernel { nodes: kernel.nodes.clone(), ..wgfc_loops::Kernel::default() };
        // Symbols of extents are names that nothing else may have.
        let symbols: BTreeSet<Name> = kernel.domain().iter().flat_map(Poly::symbols).collect();
        let mut of = FxHashMap::default();
        for (i, t) in tensors(kernel).into_iter().enumerate() {
            let access = match (reads.contains(&t), writes.contains(&t)) {
                (_, false) => Access::Read,
                (false, true) => Access::Write,
                (true, true) => Access::Update,
            };
            let Some(tensor) = graph.tensors.get(t) else { continue };
            let name = match &tensor.name {
                Some(n) if named => clean(n),
                None if named => format!("t{t}"),
                _ => format!("t{i}"),
            };
            let name = if symbols.contains(name.as_str()) { format!("{name}_{i}") } else { name };
            let elements = tensor.ty.shape.iter().product();
            of.insert(t, out.add_tensor(&name, tensor.ty.dtype, vec![elements], Space::Storage(access)));
        }
        let changing = reads_of_written(kernel, &kernel.roots(), &graph.tensors).into_iter().collect();
        Builder { kernel, out, of, changing, vars: vec![], accs: FxHashMap::default(), arrays: vec![] }
    }

    /// A variable of a loop, which is variable `i` of the kernel.
    pub(super) fn open(&mut self, i: usize, name: &str) -> usize {
        let var = self.out.add_var(name);
        self.assign(i, Poly::var(var));
        var
    }

    /// Gives variable `i` of the kernel a value.
    pub(super) fn assign(&mut self, i: usize, value: Poly) {
        if self.vars.len() <= i {
            self.vars.resize(i + 1, None);
        }
        self.vars[i] = Some(value);
    }

    /// A loop over an extent of the kernel.
    pub(super) fn repeat(&self, var: usize, extent: &Dim, body: Vec<Stmt>) -> Stmt {
        Stmt::For(For::new(var, extent.clone(), Kind::Serial, body))
    }

    /// A loop over an extent of the kernel whose points are independent, by the rules of
    /// [`kernel::in_place`](crate::kernel::in_place).
    pub(super) fn parallel(&self, var: usize, extent: &Dim, body: Vec<Stmt>) -> Stmt {
        Stmt::For(For::new(var, extent.clone(), Kind::Parallel, body))
    }

    /// A register.
    pub(super) fn register(&mut self, name: &str, dtype: DType) -> usize {
        self.out.add_tensor(name, dtype, vec![], Space::Register)
    }

    /// A store to a register.
    pub(super) fn set(&self, register: usize, value: Expr) -> Stmt {
        Stmt::Store(Store::new(register, vec![], value))
    }

    /// A combination with what a register has.
    pub(super) fn combine(&self, register: usize, op: ReduceOp, value: Expr) -> Stmt {
        Stmt::Store(Store { write: Write::Combine(op), ..Store::new(register, vec![], value) })
    }

    /// A name for a value.
    pub(super) fn name(&mut self, name: &str, expr: Expr, to: &mut Vec<Stmt>) -> Result<u32, String> {
        let value = self.out.add_value(name, expr.dtype(&self.out)?);
        to.push(Stmt::Let { value, expr });
        Ok(value)
    }

    /// A value as one of type `to`.
    pub(super) fn converted(&self, to: DType, e: Expr) -> Result<Expr, String> {
        Ok(if e.dtype(&self.out)? == to { e } else { Expr::cast(to, e) })
    }

    /// The value of expressions of the kernel here, after statements that are added.
    pub(super) fn values(&mut self, roots: &[ExprId], to: &mut Vec<Stmt>) -> Result<Vec<Expr>, String> {
        let known = self.known(roots, to)?;
        Ok(roots.iter().filter_map(|r| known.get(r).cloned()).collect())
    }

    fn known(&mut self, roots: &[ExprId], to: &mut Vec<Stmt>) -> Result<FxHashMap<ExprId, Expr>, String> {
        let body = &self.kernel.body;
        let order = body.reachable(roots);
        let mut uses: FxHashMap<ExprId, usize> = FxHashMap::default();
        roots.iter().for_each(|r| *uses.entry(*r).or_default() += 1);
        let mut named = BTreeSet::new();
        for id in &order {
            body.operands(*id).into_iter().for_each(|o| *uses.entry(o).or_default() += 1);
            named.extend(body.expr(*id).index().into_iter().flat_map(Poly::data));
        }
        let stored = self.kernel.all_stores().flat_map(|s| s.offset.data());
        named.extend(stored.filter(|d| uses.contains_key(d)));
        let mut known: FxHashMap<ExprId, Expr> = FxHashMap::default();
        let mut depth: FxHashMap<ExprId, usize> = FxHashMap::default();
        for id in order {
            let e = self.expr(id, &known)?;
            let below =
                body.operands(id).into_iter().filter_map(|o| depth.get(&o)).max().copied().unwrap_or(0);
            let simple =
                matches!(body.expr(id), KernelExpr::Const(_) | KernelExpr::Index(_) | KernelExpr::Acc(_));
            // An element of memory that the kernel also writes is read before any store, so its value gets a name.
            let changes = self.changing.contains(&id);
            let several = uses.get(&id).is_some_and(|n| *n > 1);
            if named.contains(&id) || changes || !simple && (several || below >= DEPTH) {
                let value = self.name("e", e, to)?;
                known.insert(id, Expr::Value(value));
                depth.insert(id, 0);
            } else {
                known.insert(id, e);
                depth.insert(id, below + 1);
            }
        }
        Ok(known)
    }

    /// An expression over those that are known.
    fn expr(&self, id: ExprId, known: &FxHashMap<ExprId, Expr>) -> Result<Expr, String> {
        let get = |id: &ExprId| {
            known.get(id).cloned().ok_or_else(|| format!("e{id} is read before it is computed"))
        };
        Ok(match self.kernel.body.expr(id) {
            KernelExpr::Const(s) => Expr::Const(*s),
            KernelExpr::Index(p) => Expr::Index(self.index(p, known)?),
            KernelExpr::Load { tensor, offset, guard } => {
                let tensor = *self.of.get(tensor).ok_or_else(|| format!("there is no tensor {tensor}"))?;
                let guard = guard.as_ref().map(get).transpose()?.map(Into::into);
                Expr::Load { tensor, at: vec![self.index(offset, known)?], guard }
            }
            KernelExpr::Shared { array, at, guard } => {
                let tensor = *self.arrays.get(*array as usize).ok_or("an array that does not exist")?;
                let guard = guard.as_ref().map(get).transpose()?.map(Into::into);
                Expr::Load { tensor, at: vec![self.index(at, known)?], guard }
            }
            KernelExpr::Acc(i) => {
                self.accs.get(i).cloned().ok_or_else(|| format!("acc{i} is read before it is computed"))?
            }
            KernelExpr::Unary(op, a) => Expr::unary(*op, get(a)?),
            KernelExpr::Binary(op, a, b) => Expr::binary(*op, get(a)?, get(b)?),
            KernelExpr::Select(c, a, b) => Expr::select(get(c)?, get(a)?, get(b)?),
            KernelExpr::Cast(t, a) => Expr::cast(*t, get(a)?),
            KernelExpr::Bitcast(t, a) => Expr::Bitcast(*t, get(a)?.into()),
        })
    }

    /// An index expression over the nest's variables and values.
    fn index(&self, p: &Poly, known: &FxHashMap<ExprId, Expr>) -> Result<Poly, String> {
        let missing = p.vars().into_iter().find(|v| self.vars.get(*v).is_none_or(Option::is_none));
        if let Some(v) = missing {
            return Err(format!("`{p}` reads %{v} where it has no value"));
        }
        let data = p.data().into_iter().find(|d| !matches!(known.get(d), Some(Expr::Value(_))));
        if let Some(d) = data {
            return Err(format!("`{p}` reads e{d}, which has no value there"));
        }
        let atom = |a: &Atom| match a {
            Atom::Var(i) => self.vars.get(*i as usize).cloned().flatten(),
            Atom::Data(d) => match known.get(d) {
                Some(Expr::Value(v)) => Some(Poly::atom(Atom::Data(*v))),
                _ => None,
            },
            _ => None,
        };
        Ok(p.subst(&atom, &[]))
    }

    /// Stores of the kernel at this point: all that they need is computed before the first of them.
    pub(super) fn stores(&mut self, stores: &[KernelStore], to: &mut Vec<Stmt>) -> Result<(), String> {
        let roots: Vec<ExprId> = stores.iter().flat_map(KernelStore::reads).collect();
        let known = self.known(&roots, to)?;
        for s in stores {
            let at = self.index(&s.offset, &known)?;
            to.push(self.store(
                s,
                at,
                known.get(&s.value).cloned(),
                s.guard.and_then(|g| known.get(&g).cloned()),
            )?);
        }
        Ok(())
    }

    /// A store of a value.
    pub(super) fn store(
        &self,
        s: &KernelStore,
        at: Poly,
        value: Option<Expr>,
        guard: Option<Expr>,
    ) -> Result<Stmt, String> {
        let tensor = *self.of.get(&s.tensor).ok_or_else(|| format!("there is no tensor {}", s.tensor))?;
        let write = match s.combine {
            Some(op) => Write::Combine(op),
            None if !s.offset.data().is_empty() => Write::Any,
            None => Write::Replace,
        };
        let value = value.ok_or("a store without a value")?;
        Ok(Stmt::Store(Store { tensor, at: vec![at], value, guard, write }))
    }

    /// An index expression of the kernel here, whose data has these values.
    pub(super) fn place(&self, p: &Poly, data: &FxHashMap<ExprId, Expr>) -> Result<Poly, String> {
        self.index(p, data)
    }
}

/// A name of a model as one of the loop form.
fn clean(name: &str) -> String {
    let mut out: String =
        name.chars().take(40).map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
    if !out.starts_with(|c: char| c.is_ascii_alphabetic()) {
        out.insert_str(0, "t_");
    }
    out
}
