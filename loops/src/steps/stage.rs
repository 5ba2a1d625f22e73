//! Copies of parts of a tensor in workgroup memory.

use super::{Layout, domain, find, replace, tensor, variable};
use crate::interpret::levels;
use crate::{Expr, For, Kernel, Kind, Space, Stmt, Store, TensorId, visit};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use wgfc_ir::{Atom, BinaryOp, Poly};

/// The most elements by which a row of a copy is longer.
const MOST_PADDED: i64 = 64;

/// The most neighbours that an invocation copies together.
const MOST_TOGETHER: i64 = 64;

/// The different positions at which statements read a tensor.
fn reads(body: &[Stmt], t: TensorId) -> Vec<&[Poly]> {
    let mut out = vec![];
    visit(body, &mut |s| {
        s.exprs(&mut |e| {
            e.visit(&mut |e| {
                if let Expr::Load { tensor, at, .. } = e
                    && *tensor == t
                    && !out.contains(&&at[..])
                {
                    out.push(&at[..]);
                }
            });
        });
    });
    out
}

/// Whether some statement reads a tensor at a position whatever the conditions.
fn reads_always(body: &[Stmt], t: TensorId, position: &[Poly]) -> bool {
    let reads = |e: &Expr| {
        let mut found = false;
        e.visit(&mut |e| {
            found |= matches!(e, Expr::Load { tensor, at, guard: None } if *tensor == t && at == position);
        });
        found
    };
    body.iter().any(|s| match s {
        Stmt::For(l) => {
            let some = l.condition.is_none() && l.extent.as_const().is_some_and(|n| n > 0);
            some && reads_always(&l.body, t, position)
        }
        Stmt::Let { expr, .. } => reads(expr),
        Stmt::Store(s) => s.guard.is_none() && reads(&s.value),
        _ => false,
    })
}

fn reads_at(e: &Expr, t: TensorId, position: &[Poly]) -> bool {
    matches!(e, Expr::Load { tensor, at, .. } if *tensor == t && at == position)
}

/// The value of elements of a tensor where a condition is false.
#[derive(Clone, PartialEq)]
struct Filled {
    condition: Expr,
    zero: Expr,
}

/// The condition under which statements read a tensor at a position, with one constant instead where it is false; `None` where not all
/// reads are so, or where some are executed under other conditions.
fn filled(body: &[Stmt], t: TensorId, position: &[Poly]) -> Option<Filled> {
    let mut out = None;
    let found = fill_of(body, true, t, position, &mut out);
    out.filter(|f| found && super::guards::is_fixed(&f.condition))
}

/// Whether all reads have the condition and the constant of `out`, which the first one sets; `always` where statements are executed at
/// each point.
fn fill_of(body: &[Stmt], always: bool, t: TensorId, position: &[Poly], out: &mut Option<Filled>) -> bool {
    body.iter().all(|s| {
        let guarded = matches!(s, Stmt::Store(Store { guard: Some(_), .. }));
        let mut alike = true;
        let (mut reads, mut chosen) = (0, 0);
        s.exprs(&mut |e| {
            e.visit(&mut |e| {
                reads += usize::from(reads_at(e, t, position));
                let Expr::Select(c, a, b) = e else { return };
                let plain = matches!(&**a, Expr::Load { guard: Some(g), .. } if g == c);
                if plain && reads_at(a, t, position) && matches!(**b, Expr::Const(_)) {
                    let own = Filled { condition: (**c).clone(), zero: (**b).clone() };
                    chosen += 1;
                    alike &= *out.get_or_insert_with(|| own.clone()) == own;
                }
            });
        });
        let inside = match s {
            Stmt::For(l) => {
                let some = l.condition.is_none() && l.extent.as_const().is_some_and(|n| n > 0);
                fill_of(&l.body, always && some, t, position, out)
            }
            Stmt::If { then, otherwise, .. } => {
                fill_of(then, false, t, position, out) && fill_of(otherwise, false, t, position, out)
            }
            _ => true,
        };
        inside && alike && reads == chosen && (reads == 0 || always && !guarded)
    })
}

