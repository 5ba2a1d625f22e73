//! The text of a kernel in the [loop form](wgfc_loops), which follows the statements one by one and chooses nothing.
//!
//! The loops of workgroups and invocations become the entry point's numbers, the other statements a template each. What does not
//! change in a loop is computed before it.

mod addresses;
mod declared;
mod lanes;
mod listing;
mod words;

use super::wgsl::{Module, Scope, reg_type, stored_type};
use super::{EmitContext, EmittedKernel, fold_workgroups, template_error};
use crate::Diagnostic;
use crate::kernel::bindings::{Encoding, component};
use crate::kernel::dependence::{Deps, VARIABLES, var_bit};
use crate::kernel::{self, ExprId, Family, Map, Store, TensorId};
use addresses::{addresses, shared_sums};
use declared::{Declared, shared_width};
use lanes::{COMPONENTS, WIDTH, vector_registers};
use listing::{Element, Item, Listing};
use std::collections::BTreeSet;
use std::sync::Arc;
use wgfc_codegen_templates::loops::{self as templates, Statement, is_reserved};
use wgfc_codegen_templates::{library, render};
use wgfc_ir::{Atom, BinaryOp, DType, Dim, Poly, Reg};
use wgfc_loops::{For, Kernel, Space, levels};

/// Writes a kernel whose tensors in storage are `tensors`, for a kernel of this family.
pub(super) fn emit(
    kernel: &Kernel,
    tensors: &[TensorId],
    family: &'static str,
    cx: &EmitContext,
) -> Result<EmittedKernel, Diagnostic> {
    let lifted = wgfc_loops::steps::lift(kernel);
    let (grid, invocations, inside) = levels(&lifted);
    // A condition around all statements may end the kernel first: there is no barrier below it.
    let head: Vec<_> = grid.iter().chain(&invocations).copied().collect();
    let Listing { body, vars, items, variables, arrays, local } =
        Listing::new(&lifted, &head, inside, tensors)?;
    if vars.len() > VARIABLES {
        return Err(Diagnostic::internal(format!("a kernel of {} loops", vars.len())));
    }
    let mut stores: Vec<&Store> = vec![];
    items.iter().for_each(|i| {
        i.visit(&mut |i| {
            if let Item::Store(all) = i {
                stores.extend(all);
            }
        });
    });
    let roots: Vec<ExprId> = roots(&items, true).into_iter().collect();
    let Declared { bindings, words } = Declared::new(&items, &body, &vars, &roots, &stores, cx)?;
    let domain: Vec<Dim> = vars.iter().map(|v| v.1.clone()).collect();
    let whole = kernel::Kernel {
        family: Family::Map(Map { elements: Poly::ONE }),
        stores: stores.into_iter().cloned().collect(),
        nodes: vec![],
        body,
    };
    let mut names = Names::default();
    let mut m = Module::with(&whole, bindings, cx);
    m.domain = domain;
    m.positive = grid.iter().flat_map(|l| positive(&l.extent)).collect();
    // Tensors in storage have the names of their bindings.
    let mut own = |t: &wgfc_loops::Tensor| match t.space {
        Space::Storage(_) => String::new(),
        _ => names.of(&t.name),
    };
    let locals: Vec<String> = lifted.tensors.iter().map(&mut own).collect();
    m.arrays = arrays.iter().map(|t| locals[*t].clone()).collect();
    let widths: Vec<u32> =
        lifted.tensors.iter().enumerate().map(|(i, t)| shared_width(i, t, &items, &m, &arrays)).collect();
    m.vectors = arrays.iter().map(|t| widths[*t]).collect();
    // Sums are shared where tiles repeat them. Transforms of convolutions do not share them: on an H100 convolutions by Winograd's algorithm took
    // 1.14 to 1.2 times as long when they did and their batches of products were written from loops.
    if lifted.tensors.iter().any(|t| t.space == Space::Workgroup) {
        m.sums = shared_sums(&addresses(&m, &widths, &items, true)?);
    }
    let vectors = vector_registers(&lifted, &items, &whole.body, &variables, &widths);
    // A vector is declared where all of its elements are.
    let first = |e: &Element| match vectors[e.tensor] {
        true => Element { element: e.element - e.element % WIDTH as i64, ..*e },
        false => *e,
    };
    let all = |e: &Element| {
        (0..WIDTH as i64).all(|i| local.contains(&Element { element: first(e).element + i, ..*e }))
    };
    let undeclared = local.iter().filter(|e| !vectors[e.tensor] || all(e)).copied().collect();
    let mut w = Writer {
        kernel: &lifted,
        grid,
        invocations,
        vars: vec![],
        locals,
        widths,
        vectors: vectors.clone(),
        undeclared,
        words,
    };
    let mut s = Scope::new(4);
    for (i, (name, _)) in vars.iter().enumerate() {
        let name = names.of(name);
        s.bind_var(i, &name);
        w.vars.push(name);
    }
    for (i, e) in variables.iter().enumerate() {
        s.bind_acc(i as u32, &w.variable(e));
    }
    let total: Dim = w.grid.iter().map(|l| &l.extent).product();
    let workgroups = fold_workgroups(&total, cx.target.max_workgroups);
    let threads: i64 = w.invocations.iter().filter_map(|l| l.extent.as_const()).product();
    let all = &total * &Poly::constant(threads);
    if all.as_const().is_some() {
        m.extent(&mut Scope::new(0), &all)?;
    }
    let some = !cx.graph.bounds.concern(&total);
    let covered = w.grid.len() == 1 && ends_behind(&whole.body, &items, &m.domain, some);
    let mut list = w.head(&mut m, &mut s, &total, &workgroups, covered)?;
    // Variables of registers, where they are known.
    let mut declared: BTreeSet<Element> = variables.into_iter().collect();
    items.iter().for_each(|i| {
        i.visit(&mut |i| {
            if let Item::Set(e, values) = i {
                declared.extend((0..values.len() as i64).map(|n| Element { element: e.element + n, ..*e }));
            }
        });
    });
    let first: BTreeSet<Element> = declared.difference(&w.undeclared).map(first).collect();
    for e in first {
        let ty = reg_type(lifted.tensors[e.tensor].dtype.reg()).to_owned();
        list.push(match vectors[e.tensor] {
            true => Statement::Variable { name: w.vector(&e), ty: format!("vec{WIDTH}<{ty}>") },
            false => Statement::Variable { name: w.variable(&e), ty },
        });
    }
    let used: BTreeSet<usize> = arrays.iter().copied().chain(w.written(&items)).collect();
    let (mut shared, mut bytes) = (vec![], 0);
    for t in used {
        let tensor = &lifted.tensors[t];
        let len = tensor.elements().as_const().and_then(|n| u32::try_from(n).ok());
        let len = len.ok_or_else(|| Diagnostic::internal(format!("`{}` has no size", tensor.name)))?;
        let ty = stored_type(tensor.dtype.reg()).to_owned();
        if tensor.space == Space::Register {
            list.push(Statement::Variable { name: w.locals[t].clone(), ty: format!("array<{ty}, {len}>") });
        } else {
            bytes += len * if matches!(tensor.dtype.reg(), Reg::I64 | Reg::U64) { 8 } else { 4 };
            let (ty, len) = match w.widths[t] {
                1 => (ty, len),
                width => (format!("vec{width}<{ty}>"), len / width),
            };
            shared.push(templates::Shared { name: w.locals[t].clone(), ty, len });
        }
    }
    let ready = (0..head.len()).map(var_bit).fold(0, |a, b| a | b);
    w.list(&mut m, &mut s, &items, ready, &mut list)?;
    let threads = u32::try_from(threads).unwrap_or(u32::MAX);
    let text = templates::Kernel { preamble: m.preamble(), shared, threads, list };
    let wgsl = render(&text).map_err(template_error)?;
    Ok(m.finish(family, wgsl, [threads, 1, 1], bytes, workgroups))
}

