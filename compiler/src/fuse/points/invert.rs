//! Inverting views: from the position in the operand to the position in the result.
//!
//! A view that moves every element exactly once — a reshape, a transpose, any composition of them —
//! splits the result's variables into *digits* and combines them into the operand's positions. It is inverted by finding the digit of
//! each variable.

use wgfc_ir::{Atom, Dim, Poly};

/// `(v + shift) / div % ext` for variable `v`, or the leading digit `(v + shift) / div`.
#[derive(Clone, Debug)]
struct Digit {
    var: usize,
    shift: i64,
    div: Dim,
    /// The number of values it takes.
    ext: Dim,
    /// The digit as an expression over the operand's position.
    value: Poly,
}

/// The result's position as expressions over the operand's axes (`%d` is the position along axis `d`
/// of the operand), or `None` when the view is not such a bijection.
pub fn invert(from: &[Dim], to: &[Dim], index: &[Poly]) -> Option<Vec<Poly>> {
    let (n, m): (Dim, Dim) = (from.iter().product(), to.iter().product());
    if n != m {
        return None;
    }
    let mut digits: Vec<Digit> = vec![];
    for (d, p) in index.iter().enumerate() {
        split_axis(p, d, &from[d], to, from, &mut digits)?;
    }
    let (at, beyond) = assemble(to, &digits)?;
    beyond.is_empty().then_some(at)
}

/// Conditions that each polynomial lies in `0..extent`.
pub type Conditions = Vec<(Poly, Dim)>;

/// The position in a view's result of the operand's element `at`, where the view reads each element at most once. Positions are over the
/// variables of `at`. Also returns what must lie in `0..extent` for the element to be in the result at all. `None` if the view's
/// positions are not sums of digits with constant weights.
pub fn locate(to: &[Dim], index: &[Poly], at: &[Poly], domain: &[Dim]) -> Option<(Vec<Poly>, Conditions)> {
    let mut digits: Vec<Digit> = vec![];
    let mut conditions = vec![];
    for (p, at) in index.iter().zip(at) {
        let mut offset = Poly::ZERO;
        let mut terms: Vec<(i64, Digit)> = vec![];
        for (mono, c) in p.terms() {
            let term = mono.iter().fold(Poly::constant(c), |t, a| &t * &Poly::atom(a.clone()));
            if term.vars().is_empty() && term.data().is_empty() {
                offset = &offset + &term;
                continue;
            }
            let [a] = &mono[..] else { return None };
            terms.push((c, digit_of(a, to).or_else(|| shifted_digit(a, to))?));
        }
        let rest = at - &offset;
        terms.sort_by_key(|(w, _)| *w);
        let mut below = 1;
        for i in 0..terms.len() {
            let (w, ext) = (terms[i].0, terms[i].1.ext.clone());
            if w < 1 || w % below != 0 {
                return None;
            }
            if i == 0 && w > 1 {
                conditions.push((rest.modulo(&Poly::constant(w), domain), Dim::ONE));
            }
            let value = rest.div(&Poly::constant(w), domain);
            let value = match terms.get(i + 1) {
                Some((above, _)) => {
                    // The digit has room below the next one.
                    if above % w != 0 || !(&Poly::constant(above / w) - &ext).proves_nonneg(to) {
                        return None;
                    }
                    value.modulo(&Poly::constant(above / w), domain)
                }
                None => value,
            };
            conditions.push((value.clone(), ext));
            below = w;
            terms[i].1.value = value;
        }
        if terms.is_empty() {
            conditions.push((rest, Dim::ONE));
        }
        digits.extend(terms.into_iter().map(|t| t.1));
    }
    let (at, beyond) = assemble(to, &digits)?;
    conditions.extend(beyond);
    Some((at, conditions))
}

/// Assembles each of the result's variables from its digits. Where the digits take more values than the variable, a condition limits
/// them.
fn assemble(to: &[Dim], digits: &[Digit]) -> Option<(Vec<Poly>, Conditions)> {
    let (mut all, mut conditions) = (vec![], vec![]);
    for (v, extent) in to.iter().enumerate() {
        let own = || digits.iter().filter(|g| g.var == v);
        let shift = own().next().map_or(0, |g| g.shift);
        if own().any(|g| g.shift != shift) {
            return None;
        }
        let mut mine: Vec<&Digit> = own().filter(|g| !g.ext.is(1)).collect();
        let mut covered = Poly::ONE;
        let mut value = Poly::constant(-shift);
        while !mine.is_empty() {
            let i = mine.iter().position(|g| g.div == covered)?;
            let g = mine.swap_remove(i);
            value = &value + &(&g.value * &g.div);
            covered = &covered * &g.ext;
        }
        if shift != 0 || covered != *extent {
            if !(&(&covered - extent) - shift).proves_nonneg(&[]) {
                return None;
            }
            conditions.push((value.clone(), extent.clone()));
        }
        all.push(value);
    }
    Some((all, conditions))
}

