//! Decides which results share memory with an operand. Torch decides this by sizes and strides, which the program states.
//!
//! When torch traces a program, it assumes that symbolic sizes of inputs are at least 2 and within their declared ranges. This module makes
//! the same assumptions.

use super::expr;
use super::messages::{Argument, Graph, Node, SymInt, TensorMeta};
use super::op::{self, OpDef};
use super::schema::Schema;
use super::walk::tensors;
use std::cmp::Ordering;
use wgfc_ir::{Atom, Dim};

/// A lower bound of the value of a symbol.
pub type Least<'l> = &'l dyn Fn(&str) -> i64;

/// Whether a result shares the memory of an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shared {
    /// The result is a view of the operand.
    Yes,
    /// The result has memory of its own.
    No,
    /// The result is a view if the importer makes it by views alone.
    IfViews,
    /// The sizes and strides do not tell.
    Unknown,
}

/// The operand that a result may be a view of, by the operator's schema, else by [`OpDef::views`](super::op::OpDef).
pub fn operand<'m>(node: &'m Node, def: &OpDef, schema: Option<&Schema>, result: usize) -> Option<&'m str> {
    let declared = schema.and_then(|s| s.aliased(result)).map(|(of, _)| of.name);
    let position = |name: &str| schema.and_then(|s| s.arguments.iter().position(|a| a.name == name));
    let name = declared.or(def.views)?;
    let given = node.inputs.iter().find(|i| i.name == name);
    // Older versions of torch leave out the names of positional arguments.
    let given = given.or_else(|| node.inputs.get(position(name)?).filter(|i| i.name.is_empty()))?;
    match &given.arg {
        Argument::Tensors(_) => tensors(&given.arg).nth(result),
        a => tensors(a).next(),
    }
}

/// Whether a result is a view of the [`operand`] that it may be a view of.
pub fn shared(
    graph: &Graph,
    node: &Node,
    schema: Option<&Schema>,
    (of, result): (&str, &str),
    least: Least<'_>,
) -> Shared {
    let target = op::target(node);
    let declared = schema.is_some_and(|s| s.aliased(0).is_some());
    let (Some(a), Some(b)) = (graph.tensor_values.get(of), graph.tensor_values.get(result)) else {
        return if declared { Shared::Yes } else { Shared::IfViews };
    };
    let name = target.strip_prefix("aten.").and_then(|t| t.split('.').next()).unwrap_or_default();
    let given = |argument: &str| node.inputs.iter().find(|i| i.name == argument).map(|i| &i.arg);
    match name {
        "contiguous" => shares(Layout::of(a).zip(Layout::of(b)).and_then(|(a, b)| a.same_strides(&b, least))),
        "to" | "type_as" => {
            if a.dtype != b.dtype || matches!(given("copy"), Some(Argument::Bool(true))) {
                return Shared::No;
            }
            let layouts = Layout::of(a).zip(Layout::of(b));
            let same = layouts
                .as_ref()
                .and_then(|(a, b)| all(a.strides.iter().zip(&b.strides).map(|(a, b)| equal(a, b, least))));
            let asked = matches!(given("memory_format"), Some(Argument::MemoryFormat(_)));
            match layouts {
                Some((a, _)) if asked && same == Some(true) && a.is_of_any_format() => Shared::Unknown,
                _ => shares(same),
            }
        }
        "ravel" => shares(Layout::of(a).and_then(|a| a.in_order(least))),
        "reshape" | "reshape_as" | "flatten" => {
            shares(Layout::of(a).zip(Layout::of(b)).and_then(|(a, b)| a.views_as(&b.sizes, least)))
        }
        _ if declared => Shared::Yes,
        _ => Shared::IfViews,
    }
}

fn shares(decided: Option<bool>) -> Shared {
    match decided {
        Some(true) => Shared::Yes,
        Some(false) => Shared::No,
        None => Shared::Unknown,
    }
}

