//! Compares the proofs with an exhaustive check of every point, for valid kernels and for kernels with a deliberate fault.

use super::*;
use crate::kernel::{Body, parse};
use crate::options::{Fusion, Options};
use crate::passes::fuse;
use wgfc_ir::testing::{Config, random_graph};
use wgfc_ir::{Atom, BinaryOp, DType, UnaryOp};

/// The values of symbols and variables.
struct At<'a> {
    symbols: &'a dyn Fn(&str) -> Option<i64>,
    vars: Vec<i64>,
}

impl At<'_> {
    fn poly(&self, body: &Body, p: &Poly) -> Option<i64> {
        p.eval(&|a| match a {
            Atom::Sym(s) => (self.symbols)(s),
            Atom::Var(i) => self.vars.get(*i as usize).copied(),
            Atom::Data(e) => self.value(body, *e),
            _ => None,
        })
    }

    /// The value of an integer or bool expression; `None` if it depends on data or has an operator that is not handled here.
    fn value(&self, body: &Body, e: ExprId) -> Option<i64> {
        let of = |e: ExprId| self.value(body, e);
        match *body.expr(e) {
            Expr::Const(s) if !s.dtype.is_float() => Some(s.as_i64()),
            Expr::Index(ref p) => self.poly(body, p),
            Expr::Cast(DType::I32 | DType::I64, a) if body.dtype(a).is_int() => of(a),
            Expr::Select(c, a, b) => of(if of(c)? != 0 { a } else { b }),
            Expr::Unary(UnaryOp::Not, a) if body.dtype(a) == DType::Bool => Some(1 - of(a)?),
            Expr::Binary(op, a, b) if !body.dtype(a).is_float() => {
                let (x, y) = (of(a)?, of(b)?);
                let truth = i64::from;
                Some(match op {
                    BinaryOp::And if body.dtype(a) == DType::Bool => x & y,
                    BinaryOp::Or if body.dtype(a) == DType::Bool => x | y,
                    BinaryOp::Lt => truth(x < y),
                    BinaryOp::Le => truth(x <= y),
                    BinaryOp::Gt => truth(x > y),
                    BinaryOp::Ge => truth(x >= y),
                    BinaryOp::Eq => truth(x == y),
                    BinaryOp::Ne => truth(x != y),
                    BinaryOp::Min => x.min(y),
                    BinaryOp::Max => x.max(y),
                    BinaryOp::Add => x + y,
                    _ => return None,
                })
            }
            _ => None,
        }
    }
}

/// All points of a domain; none if there are more than 20,000.
fn points(extents: &[i64]) -> Vec<Vec<i64>> {
    let mut out = vec![vec![]];
    for e in extents {
        out = out.into_iter().flat_map(|p| (0..*e).map(move |i| [p.clone(), vec![i]].concat())).collect();
        if out.len() > 20_000 {
            return vec![];
        }
    }
    out
}

/// A description of the first access outside its tensor that is found by evaluating every point.
fn outside(graph: &KernelGraph, k: &Kernel, symbols: &dyn Fn(&str) -> Option<i64>) -> Option<String> {
    for place in k.places() {
        let extents: Option<Vec<i64>> =
            place.extents.iter().map(|d| d.as_ref().map_or(Some(1), |d| d.eval_syms(symbols))).collect();
        let mut accesses = vec![];
        for e in k.body.reachable(&place.roots()) {
            if let Expr::Load { tensor, offset, guard } = k.body.expr(e) {
                accesses.push((*tensor, offset.clone(), *guard));
            }
        }
        accesses.extend(place.stores.iter().map(|s| (s.tensor, s.offset.clone(), s.guard)));
        for vars in points(&extents?) {
            let at = At { symbols, vars };
            for (t, offset, guard) in &accesses {
                let read = guard.map_or(Some(1), |g| at.value(&k.body, g));
                let elements = graph.tensors[*t].ty.numel().eval_syms(symbols);
                if let (Some(1), Some(o), Some(n)) = (read, at.poly(&k.body, offset), elements)
                    && !(0..n).contains(&o)
                {
                    return Some(format!("t{t}[{offset}] is element {o} of {n} at {:?}", at.vars));
                }
            }
        }
    }
    None
}

/// The kernel with `f` applied to each of its expressions.
fn changed(k: &Kernel, f: impl Fn(&Expr) -> Expr) -> Kernel {
    let mut body = Body::default();
    for (_, e, dtype) in k.body.iter() {
        body.append(f(e), dtype);
    }
    Kernel { body, ..k.clone() }
}

