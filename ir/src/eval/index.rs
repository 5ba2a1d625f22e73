//! Compiled index expressions: tables if each term depends on one variable, an expression tree otherwise.

use super::{Env, EvalError};
use crate::poly::{Atom, Poly};

/// An index expression over a concrete domain.
pub(crate) enum Index {
    /// `base + Σ table[v][i_v]`.
    Tables { base: i64, tables: Vec<(usize, Vec<i64>)> },
    /// An expression that is not of the form above.
    Tree(Expr),
}

/// An expression whose symbols are replaced by numbers.
pub(crate) enum Expr {
    Const(i64),
    Var(usize),
    Sum(Vec<(i64, Vec<Expr>)>),
    Div(Box<(Expr, Expr)>),
    Mod(Box<(Expr, Expr)>),
    Max(Box<(Expr, Expr)>),
    Min(Box<(Expr, Expr)>),
}

impl Expr {
    fn new(p: &Poly) -> Result<Expr, EvalError> {
        if let Some(c) = p.as_const() {
            return Ok(Expr::Const(c));
        }
        if let Some(a) = p.as_atom() {
            return Expr::atom(a);
        }
        let terms = p
            .terms()
            .into_iter()
            .map(|(m, c)| Ok((c, m.iter().map(Expr::atom).collect::<Result<_, _>>()?)))
            .collect::<Result<_, EvalError>>()?;
        Ok(Expr::Sum(terms))
    }
    fn atom(a: &Atom) -> Result<Expr, EvalError> {
        let two = |x: &Poly, y: &Poly| Ok::<_, EvalError>(Box::new((Expr::new(x)?, Expr::new(y)?)));
        Ok(match a {
            Atom::Var(v) => Expr::Var(*v as usize),
            Atom::Div(x, y) => Expr::Div(two(x, y)?),
            Atom::Mod(x, y) => Expr::Mod(two(x, y)?),
            Atom::Max(x, y) => Expr::Max(two(x, y)?),
            Atom::Min(x, y) => Expr::Min(two(x, y)?),
            Atom::Sym(s) => return Err(EvalError::at(format!("dimension `{s}` has no value"))),
            Atom::TooLarge => return Err(EvalError::at(a.to_string())),
            Atom::Data(d) => return Err(EvalError::at(format!("`@{d}` stands for no data here"))),
        })
    }
    /// `None` on division by zero; overflow wraps and is then out of range.
    fn eval(&self, at: &[usize]) -> Option<i64> {
        Some(match self {
            Expr::Const(c) => *c,
            Expr::Var(v) => at[*v] as i64,
            Expr::Sum(terms) => {
                let mut sum = 0i64;
                for (c, factors) in terms {
                    let mut p = *c;
                    for f in factors {
                        p = p.wrapping_mul(f.eval(at)?);
                    }
                    sum = sum.wrapping_add(p);
                }
                sum
            }
            Expr::Div(xy) => {
                let (x, y) = (xy.0.eval(at)?, xy.1.eval(at)?);
                if y <= 0 {
                    return None;
                }
                x.div_euclid(y)
            }
            Expr::Mod(xy) => {
                let (x, y) = (xy.0.eval(at)?, xy.1.eval(at)?);
                if y <= 0 {
                    return None;
                }
                x.rem_euclid(y)
            }
            Expr::Max(xy) => xy.0.eval(at)?.max(xy.1.eval(at)?),
            Expr::Min(xy) => xy.0.eval(at)?.min(xy.1.eval(at)?),
        })
    }
}

/// The expression with symbols replaced by their values, simplified over the domain `shape`.
pub(super) fn concrete(p: &Poly, shape: &[usize], env: &Env) -> Poly {
    let domain: Vec<Poly> = shape.iter().map(|d| Poly::from(*d)).collect();
    p.subst(
        &|a| match a {
            Atom::Sym(s) => env.symbol(s).map(Poly::constant),
            _ => None,
        },
        &domain,
    )
}