/// The symbols that are positive where an extent is.
fn positive(extent: &Dim) -> BTreeSet<Arc<str>> {
    let points = match extent.as_atom() {
        Some(Atom::Div(a, d)) if d.as_const().is_some() => a - &(d - &Poly::ONE),
        _ => extent.clone(),
    };
    match &points.terms()[..] {
        [(m, c)] if *c > 0 && m.iter().all(|a| matches!(a, Atom::Sym(_))) => points.symbols(),
        _ => BTreeSet::new(),
    }
}

/// Whether no workgroup `%0` behind the last one does anything: all statements but loads at positions that the last one reads are under
/// conditions that hold for none. `some` says that there is a last one.
fn ends_behind(body: &kernel::Body, items: &[Item], domain: &[Dim], some: bool) -> bool {
    let held = |p: &Poly| {
        let held = p.subst(&|a| matches!(a, Atom::Min(..)).then_some(Poly::ZERO), &[]);
        !held.vars().contains(&0)
    };
    let ends = |i: &Item| match i {
        Item::If { condition, otherwise, .. } => {
            holds_inside(body, *condition, domain) && ends_behind(body, otherwise, domain, some)
        }
        Item::Loop { condition: None, body: inside, .. } => ends_behind(body, inside, domain, some),
        Item::Value(id) => {
            some && body.reachable(&[*id]).into_iter().all(|id| match body.expr(id) {
                kernel::Expr::Load { offset, .. } => held(offset),
                _ => true,
            })
        }
        _ => false,
    };
    items.iter().all(ends)
}