/// An index expression without the clamps of positions of which variables are parts: `min(16*i + j, n - 1)` is `16*i + j`.
fn unclamped(p: &Poly, vars: &BTreeSet<usize>, extents: &[Poly]) -> Poly {
    let open = |p: &Poly| p.vars().iter().any(|v| vars.contains(v));
    let atom = |a: &Atom| match a {
        Atom::Min(x, y) if open(x) != open(y) => Some(unclamped(if open(x) { x } else { y }, vars, extents)),
        _ => None,
    };
    p.subst(&atom, extents)
}

/// Statements in which names of elements of a tensor are these elements.
fn unnamed(body: Vec<Stmt>, t: TensorId) -> Vec<Stmt> {
    let mut named: BTreeMap<u32, Expr> = BTreeMap::new();
    let mut indices = BTreeSet::new();
    visit(&body, &mut |s| {
        if let Stmt::Let { value, expr: e @ Expr::Load { tensor, .. } } = s
            && *tensor == t
        {
            named.insert(*value, e.clone());
        }
        if let Stmt::Store(s) = s {
            indices.extend(s.at.iter().flat_map(Poly::data));
        }
        s.exprs(&mut |e| e.visit(&mut |e| indices.extend(e.indices().iter().flat_map(Poly::data))));
    });
    named.retain(|v, _| !indices.contains(v));
    fn without(body: Vec<Stmt>, named: &BTreeMap<u32, Expr>) -> Vec<Stmt> {
        let keep = |s: &Stmt| !matches!(s, Stmt::Let { value, .. } if named.contains_key(value));
        let each = |s| match s {
            Stmt::For(l) => Stmt::For(For { body: without(l.body, named), ..l }),
            Stmt::If { condition, then, otherwise } => {
                Stmt::If { condition, then: without(then, named), otherwise: without(otherwise, named) }
            }
            s => s,
        };
        body.into_iter().filter(keep).map(each).collect()
    }
    let element = |e| match e {
        Expr::Value(v) => named.get(&v).cloned().unwrap_or(Expr::Value(v)),
        e => e,
    };
    without(body, &named).iter().map(|s| s.map(&Poly::clone, &element)).collect()
}

/// The position behind the copies with which a point of a loop begins, between two barriers.
pub(super) fn copies_end(body: &[Stmt]) -> Option<usize> {
    let [Stmt::Barrier { .. }, rest @ ..] = body else { return None };
    let copies = rest.iter().take_while(|s| matches!(s, Stmt::For(_))).count();
    (copies > 0 && matches!(rest.get(copies), Some(Stmt::Barrier { .. }))).then_some(copies + 1)
}

/// Variables that together number the positions along an axis of a part, outermost first, with their extents.
struct Axis {
    vars: Vec<(usize, i64)>,
}

impl Axis {
    fn len(&self) -> i64 {
        self.vars.iter().map(|v| v.1).product()
    }
    fn position(&self) -> Poly {
        // A variable of one point is 0.
        let vars = self.vars.iter().filter(|(_, n)| *n > 1);
        vars.fold(Poly::ZERO, |sum, (v, n)| &(&sum * *n) + &Poly::var(*v))
    }
}