/// The conditions under which no two elements of a tensor have the same address, as pairs of sizes of which the first is at most the
/// second. `None` if some elements have the same address for all sizes.
pub fn apart(sizes: &[Dim], strides: &[Dim], least: Least<'_>) -> Option<Vec<(Dim, Dim)>> {
    if sizes.iter().any(|n| n.is(0)) {
        return Some(vec![]);
    }
    let mut rest: Vec<(&Dim, &Dim)> = strides.iter().zip(sizes).filter(|(_, n)| !n.is(1)).collect();
    let (mut conditions, mut next) = (vec![], Dim::ONE);
    // Axes are visited by stride, the smallest first; a stride must exceed the distance that the axes before it cover.
    while !rest.is_empty() {
        let nearest = |(stride, _): &(&Dim, &Dim)| {
            !rest.iter().any(|(other, _)| order(stride, other, least) == Some(Ordering::Greater))
        };
        let (stride, n) = rest.remove(rest.iter().rposition(nearest)?);
        if order(stride, &next, least) == Some(Ordering::Less) {
            return None;
        }
        if !(stride - &next).proves_nonneg(&[]) {
            conditions.push((next.clone(), stride.clone()));
        }
        next = &next + &(stride * &(n - 1));
        if next.is_too_large() {
            return None;
        }
    }
    Some(conditions)
}

/// Whether elements of a tensor with these sizes and strides have the same address: if an axis is expanded (its stride is 0), or if all
/// sizes and strides are known and ranges of addresses overlap.
pub fn overlaps(sizes: &[Dim], strides: &[Dim]) -> bool {
    if sizes.iter().any(|n| n.is(0)) {
        return false;
    }
    if sizes.iter().zip(strides).any(|(n, stride)| stride.is(0) && !n.is(1)) {
        return true;
    }
    let axes = sizes.iter().zip(strides).map(|(n, s)| Some((s.as_const()?, n.as_const()?)));
    let Some(mut axes) = axes.collect::<Option<Vec<(i64, i64)>>>() else { return false };
    axes.retain(|(_, n)| *n != 1);
    axes.sort_unstable();
    let mut reach = 0i64;
    axes.iter().any(|(stride, n)| {
        let inside = *stride <= reach;
        reach = reach.saturating_add(stride.saturating_mul(n - 1));
        inside
    })
}

/// Whether two sizes are equal; `None` if that is not certain.
fn equal(a: &Dim, b: &Dim, least: Least<'_>) -> Option<bool> {
    order(a, b, least).map(Ordering::is_eq)
}

/// The order of two sizes; `None` if that is not certain.
fn order(a: &Dim, b: &Dim, least: Least<'_>) -> Option<Ordering> {
    let difference = a - b;
    if difference.is(0) {
        return Some(Ordering::Equal);
    }
    let from_least = |a: &Atom| if let Atom::Sym(s) = a { Some(&Dim::sym(s) + least(s)) } else { None };
    let difference = difference.subst(&from_least, &[]);
    if (&difference - 1).proves_nonneg(&[]) {
        return Some(Ordering::Greater);
    }
    (&-&difference - 1).proves_nonneg(&[]).then_some(Ordering::Less)
}

/// Whether all parts are true; `None` if that is not certain.
fn all(parts: impl Iterator<Item = Option<bool>>) -> Option<bool> {
    let parts: Vec<Option<bool>> = parts.collect();
    if parts.contains(&Some(false)) { Some(false) } else { parts.iter().all(Option::is_some).then_some(true) }
}

/// Sizes and strides of a tensor, in elements.
struct Layout {
    sizes: Vec<Dim>,
    strides: Vec<Dim>,
}

impl Layout {
    /// The layout that the program states, over its own symbols.
    fn of(m: &TensorMeta) -> Option<Layout> {
        let size = |s: &SymInt| match s {
            SymInt::Int(n) => Some((*n).into()),
            SymInt::Expr(text) => expr::size(text, &|s| Dim::sym(s)).ok(),
        };
        let sizes = m.sizes.iter().map(size).collect::<Option<Vec<Dim>>>()?;
        let strides = m.strides.iter().map(size).collect::<Option<Vec<Dim>>>()?;
        (sizes.len() == strides.len()).then_some(Layout { sizes, strides })
    }

