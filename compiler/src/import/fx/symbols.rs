//! Resolves symbolic sizes: symbols that the shapes of inputs decide, equal symbols, and ranges.

use super::expr;
use super::guards::{self, Guard, Relation};
use super::messages::{Argument, ExportedProgram, InputSpec, SymInt, TensorMeta};
use super::names::Names;
use super::walk::Importer;
use crate::lower::{Lowering, Place};
use crate::{Diagnostic, Options};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use wgfc_ir::{Atom, Dim, Poly};

/// The conditions on sizes that a run checks.
#[derive(Clone, Debug, Default)]
pub struct Required {
    /// Pairs of equal sizes.
    pub equal: Vec<(Dim, Dim)>,
    /// Pairs of sizes of which the first is at most the second.
    pub at_most: Vec<(Dim, Dim)>,
    /// Other conditions, with their source text.
    pub others: Vec<(String, Guard)>,
}

/// Whether a condition holds for all sizes.
fn holds(g: &Guard) -> bool {
    let difference = &g.b - &g.a;
    match g.relation {
        Relation::Equal => difference.is(0),
        Relation::AtMost => difference.proves_nonneg(&[]),
        Relation::Different => difference.as_const().is_some_and(|d| d != 0),
    }
}

/// Constrains the program by a condition.
pub fn require(to: &mut Lowering, g: &Guard) {
    match g.relation {
        _ if holds(g) => {}
        Relation::Equal => to.require_equal(&g.a, &g.b),
        Relation::AtMost => to.require_at_most(&g.a, &g.b),
        Relation::Different => to.require_at_most(&Poly::ONE, &(&g.a - &g.b).magnitude()),
    }
}

/// [`require`] with the text of the condition as the location of errors.
pub fn require_said(to: &mut Lowering, text: &str, g: &Guard) {
    let place = to.at(Place::new(&format!("the condition `{text}` of the exported program"), ""));
    require(to, g);
    to.at(place);
}

/// Returns the shapes of the inputs that the user passes, by the graph's names, and sets [`Importer::symbols`].
pub fn settle(
    im: &mut Importer<'_>,
    p: &ExportedProgram,
    names: &Names,
    options: &Options,
) -> (BTreeMap<String, Vec<Dim>>, Required) {
    let mut shapes = declared(im, p);
    let mut required = guards(im, p, names, &shapes);
    // Sizes that are known to be equal are merged into one symbol.
    let mut order: Vec<Arc<str>> = vec![];
    for s in shapes.values().flatten().flat_map(Poly::symbols) {
        if !order.contains(&s) {
            order.push(s);
        }
    }
    let mut known: BTreeMap<Arc<str>, Dim> = BTreeMap::new();
    for (name, v) in &options.dims {
        if order.iter().any(|s| **s == **name) {
            known.insert(name.as_str().into(), Poly::constant(*v));
        }
        im.errors.extend(unusable(name, *v, &order));
    }
    let mut open = std::mem::take(&mut required.equal);
    open.retain(|(a, b)| {
        let difference = &with(a, &known) - &with(b, &known);
        let Some((symbol, value)) = solved(&difference, &order) else { return !difference.is(0) };
        let one = BTreeMap::from([(symbol.clone(), value.clone())]);
        known.values_mut().for_each(|d| *d = with(d, &one));
        known.insert(symbol, value);
        false
    });
    required.equal = open;
    // An extent that is a single symbol decides that symbol. An extent that is a multiple of a symbol plus a rest decides it by division.
    let mut alone: BTreeSet<Arc<str>> = BTreeSet::new();
    for d in shapes.values_mut().flatten() {
        *d = with(d, &known);
        if let Some(Atom::Sym(s)) = d.as_atom() {
            alone.insert(s.clone());
        }
    }
    for (name, shape) in &mut shapes {
        for (axis, d) in shape.iter_mut().enumerate() {
            let free: Vec<Arc<str>> = d.symbols().into_iter().filter(|s| !alone.contains(s)).collect();
            let [symbol] = &free[..] else { continue };
            let Some((factor, rest)) = linear(d, symbol) else { continue };
            let own: Arc<str> = format!("{}_{axis}", names.input(name).replace('.', "_")).into();
            let whole = &Dim::sym(&own) - &rest;
            let value = whole.div(&Poly::constant(factor), &[]);
            let one = BTreeMap::from([(symbol.clone(), value.clone())]);
            required.equal.push((&value * &Poly::constant(factor), whole));
            known.values_mut().for_each(|d| *d = with(d, &one));
            known.insert(symbol.clone(), value);
            alone.insert(own.clone());
            *d = Dim::sym(&own);
        }
    }
    for (name, shape) in &mut shapes {
        for (axis, d) in shape.iter_mut().enumerate() {
            *d = with(d, &known);
            if d.symbols().iter().any(|s| !alone.contains(s)) {
                let what = format!("no input's shape decides the symbols of {d}, the extent of axis {axis}");
                let at = crate::Location {
                    part: Some(format!("input \"{}\"", names.input(name))),
                    ..Default::default()
                };
                let help = "fix it with --dim, or export the program with this dimension as one of its own";
                im.errors.push(Diagnostic::unsupported(what).at(at).help(help));
            }
        }
    }
    for s in order.iter().chain(&alone) {
        im.define(s, with(&Dim::sym(s), &known));
    }
    for (a, b) in required.equal.iter_mut().chain(&mut required.at_most) {
        (*a, *b) = (with(a, &known), with(b, &known));
    }
    for (_, g) in &mut required.others {
        (g.a, g.b) = (with(&g.a, &known), with(&g.b, &known));
    }
    ranges(im, p, &mut required);
    (shapes, required)
}