/// Copies of a kernel, each with one fault: shifted offsets, loads without guards, `<=` for `<`, or doubled offsets.
fn spoiled(k: &Kernel) -> Vec<Kernel> {
    let moved = |by: i64| k.moved(&|t, offset| (t, offset + by));
    let unguarded = changed(k, |e| match e {
        Expr::Load { tensor, offset, .. } => {
            Expr::Load { tensor: *tensor, offset: offset.clone(), guard: None }
        }
        e => e.clone(),
    });
    let later = changed(k, |e| match e {
        Expr::Binary(BinaryOp::Ge, a, b) => Expr::Binary(BinaryOp::Le, *b, *a),
        Expr::Binary(BinaryOp::Lt, a, b) => Expr::Binary(BinaryOp::Le, *a, *b),
        e => e.clone(),
    });
    let scaled = k.moved(&|t, offset| (t, offset * 2));
    vec![moved(1), moved(-1), unguarded, later, scaled]
}

#[test]
fn what_is_proven_holds_at_every_point() {
    let (mut proven, mut wrong) = (0, 0);
    for seed in 0..60 {
        let (graph, _) = random_graph(seed, &Config { max_elements: 400, ..Config::default() });
        let fusion = if seed % 3 == 0 { Fusion::None } else { Fusion::Full };
        let Ok(kernels) = fuse(&graph, &Options { fusion, ..Options::default() }) else { continue };
        let facts = Facts::of(&graph, &kernels);
        for k in &kernels.kernels {
            for k in std::iter::once(k.clone()).chain(spoiled(k)) {
                let holds = prove(&kernels, &k, &facts, STEPS).0.is_in_bounds();
                for (n, m) in [(1, 1), (2, 3), (5, 2), (1, 4), (0, 3), (3, 0)] {
                    let symbols = |s: &str| match s {
                        "n" => Some(n),
                        "m" => Some(m),
                        _ => None,
                    };
                    let value = |p: &Poly| p.eval_syms(&symbols);
                    let kept = facts.sizes.equal.iter().all(|(a, b)| value(a) == value(b))
                        && facts.sizes.nonneg.iter().all(|p| value(p).is_none_or(|v| v >= 0));
                    if !kept {
                        continue;
                    }
                    let found = outside(&kernels, &k, &symbols);
                    proven += usize::from(holds);
                    wrong += usize::from(found.is_some());
                    assert!(
                        !holds || found.is_none(),
                        "seed {seed}, n {n}, m {m}: {found:?}\n{kernels}\n{k}"
                    );
                }
            }
        }
    }
    assert!(proven > 300 && wrong > 300, "{proven} {wrong}");
}

/// Whether all accesses of a kernel to the tensors `t0: f32[n, 7]`, `t1: i32[n]`, `t2: f32[7*n]` are proven to be in bounds.
fn holds(kernel: &str) -> bool {
    let tensors = "t0: f32[n, 7] input 0\nt1: i32[n] input 1\nt2: f32[7*n] output 0\n";
    let g = parse(&format!("{tensors}kernel 0 {kernel}")).unwrap_or_else(|e| panic!("{e}"));
    super::super::verify(&g).unwrap_or_else(|e| panic!("{}", e.join("\n")));
    prove(&g, &g.kernels[0], &Facts::default(), STEPS).0.is_in_bounds()
}

