//! Conditions on positions, moved inwards.

use crate::{Expr, For, Kernel, Kind, Space, Stmt, Store};
use wgfc_ir::BinaryOp;

/// Whether a condition reads positions only: then it has the same value wherever it is computed.
pub(super) fn is_fixed(e: &Expr) -> bool {
    let mut fixed = true;
    e.visit(&mut |e| fixed &= !matches!(e, Expr::Load { .. } | Expr::Subgroup(..) | Expr::Value(_)));
    e.visit(&mut |e| fixed &= e.indices().iter().all(|p| p.data().is_empty()));
    fixed
}

/// `a && b`.
pub(super) fn both(a: Option<Expr>, b: Expr) -> Expr {
    match a {
        Some(a) if a == b => a,
        Some(a) => Expr::binary(BinaryOp::And, a, b),
        None => b,
    }
}

/// The conditions of which all must be true for this one.
pub(super) fn conjuncts(e: Option<&Expr>) -> Vec<&Expr> {
    match e {
        None => vec![],
        Some(Expr::Binary(BinaryOp::And, a, b)) => [conjuncts(Some(a)), conjuncts(Some(b))].concat(),
        Some(e) => vec![e],
    }
}

/// The statements with the conditions of [`Stmt::If`] that are [fixed](is_fixed) and have no other branch moved into loops and stores.
pub(super) fn sink(body: Vec<Stmt>) -> Vec<Stmt> {
    body.into_iter().flat_map(one).collect()
}

fn one(s: Stmt) -> Vec<Stmt> {
    match s {
        Stmt::If { condition, then, otherwise } => {
            let (then, otherwise) = (sink(then), sink(otherwise));
            let named = then.iter().any(|s| matches!(s, Stmt::Let { .. } | Stmt::Barrier { .. }));
            if !otherwise.is_empty() || named || !is_fixed(&condition) {
                return vec![Stmt::If { condition, then, otherwise }];
            }
            then.into_iter().flat_map(|s| guarded(&condition, s)).collect()
        }
        Stmt::For(l) => vec![Stmt::For(For { body: sink(l.body), ..l })],
        s => vec![s],
    }
}

/// A statement that is executed under a condition.
fn guarded(condition: &Expr, s: Stmt) -> Vec<Stmt> {
    match s {
        Stmt::For(l) if l.condition.is_none() => {
            let inside = Stmt::If { condition: condition.clone(), then: l.body, otherwise: vec![] };
            vec![Stmt::For(For { body: one(inside), ..l })]
        }
        Stmt::Store(s) => vec![Stmt::Store(Store { guard: Some(both(s.guard, condition.clone())), ..s })],
        s => vec![Stmt::If { condition: condition.clone(), then: vec![s], otherwise: vec![] }],
    }
}

/// A kernel with the conditions on positions that [`apply`](super::apply) moves inwards moved outwards again, around all statements that
/// they guard: as few conditions as possible, for its text. It is a kernel like any other, but fewer steps apply to it.
///
/// ```
/// use wgfc_loops::steps::lift;
/// let kernel = wgfc_loops::text::parse("kernel
///   x: f32[n] storage read
///   y: f32[3*n] storage write
///   for i in 0..64 invocation
///     for j in 0..3
///       y[3*i + j] = x[i] if index(i) < index(n)
/// ").unwrap();
/// assert_eq!(lift(&kernel).to_string(), "kernel
///   x: f32[n] storage read
///   y: f32[3*n] storage write
///   for i in 0..64 invocation
///     if index(i) < index(n)
///       for j in 0..3
///         y[3*i + j] = x[i]
/// ");
/// ```
///
/// It has no barriers before the first access to workgroup memory.
pub fn lift(kernel: &Kernel) -> Kernel {
    let body = met(kernel, lifted(&kernel.body, false), &mut false);
    Kernel { body, ..kernel.clone() }
}

/// Statements without the barriers before which nothing accesses workgroup memory.
fn met(k: &Kernel, body: Vec<Stmt>, accessed: &mut bool) -> Vec<Stmt> {
    let mut out = vec![];
    for s in body {
        match s {
            Stmt::Barrier { storage: false } if !*accessed => {}
            Stmt::For(l)
                if l.condition.is_none()
                    && (l.extent.is(1) || matches!(l.kind, Kind::Grid | Kind::Invocation)) =>
            {
                out.push(Stmt::For(For { body: met(k, l.body, accessed), ..l }));
            }
            s => {
                let (stored, read) = super::double::accessed(std::slice::from_ref(&s));
                *accessed |= stored.union(&read).any(|t| k.tensors[*t].space == Space::Workgroup);
                out.push(s);
            }
        }
    }
    out
}