impl Index {
    /// Compiles `p` for the domain `shape`.
    pub(crate) fn new(p: &Poly, shape: &[usize], env: &Env) -> Result<Index, EvalError> {
        let p = concrete(p, shape, env);
        if p.vars().last().is_some_and(|v| *v >= shape.len()) {
            return Err(EvalError::at(format!("`{p}` uses a variable beyond rank {}", shape.len())));
        }
        if shape.contains(&0) {
            return Ok(Index::Tree(Expr::Const(0)));
        }
        let mut base = 0i64;
        let mut tables: Vec<(usize, Vec<i64>)> = vec![];
        for (m, c) in p.terms() {
            let term = Expr::Sum(vec![(c, m.iter().map(Expr::atom).collect::<Result<_, _>>()?)]);
            let vars: Vec<usize> = m
                .iter()
                .flat_map(|a| Poly::atom(a.clone()).vars())
                .collect::<std::collections::BTreeSet<_>>()
                .into_iter()
                .collect();
            let zero = || EvalError::at(format!("division by zero in `{p}`"));
            match vars.as_slice() {
                [] => base = base.wrapping_add(term.eval(&[]).ok_or_else(zero)?),
                [v] => {
                    let at = tables.iter().position(|t| t.0 == *v).unwrap_or_else(|| {
                        tables.push((*v, vec![0; shape[*v]]));
                        tables.len() - 1
                    });
                    let mut point = vec![0; shape.len()];
                    for (i, slot) in tables[at].1.iter_mut().enumerate() {
                        point[*v] = i;
                        *slot = slot.wrapping_add(term.eval(&point).ok_or_else(zero)?);
                    }
                }
                _ => return Ok(Index::Tree(Expr::new(&p)?)),
            }
        }
        Ok(Index::Tables { base, tables })
    }

    /// The value at a point of the domain; `None` on division by zero.
    pub(super) fn at(&self, point: &[usize]) -> Option<i64> {
        match self {
            Index::Tables { base, tables } => {
                let mut s = *base;
                for (v, t) in tables {
                    s = s.wrapping_add(t[point[*v]]);
                }
                Some(s)
            }
            Index::Tree(e) => e.eval(point),
        }
    }

    /// The minimum and maximum over a non-empty domain: exact for tables, `None` for trees.
    pub(crate) fn range(&self) -> Option<(i64, i64)> {
        match self {
            Index::Tables { base, tables } => {
                let (mut lo, mut hi) = (*base, *base);
                for (_, t) in tables {
                    lo = lo.saturating_add(t.iter().copied().min()?);
                    hi = hi.saturating_add(t.iter().copied().max()?);
                }
                Some((lo, hi))
            }
            Index::Tree(_) => None,
        }
    }
}

/// Moves `point` to the next one in row-major order; after the last point it wraps to the origin.
pub(super) fn advance(point: &mut [usize], shape: &[usize]) {
    for d in (0..shape.len()).rev() {
        point[d] += 1;
        if point[d] < shape[d] {
            return;
        }
        point[d] = 0;
    }
}

/// The point at row-major position `flat`.
pub(super) fn point_at(mut flat: usize, shape: &[usize]) -> Vec<usize> {
    let mut p = vec![0; shape.len()];
    for d in (0..shape.len()).rev() {
        p[d] = flat % shape[d].max(1);
        flat /= shape[d].max(1);
    }
    p
}

/// For each axis, the extent and the distance in memory between neighbours.
pub(super) type Walk = Vec<(usize, usize)>;

/// Merges adjacent axes that can be walked as one, and drops axes of extent 1.
pub(super) fn merge(axes: impl DoubleEndedIterator<Item = (usize, usize)>) -> Walk {
    let mut out: Walk = vec![];
    for (d, s) in axes.rev().filter(|(d, _)| *d != 1) {
        match out.last_mut() {
            Some((d_in, s_in)) if s == s_in.wrapping_mul(*d_in) => *d_in = d_in.wrapping_mul(d),
            _ => out.push((d, s)),
        }
    }
    out.reverse();
    if out.is_empty() {
        out.push((1, 1));
    }
    out
}

/// Fills `dst` with the elements of `src` that `walk` visits, from the `start`-th on.
pub(super) fn copy_walk<T: Copy>(src: &[T], walk: &Walk, start: usize, dst: &mut [T]) {
    let shape: Vec<usize> = walk.iter().map(|w| w.0).collect();
    let last = walk.len() - 1;
    let (inner, step) = walk[last];
    let mut point = point_at(start, &shape);
    let mut done = 0;
    while done < dst.len() {
        let n = (inner - point[last]).min(dst.len() - done);
        let base: usize = point.iter().zip(walk).map(|(p, (_, s))| p * s).sum();
        let to = &mut dst[done..done + n];
        match step {
            0 => to.fill(src[base]),
            1 => to.copy_from_slice(&src[base..base + n]),
            _ => to.iter_mut().zip(src[base..].iter().step_by(step)).for_each(|(t, s)| *t = *s),
        }
        done += n;
        point[last] = inner - 1;
        advance(&mut point, &shape);
    }
}