#[test]
fn expressions_that_must_fit_32_bits_are_listed() {
    let counted = |kernel: &str| {
        let g = parse(&format!("t0: f32[n, 7] input 0\nt1: f32[7*n] output 0\nkernel 0 {kernel}")).unwrap();
        let all = counted::counted(&g, &g.kernels[0]).unwrap();
        all.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    // An intermediate sum may overflow if the final one fits 32 bits; the operands of divisions and comparisons must fit.
    assert_eq!(counted("map [7*n]\n  e0: f32 = t0[%0]\n  t1[%0] = e0\n"), ["7*n"]);
    let divided = counted("map [7*n]\n  e0: f32 = t0[(3*%0)/4]\n  t1[%0] = e0\n");
    assert_eq!(divided, ["21*n - 3", "7*n"]);
    let compared =
        counted("map [7*n]\n  e0: i32 = index(%0 - 9*n)\n  e1: f32 = cast(f32, e0)\n  t1[%0] = e1\n");
    assert_eq!(compared, ["-2*n - 1", "7*n", "9*n"]);
}

#[test]
fn extents_guards_and_clamps_prove() {
    assert!(holds("map [7*n]\n  e0: f32 = t0[%0]\n  t2[%0] = e0\n"));
    assert!(!holds("map [7*n]\n  e0: f32 = t0[%0 + 1]\n  t2[%0] = e0\n"));
    assert!(!holds("map [7*n + 1]\n  e0: f32 = t0[%0]\n  t2[%0] = e0\n"));
    let guarded = |small: &str, large: &str| {
        holds(&format!(
            "map [7*n]\n  e0: i32 = index({small})\n  e1: i32 = index({large})\n  e2: bool = lt(e0, e1)\n  \
             e3: f32 = t0[%0 + 7] if e2\n  t2[%0] = e3\n"
        ))
    };
    assert!(guarded("%0/7 + 1", "n"));
    assert!(guarded("%0 + 7", "7*n"));
    assert!(!guarded("%0/7", "n"));
    assert!(!guarded("%0 + 6", "7*n"));
    let gathered = |most: &str, least: &str| {
        holds(&format!(
            "map [7*n]\n  e0: i32 = t1[%0/7]\n  e1: i32 = index({most})\n  e2: i32 = {least}:i32\n  \
             e3: i32 = min(e0, e1)\n  e4: i32 = max(e3, e2)\n  e5: f32 = t0[7*@4 + %0%7]\n  t2[%0] = e5\n"
        ))
    };
    assert!(gathered("n - 1", "0"));
    assert!(!gathered("n", "0"));
    assert!(!gathered("n - 1", "-1"));
    // A load that does not depend on the position in the row may also be executed for rows without positions.
    assert!(!holds("row [3, n]\n  e0: f32 = t0[0]\n  e1: f32 = acc0\n  acc0 = sum(e0): f32\n"));
    assert!(holds("row [n, 0]\n  e0: f32 = t0[7*%0 + 6]\n  e1: f32 = acc0\n  acc0 = sum(e0): f32\n"));
}

#[test]
fn computed_sizes_are_known_where_they_are_kept() {
    // Whether kernel 1 is proven; kernel 0 computes `c` and ends with `size`.
    let holds = |size: &str, user: &str| {
        let text = format!(
            "t0: i32[m] input 0\nt1: i32[] intermediate\nt2: i32[c] output 0\ncompute c = t1\nbound c = m\n\n\
             kernel 0 map [1]\n  e0: i32 = t0[0]\n  e1: i32 = index(m)\n  e2: i32 = 0:i32\n  {size}\n\n\
             kernel 1 {user}\n"
        );
        let g = parse(&text).unwrap_or_else(|e| panic!("{e}\n{text}"));
        super::super::verify(&g).unwrap_or_else(|e| panic!("{}", e.join("\n")));
        prove(&g, &g.kernels[1], &Facts::of(&Graph::new(), &g), STEPS).0.is_in_bounds()
    };
    let kept = "e3: i32 = min(e0, e1)\n  e4: i32 = max(e3, e2)\n  t1[%0] = e4";
    let copy = "map [c]\n  e0: i32 = t0[%0]\n  t2[%0] = e0";
    assert!(holds(kept, copy));
    // Sizes that may be too large or negative or are not always written; then one that is written twice.
    for size in [
        "e3: i32 = max(e0, e2)\n  t1[0] = e3",
        "e3: i32 = min(e0, e1)\n  t1[0] = e3",
        "e3: i32 = index(m + 1)\n  e4: i32 = min(e0, e3)\n  e5: i32 = max(e4, e2)\n  t1[0] = e5",
        "e3: i32 = min(e0, e1)\n  e4: i32 = max(e3, e2)\n  e5: bool = lt(e2, e0)\n  t1[0] = e4 if e5",
    ] {
        assert!(!holds(size, copy), "{size}");
    }
    let again = format!("{copy}\n\nkernel 2 map [1]\n  e0: i32 = t0[0]\n  t1[0] = e0");
    assert!(!holds(kept, &again));
    // Accesses beyond the size, and a row kernel with an extent that may be 0.
    for user in [
        "map [c]\n  e0: i32 = t0[%0 + 1]\n  t2[%0] = e0",
        "map [m]\n  e0: i32 = t0[%0]\n  t2[%0] = e0",
        "row [1, c]\n  e0: i32 = t0[%1]\n  e1: i32 = acc0\n  acc0 = sum(e0): i32\n  t2[%1] = e1",
    ] {
        assert!(!holds(kept, user), "{user}");
    }
    assert!(holds(
        kept,
        "map [m]\n  e0: i32 = index(%0)\n  e1: i32 = index(c)\n  e2: bool = lt(e0, e1)\n  e3: i32 = t0[%0]\n  t2[%0] = e3 if e2"
    ));
}