/// Statements with common conditions around them; `together` if each is executed for several points before the next one: then names stay
/// in front of conditions.
fn lifted(body: &[Stmt], together: bool) -> Vec<Stmt> {
    let names = body.iter().take_while(|s| together && matches!(s, Stmt::Let { .. })).count();
    if names > 0 {
        return [&body[..names], &lifted(&body[names..], false)].concat();
    }
    let inner: Vec<Stmt> = body.iter().map(lifted_inside).collect();
    let together = |s: &Stmt| {
        let mut apart = false;
        crate::visit(std::slice::from_ref(s), &mut |s| {
            apart |= matches!(s, Stmt::Barrier { .. });
            s.exprs(&mut |e| e.visit(&mut |e| apart |= matches!(e, Expr::Subgroup(..))));
        });
        apart
    };
    if inner.iter().any(together) {
        return inner;
    }
    let mut all = inner.iter().filter(|s| !matches!(s, Stmt::Let { .. })).map(conditions);
    let Some(mut common) = all.next() else { return inner };
    for other in all {
        common.retain(|c| other.contains(c));
    }
    let Some(condition) = common.iter().cloned().map(Some).reduce(|a, b| b.map(|b| both(a, b))).flatten()
    else {
        return inner;
    };
    let then = inner.into_iter().flat_map(|s| without(s, &common)).collect();
    vec![Stmt::If { condition, then, otherwise: vec![] }]
}

/// A statement whose own lists are lifted.
fn lifted_inside(s: &Stmt) -> Stmt {
    match s {
        Stmt::For(l) => Stmt::For(For { body: lifted(&l.body, l.kind == Kind::Vector), ..l.clone() }),
        Stmt::If { condition, then, otherwise } => Stmt::If {
            condition: condition.clone(),
            then: lifted(then, false),
            otherwise: lifted(otherwise, false),
        },
        s => s.clone(),
    }
}

/// The fixed conditions without any of which a lifted statement does nothing.
fn conditions(s: &Stmt) -> Vec<Expr> {
    let fixed = |e: Option<&Expr>| conjuncts(e).into_iter().filter(|e| is_fixed(e)).cloned().collect();
    match s {
        Stmt::Store(s) => fixed(s.guard.as_ref()),
        Stmt::If { condition, then, otherwise } if otherwise.is_empty() => {
            let mut all: Vec<Expr> = fixed(Some(condition));
            if let [inner] = &then[..] {
                all.extend(conditions(inner));
            }
            all
        }
        Stmt::For(l) if !matches!(l.kind, Kind::Grid | Kind::Invocation) => match &l.body[..] {
            [inner @ Stmt::If { .. }] => {
                let mut all = conditions(inner);
                all.retain(|c| !reads(c, l.var));
                all
            }
            _ => vec![],
        },
        _ => vec![],
    }
}

/// Whether an expression depends on a variable.
fn reads(e: &Expr, var: usize) -> bool {
    let mut found = false;
    e.visit(&mut |e| found |= e.indices().iter().any(|p| p.vars().contains(&var)));
    found
}

/// A statement where these conditions hold.
pub(super) fn without(s: Stmt, known: &[Expr]) -> Vec<Stmt> {
    let rest = |e: Option<Expr>| {
        let parts = conjuncts(e.as_ref());
        parts.into_iter().filter(|c| !known.contains(c)).cloned().fold(None, |a, b| Some(both(a, b)))
    };
    match s {
        Stmt::Store(s) => vec![Stmt::Store(Store { guard: rest(s.guard), ..s })],
        Stmt::If { condition, then, otherwise } if otherwise.is_empty() => {
            let then = then.into_iter().flat_map(|s| without(s, known)).collect();
            match rest(Some(condition)) {
                Some(condition) => vec![Stmt::If { condition, then, otherwise }],
                None => then,
            }
        }
        Stmt::For(l) => {
            let body = l.body.into_iter().flat_map(|s| without(s, known)).collect();
            vec![Stmt::For(For { body, ..l })]
        }
        s => vec![s],
    }
}