/// Reads `p = Σ digit·weight` for axis `axis` of the operand, weights being the products of the extents of the digits below.
fn split_axis(
    p: &Poly,
    axis: usize,
    extent: &Dim,
    to: &[Dim],
    from: &[Dim],
    out: &mut Vec<Digit>,
) -> Option<()> {
    let mut terms: Vec<(Digit, Poly)> = vec![];
    for (mono, c) in p.terms() {
        let mut digit = None;
        let mut weight = Poly::constant(c);
        for a in &mono {
            match digit_of(a, to) {
                Some(g) if digit.is_none() => digit = Some(g),
                Some(_) => return None,
                None if matches!(a, Atom::Sym(_)) => weight = &weight * &Poly::atom(a.clone()),
                None => return None,
            }
        }
        let digit = digit?;
        // Weights that are sums (`past + seq`) arrive as several terms of one digit.
        match terms.iter_mut().find(|(g, _)| g.var == digit.var && g.div == digit.div && g.ext == digit.ext) {
            Some((_, w)) => *w = &*w + &weight,
            None => terms.push((digit, weight)),
        }
    }
    let mut below = Poly::ONE;
    while !terms.is_empty() {
        let i = terms.iter().position(|(_, w)| *w == below)?;
        let (mut g, w) = terms.swap_remove(i);
        let at = Poly::var(axis);
        let shifted = at.div(&w, from);
        g.value = if terms.is_empty() { shifted } else { shifted.modulo(&g.ext, from) };
        below = &below * &g.ext;
        out.push(g);
    }
    (below == *extent).then_some(())
}

fn digit_of(a: &Atom, to: &[Dim]) -> Option<Digit> {
    let of = |var: usize, div: Dim, ext: Dim| Some(Digit { var, shift: 0, div, ext, value: Poly::ZERO });
    match a {
        Atom::Var(v) => of(*v as usize, Poly::ONE, to.get(*v as usize)?.clone()),
        Atom::Div(x, d) => {
            let v = x.as_var()?;
            let ext = exact(to.get(v)?, d)?;
            of(v, d.clone(), ext)
        }
        Atom::Mod(x, d) => match x.as_atom()? {
            Atom::Var(v) => {
                exact(to.get(*v as usize)?, d)?;
                of(*v as usize, Poly::ONE, d.clone())
            }
            Atom::Div(y, e) => {
                let v = y.as_var()?;
                exact(to.get(v)?, &(d * e))?;
                of(v, e.clone(), d.clone())
            }
            _ => None,
        },
        _ => None,
    }
}

/// A digit of a variable plus a constant, or of a variable whose extent the divisors do not divide.
fn shifted_digit(a: &Atom, to: &[Dim]) -> Option<Digit> {
    let (Atom::Div(x, d) | Atom::Mod(x, d)) = a else { return None };
    let var = x.vars().into_iter().next()?;
    let shift = (x - &Poly::var(var)).as_const().filter(|c| *c >= 0)?;
    let d_const = d.as_const().filter(|d| *d > 0)?;
    let (div, ext) = match a {
        Atom::Div(..) => (d.clone(), (to.get(var)? + shift).ceil_div(d_const)),
        _ => (Poly::ONE, d.clone()),
    };
    Some(Digit { var, shift, div, ext, value: Poly::ZERO })
}

/// `a / d` if the division is exact.
fn exact(a: &Dim, d: &Dim) -> Option<Dim> {
    let q = a.div(d, &[]);
    (&q * d == *a).then_some(q)
}

#[cfg(test)]
mod tests {
    use super::*;
    use wgfc_ir::build::reshape_index;

    fn dims(s: &[&str]) -> Vec<Dim> {
        s.iter().map(|d| Poly::parse(d).unwrap()).collect()
    }

