//! Parameters, buffers and constants that are overlapping views of one storage that the program writes: a state and views of it.

use super::messages::{InputSpec, Signature};
use super::weights::{Extent, Table, Weights};
use crate::Diagnostic;
use std::collections::{BTreeMap, BTreeSet};

/// A tensor of the archive that is an input of the graph.
#[derive(Clone, Copy, Debug)]
pub struct Stored<'m> {
    /// The name in the graph.
    pub arg: &'m str,
    /// The qualified name in the module.
    pub name: &'m str,
    /// The table that it is in.
    pub table: Table,
}

impl<'m> Stored<'m> {
    /// The stored tensor of an input, if it has one.
    pub fn of(spec: &'m InputSpec) -> Option<Stored<'m>> {
        let (arg, name, table) = match spec {
            InputSpec::Parameter { arg, name } => (arg, name, Table::State),
            InputSpec::Buffer { arg, name, persistent: true } => (arg, name, Table::State),
            InputSpec::Buffer { arg, name, .. } | InputSpec::Constant { arg, name } => {
                (arg, name, Table::Constants)
            }
            _ => return None,
        };
        Some(Stored { arg, name, table })
    }
}

/// The inputs that are views of others in memory that the program writes.
#[derive(Debug, Default)]
pub struct Shared<'m> {
    /// For each view, by its name in the graph, the tensor that it is a view of.
    pub views: BTreeMap<&'m str, Stored<'m>>,
    /// An error for each group of overlapping tensors of which none contains all others.
    pub errors: Vec<Diagnostic>,
}

/// Finds the shared inputs. `changed` holds the names of the tensors that the program writes, in the graph or in the module.
pub fn find<'m>(weights: &Weights<'_>, signature: &'m Signature, changed: &BTreeSet<&str>) -> Shared<'m> {
    let mut shared = Shared::default();
    let mut storages: BTreeMap<String, Vec<(Stored<'m>, Extent)>> = BTreeMap::new();
    for s in signature.input_specs.iter().filter_map(Stored::of) {
        // A fault of an extent is reported where the tensor is read.
        if let Ok(extent) = weights.extent(s.table, s.name) {
            storages.entry(extent.record.to_string()).or_default().push((s, extent));
        }
    }
    for all in storages.into_values() {
        for together in overlapping(all) {
            let is_changed =
                |(s, _): &(Stored<'_>, Extent)| changed.contains(s.arg) || changed.contains(s.name);
            if together.len() < 2 || !together.iter().any(is_changed) {
                continue;
            }
            let holds = |(_, e): &&(Stored<'_>, Extent)| {
                e.in_order
                    && together.iter().all(|(_, o)| {
                        o.dtype == e.dtype && o.bytes.start >= e.bytes.start && o.bytes.end <= e.bytes.end
                    })
            };
            match together.iter().find(holds) {
                Some((whole, _)) => {
                    let views = together.iter().filter(|(s, _)| s.arg != whole.arg);
                    shared.views.extend(views.map(|(s, _)| (s.arg, *whole)));
                }
                None => {
                    let names: Vec<String> =
                        together.iter().map(|(s, _)| format!("\"{}\"", s.name)).collect();
                    let what = format!(
                        "{} are parts of one storage, one of them is written, and none holds all of it in order",
                        names.join(" and ")
                    );
                    let help = "register the whole as one buffer, and take its parts in forward";
                    shared.errors.push(Diagnostic::unsupported(what).help(help));
                    shared.views.extend(together.iter().map(|(s, _)| (s.arg, *s)));
                }
            }
        }
    }
    shared
}

/// Groups parts of a storage that overlap; each group keeps the given order.
fn overlapping<'m>(mut all: Vec<(Stored<'m>, Extent)>) -> Vec<Vec<(Stored<'m>, Extent)>> {
    all.retain(|(_, e)| !e.bytes.is_empty());
    let mut order: Vec<usize> = (0..all.len()).collect();
    order.sort_by_key(|i| all[*i].1.bytes.start);
    let mut groups: Vec<(usize, Vec<usize>)> = vec![];
    for i in order {
        let bytes = &all[i].1.bytes;
        match groups.last_mut().filter(|(end, _)| bytes.start < *end) {
            Some((end, group)) => {
                *end = bytes.end.max(*end);
                group.push(i);
            }
            None => groups.push((bytes.end, vec![i])),
        }
    }
    let mut all: Vec<Option<(Stored<'m>, Extent)>> = all.into_iter().map(Some).collect();
    let mut taken = |mut group: Vec<usize>| {
        group.sort_unstable();
        group.into_iter().filter_map(|i| all[i].take()).collect()
    };
    groups.into_iter().map(|(_, group)| taken(group)).collect()
}
