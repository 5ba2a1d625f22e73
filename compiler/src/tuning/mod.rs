//! Choices that were measured on a device, and what can be measured.
//!
//! How a kernel is cut up is decided by the models in [`emit`](crate::emit), which guess what a device
//! is like. A [`Tuning`] is a table of choices made by measurement: emission looks a kernel up by its
//! [`key`] and takes what it finds, if it is one of the [`candidates`] that the models would choose
//! from too. What it finds there otherwise is ignored, so that no table makes a wrong program.
//!
//! A key is text: what the choice obviously depends on, for people, and a fingerprint of all the
//! kernel does, so that what is computed before and after the sums counts. Names and numbers of
//! tensors do not count, nor does where in a state a kernel reads and writes: caches of any capacity
//! share their choices.
//!
//! [`tunable`] lists what of a model can be measured, and [`Single`] is a program of one kernel to do it
//! with. The table is an option of the compilation: the same model and options give the same bytes.

mod single;

pub use single::{Candidate, Single, Tunable, Values, complete, tunable};

use crate::Diagnostic;
use crate::emit::{EmitContext, attention, geometry, matmul, row};
use crate::kernel::{Family, Kernel, KernelGraph, TensorKind};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt::{self, Write};
use std::hash::Hasher;
use wgfc_ir::Poly;

/// The version of the JSON form written and the only one read.
pub const VERSION: u32 = 1;

/// How a kernel is cut up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Choice {
    /// A product of matrices.
    Product(geometry::Geometry),
    /// Attention.
    Attention(attention::Geometry),
    /// Reductions over rows.
    Row(row::Geometry),
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Choice::Product(g) => g.fmt(f),
            Choice::Attention(g) => g.fmt(f),
            Choice::Row(g) => g.fmt(f),
        }
    }
}

/// Measured choices by [`key`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tuning {
    /// The choices.
    pub choices: BTreeMap<String, Choice>,
}

#[derive(Serialize, Deserialize)]
struct File {
    version: u32,
    /// What they were measured on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    device: Option<String>,
    choices: BTreeMap<String, Choice>,
}

impl Tuning {
    /// The JSON form; `device` says for people what the choices were measured on.
    ///
    /// # Errors
    /// None that is known of.
    pub fn to_json(&self, device: Option<&str>) -> Result<String, String> {
        let file =
            File { version: VERSION, device: device.map(str::to_owned), choices: self.choices.clone() };
        serde_json::to_string_pretty(&file).map(|s| s + "\n").map_err(|e| e.to_string())
    }

    /// Reads the JSON form.
    ///
    /// # Errors
    /// What is wrong with it, in words that follow the file's name.
    pub fn from_json(text: &[u8]) -> Result<Tuning, String> {
        #[derive(Deserialize)]
        struct Version {
            version: u64,
        }
        match serde_json::from_slice(text) {
            Ok(Version { version }) if version == u64::from(VERSION) => {}
            Ok(Version { version }) => {
                return Err(format!(
                    "is a tuning table of version {version}; this wgfc reads version {VERSION}"
                ));
            }
            Err(e) => return Err(format!("is not a tuning table: {e}")),
        }
        let file: File = serde_json::from_slice(text).map_err(|e| format!("is not a tuning table: {e}"))?;
        Ok(Tuning { choices: file.choices })
    }
}

/// The table's choice for a kernel, if there is one that the device can run.
pub fn find(kernel: &Kernel, cx: &EmitContext) -> Option<Choice> {
    if cx.tuning.choices.is_empty() || !has_choice(kernel) {
        return None;
    }
    let choice = cx.tuning.choices.get(&key(cx.graph, kernel))?;
    candidates(kernel, cx).ok()?.contains(choice).then_some(*choice)
}

fn has_choice(kernel: &Kernel) -> bool {
    matches!(kernel.family, Family::Matmul(_) | Family::Attention(_) | Family::Row(_))
}

/// All choices that a device can run on a kernel, those first that the models of the families prefer.
///
/// # Errors
/// As [`emit`](crate::emit::emit).
pub fn candidates(kernel: &Kernel, cx: &EmitContext) -> Result<Vec<Choice>, Diagnostic> {
    Ok(match &kernel.family {
        Family::Matmul(_) => {
            let Some(p) = matmul::problem(kernel) else { return Ok(vec![]) };
            let mut all = geometry::candidates(&p, cx.profile);
            all.sort_by(|a, b| geometry::cycles(*a, &p).total_cmp(&geometry::cycles(*b, &p)));
            all.into_iter().map(Choice::Product).collect()
        }
        Family::Attention(_) => {
            attention::candidates(kernel, cx.profile).into_iter().map(Choice::Attention).collect()
        }
        Family::Row(_) => row::candidates(kernel, cx)?.into_iter().map(Choice::Row).collect(),
        Family::Map(_) | Family::PrefixScan(_) | Family::Loop(_) | Family::StagedLoop(_) => vec![],
    })
}