/// The axes of the part of a tensor that variables number, the one whose neighbours are closest in memory last; that has `row` elements,
/// if this is not 0.
fn axes(offset: &Poly, vars: &BTreeSet<usize>, extents: &[Poly], row: i64) -> Option<Vec<Axis>> {
    /// The value of a size where distances are put in order.
    const ORDER: i64 = 1009;
    let mut steps: Vec<(i64, Poly, usize, i64)> = vec![];
    for v in offset.vars().into_iter().filter(|v| vars.contains(v)) {
        let mut step = Poly::ZERO;
        for (m, c) in offset.terms() {
            let term = |skip: Option<usize>| {
                let kept = m.iter().enumerate().filter(|(i, _)| Some(*i) != skip);
                kept.fold(Poly::constant(c), |t, (_, a)| &t * &Poly::atom(a.clone()))
            };
            if term(None).vars().contains(&v) {
                let own = m.iter().position(|a| *a == Atom::Var(v as u32))?;
                let rest = term(Some(own));
                rest.vars().is_empty().then_some(())?;
                step = &step + &rest;
            }
        }
        steps.push((step.eval_syms(&|_| Some(ORDER))?, step, v, extents[v].as_const()?));
    }
    steps.sort_by_key(|(distance, _, v, _)| (distance.unsigned_abs(), std::cmp::Reverse(*v)));
    // Variables of one point belong to any axis.
    let (single, steps): (Vec<_>, Vec<_>) = steps.into_iter().partition(|s| s.3 == 1);
    // The axes, the closest neighbours first, each with the step of a variable around its own.
    let mut out: Vec<(Axis, Poly)> = vec![];
    for (_, step, v, n) in steps {
        let whole = |i: usize, a: &Axis| i == 0 && row != 0 && a.len() == row;
        let found = out.iter().enumerate().position(|(i, (a, next))| *next == step && !whole(i, a));
        let next = &step * &Poly::constant(n);
        match found.and_then(|i| out.get_mut(i)) {
            Some((axis, around)) => {
                axis.vars.insert(0, (v, n));
                *around = next;
            }
            None => out.push((Axis { vars: vec![(v, n)] }, next)),
        }
    }
    let mut out: Vec<Axis> = out.into_iter().map(|a| a.0).rev().collect();
    let single = single.into_iter().map(|s| (s.2, s.3));
    match out.last_mut() {
        Some(axis) => axis.vars.extend(single),
        None => out.extend(Some(Axis { vars: single.collect() }).filter(|a| !a.vars.is_empty())),
    }
    Some(out)
}

/// The numbers of neighbours along each axis of a part that are copied together, which divide the extents.
fn together(by: &[i64], shape: &[i64]) -> Option<Vec<i64>> {
    let by = match by {
        [] | [1] => vec![1; shape.len()],
        [last] => [vec![1; shape.len().checked_sub(1)?], vec![*last]].concat(),
        all => all.to_vec(),
    };
    let divides = |(n, by): (&i64, &i64)| (1..=MOST_TOGETHER).contains(by) && n % by == 0;
    let few = by.iter().try_fold(1i64, |n, by| n.checked_mul(*by)).is_some_and(|n| n <= MOST_TOGETHER);
    (few && by.len() == shape.len() && shape.iter().zip(&by).all(divides)).then_some(by)
}

/// A position in a copy whose rows are rotated by groups of `group` elements, if this is not 0: the first `rows` by none, the next ones by
/// one, and so on.
fn rotated(mut at: Vec<Poly>, (group, rows): (i64, i64), length: i64, extents: &[Poly]) -> Vec<Poly> {
    if group > 0
        && let [.., row, place] = &mut at[..]
    {
        let (size, groups) = (Poly::constant(group), Poly::constant(length / group));
        let by = row.div(&Poly::constant(rows), extents);
        let moved = (&place.div(&size, extents) + &by).modulo(&groups, extents);
        *place = &(&moved * &size) + &place.modulo(&size, extents);
    }
    at
}

