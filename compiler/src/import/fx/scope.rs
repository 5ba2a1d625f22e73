//! The values of names, and the memory behind them.
//!
//! Tensors of torch share memory: a view sees what is written through its base and the other way round. Here a *storage* has a
//! value that grows versions; a name is a storage, or a view of one by an index map. What is read of a name is made anew from the
//! storage's newest version, what is written through a view is placed into the whole by the view's index map. So each
//! kind of view has to be followed, and none has to be inverted.

use crate::lower::{Lowering, OpError, Result};
use std::collections::HashMap;
use wgfc_ir::{Dim, GatherAxis, Graph, Op, Poly, Value};

/// A name's tensor.
#[derive(Clone, Debug)]
pub struct Named {
    /// Its value at `version`.
    value: Value,
    storage: usize,
    version: usize,
    view: View,
    /// Whether each of its elements is at a place of its own in memory, by how views were made.
    apart: bool,
}

/// How a name sees its storage.
#[derive(Clone, Debug)]
enum View {
    Whole,
    /// Over the variables of a shape.
    Part(Vec<Dim>, Vec<Poly>),
    /// In a way that is not known: this name and the storage must not be written.
    Unknown,
}

/// Memory.
#[derive(Clone, Debug)]
struct Storage {
    value: Value,
    version: usize,
    /// Names that see it in a way that is not known.
    unknown: Vec<String>,
}

/// A name's value, or that its producer failed.
#[derive(Clone, Debug)]
pub enum Slot {
    /// There.
    Made(Named),
    /// Its producer failed, and has been reported.
    Poisoned,
}

/// The names of a graph.
#[derive(Clone, Debug, Default)]
pub struct Scope {
    names: HashMap<String, Slot>,
    storages: Vec<Storage>,
}

impl Scope {
    /// A name for a tensor in memory of its own.
    pub fn insert(&mut self, name: &str, value: Value) {
        let storage = self.storages.len();
        self.storages.push(Storage { value, version: 0, unknown: vec![] });
        let named = Named { value, storage, version: 0, view: View::Whole, apart: true };
        self.names.insert(name.to_owned(), Slot::Made(named));
    }

    /// Says that a name's producer failed.
    pub fn poison(&mut self, name: &str) {
        self.names.insert(name.to_owned(), Slot::Poisoned);
    }

    /// The slot of a name.
    pub fn get(&self, name: &str) -> Option<&Slot> {
        self.names.get(name)
    }

