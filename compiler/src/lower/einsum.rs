//! Sums of products in Einstein notation, contracted operand by operand from the left.

use super::{Lowering, OpError, Result};
use wgfc_ir::build::Built;
use wgfc_ir::op::show;
use wgfc_ir::{BinaryOp, Contract, Dim, Op, Poly, ReduceOp, Value};

/// The axis labels of every operand and of the result. Letters are their own labels; axes of an ellipsis are numbered
/// from below `A` so that the last one has the same label everywhere.
#[derive(Debug, PartialEq)]
struct Equation {
    operands: Vec<Vec<u8>>,
    output: Vec<u8>,
}

/// The maximum number of axes of an ellipsis: the number of labels below the letters.
const ELLIPSIS: usize = b'A' as usize;

/// The letters of a term before its ellipsis, and those after it if it has one.
fn term(text: &str) -> Built<(Vec<u8>, Option<Vec<u8>>)> {
    let letters = |part: &str| match part.chars().find(|c| !c.is_ascii_alphabetic()) {
        Some(c) => Err(format!("`{c}` in term `{text}`")),
        None => Ok(part.as_bytes().to_vec()),
    };
    match text.split_once("...") {
        Some((before, after)) => Ok((letters(before)?, Some(letters(after)?))),
        None => Ok((letters(text)?, None)),
    }
}

/// Parses an equation for operands of these ranks. Without `->` the result has the axes of the ellipsis, then the
/// letters that occur once, in the order of their codes.
fn parse(equation: &str, ranks: &[usize]) -> Built<Equation> {
    let text: String = equation.chars().filter(|c| !c.is_whitespace()).collect();
    let (inputs, output) = match text.split_once("->") {
        Some((i, o)) => (i, Some(o)),
        None => (text.as_str(), None),
    };
    let terms = inputs.split(',').map(term).collect::<Built<Vec<_>>>()?;
    if terms.len() != ranks.len() {
        return Err(format!("{} terms for {} operands", terms.len(), ranks.len()));
    }
    // The number of axes that each ellipsis stands for.
    let mut wide = vec![];
    for (i, ((before, after), rank)) in terms.iter().zip(ranks).enumerate() {
        let letters = before.len() + after.as_ref().map_or(0, Vec::len);
        match rank.checked_sub(letters) {
            Some(n) if n == 0 || (after.is_some() && n <= ELLIPSIS) => wide.push(n),
            _ => return Err(format!("{letters} letters for operand {i} of rank {rank}")),
        }
    }
    let widest = wide.iter().copied().max().unwrap_or(0);
    let labels = |(before, after): &(Vec<u8>, Option<Vec<u8>>), n: usize| -> Vec<u8> {
        let middle = (widest - n..widest).map(|i| i as u8);
        before.iter().copied().chain(middle).chain(after.iter().flatten().copied()).collect()
    };
    let operands: Vec<Vec<u8>> = terms.iter().zip(&wide).map(|(t, n)| labels(t, *n)).collect();
    let all: Vec<u8> = operands.concat();
    let output = match output {
        Some(o) => {
            let t = term(o)?;
            let out = labels(&t, if t.1.is_some() { widest } else { 0 });
            for (i, l) in out.iter().enumerate() {
                if out[..i].contains(l) || !all.contains(l) {
                    return Err(format!("`{}` in the result is repeated, or no operand's", char::from(*l)));
                }
            }
            out
        }
        None => {
            let mut out: Vec<u8> = all.clone();
            out.retain(|l| usize::from(*l) < ELLIPSIS || all.iter().filter(|m| *m == l).count() == 1);
            out.sort_unstable();
            out.dedup();
            out
        }
    };
    Ok(Equation { operands, output })
}

/// A tensor whose axes are labelled, each label once.
struct Labelled {
    value: Value,
    labels: Vec<u8>,
}