pub(super) fn stage(k: &mut Kernel, name: &str, at: &str, layout: &Layout) -> Result<(), String> {
    let (t, var) = (tensor(k, name)?, variable(k, at)?);
    if !matches!(k.tensors[t].space, Space::Storage(_)) {
        return Err(format!("`{name}` is in no buffer"));
    }
    let (_, invocations, _) = levels(k);
    let lanes: Vec<(usize, i64)> = invocations
        .iter()
        .map(|l| Some((l.var, l.extent.as_const()?)))
        .collect::<Option<_>>()
        .ok_or("invocations")?;
    if lanes.is_empty() {
        return Err("the kernel has no invocations that could share a copy".into());
    }
    let l = find(&k.body, var).ok_or("no such loop")?;
    if matches!(l.kind, Kind::Grid | Kind::Invocation) {
        return Err(format!("the loop is of kind {}", l.kind.name()));
    }
    let mut written = false;
    visit(&l.body, &mut |s| written |= matches!(s, Stmt::Store(s) if s.tensor == t));
    if written {
        return Err(format!("`{name}` is written in the loop"));
    }
    let end = copies_end(&l.body).unwrap_or(0);
    if layout.position.is_none() && !reads(&l.body[..end], t).is_empty() {
        return Err(format!("`{name}` is copied in `{at}` already"));
    }
    let all = reads(&l.body[end..], t);
    let first = all.first().ok_or_else(|| format!("`{name}` is not read in `{at}`"))?;
    let first = match layout.position {
        Some(n) => {
            all.get(n).ok_or_else(|| format!("`{name}` is read at {} positions in `{at}`", all.len()))?
        }
        None if all.len() > 1 => return Err(format!("`{name}` is read at several positions in `{at}`")),
        None => first,
    };
    let (first, always) = (first.to_vec(), reads_always(&l.body[end..], t, first));
    let filled = filled(&l.body[end..], t, &first);
    // The variables whose values make the part: invocations', and those of loops inside.
    let extents = domain(k);
    let mut inside: BTreeSet<usize> = lanes.iter().map(|l| l.0).collect();
    visit(&l.body, &mut |s| {
        if let Stmt::For(l) = s {
            inside.insert(l.var);
        }
    });
    if first.iter().any(|p| !p.data().is_empty()) {
        return Err(format!("`{name}` is read at a position that a value says"));
    }
    let offset = k.tensors[t].offset(&first);
    let parts = |p: &Poly| p.vars().intersection(&inside).copied().collect::<BTreeSet<usize>>();
    let open = unclamped(&offset, &inside, &extents);
    let axes =
        axes(&open, &inside, &extents, layout.row).filter(|_| parts(&open) == parts(&offset)).ok_or_else(
            || format!("a point of `{at}` reads a part of `{name}` that is no box of constant size"),
        )?;
    let numbering: BTreeSet<usize> = axes.iter().flat_map(|a| &a.vars).map(|v| v.0).collect();
    if let Some(Filled { condition, .. }) = &filled {
        let mut other = BTreeSet::new();
        condition.visit(&mut |e| other.extend(e.indices().iter().flat_map(parts)));
        if !other.is_subset(&numbering) {
            return Err(format!(
                "the condition of what is read of `{name}` says more than which element it is"
            ));
        }
    }
    let shape: Vec<i64> = axes.iter().map(Axis::len).collect();
    let order = match layout.order.is_empty() {
        true => (0..shape.len()).collect(),
        false => layout.order.clone(),
    };
    let all: BTreeSet<usize> = order.iter().copied().collect();
    if order.len() != shape.len() || !(0..shape.len()).all(|a| all.contains(&a)) {
        return Err(format!("the part of `{name}` has {} axes, which the order must be of", shape.len()));
    }
    if !(0..=MOST_PADDED).contains(&layout.pad) || layout.pad > 0 && shape.is_empty() {
        return Err(format!("a row cannot be longer by {} elements", layout.pad));
    }
    if layout.row != 0 && shape.last() != Some(&layout.row) {
        return Err(format!("the rows of the part of `{name}` are not of {} elements", layout.row));
    }
    let together = together(&layout.by, &shape).ok_or_else(|| {
        let by: Vec<String> = layout.by.iter().map(i64::to_string).collect();
        format!("the part of `{name}` has no groups of {} neighbours", by.join(" × "))
    })?;
    let by: i64 = together.iter().product();
    let (rotate, length) = (layout.rotate, order.last().map_or(1, |a| shape[*a]));
    if rotate < 0 || rotate > 0 && (order.len() < 2 || length % rotate != 0) {
        return Err(format!("the rows of the copy of `{name}` have no groups of {rotate} elements"));
    }
    let mut dims: Vec<Poly> = order.iter().map(|a| Poly::constant(shape[*a])).collect();
    if let Some(last) = dims.last_mut() {
        *last = &*last + &Poly::constant(layout.pad);
    }
    let copy = k.add_tensor(&format!("{name}.{at}"), k.tensors[t].dtype, dims, Space::Workgroup);

    // All invocations copy: invocation i the groups i, i + n, ….
    let count: i64 = shape.iter().product();
    let threads: i64 = lanes.iter().map(|l| l.1).product();
    let turn = k.add_var(&format!("{name}.turn"));
    let mut extents = domain(k);
    let share = threads * by;
    extents[turn] = Poly::constant((count + share - 1) / share * by);
    let lane = lanes.iter().fold(Poly::ZERO, |sum, (v, n)| &(&sum * &Poly::constant(*n)) + &Poly::var(*v));
    let (group, own) = (
        Poly::var(turn).div(&Poly::constant(by), &extents),
        Poly::var(turn).modulo(&Poly::constant(by), &extents),
    );
    let number = &(&group * threads) + &lane;
    // The group's number is that of its place among groups, and the element's in the group that of its place in the copy.
    let (mut outer, mut groups, mut inner) = (number, Poly::ONE, own);
    let mut place = vec![Poly::ZERO; shape.len()];
    for (i, (n, by)) in shape.iter().zip(&together).enumerate().rev() {
        groups = Poly::constant(n / by);
        place[i] = if i == 0 { &outer * *by } else { &outer.modulo(&groups, &extents) * *by };
        if i > 0 {
            outer = outer.div(&groups, &extents);
        }
    }
    for a in order.iter().rev() {
        let n = Poly::constant(together[*a]);
        place[*a] = &place[*a] + &inner.modulo(&n, &extents);
        inner = inner.div(&n, &extents);
    }
    let mut values: Vec<(usize, Poly)> = vec![];
    for (axis, at) in axes.iter().zip(&place) {
        let mut rest = at.clone();
        for (i, (v, n)) in axis.vars.iter().enumerate().rev() {
            let n = Poly::constant(*n);
            values.push((*v, if i == 0 { rest.clone() } else { rest.modulo(&n, &extents) }));
            rest = rest.div(&n, &extents);
        }
    }
    let moved = |a: &Atom| match a {
        Atom::Var(v) => values.iter().find(|(u, _)| *u == *v as usize).map(|(_, p)| p.clone()),
        _ => None,
    };
    let index = |p: &Poly| p.subst(&moved, &extents);
    let from: Vec<Poly> = first.iter().map(index).collect();
    // Elements of the part that lie outside of the tensor are not copied; no statement reads them.
    let mut guard = (count % share != 0).then(|| Expr::compare(BinaryOp::Lt, outer, groups));
    for (p, extent) in from.iter().zip(&k.tensors[t].shape) {
        let mut check = |ok: bool, op: BinaryOp, bound: &Poly| {
            if !ok && !always && filled.is_none() {
                let inside = Expr::compare(op, p.clone(), bound.clone());
                guard = Some(super::guards::both(guard.take(), inside));
            }
        };
        check(p.proves_nonneg(&extents), BinaryOp::Ge, &Poly::ZERO);
        check((&(extent - p) - &Poly::ONE).proves_nonneg(&extents), BinaryOp::Lt, extent);
    }
    let value = match &filled {
        None => Expr::Load { tensor: t, at: from, guard: None },
        Some(Filled { condition, zero }) => {
            let condition = condition.map(&index, &|e| e);
            let load = Expr::Load { tensor: t, at: from, guard: Some(Arc::new(condition.clone())) };
            Expr::select(condition, load, zero.clone())
        }
    };
    let rows = order.iter().rev().nth(1).map_or(1, |a| together[*a]);
    let rotated = |at: &[Poly]| {
        rotated(order.iter().map(|a| at[*a].clone()).collect(), (rotate, rows), length, &extents)
    };
    let store = Store { guard, ..Store::new(copy, rotated(&place), value) };
    let fill = Stmt::For(For::new(turn, extents[turn].clone(), Kind::Serial, vec![Stmt::Store(store)]));
    let own = rotated(&axes.iter().map(Axis::position).collect::<Vec<_>>());
    k.body = replace(std::mem::take(&mut k.body), var, &mut |l| {
        let read = |s: &Stmt| {
            s.map(&Poly::clone, &|e| match e {
                Expr::Load { tensor, at, guard } if filled.is_none() && tensor == t && at == first => {
                    Expr::Load { tensor: copy, at: own.clone(), guard }
                }
                Expr::Select(_, a, _) if filled.is_some() && reads_at(&a, t, &first) => {
                    Expr::load(copy, own.clone())
                }
                e => e,
            })
        };
        let (copies, rest) = l.body.split_at(end);
        let mut body = copies.to_vec();
        body.extend(unnamed(rest.iter().map(read).collect(), copy));
        let meet = Stmt::Barrier { storage: false };
        if let Some(end) = copies_end(&body) {
            body.insert(end, fill.clone());
        } else {
            body.splice(0..0, [meet.clone(), fill.clone(), meet]);
        }
        Ok(vec![Stmt::For(For { body, ..l })])
    })?;
    Ok(())
}