    /// All names that have a tensor.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.names.keys().map(String::as_str)
    }

    /// The current value of a name.
    ///
    /// # Errors
    /// Where nothing makes it, or what does failed.
    pub fn read(&mut self, to: &mut Lowering, name: &str) -> Result {
        let named = match self.names.get(name) {
            Some(Slot::Made(n)) => n.clone(),
            Some(Slot::Poisoned) => return Err(OpError::reported()),
            None => return Err(OpError::model(format!("nothing makes `{name}`, which it reads"))),
        };
        let storage = &self.storages[named.storage];
        if named.version == storage.version {
            return Ok(named.value);
        }
        let (version, whole) = (storage.version, storage.value);
        let value = match &named.view {
            View::Whole => whole,
            View::Part(shape, index) => to.view(whole, shape.clone(), index.clone())?,
            View::Unknown => return Err(self.unfollowed(named.storage)),
        };
        self.names.insert(name.to_owned(), Slot::Made(Named { value, version, ..named }));
        Ok(value)
    }

    /// A name that sees all of the memory that a name sees.
    pub fn whole(&self, name: &str) -> Option<&str> {
        let Some(Slot::Made(n)) = self.names.get(name) else { return None };
        if matches!(n.view, View::Whole) {
            return self.names.get_key_value(name).map(|(k, _)| k.as_str());
        }
        let sees_all =
            |s: &Slot| matches!(s, Slot::Made(w) if w.storage == n.storage && matches!(w.view, View::Whole));
        self.names.iter().filter(|(_, s)| sees_all(s)).map(|(k, _)| k.as_str()).min()
    }

    /// Whether a value is made of what a name holds now by views alone.
    pub fn is_view(&self, g: &Graph, of: &str, value: Value) -> bool {
        match self.names.get(of) {
            Some(Slot::Made(base)) => !matches!(follow(g, base.value, value), View::Unknown),
            _ => false,
        }
    }

    /// Whether each element of a name is certain to be at a place of its own in memory.
    pub fn is_apart(&self, name: &str) -> bool {
        !matches!(self.names.get(name), Some(Slot::Made(n)) if !n.apart)
    }

    /// Says that several elements of a name may be at one place in memory.
    pub fn repeats(&mut self, name: &str) {
        if let Some(Slot::Made(n)) = self.names.get_mut(name) {
            n.apart = false;
        }
    }

    /// A name for what is the same memory as `of`, as `value`, which was made of what that holds now. Where that is not certain,
    /// neither must be written any more.
    pub fn alias(&mut self, g: &Graph, name: &str, of: &str, value: Value, certain: bool) {
        let Some(Slot::Made(base)) = self.names.get(of).cloned() else { return self.insert(name, value) };
        let storage = &mut self.storages[base.storage];
        let view = match (&base.view, follow(g, base.value, value)) {
            (View::Unknown, _) => View::Unknown,
            _ if !certain => View::Unknown,
            (view, View::Whole) => view.clone(),
            // The last value written through the base is no view of the whole, but lies in it as the base does.
            (View::Part(_, outer), View::Part(shape, inner)) => composed(outer, shape, &inner),
            _ => follow(g, storage.value, value),
        };
        if matches!(view, View::Unknown) {
            storage.unknown.push(name.to_owned());
        }
        let (storage, version) = (base.storage, storage.version);
        let named = Named { value, storage, version, view, apart: base.apart };
        self.names.insert(name.to_owned(), Slot::Made(named));
    }

    /// Writes a tensor of the same type over what a name holds.
    ///
    /// # Errors
    /// Where the name is a view that cannot be followed, or has such views.
    pub fn write(&mut self, to: &mut Lowering, name: &str, value: Value) -> Result<()> {
        let Some(Slot::Made(named)) = self.names.get(name).cloned() else { return Err(OpError::reported()) };
        if !self.storages[named.storage].unknown.is_empty() {
            return Err(self.unfollowed(named.storage));
        }
        let whole = self.storages[named.storage].value;
        let written = match &named.view {
            View::Whole => value,
            View::Part(_, index) => placed(to, whole, value, index)?,
            View::Unknown => return Err(self.unfollowed(named.storage)),
        };
        let storage = &mut self.storages[named.storage];
        storage.version += 1;
        storage.value = written;
        let version = storage.version;
        self.names.insert(name.to_owned(), Slot::Made(Named { value, version, ..named }));
        Ok(())
    }

    /// A second name for the same memory, seen in the same way.
    pub fn rename(&mut self, name: &str, of: &str) {
        if let Some(slot) = self.names.get(of).cloned() {
            self.names.insert(name.to_owned(), slot);
        }
    }

    /// Goes into an inner graph, whose `formals` are the same memory as what they are given. Returns the outer names.
    pub fn enter(&mut self, formals: &[&str], given: &[&str]) -> HashMap<String, Slot> {
        let of = |g: &&str| self.names.get(*g).cloned().unwrap_or(Slot::Poisoned);
        let inner = formals.iter().zip(given).map(|(f, g)| ((*f).to_owned(), of(g))).collect();
        std::mem::replace(&mut self.names, inner)
    }

    /// Comes back out of an inner graph.
    pub fn leave(&mut self, outer: HashMap<String, Slot>) {
        self.names = outer;
    }

    /// The final value of a name's memory, if it has been written.
    pub fn written(&self, name: &str) -> Option<Value> {
        match self.names.get(name)? {
            Slot::Made(n) => {
                let s = &self.storages[n.storage];
                (s.version > 0).then_some(s.value)
            }
            Slot::Poisoned => None,
        }
    }

    fn unfollowed(&self, storage: usize) -> OpError {
        let names = self.storages[storage].unknown.join(", ");
        OpError::unsupported(
            format!("it writes memory of which {names} is a view that cannot be followed, or may be one"),
            "call run_decompositions() on the program: it has no writes then",
        )
    }
}

/// How `value` is made of `whole` by views alone.
fn follow(g: &Graph, whole: Value, value: Value) -> View {
    if value == whole {
        return View::Whole;
    }
    let shape = g.ty(value).shape.clone();
    let mut index: Vec<Poly> = (0..shape.len()).map(Poly::var).collect();
    let mut v = value;
    while v != whole {
        let node = g.node(v.node);
        let Op::View { index: inner, fill: None, .. } = &node.op else { return View::Unknown };
        index = inner.iter().map(|p| p.subst_vars(&index, &[])).collect();
        if index.iter().any(Poly::is_too_large) {
            return View::Unknown;
        }
        v = node.inputs[0];
    }
    View::Part(shape, index)
}

/// The shape and the index map of a value that is a part of `whole`, made by views alone.
pub fn part_of(g: &Graph, whole: Value, value: Value) -> Option<(Vec<Dim>, Vec<Poly>)> {
    if let View::Part(shape, index) = follow(g, whole, value) { Some((shape, index)) } else { None }
}

/// A view of a view.
fn composed(outer: &[Poly], shape: Vec<Dim>, inner: &[Poly]) -> View {
    let index: Vec<Poly> = outer.iter().map(|p| p.subst_vars(inner, &[])).collect();
    if index.iter().any(Poly::is_too_large) { View::Unknown } else { View::Part(shape, index) }
}