impl Labelled {
    /// Takes the diagonal of axes that share a label.
    fn new(cx: &mut Lowering, value: Value, all: &[u8]) -> Result<Labelled> {
        let from = cx.shape(value);
        let (mut labels, mut shape, mut index) = (vec![], vec![], vec![]);
        for (l, d) in all.iter().zip(&from) {
            let at = match labels.iter().position(|m| m == l) {
                Some(at) => {
                    equal(cx, &shape[at], d, *l)?;
                    at
                }
                None => {
                    labels.push(*l);
                    shape.push(d.clone());
                    labels.len() - 1
                }
            };
            index.push(Poly::var(at));
        }
        Ok(Labelled { value: cx.view(value, shape, index)?, labels })
    }

    /// Drops axes of extent 1 that are broadcast against others, and gives the remaining axes the common extent of
    /// their label.
    fn conform(&mut self, cx: &mut Lowering, extents: &[(u8, Dim)]) -> Result<()> {
        let mut shape = cx.shape(self.value);
        let mut drop = vec![];
        for (i, l) in self.labels.iter().enumerate() {
            let Some((_, extent)) = extents.iter().find(|(m, _)| m == l) else { continue };
            if shape[i].is(1) && !extent.is(1) {
                drop.push(i);
                continue;
            }
            equal(cx, extent, &shape[i], *l)?;
            shape[i] = extent.clone();
        }
        let index = (0..shape.len()).map(Poly::var).collect();
        let value = cx.view(self.value, shape, index)?;
        self.value = cx.squeeze(value, &drop)?;
        let mut i = 0;
        self.labels.retain(|_| {
            i += 1;
            !drop.contains(&(i - 1))
        });
        Ok(())
    }

    /// Sums over the axes whose labels are not wanted.
    fn reduce(self, cx: &mut Lowering, wanted: impl Fn(u8) -> bool) -> Result<Labelled> {
        let axes: Vec<usize> = (0..self.labels.len()).filter(|i| !wanted(self.labels[*i])).collect();
        let value = cx.reduce(ReduceOp::Sum, self.value, &axes, false)?;
        Ok(Labelled { value, labels: self.labels.into_iter().filter(|l| wanted(*l)).collect() })
    }

    /// The value with its axes in the order of these labels; missing axes get extent 1.
    fn arranged(&self, cx: &mut Lowering, order: &[u8]) -> Result {
        let perm: Vec<usize> = order.iter().filter_map(|l| self.labels.iter().position(|m| m == l)).collect();
        let value = cx.transpose(self.value, &perm)?;
        let missing: Vec<usize> = (0..order.len()).filter(|i| !self.labels.contains(&order[*i])).collect();
        Ok(cx.unsqueeze(value, &missing)?)
    }
}

/// Requires two extents to be equal: checked while compiling if both are known, else at run time.
fn equal(cx: &mut Lowering, a: &Dim, b: &Dim, label: u8) -> Result<()> {
    if a != b && a.as_const().is_some() && b.as_const().is_some() {
        let what = if usize::from(label) < ELLIPSIS { "...".into() } else { char::from(label).to_string() };
        return Err(OpError::model(format!("`{what}` is {a} and {b}")).param("equation"));
    }
    cx.require_equal(a, b);
    Ok(())
}

/// The sum of products of at least one operand, all of one type, in the order of the equation: `bij, bjk -> bik`.
pub fn einsum(cx: &mut Lowering, xs: &[Value], text: &str) -> Result {
    if let Some(x) = xs.iter().find(|x| cx.dtype(**x) != cx.dtype(xs[0])) {
        return Err(OpError::model(format!(
            "operands of different types: {} and {}",
            cx.ty(xs[0]),
            cx.ty(*x)
        )));
    }
    let ranks: Vec<usize> = xs.iter().map(|x| cx.rank(*x)).collect();
    let equation = parse(text, &ranks).map_err(|e| {
        let shapes: Vec<String> = xs.iter().map(|x| show(&cx.shape(*x))).collect();
        OpError::model(format!("`{text}` of {}: {e}", shapes.join(" and "))).param("equation")
    })?;

    let mut terms = vec![];
    let mut extents: Vec<(u8, Dim)> = vec![];
    for (x, labels) in xs.iter().zip(&equation.operands) {
        let t = Labelled::new(cx, *x, labels)?;
        for (l, d) in t.labels.iter().zip(cx.shape(t.value)) {
            match extents.iter_mut().find(|(m, _)| m == l) {
                None => extents.push((*l, d)),
                Some((_, e))
                    if e.is(1) || (e.as_const().is_none() && d.as_const().is_some_and(|c| c != 1)) =>
                {
                    *e = d;
                }
                Some(_) => {}
            }
        }
        terms.push(t);
    }
    for t in &mut terms {
        t.conform(cx, &extents)?;
    }
    let mut rest = terms.into_iter();
    let mut product = rest.next().ok_or("needs at least one input")?;
    while let Some(next) = rest.next() {
        let later =
            |l: u8| equation.output.contains(&l) || rest.as_slice().iter().any(|t| t.labels.contains(&l));
        product = multiply(cx, product, next, &equation.output, later)?;
    }
    let product = product.reduce(cx, |l| equation.output.contains(&l))?;
    product.arranged(cx, &equation.output)
}