/// What a kernel is known by in a table. See the [module](self).
pub fn key(graph: &KernelGraph, kernel: &Kernel) -> String {
    let mut tensors = kernel.reads();
    tensors.extend(kernel.writes().into_iter().filter(|t| !tensors.contains(t)).collect::<Vec<_>>());
    let is_state = |t: usize| matches!(graph.tensors[t].kind, TensorKind::State { .. });
    let place = |t: usize, offset: &Poly| {
        let number = tensors.iter().position(|x| *x == t).unwrap_or_default();
        (number, if is_state(t) { Poly::ZERO } else { offset.clone() })
    };
    let mut text = kernel.moved(&place).structure();
    for t in tensors.iter() {
        let ty = &graph.tensors[*t].ty;
        if is_state(*t) {
            // Guards compare positions with the capacity.
            for extent in &ty.shape {
                text = text.replace(&format!("index({extent})"), "index(extent)");
            }
            let _ = write!(text, "{}", ty.dtype);
        } else {
            let _ = write!(text, "{ty}");
        }
    }
    let mut hasher = fnv::FnvHasher::default();
    hasher.write(text.as_bytes());
    format!("{} #{:016x}", title(kernel), hasher.finish())
}

/// The part of a [`key`] that says to people what is computed.
pub fn title(kernel: &Kernel) -> String {
    match matmul::problem(kernel) {
        Some(p) => format!("product {p}"),
        None => kernel.family.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use wgfc_codegen_templates::matmul::TileShape;
    use wgfc_codegen_templates::thin::ThinShape;

    fn choice() -> impl Strategy<Value = Choice> {
        let n = any::<u32>;
        let tiled =
            (n(), n(), n(), n(), n(), n()).prop_map(|(rows, cols, k, thread_rows, thread_cols, split)| {
                let t = TileShape { rows, cols, k, thread_rows, thread_cols, split };
                Choice::Product(geometry::Geometry::Tiled(t))
            });
        let thin = (n(), n(), n(), n(), n(), n(), any::<bool>()).prop_map(
            |(rows, k, cols, across, lanes, unroll, depth_first)| {
                let t = ThinShape { rows, k, cols, across, lanes, unroll, depth_first };
                Choice::Product(geometry::Geometry::Thin(t))
            },
        );
        let attention = (n(), n()).prop_map(|(queries, thread_queries)| {
            Choice::Attention(attention::Geometry::Tiled { queries, thread_queries })
        });
        let row = (n(), n()).prop_map(|(threads, lanes)| Choice::Row(row::Geometry { threads, lanes }));
        let plain =
            [Choice::Product(geometry::Geometry::Serial), Choice::Attention(attention::Geometry::Decode)];
        prop_oneof![tiled, thin, attention, row, proptest::sample::select(plain.to_vec())]
    }

    proptest! {
        #[test]
        fn tables_round_trip(choices in proptest::collection::btree_map(".*", choice(), 0..8)) {
            let table = Tuning { choices };
            let text = table.to_json(Some("a device")).unwrap();
            prop_assert_eq!(Tuning::from_json(text.as_bytes()).unwrap(), table);
        }

        #[test]
        fn damaged_tables_are_refused_in_words(
            choices in proptest::collection::btree_map("[a-z]{1,8}", choice(), 1..4),
            at in any::<proptest::sample::Index>(),
            byte in any::<u8>(),
            cut in any::<bool>(),
        ) {
            let mut text = Tuning { choices }.to_json(None).unwrap().into_bytes();
            let i = at.index(text.len());
            if cut { text.truncate(i) } else { text[i] = byte }
            if let Err(e) = Tuning::from_json(&text) {
                prop_assert!(e.starts_with("is "), "{}", e);
            }
        }

        #[test]
        fn anything_can_be_read(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = Tuning::from_json(&bytes);
        }
    }

    #[test]
    fn other_versions_are_named() {
        let e = Tuning::from_json(br#"{"version": 7, "choices": {"x": {"unheard": 1}}}"#).unwrap_err();
        assert!(e.contains("version 7") && e.contains("version 1"), "{e}");
    }
}