/// The declared shapes of the tensors that the user passes, by the graph's names.
fn declared(im: &mut Importer<'_>, p: &ExportedProgram) -> BTreeMap<String, Vec<Dim>> {
    let mut shapes = BTreeMap::new();
    for spec in &p.graph_module.signature.input_specs {
        let InputSpec::UserInput(Argument::Tensor(t)) = spec else { continue };
        let Some(meta) = p.graph_module.graph.tensor_values.get(&t.name) else { continue };
        match shape(meta) {
            Ok(shape) => _ = shapes.insert(t.name.clone(), shape),
            Err(e) => {
                let at =
                    crate::Location { part: Some(format!("input \"{}\"", t.name)), ..Default::default() };
                let d = Diagnostic::unsupported(format!("its shape is not understood: {e}")).at(at);
                im.errors.push(d.help("export the program with this dimension as one of its own"));
            }
        }
    }
    shapes
}

fn shape(meta: &TensorMeta) -> Result<Vec<Dim>, String> {
    let size = |s: &SymInt| match s {
        SymInt::Int(n) => Ok((*n).into()),
        SymInt::Expr(text) => expr::size(text, &|s| Dim::sym(s)),
    };
    meta.sizes.iter().map(size).collect()
}

/// The conditions of the program's guards. A pair of conditions `a <= b` and `b <= a` becomes an equality.
fn guards(
    im: &mut Importer<'_>,
    p: &ExportedProgram,
    names: &Names,
    shapes: &BTreeMap<String, Vec<Dim>>,
) -> Required {
    let mut required = Required::default();
    let size = |path: &guards::Path, axis: usize| {
        // Arguments of `*tensors` are found by the graph's name: the parts of the path joined by `_`.
        let flat = path.join("_");
        let named = names.inputs.iter().find(|(_, p)| *p == path);
        let (name, _) = named.or_else(|| names.inputs.iter().find(|(name, _)| **name == flat))?;
        shapes.get(name)?.get(axis).cloned()
    };
    for text in &p.guards_code {
        match guards::parse(text, &size) {
            Ok(all) => {
                let plain = !text.contains(" or ") && !text.contains("not ");
                for g in all {
                    match g.relation {
                        Relation::Equal => required.equal.push((g.a, g.b)),
                        Relation::AtMost if plain => required.at_most.push((g.a, g.b)),
                        _ => required.others.push((text.clone(), g)),
                    }
                }
            }
            // A guard without sizes is a condition on a value that the export has fixed.
            Err(_) if !text.contains(".size()") => {}
            Err(e) => {
                let d = Diagnostic::unsupported(format!(
                    "the program holds only where `{text}`, which is not understood: {e}"
                ));
                im.errors.push(
                    d.help("export it without dynamic dimensions that depend on each other in this way"),
                );
            }
        }
    }
    let pairs = std::mem::take(&mut required.at_most);
    for (i, (a, b)) in pairs.iter().enumerate() {
        let difference = a - b;
        let other = pairs.iter().position(|(c, d)| (d - c) == difference);
        match other {
            Some(j) if j > i => required.equal.push((a.clone(), b.clone())),
            Some(j) if j < i => {}
            _ => required.at_most.push((a.clone(), b.clone())),
        }
    }
    required
}