/// `whole` with `part` at the places that the view `index` of it has.
pub fn placed(to: &mut Lowering, whole: Value, part: Value, index: &[Poly]) -> Result {
    let large = to.shape(whole);
    // Memory that stays from run to run is written only where it changes.
    let stays = matches!(to.graph.node(whole.node).op, Op::Input | Op::Scatter { .. });
    if let Some((dropped, spread)) = spread(index, to.rank(part)) {
        let mut small = to.shape(part);
        dropped.iter().for_each(|d| small.insert(*d, Dim::ONE));
        // Along one axis a range of neighbours, along the others everything: three parts, of which two may be empty.
        let identical = |d: &usize| spread[*d].as_var() == Some(*d) && large[*d] == small[*d];
        let others: Vec<usize> = (0..large.len()).filter(|d| !identical(d)).collect();
        if let [axis] = others[..]
            && !stays
        {
            let start = &spread[axis] - &Poly::var(axis);
            if start.vars().is_empty() && start.data().is_empty() {
                let end = &start + &small[axis];
                let part = to.unsqueeze(part, &dropped)?;
                let mut parts = between(to, whole, axis, &Poly::ZERO, &start)?;
                parts.push(part);
                parts.extend(between(to, whole, axis, &end, &large[axis])?);
                return Ok(to.concat(&parts, axis)?);
            }
        }
        if others.is_empty() {
            return Ok(to.unsqueeze(part, &dropped)?);
        }
    }
    let index = index.iter().cloned().map(GatherAxis::Affine).collect();
    Ok(to.push(Op::Scatter { reduce: None, index }, &[whole, part])?)
}

/// For a view of `rank` axes that are axes of the whole in their order, and one place along each of the others: these others,
/// and the view with an axis of one element for each of them.
fn spread(index: &[Poly], rank: usize) -> Option<(Vec<usize>, Vec<Poly>)> {
    let missing = index.len().checked_sub(rank)?;
    let (mut dropped, mut out, mut next) = (vec![], vec![], 0);
    for (d, at) in index.iter().enumerate() {
        if at.vars().is_empty() && dropped.len() < missing {
            dropped.push(d);
            out.push(at + &Poly::var(d));
            continue;
        }
        let offset = at - &Poly::var(next);
        if !offset.vars().is_empty() {
            return None;
        }
        out.push(&offset + &Poly::var(d));
        next += 1;
    }
    (next == rank).then_some((dropped, out))
}

/// The elements from `start` to `end` along an axis; of a concatenation its parts.
fn between(to: &mut Lowering, whole: Value, axis: usize, start: &Dim, end: &Dim) -> Result<Vec<Value>> {
    if start == end {
        return Ok(vec![]);
    }
    let node = to.graph.node(whole.node);
    let parts = match node.op {
        Op::Concat { axis: a } if a == axis => node.inputs.clone(),
        _ => vec![],
    };
    let known = (start.as_const(), end.as_const());
    let extents: Option<Vec<i64>> = parts.iter().map(|p| to.shape(*p)[axis].as_const()).collect();
    let ((Some(start), Some(end)), Some(extents), false) = (known, extents, parts.is_empty()) else {
        return Ok(vec![to.slice(whole, axis, start, 1, &(end - start))?]);
    };
    let (mut out, mut at) = (vec![], 0);
    for (part, extent) in parts.into_iter().zip(extents) {
        let (from, until) = ((start - at).max(0), (end - at).min(extent));
        if from < until {
            let all = (from, until) == (0, extent);
            out.push(if all { part } else { to.slice(part, axis, &from.into(), 1, &(until - from).into())? });
        }
        at += extent;
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use wgfc_ir::{DType, Scalar};

    /// Rows that are written one after another, and parts of them, are one concatenation.
    #[test]
    fn places_along_an_axis_are_joined() {
        let mut graph = Graph::default();
        let mut to = Lowering::new(&mut graph);
        let dims = |d: &[i64]| -> Vec<Dim> { d.iter().map(|n| (*n).into()).collect() };
        let row =
            |to: &mut Lowering, v: f64| to.full(&dims(&[2, 4]), Scalar::from_f64(DType::F32, v)).unwrap();
        let mut whole = to.full(&dims(&[2, 3, 4]), Scalar::from_f64(DType::F32, 0.0)).unwrap();
        for (at, v) in [(0, 1.0), (2, 2.0), (1, 3.0), (0, 4.0)] {
            let part = row(&mut to, v);
            whole = placed(&mut to, whole, part, &[Poly::var(0), Poly::constant(at), Poly::var(1)]).unwrap();
            assert_eq!(to.shape(whole), dims(&[2, 3, 4]));
        }
        let node = to.graph.node(whole.node);
        assert!(matches!(node.op, Op::Concat { axis: 1 }) && node.inputs.len() == 3, "{:?}", node.op);
        // One element of each row is not a range along one axis.
        let part = to.full(&dims(&[2]), Scalar::from_f64(DType::F32, 5.0)).unwrap();
        let index = [Poly::var(0), Poly::constant(1), Poly::constant(2)];
        let y = placed(&mut to, whole, part, &index).unwrap();
        assert!(matches!(to.graph.node(y.node).op, Op::Scatter { .. }));
    }
}