/// The product of two operands, summed over the labels that `later` does not need; the axes of the result follow its
/// order.
fn multiply(
    cx: &mut Lowering,
    a: Labelled,
    b: Labelled,
    output: &[u8],
    later: impl Fn(u8) -> bool,
) -> Result<Labelled> {
    let (in_a, in_b) = (a.labels.clone(), b.labels.clone());
    let a = a.reduce(cx, |l| later(l) || in_b.contains(&l))?;
    let b = b.reduce(cx, |l| later(l) || in_a.contains(&l))?;
    let mut labels: Vec<u8> = a.labels.clone();
    labels.extend(b.labels.iter().filter(|l| !in_a.contains(l)));
    labels.sort_by_key(|l| output.iter().position(|m| m == l).unwrap_or(usize::MAX));
    let summed = labels.iter().any(|l| !later(*l));
    let value = if summed {
        labels.retain(|l| later(*l));
        let c = Contract { a: a.labels, b: b.labels, out: labels.clone() };
        cx.push(Op::Contract(c), &[a.value, b.value])?
    } else {
        let (a, b) = (a.arranged(cx, &labels)?, b.arranged(cx, &labels)?);
        cx.binary(BinaryOp::Mul, a, b)?
    };
    Ok(Labelled { value, labels })
}

#[cfg(test)]
mod tests {
    use super::*;
    #[test]
    fn equations_are_read() {
        let show = |e: &str, ranks: &[usize]| match parse(e, ranks) {
            Ok(Equation { operands, output }) => {
                let text = |v: &Vec<u8>| -> String {
                    v.iter().map(|l| if *l < b'A' { char::from(b'0' + l) } else { char::from(*l) }).collect()
                };
                format!("{}->{}", operands.iter().map(text).collect::<Vec<_>>().join(","), text(&output))
            }
            Err(e) => e,
        };
        assert_eq!(show("bij, bjk -> bik", &[3, 3]), "bij,bjk->bik");
        assert_eq!(show("ij,jk", &[2, 2]), "ij,jk->ik");
        assert_eq!(show("bA", &[2]), "bA->Ab");
        assert_eq!(show("ii", &[2]), "ii->");
        assert_eq!(show("...ij,...jk", &[5, 3]), "012ij,2jk->012ik");
        assert_eq!(show("i...j->j...", &[3]), "i0j->j0");
        assert_eq!(show("...,i", &[0, 1]), ",i->i");
        assert_eq!(show("", &[0]), "->");
        assert_eq!(show("ij", &[3]), "2 letters for operand 0 of rank 3");
        assert_eq!(show("...ijk", &[2]), "3 letters for operand 0 of rank 2");
        assert_eq!(show("ij", &[2, 2]), "1 terms for 2 operands");
        assert_eq!(show("i.j", &[2]), "`.` in term `i.j`");
        assert_eq!(show("i......", &[2]), "`.` in term `i......`");
        assert_eq!(show("ij->ii", &[2]), "`i` in the result is repeated, or no operand's");
        assert_eq!(show("ij->k", &[2]), "`k` in the result is repeated, or no operand's");
        assert_eq!(show("i->j->k", &[1]), "`-` in term `j->k`");
    }
}