/// Substitutes the known symbols in an expression.
fn with(d: &Dim, known: &BTreeMap<Arc<str>, Dim>) -> Dim {
    d.subst(&|a| if let Atom::Sym(s) = a { known.get(s).cloned() } else { None }, &[])
}

/// Solves `zero == 0` for a symbol, the last in the order of the inputs' sizes; returns it with its value.
fn solved(zero: &Dim, order: &[Arc<str>]) -> Option<(Arc<str>, Dim)> {
    order.iter().rev().find_map(|s| {
        let (factor, rest) = linear(zero, s)?;
        match factor {
            1 => Some((s.clone(), -&rest)),
            -1 => Some((s.clone(), rest)),
            _ => None,
        }
    })
}

/// Splits an expression into `factor * symbol + rest`, where the rest does not contain the symbol; returns factor and rest.
fn linear(d: &Dim, symbol: &str) -> Option<(i64, Dim)> {
    let factor = d.terms().into_iter().find_map(|(m, c)| match &m[..] {
        [Atom::Sym(s)] if **s == *symbol => Some(c),
        _ => None,
    })?;
    let rest = d - &(&Dim::sym(symbol) * &Poly::constant(factor));
    (!rest.symbols().iter().any(|s| **s == *symbol)).then_some((factor, rest))
}

/// Reads the ranges of symbols.
fn ranges(im: &mut Importer<'_>, p: &ExportedProgram, required: &mut Required) {
    for (text, range) in &p.range_constraints {
        let Ok(raw) = guards::expression(text, &|s| Dim::sym(s)) else { continue };
        if raw.symbols().iter().any(|s| !im.symbols.contains_key(&**s)) {
            im.ranges.insert(text.clone(), *range);
            continue;
        }
        let named = |a: &Atom| if let Atom::Sym(s) = a { Some(im.symbol(s)) } else { None };
        let d = raw.subst(&named, &[]);
        // Torch declares a minimum of 2 for every dynamic dimension, and runs the program with 1 too. An extent of 0 is excluded, because
        // simplifications in the exported graph need not hold for it.
        let least = range.min_val.map(|n| if n == 2 { 1 } else { n });
        if let Some(least) = least.filter(|n| *n > 0) {
            im.least.insert(text.clone(), least);
            required.at_most.push((Poly::constant(least), d.clone()));
        }
        if let Some(most) = range.max_val.filter(|n| *n < 1 << 31) {
            required.at_most.push((d, Poly::constant(most)));
        }
    }
}

/// An error for a dimension of the options that does not exist or has an impossible value.
fn unusable(name: &str, v: i64, order: &[Arc<str>]) -> Option<Diagnostic> {
    if v < 0 {
        let d = Diagnostic::model(format!("dimension {name} cannot be {v}"));
        return Some(d.help("give a size that is not negative"));
    }
    if order.iter().any(|s| **s == *name) {
        return None;
    }
    let d = Diagnostic::model(format!("the program's inputs have no symbolic dimension `{name}`"));
    Some(match order.is_empty() {
        true => d.help("all of its dimensions are constants"),
        false => d.help(format!("it has: {}", order.join(", "))),
    })
}