/// Whether a condition has a part `c * %0 + rest < n` that holds for no workgroup `%0` behind the last one.
fn holds_inside(body: &kernel::Body, condition: ExprId, domain: &[Dim]) -> bool {
    let mut parts = vec![condition];
    let mut ends = false;
    while let Some(id) = parts.pop() {
        match body.expr(id) {
            kernel::Expr::Binary(BinaryOp::And, a, b) => parts.extend([*a, *b]),
            kernel::Expr::Binary(BinaryOp::Lt, a, b) => {
                let (kernel::Expr::Index(a), kernel::Expr::Index(b)) = (body.expr(*a), body.expr(*b)) else {
                    continue;
                };
                let first = [Atom::Var(0)];
                let Some((_, c)) = a.terms().into_iter().find(|(m, _)| *m == first) else { continue };
                let rest = a - &(&Poly::var(0) * &Poly::constant(c));
                let apart = !rest.vars().contains(&0) && rest.proves_nonneg(domain);
                // `(x + c - 1)/c` workgroups, where `x` is no less than `b`.
                let end = |count: &Dim| match count.as_atom() {
                    Some(Atom::Div(x, d)) if d.is(c) => (&(x - b) - (c - 1)).proves_nonneg(domain),
                    _ => *count == b.ceil_div(c),
                };
                ends |= c > 0 && apart && domain.first().is_some_and(end);
            }
            _ => {}
        }
    }
    ends
}

/// The expressions that statements evaluate; without `conditional`, of those only that each execution evaluates.
fn roots(items: &[Item], conditional: bool) -> BTreeSet<ExprId> {
    let mut out = BTreeSet::new();
    for i in items {
        match i {
            Item::Loop { condition, body, .. } => {
                out.extend(condition);
                out.extend(roots(body, conditional));
            }
            Item::If { condition, then, otherwise } => {
                out.insert(*condition);
                if conditional {
                    out.extend(roots(then, true));
                    out.extend(roots(otherwise, true));
                }
            }
            Item::Value(id) => _ = out.insert(*id),
            Item::Set(_, values) => out.extend(values),
            Item::Store(all) => out.extend(all.iter().flat_map(Store::reads)),
            Item::Write { at, values, .. } => {
                out.extend(values);
                out.extend(at.data());
            }
            Item::Barrier(_) => {}
        }
    }
    out
}

/// Names that nothing else in the text has.
#[derive(Default)]
struct Names(BTreeSet<String>);

impl Names {
    /// A name of the loop form as one of WGSL.
    fn of(&mut self, name: &str) -> String {
        let mut out = name.replace('.', "_");
        let numbered = |n: &str| {
            let digits = n.trim_start_matches(|c: char| c.is_ascii_alphabetic());
            n.len() == digits.len() + 1 && !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit())
        };
        // Values are called e0, e1, …, indices i0, i1, …, and bindings end in `_data`.
        while is_reserved(&out)
            || library::find(&out).is_some()
            || numbered(&out)
            || out.ends_with("_data")
            || out.starts_with("__")
            || out.starts_with("n_")
            || self.0.contains(&out)
        {
            out.push('_');
        }
        self.0.insert(out.clone());
        out
    }
}

/// The text of statements.
struct Writer<'k> {
    kernel: &'k Kernel,
    /// The loops of workgroups and those of invocations, whose variables are the first.
    grid: Vec<&'k For>,
    invocations: Vec<&'k For>,
    /// The name of each loop variable.
    vars: Vec<String>,
    /// The name of each tensor outside of storage.
    locals: Vec<String>,
    /// The elements of the vectors of which each tensor in workgroup memory is an array.
    widths: Vec<u32>,
    /// Whether the variables of each register are vectors.
    vectors: Vec<bool>,
    /// The variables that are declared where they are set first.
    undeclared: BTreeSet<Element>,
    /// The loops that put words of a binding together.
    words: Vec<(usize, usize)>,
}

type Done = Result<(), Diagnostic>;

