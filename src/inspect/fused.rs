//! The model's operators that the kernels of each family compute, which shows what has been fused.

use super::{family, table};
use crate::Program;
use std::collections::{BTreeMap, BTreeSet};

/// The most operators of a family that the text names.
const NAMED: usize = 6;

/// The operators that the kernels of one family compute. See the example of [`fused`].
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct FamilyOperators {
    /// The family's name, as in [`family`].
    pub family: String,
    /// Its dispatches; one that repeats counts once.
    pub dispatches: usize,
    /// The number of nodes of the model that they compute. A node that several dispatches compute is counted for the first
    /// of them.
    pub nodes: usize,
    /// The number of these nodes for each operator, the most frequent one first.
    pub operators: Vec<(String, usize)>,
}

/// The operators of each family, the family with the most nodes first.
///
/// ```
/// # fn main() -> Result<(), wgfc::Error> {
/// # let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/small/mlp/model.onnx");
/// # let program = wgfc::compile_file(&path, &Default::default())?;
/// use wgfc::inspect::{fused, fused_text};
/// assert!(!fused(&program).is_empty());
/// println!("{}", fused_text(&program));
/// # Ok(()) }
/// ```
pub fn fused(program: &Program) -> Vec<FamilyOperators> {
    let mut seen = BTreeSet::new();
    let mut all: BTreeMap<&str, (usize, usize, BTreeMap<&str, usize>)> = BTreeMap::new();
    for (i, d) in program.dispatches.iter().enumerate() {
        let (dispatches, nodes, operators) = all.entry(family(program, i)).or_default();
        *dispatches += 1;
        for node in d.nodes.iter().filter(|n| seen.insert(*n)) {
            *nodes += 1;
            if let Some(operator) = program.stats.operators.get(node) {
                *operators.entry(operator).or_default() += 1;
            }
        }
    }
    let mut out: Vec<FamilyOperators> = all
        .into_iter()
        .map(|(family, (dispatches, nodes, operators))| {
            let mut operators: Vec<(String, usize)> =
                operators.into_iter().map(|(o, n)| (o.to_owned(), n)).collect();
            operators.sort_by_key(|o| std::cmp::Reverse(o.1));
            FamilyOperators { family: family.to_owned(), dispatches, nodes, operators }
        })
        .collect();
    out.sort_by_key(|f| std::cmp::Reverse(f.nodes));
    out
}

/// A table of [`fused`], and the sizes of groups of merged products.
pub fn fused_text(program: &Program) -> String {
    let heading = ["family", "dispatches", "nodes", "operators of the model"];
    let mut rows = vec![heading.map(String::from).to_vec()];
    for f in fused(program) {
        let named = f.operators.iter().take(NAMED).map(|(o, n)| format!("{o} × {n}"));
        let mut operators: Vec<String> = named.collect();
        if let Some(more) = f.operators.len().checked_sub(NAMED).filter(|n| *n > 0) {
            operators.push(format!("{more} more"));
        }
        rows.push(vec![f.family, f.dispatches.to_string(), f.nodes.to_string(), operators.join(", ")]);
    }
    let mut out = match rows.len() {
        1 => String::new(),
        _ => table(&rows, &[false, true, true, false]),
    };
    let mut groups: BTreeMap<usize, usize> = BTreeMap::new();
    program.stats.merged.iter().for_each(|n| *groups.entry(*n).or_default() += 1);
    let groups: Vec<String> =
        groups.iter().map(|(products, times)| format!("{times} × {products} products")).collect();
    if !groups.is_empty() {
        out += &format!("  merged, since they share an operand: {}\n", groups.join(", "));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_count_once_and_frequent_operators_come_first() {
        let path =
            std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/small/attention/model.onnx");
        let mut program = crate::compile_file(&path, &crate::Options::default()).unwrap();
        // A further dispatch, whose nodes another one computes already.
        program.dispatches.extend(program.dispatches.last().cloned());
        program.stats.merged = vec![3, 2, 3];
        let families = fused(&program);
        let distinct: BTreeSet<&String> = program.dispatches.iter().flat_map(|d| &d.nodes).collect();
        assert_eq!(families.iter().map(|f| f.nodes).sum::<usize>(), distinct.len());
        assert_eq!(families.iter().map(|f| f.dispatches).sum::<usize>(), program.dispatches.len());
        assert!(families.iter().all(|f| f.operators.is_sorted_by(|a, b| a.1 >= b.1)));
        let attention = families.iter().find(|f| f.family == "attention").unwrap();
        assert!(attention.operators.iter().any(|o| o == &("Softmax".to_owned(), 1)), "{families:?}");
        let text = fused_text(&program);
        assert!(text.contains("Softmax × 1") && text.contains("1 × 2 products, 2 × 3 products"), "{text}");
    }
}