    #[test]
    fn reshapes_and_transposes_invert() {
        let (a, b) = (dims(&["n", "s", "14*64"]), dims(&["n", "s", "14", "64"]));
        let inv = invert(&a, &b, &reshape_index(&a, &b)).unwrap();
        assert_eq!(inv.iter().map(Poly::to_string).collect::<Vec<_>>(), ["%0", "%1", "%2/64", "%2%64"]);
        // [n, h, s, d] read as [n, s, h·d]
        let (from, to) = (dims(&["n", "14", "p + s", "64"]), dims(&["n", "p + s", "896"]));
        let index: Vec<Poly> =
            ["%0", "%2/64", "%1", "%2%64"].iter().map(|t| Poly::parse(t).unwrap()).collect();
        let inv = invert(&from, &to, &index).unwrap();
        assert_eq!(inv.iter().map(Poly::to_string).collect::<Vec<_>>(), ["%0", "%2", "64*%1 + %3"]);
        // Merging symbolic axes and splitting them again.
        let (a, b) = (dims(&["n", "p + s", "3"]), dims(&["n*(p + s)", "3"]));
        assert!(invert(&a, &b, &reshape_index(&a, &b)).is_some());
        assert!(invert(&b, &a, &reshape_index(&b, &a)).is_some());
    }

    #[test]
    fn slices_are_located() {
        let to = dims(&["1", "14", "s", "32"]);
        let index: Vec<Poly> =
            ["0", "%2", "64*%1 + %3 + 32"].iter().map(|t| Poly::parse(t).unwrap()).collect();
        let domain = dims(&["1", "s", "576", "896"]);
        let at = |part: &str| {
            let column = format!("(%2/32)*64 + {part} + %2%32");
            ["0", "%1", &column].map(|t| Poly::parse(t).unwrap()).to_vec()
        };
        let show = |c: &[(Poly, Dim)]| c.iter().map(|(p, d)| format!("{p} < {d}")).collect::<Vec<_>>();
        let (found, conditions) = locate(&to, &index, &at("32"), &domain).unwrap();
        assert_eq!(found.iter().map(Poly::to_string).collect::<Vec<_>>(), ["0", "%2/32", "%1", "%2%32"]);
        assert_eq!(show(&conditions)[1..], ["%1 < s", "%2%32 < 32", "%2/32 < 14"]);
        let (_, conditions) = locate(&to, &index, &at("0"), &domain).unwrap();
        assert!((&conditions[2].0 - &conditions[2].1).proves_nonneg(&domain), "{:?}", show(&conditions));
    }

    #[test]
    fn what_is_cut_from_joined_axes_is_located() {
        let v = |t: &str| Poly::parse(t).unwrap();
        // [5, 2] flattened to 10 elements, of which 1 to 8 are kept.
        let (to, index) = (dims(&["8"]), [v("(%0 + 1)/2"), v("(%0 + 1)%2")]);
        let (found, conditions) = locate(&to, &index, &[v("%0"), v("%1")], &dims(&["5", "2"])).unwrap();
        assert_eq!(found[0].to_string(), "2*%0 + %1 - 1");
        assert_eq!(
            conditions.last().map(|c| (c.0.to_string(), c.1.to_string())),
            Some(("2*%0 + %1 - 1".into(), "8".into()))
        );
        // The first 9 of 10.
        let (to, index) = (dims(&["9"]), [v("%0/2"), v("%0%2")]);
        let (found, conditions) = locate(&to, &index, &[v("%0"), v("%1")], &dims(&["5", "2"])).unwrap();
        assert_eq!((found[0].to_string(), conditions.len()), ("2*%0 + %1".into(), 3));
        // Digits with different shifts.
        assert!(
            locate(&to, &[v("(%0 + 1)/2"), v("%0%2")], &[v("%0"), v("%1")], &dims(&["5", "2"])).is_none()
        );
    }

    #[test]
    fn slices_and_broadcasts_do_not() {
        let v = |t: &str| Poly::parse(t).unwrap();
        assert!(invert(&dims(&["8"]), &dims(&["4"]), &[v("%0 + 2")]).is_none());
        assert!(invert(&dims(&["1", "8"]), &dims(&["4", "8"]), &[v("0"), v("%1")]).is_none());
        assert!(invert(&dims(&["8"]), &dims(&["8"]), &[v("7 - %0")]).is_none());
    }
}
