//! The values of names, and the memory that they share.
//!
//! Tensors of torch share memory: writes through a view are visible in its base, and the reverse. Here a *storage* has a value with a
//! version that each write increments; a name is the whole storage, or a view of it by an index map. Reading a name applies its view to
//! the newest version of the storage; writing through a view scatters the new elements into the whole by the view's index map. Index maps
//! of views are composed, and never need to be inverted.

use crate::lower::{Lowering, OpError, Result};
use std::collections::HashMap;
use wgfc_ir::{Dim, GatherAxis, Graph, Op, Poly, Value};

/// The tensor of a name.
#[derive(Clone, Debug)]
pub struct Named {
    /// Its value at `version`.
    value: Value,
    storage: usize,
    version: usize,
    view: View,
    /// Whether the views that made it leave each of its elements an address of its own.
    apart: bool,
}

/// The relation of a name to its storage.
#[derive(Clone, Debug)]
enum View {
    Whole,
    /// A shape, and the index of each axis of the whole over the variables of that shape.
    Part(Vec<Dim>, Vec<Poly>),
    /// An unknown view: neither this name nor the storage may be written.
    Unknown,
}

/// Memory that names share.
#[derive(Clone, Debug)]
struct Storage {
    value: Value,
    version: usize,
    /// The names that are unknown views of it.
    unknown: Vec<String>,
}

/// The state of a name: it has a tensor, or its producer failed.
#[derive(Clone, Debug)]
pub enum Slot {
    /// The name has a tensor.
    Made(Named),
    /// The producer failed, and the error has been reported.
    Poisoned,
}

/// The names of a graph.
#[derive(Clone, Debug, Default)]
pub struct Scope {
    names: HashMap<String, Slot>,
    storages: Vec<Storage>,
}

impl Scope {
    /// Adds a name for a tensor in memory of its own.
    pub fn insert(&mut self, name: &str, value: Value) {
        let storage = self.storages.len();
        self.storages.push(Storage { value, version: 0, unknown: vec![] });
        let named = Named { value, storage, version: 0, view: View::Whole, apart: true };
        self.names.insert(name.to_owned(), Slot::Made(named));
    }

    /// Marks a name whose producer failed.
    pub fn poison(&mut self, name: &str) {
        self.names.insert(name.to_owned(), Slot::Poisoned);
    }

    /// The slot of a name.
    pub fn get(&self, name: &str) -> Option<&Slot> {
        self.names.get(name)
    }

    /// All names.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.names.keys().map(String::as_str)
    }

    /// The current value of a name.
    ///
    /// # Errors
    /// No node makes the name, or its producer failed.
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

    /// A name for the whole memory that the given name is a view of.
    pub fn whole(&self, name: &str) -> Option<&str> {
        let Some(Slot::Made(n)) = self.names.get(name) else { return None };
        if matches!(n.view, View::Whole) {
            return self.names.get_key_value(name).map(|(k, _)| k.as_str());
        }
        let sees_all =
            |s: &Slot| matches!(s, Slot::Made(w) if w.storage == n.storage && matches!(w.view, View::Whole));
        self.names.iter().filter(|(_, s)| sees_all(s)).map(|(k, _)| k.as_str()).min()
    }

    /// Whether `value` is made from the current value of `of` by views alone.
    pub fn is_view(&self, g: &Graph, of: &str, value: Value) -> bool {
        match self.names.get(of) {
            Some(Slot::Made(base)) => !matches!(follow(g, base.value, value), View::Unknown),
            _ => false,
        }
    }

    /// Whether each element of a name is certain to have an address of its own.
    pub fn is_apart(&self, name: &str) -> bool {
        !matches!(self.names.get(name), Some(Slot::Made(n)) if !n.apart)
    }

    /// Declares that several elements of a name may have the same address.
    pub fn repeats(&mut self, name: &str) {
        if let Some(Slot::Made(n)) = self.names.get_mut(name) {
            n.apart = false;
        }
    }

    /// Adds a name that shares the memory of `of`; its `value` was made from the current value of `of`. If sharing is not `certain`,
    /// neither may be written afterwards.
    pub fn alias(&mut self, g: &Graph, name: &str, of: &str, value: Value, certain: bool) {
        let Some(Slot::Made(base)) = self.names.get(of).cloned() else { return self.insert(name, value) };
        let storage = &mut self.storages[base.storage];
        let view = match (&base.view, follow(g, base.value, value)) {
            (View::Unknown, _) => View::Unknown,
            _ if !certain => View::Unknown,
            (view, View::Whole) => view.clone(),
            // The base's value may come from the last write, and then is no view of the whole; the base's own index map is used.
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

    /// Replaces the content of a name by a tensor of the same type.
    ///
    /// # Errors
    /// The name is an unknown view, or its storage has such views.
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

    /// Adds a second name with the same view of the same memory.
    pub fn rename(&mut self, name: &str, of: &str) {
        if let Some(slot) = self.names.get(of).cloned() {
            self.names.insert(name.to_owned(), slot);
        }
    }

    /// Enters an inner graph, whose inputs `formals` share the memory of the names in `given`. Returns the outer names.
    pub fn enter(&mut self, formals: &[&str], given: &[&str]) -> HashMap<String, Slot> {
        let of = |g: &&str| self.names.get(*g).cloned().unwrap_or(Slot::Poisoned);
        let inner = formals.iter().zip(given).map(|(f, g)| ((*f).to_owned(), of(g))).collect();
        std::mem::replace(&mut self.names, inner)
    }

    /// Leaves an inner graph and restores the outer names.
    pub fn leave(&mut self, outer: HashMap<String, Slot>) {
        self.names = outer;
    }

    /// The final value of the memory of a name, if it has been written.
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
            format!("it writes memory of which {names} may be a view that cannot be traced"),
            "call run_decompositions() on the program, which removes the writes",
        )
    }
}

/// The view of `whole` that `value` is, if a chain of views leads from one to the other.
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

/// The composition of two views.
fn composed(outer: &[Poly], shape: Vec<Dim>, inner: &[Poly]) -> View {
    let index: Vec<Poly> = outer.iter().map(|p| p.subst_vars(inner, &[])).collect();
    if index.iter().any(Poly::is_too_large) { View::Unknown } else { View::Part(shape, index) }
}

/// `whole` with the elements that the view `index` selects replaced by `part`.
pub fn placed(to: &mut Lowering, whole: Value, part: Value, index: &[Poly]) -> Result {
    let large = to.shape(whole);
    // A state is updated by a scatter, which writes only the elements that change.
    let stays = matches!(to.graph.node(whole.node).op, Op::Input | Op::Scatter { .. });
    if let Some((dropped, spread)) = spread(index, to.rank(part)) {
        let mut small = to.shape(part);
        dropped.iter().for_each(|d| small.insert(*d, Dim::ONE));
        // A range along one axis and all of the other axes: the result is a concatenation of the part before, the new part and the part
        // after.
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

/// For a view that selects one position along some axes and keeps the other `rank` axes in order: the axes of single positions, and the
/// index map with an axis of extent 1 for each of them.
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

/// The elements from `start` to `end` along an axis. A concatenation along that axis is split into its operands.
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

    /// Rows that are written one after another, and slices of them, become one concatenation.
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