impl Writer<'_> {
    /// The vector that holds a variable.
    fn vector(&self, e: &Element) -> String {
        format!("{}_{}", self.locals[e.tensor], e.element / WIDTH as i64)
    }

    fn variable(&self, e: &Element) -> String {
        if self.vectors[e.tensor] {
            return format!("{}.{}", self.vector(e), COMPONENTS[e.element as usize % WIDTH]);
        }
        let name = &self.locals[e.tensor];
        if self.kernel.tensors[e.tensor].shape.is_empty() {
            name.clone()
        } else {
            format!("{name}_{}", e.element)
        }
    }

    /// The tensors that are arrays and are written.
    fn written(&self, items: &[Item]) -> Vec<usize> {
        let mut out = vec![];
        items.iter().for_each(|i| {
            i.visit(&mut |i| {
                if let Item::Write { tensor, .. } = i {
                    out.push(*tensor);
                }
            });
        });
        out
    }

    /// The values of the variables of workgroups and invocations.
    fn head(
        &mut self,
        m: &mut Module,
        s: &mut Scope,
        total: &Dim,
        workgroups: &[Dim; 3],
        covered: bool,
    ) -> Result<Vec<Statement>, Diagnostic> {
        let mut list = vec![];
        let constant = |p: &Dim| p.as_const();
        let (grid, invocations) = (self.grid.clone(), self.invocations.clone());
        let exact = workgroups.iter().map(constant).product::<Option<i64>>();
        let workgroup = if grid.len() == 1 { self.vars[0].clone() } else { "workgroup".to_owned() };
        if !grid.is_empty() {
            s.line(&format!("let {workgroup} = i32(group.y * groups.x + group.x);"));
            if !covered && (exact.is_none() || exact != total.as_const()) {
                let count = m.extent(s, total)?;
                flush(s, &mut list);
                list.push(Statement::Leave { condition: format!("{workgroup} >= {count}"), how: "return" });
            }
        }
        for (loops, number, first) in [(&grid, "workgroup", 0), (&invocations, "i32(local)", grid.len())] {
            let count = loops.len();
            if count == 1 && first == 0 {
                continue;
            }
            let extents = match count {
                1 => vec![String::new()],
                _ => loops.iter().map(|l| m.index(s, &l.extent)).collect::<Result<Vec<_>, _>>()?,
            };
            // The last of the loops counts fastest.
            let mut behind: Vec<&str> = vec![];
            for i in (first..first + count).rev() {
                let extent = &extents[i - first];
                if extent == "1" {
                    s.line(&format!("let {} = 0;", self.vars[i]));
                    continue;
                }
                let mut text = number.to_owned();
                if !behind.is_empty() {
                    let product = behind.join(" * ");
                    text = if behind.len() == 1 {
                        format!("{text} / {product}")
                    } else {
                        format!("{text} / ({product})")
                    };
                }
                if i > first {
                    text = format!("{text} % {extent}");
                }
                s.line(&format!("let {} = {text};", self.vars[i]));
                behind.push(extent);
            }
        }
        flush(s, &mut list);
        Ok(list)
    }

    /// Statements in a scope, after those that `out` has.
    fn list(
        &mut self,
        m: &mut Module,
        s: &mut Scope,
        items: &[Item],
        ready: Deps,
        out: &mut Vec<Statement>,
    ) -> Done {
        for i in items {
            self.item(m, s, i, ready, out)?;
        }
        flush(s, out);
        Ok(())
    }

    /// Statements of their own scope.
    fn inner(
        &mut self,
        m: &mut Module,
        s: &Scope,
        items: &[Item],
        ready: Deps,
    ) -> Result<Vec<Statement>, Diagnostic> {
        let mut inner = s.inner(s.indent() + 4);
        let mut out = vec![];
        self.list(m, &mut inner, items, ready, &mut out)?;
        Ok(out)
    }

    fn item(
        &mut self,
        m: &mut Module,
        s: &mut Scope,
        item: &Item,
        ready: Deps,
        out: &mut Vec<Statement>,
    ) -> Done {
        match item {
            Item::Value(id) => {
                let v = m.value(s, *id)?;
                if v.is_var() {
                    let named = s.let_value(&v);
                    s.bind(*id, named);
                }
            }
            Item::Set(first, values) => {
                let ty = reg_type(self.kernel.tensors[first.tensor].dtype.reg());
                let width = if self.vectors[first.tensor] { WIDTH } else { 1 };
                for (i, vector) in values.chunks(width).enumerate() {
                    let element = first.element + (i * width) as i64;
                    let e = Element { element, ..*first };
                    let mut undeclared = true;
                    for i in 0..width as i64 {
                        undeclared &= self.undeclared.remove(&Element { element: element + i, ..e });
                    }
                    let (v, name) = match vector {
                        [value] => (m.inline(s, *value)?, self.variable(&e)),
                        all => {
                            let name = self.vector(&e);
                            if let Some(added) = m.added_to(s, &name, all)?.filter(|_| !undeclared) {
                                let v = m.vector_text(s, &added, ty)?;
                                s.line(&format!("{name} += {v};"));
                                continue;
                            }
                            (m.vector_text(s, all, ty)?, name)
                        }
                    };
                    if undeclared {
                        let ty = if width > 1 { format!("vec{width}<{ty}>") } else { ty.to_owned() };
                        s.line(&format!("var {name}: {ty} = {v};"));
                    } else if v != name {
                        s.line(&format!("{name} = {v};"));
                    }
                }
            }
            Item::Write { tensor, at, values } => {
                let (dtype, name) = (self.kernel.tensors[*tensor].dtype, self.locals[*tensor].clone());
                let width = self.widths[*tensor];
                for (i, vector) in values.chunks(width as usize).enumerate() {
                    let first = at + &Poly::constant(i as i64 * i64::from(width));
                    let at = m.index(s, &component(&first, width).map_or(first, |(at, _)| at))?;
                    let v = match vector {
                        [value] => m.inline(s, *value)?,
                        all => m.vector_text(s, all, stored_type(dtype.reg()))?,
                    };
                    let v = if dtype == DType::Bool { format!("select(0u, 1u, {v})") } else { v };
                    s.line(&format!("{name}[{at}] = {v};"));
                }
            }
            Item::Store(all) => {
                let n =
                    all.first().map_or(Ok(1), |s| m.binding(s.tensor).map(|b| b.1.vector().unwrap_or(1)))?;
                for v in all.chunks(n as usize) {
                    let values: Vec<ExprId> = v.iter().map(|s| s.value).collect();
                    let (i, b) = m.binding(v[0].tensor)?;
                    let plain = b.encoding == Encoding::Vector(WIDTH as u32) && b.dtype == DType::F32;
                    match m.variable_of(s, &values)?.filter(|_| plain) {
                        Some(vector) => {
                            let at = m.address(v[0].tensor, &v[0].offset)?;
                            let at = m.index(s, &at)?;
                            s.line(&format!("{}[{at}] = {vector};", m.names[i]));
                        }
                        None => m.store_neighbours(s, v)?,
                    }
                }
            }
            Item::Barrier(storage) => {
                flush(s, out);
                out.push(Statement::Barrier { storage: *storage });
            }
            Item::If { condition, then, otherwise } => {
                let shares = !m.sums.is_empty();
                // Lists under other conditions need the same sums.
                for list in [then, otherwise].into_iter().filter(|_| shares) {
                    for at in addresses(m, &self.widths, list, true)? {
                        let sum = m.shared_sum(&at);
                        let fixed = sum.data().is_empty() && m.poly_deps(&sum) & !ready == 0;
                        if m.sums.contains(&sum) && fixed {
                            m.index(s, &sum)?;
                        }
                    }
                }
                let condition = m.inline(s, *condition)?;
                let body = self.inner(m, s, then, ready)?;
                let otherwise = self.inner(m, s, otherwise, ready)?;
                flush(s, out);
                out.push(Statement::If { condition, body, otherwise });
            }
            Item::Loop { var, down, condition, body } => {
                let extent = m.domain[*var].clone();
                let extent = m.index(s, &extent)?;
                let fixed: Vec<ExprId> = roots(body, false).into_iter().chain(*condition).collect();
                m.hoist(s, &fixed, ready)?;
                for at in addresses(m, &self.widths, body, false)? {
                    let sum = m.shared_sum(&at);
                    m.hoist_index(s, &sum, ready)?;
                }
                for (_, binding) in self.words.iter().filter(|w| w.0 == *var) {
                    s.line(&format!("var w{binding} = 0u;"));
                }
                let mut inner = s.inner(s.indent() + 4);
                let mut list = vec![];
                let mut name = self.vars[*var].clone();
                if *down {
                    // The loop counts upwards all the same, so that it is seen how often it turns.
                    inner.line(&format!("let {name} = {extent} - 1 - {name}_turn;"));
                    name.push_str("_turn");
                }
                if let Some(c) = condition {
                    let c = m.value(&mut inner, *c)?;
                    let condition = format!("!{c}");
                    flush(&mut inner, &mut list);
                    list.push(Statement::Leave { condition, how: "break" });
                }
                self.list(m, &mut inner, body, ready | var_bit(*var), &mut list)?;
                flush(s, out);
                out.push(Statement::For { var: name, extent, body: list });
            }
        }
        Ok(())
    }
}

/// Moves the text of a scope to a list.
fn flush(s: &mut Scope, out: &mut Vec<Statement>) {
    if !s.text.is_empty() {
        out.push(Statement::Text { text: std::mem::take(&mut s.text) });
    }
}