    /// Whether the strides are equal, but for axes of one element, whose strides do not matter.
    fn same_strides(&self, other: &Layout, least: Least<'_>) -> Option<bool> {
        if self.strides.len() != other.strides.len() {
            return Some(false);
        }
        let axes = self.sizes.iter().zip(self.strides.iter().zip(&other.strides));
        all(axes.filter(|(n, _)| !n.is(1)).map(|(_, (a, b))| equal(a, b, least)))
    }

    /// Whether the tensor is contiguous.
    fn in_order(&self, least: Least<'_>) -> Option<bool> {
        let mut expected = Dim::ONE;
        let mut strides = vec![];
        for n in self.sizes.iter().rev() {
            strides.push(expected.clone());
            expected = &expected * n;
        }
        strides.reverse();
        self.same_strides(&Layout { sizes: self.sizes.clone(), strides }, least)
    }

    /// Whether the strides fit every memory format, as there is one channel or one pixel.
    fn is_of_any_format(&self) -> bool {
        let [_, channels, pixels @ ..] = &self.sizes[..] else { return false };
        channels.is(1) || pixels.iter().all(|d| d.is(1))
    }

    /// Whether a view of other sizes exists that moves no elements, as torch's `computeStride` decides it.
    fn views_as(&self, sizes: &[Dim], least: Least<'_>) -> Option<bool> {
        if self.sizes.iter().any(|d| d.is(0)) {
            return Some(false);
        }
        let Some(last) = self.strides.last() else { return Some(true) };
        // Whether all comparisons so far were certain.
        let mut certain = true;
        let mut compare = |a: &Dim, b: &Dim| {
            let order = order(a, b, least);
            certain &= order.is_some();
            order
        };
        let (mut stride, mut elements, mut seen) = (last.clone(), Dim::ONE, Dim::ONE);
        let mut rest = sizes;
        let mut fits = true;
        for d in (0..self.sizes.len()).rev() {
            elements = &elements * &self.sizes[d];
            // A chunk of axes that are contiguous with each other ends here.
            let ends = d == 0
                || compare(&self.sizes[d - 1], &Dim::ONE) != Some(Ordering::Equal)
                    && compare(&self.strides[d - 1], &(&elements * &stride)) != Some(Ordering::Equal);
            if !ends {
                continue;
            }
            while let Some((n, before)) = rest.split_last() {
                let open = matches!(compare(&seen, &elements), Some(Ordering::Less) | None);
                if !open && !n.is(1) {
                    break;
                }
                seen = &seen * n;
                rest = before;
            }
            if seen != elements {
                fits = false;
                compare(&seen, &elements);
                break;
            }
            if d > 0 {
                (stride, elements, seen) = (self.strides[d - 1].clone(), Dim::ONE, Dim::ONE);
            }
        }
        if fits && rest.is_empty() { Some(true) } else { certain.then_some(false) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wgfc_ir::Poly;

    fn layout(sizes: &[&str], strides: &[&str]) -> Layout {
        let all = |t: &[&str]| t.iter().map(|d| Poly::parse(d).unwrap()).collect();
        Layout { sizes: all(sizes), strides: all(strides) }
    }

    fn from_two(symbol: &str) -> i64 {
        if symbol == "t" { 3 } else { 2 }
    }

    fn views(sizes: &[&str], strides: &[&str], new: &[&str]) -> Option<bool> {
        layout(sizes, strides).views_as(&layout(new, &[]).sizes, &from_two)
    }

    #[test]
    fn strides_decide_what_a_reshape_shares() {
        // The first tensor is contiguous, the next two are column-major, the others split rows or take every second row.
        assert_eq!(views(&["4", "5"], &["5", "1"], &["2", "10"]), Some(true));
        assert_eq!(views(&["5", "4"], &["1", "5"], &["20"]), Some(false));
        assert_eq!(views(&["5", "4"], &["1", "5"], &["5", "2", "2"]), Some(true));
        assert_eq!(views(&["4", "4"], &["5", "1"], &["4", "2", "2"]), Some(true));
        assert_eq!(views(&["4", "4"], &["5", "1"], &["16"]), Some(false));
        assert_eq!(views(&["4", "1"], &["5", "1"], &["4"]), Some(true));
        assert_eq!(views(&["4"], &["6"], &["2", "2"]), Some(true));
        assert_eq!(views(&["2", "5"], &["10", "1"], &["2", "5", "1"]), Some(true));
        assert_eq!(views(&["0", "5"], &["5", "1"], &["5", "0"]), Some(false));
        assert_eq!(views(&[], &[], &["1", "1"]), Some(true));
        // Symbolic extents.
        assert_eq!(views(&["n", "s"], &["s", "1"], &["n*s"]), Some(true));
        assert_eq!(views(&["n", "t - 1"], &["t", "1"], &["n*t - n"]), Some(false));
        // If `s` is 2, one element remains of each row, which a view can select; so the answer is open.
        assert_eq!(views(&["n", "s - 1"], &["s", "1"], &["n*s - n"]), None);
        assert_eq!(views(&["n"], &["s"], &["n", "1"]), Some(true));
        assert_eq!(views(&["s", "n"], &["1", "s"], &["n*s"]), Some(false));
        assert_eq!(views(&["n", "2", "s", "3"], &["6*s", "3*s", "3", "1"], &["n", "2", "3*s"]), Some(true));
        assert_eq!(views(&["n", "s", "2", "3"], &["6*s", "3", "3*s", "1"], &["n", "s", "6"]), Some(false));
        // It is open whether `m` equals `s`.
        assert_eq!(views(&["n", "s"], &["m", "1"], &["n*s"]), None);
    }

    #[test]
    fn sizes_decide_whether_elements_are_apart() {
        let of = |sizes: &[&str], strides: &[&str]| {
            let l = layout(sizes, strides);
            let found = apart(&l.sizes, &l.strides, &from_two)?;
            Some(found.iter().map(|(a, b)| format!("{a} <= {b}")).collect::<Vec<String>>().join(", "))
        };
        let certain = Some(String::new());
        assert_eq!(of(&["n", "s"], &["s", "1"]), certain);
        assert_eq!(of(&["s", "n"], &["1", "s"]), certain);
        assert_eq!(of(&["n", "2", "s"], &["4*s", "s", "1"]), certain);
        assert_eq!(of(&["n", "3", "2"], &["6", "2", "1"]), certain);
        assert_eq!(of(&["0", "s"], &["0", "1"]), certain);
        // The assumed minimum of 2 only orders the strides; the condition itself is left to the run.
        assert_eq!(of(&["2", "2"], &["s", "1"]), Some("2 <= s".into()));
        assert_eq!(of(&["n", "3"], &["s", "1"]), Some("3 <= s".into()));
        // All elements of an expanded axis have one address, and sliding windows overlap.
        assert_eq!(of(&["n", "s"], &["0", "1"]), None);
        assert_eq!(of(&["n", "3"], &["1", "1"]), None);
        assert_eq!(of(&["n", "3"], &["2", "1"]), None);
    }

    #[test]
    fn strides_of_single_elements_say_nothing() {
        let same =
            |a: &[&str], b: &[&str]| layout(&["n", "1"], a).same_strides(&layout(&["n", "1"], b), &from_two);
        assert_eq!(same(&["1", "1"], &["1", "n"]), Some(true));
        assert_eq!(same(&["1", "1"], &["s", "1"]), Some(false));
        assert_eq!(same(&["m", "1"], &["s", "1"]), None);
        assert_eq!(layout(&["n", "s"], &["s", "1"]).in_order(&from_two), Some(true));
        assert_eq!(layout(&["n", "s - 1"], &["s", "1"]).in_order(&from_two), Some(false));
    }
}
