//! Emission: a [`Kernel`] to WGSL.
//!
//! [`emit`] renders the family's template around statements that [`wgsl`] writes for the kernel's
//! expressions, then naga parses and validates the text. The text depends only on the kernel's
//! structure, never on names or numbers of tensors, so that equal layers share one pipeline.

mod accumulator;
pub mod attention;
mod blocks;
pub mod cooperative;
mod halves;
mod handle;
mod held;
pub mod index;
mod integer_tiles;
mod integers;
mod lanes;
pub mod link;
pub mod loops;
pub mod matmul;
pub mod memory;
pub mod ops;
pub mod prefix_scan;
pub mod row;
pub mod sort;
pub mod spread_loop;
pub mod staged_loop;
pub mod thin;
mod tidy;
pub mod wgsl;
pub mod window;

use crate::Diagnostic;
use crate::device::DeviceProfile;
use crate::kernel::bindings::Bindings;
use crate::kernel::{Expr, ExprId, Family, Kernel, KernelGraph, Store, TensorId};
use crate::nest;
use crate::schedule::{Schedule, locate};
use rustc_hash::FxHashMap;
use std::sync::Arc;
use wgfc_ir::program::{self, Access};
use wgfc_ir::{Dim, Poly};

/// The facts that emission needs beside the kernel and its schedule.
#[derive(Clone, Copy)]
pub struct EmitContext<'a> {
    /// Where the kernel's tensors are described.
    pub graph: &'a KernelGraph,
    /// The program's symbols, in the order of the `Dims` uniform.
    pub symbols: &'a [Arc<str>],
    /// The text that the target takes.
    pub target: Target,
    /// The comment on each tensor of the kernel where it is declared.
    pub legend: Option<&'a Legend>,
}

impl<'a> EmitContext<'a> {
    /// For kernels of a graph.
    pub fn new(graph: &'a KernelGraph, symbols: &'a [Arc<str>], target: Target) -> EmitContext<'a> {
        EmitContext { graph, symbols, target, legend: None }
    }
}

/// The uses of each tensor in a kernel, in words.
#[derive(Clone, Debug, Default)]
pub struct Legend(FxHashMap<TensorId, Entry>);

/// The description of a tensor.
#[derive(Clone, Debug)]
struct Entry {
    /// The name of its binding, before it is numbered.
    name: &'static str,
    about: String,
}

impl Legend {
    /// The use of a tensor.
    pub fn about(&self, t: TensorId) -> Option<&str> {
        self.0.get(&t).map(|e| e.about.as_str())
    }

    /// The names of bindings: after their uses, several of one use by number.
    fn names(legend: Option<&Legend>, bindings: &Bindings) -> Vec<String> {
        let bases: Vec<&str> = bindings
            .list
            .iter()
            .map(|b| legend.and_then(|l| l.0.get(&b.tensor)).map_or("buffer", |e| e.name))
            .collect();
        let number = |(i, base): (usize, &&str)| {
            let same = |others: &[&str]| others.iter().filter(|b| *b == base).count();
            if same(&bases) == 1 {
                format!("{base}_data")
            } else {
                format!("{base}{}_data", same(&bases[..i]))
            }
        };
        bases.iter().enumerate().map(number).collect()
    }

    /// The legend of a kernel as fusion made it.
    pub fn of(kernel: &Kernel, graph: &KernelGraph) -> Legend {
        let mut uses: FxHashMap<TensorId, Vec<&str>> = FxHashMap::default();
        let mut add = |t: TensorId, what: &'static str| {
            let all = uses.entry(t).or_default();
            if !all.contains(&what) {
                all.push(what);
            }
        };
        // Expressions reached from all roots of a role are looked at once.
        let mut roles: Vec<(&'static str, Vec<ExprId>)> = vec![];
        let stored = kernel.all_stores().flat_map(Store::reads).map(|e| ("results", e));
        for (role, root) in kernel.family.roles().into_iter().chain(stored) {
            match roles.iter_mut().find(|(r, _)| *r == role) {
                Some((_, roots)) => roots.push(root),
                None => roles.push((role, vec![root])),
            }
        }
        for (role, roots) in &roles {
            for id in kernel.body.reachable(roots) {
                if let Expr::Load { tensor, .. } = kernel.body.expr(id) {
                    add(*tensor, role);
                }
            }
        }
        for t in kernel.writes() {
            add(t, "written");
        }
        let dtype = |t: TensorId| graph.tensors.get(t).map_or(String::new(), |t| t.ty.dtype.to_string());
        let entry = |t: TensorId, what: &[&str]| Entry {
            name: what.first().map_or("buffer", |w| name_of(w)),
            about: format!("{}: {}", dtype(t), what.join(", ")),
        };
        Legend(uses.into_iter().map(|(t, what)| (t, entry(t, &what))).collect())
    }
}

/// The name of a binding that is used so.
fn name_of(role: &str) -> &'static str {
    match role {
        "first operand" => "lhs",
        "second operand" => "rhs",
        "queries" => "query",
        "keys" => "key",
        "values" => "value",
        "mask" => "mask",
        "reduced" | "combined" | "summed" => "terms",
        "initial" => "initial",
        "each step" => "step",
        "first step" => "first_step",
        "written" => "output",
        _ => "input",
    }
}

/// The properties of a device that show in the text whatever the schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// Whether kernels may use `f16`.
    pub f16: bool,
    /// Workgroups along one dimension of a dispatch.
    pub max_workgroups: u32,
    /// Whether matrices are written as in Chrome's extension (`chromium-experimental-subgroup-matrix`), not as in wgpu's.
    pub chromium_matrices: bool,
}

impl From<&DeviceProfile> for Target {
    fn from(d: &DeviceProfile) -> Target {
        Target {
            f16: d.f16,
            max_workgroups: d.max_workgroups,
            chromium_matrices: d.subgroup_matrix && !d.cooperative_matrix,
        }
    }
}

/// A kernel's text and what must be known to dispatch it.
#[derive(Clone, Debug)]
pub struct EmittedKernel {
    /// Which family made it.
    pub family: &'static str,
    /// The module, with one entry point `main`.
    pub wgsl: String,
    /// Invocations of a workgroup.
    pub workgroup_size: [u32; 3],
    /// The tensor at each binding of group 0, and how it is used.
    pub bindings: Vec<(TensorId, Access)>,
    /// Whether the binding after those is the `Dims` uniform.
    pub uses_dims: bool,
    /// Bytes of workgroup memory.
    pub workgroup_bytes: u32,
    /// WebGPU features it needs.
    pub features: Vec<String>,
    /// The size its subgroups must have.
    pub subgroup_size: Option<u32>,
    /// Workgroup counts.
    pub workgroups: [Dim; 3],
}

impl EmittedKernel {
    /// The kernel as programs have it.
    pub fn named(&self, name: String) -> program::Kernel {
        program::Kernel {
            name,
            family: self.family.to_owned(),
            wgsl: self.wgsl.clone(),
            workgroup_size: self.workgroup_size,
            bindings: self.bindings.iter().map(|b| b.1).collect(),
            uses_dims: self.uses_dims,
            workgroup_bytes: self.workgroup_bytes,
            features: self.features.clone(),
            subgroup_size: self.subgroup_size,
        }
    }

    /// Has naga parse and validate the text.
    ///
    /// # Errors
    /// `Internal`, with the text, when naga refuses it or it contradicts what is declared beside it.
    #[cfg(feature = "validate")]
    pub fn check(&self) -> Result<(), Diagnostic> {
        wgfc_ir::check::check(&self.named(String::new())).map_err(Diagnostic::internal)
    }
}

/// Writes one kernel as its schedule says.
///
/// # Errors
/// `Unsupported` where a static offset does not fit 31 bits; `Internal` where the kernel contradicts
/// itself, the schedule is of another family or the text does not validate (the text is part of the message).
pub fn emit(kernel: &Kernel, schedule: &Schedule, cx: &EmitContext) -> Result<EmittedKernel, Diagnostic> {
    let legend = Legend::of(kernel, cx.graph);
    let cx = &EmitContext { legend: Some(&legend), ..*cx };
    let emitted = match (&kernel.family, schedule) {
        (f, s) if let Some(scheduled) = s.scheduled(kernel, cx.graph) => scheduled
            .map_err(Diagnostic::internal)
            .and_then(|scheduled| loops::emit(&scheduled, &nest::tensors(kernel), f.name(), cx)),
        (Family::Row(_), Schedule::Row(s)) => row::emit(kernel, s, cx),
        (Family::PrefixScan(k), Schedule::PrefixScan(s)) => prefix_scan::emit(kernel, k, s, cx),
        (Family::Sort(k), Schedule::Sort(s)) => sort::emit(kernel, k, s, cx),
        (Family::StagedLoop(k), Schedule::SpreadLoop(s)) => spread_loop::emit(kernel, k, s, cx),
        (Family::StagedLoop(k), Schedule::StagedLoop(s)) => staged_loop::emit(kernel, k, s.threads, None, cx),
        (Family::StagedLoop(k), Schedule::BlockedLoop(s)) => {
            staged_loop::emit(kernel, k, s.threads, Some(s), cx)
        }
        (Family::Matmul(_), Schedule::Product(s)) => matmul::emit(kernel, s, cx),
        (Family::Attention(_), Schedule::Attention(s)) => attention::emit(kernel, s, cx),
        (f, s) => Err(Diagnostic::internal(format!("`{s}` is no schedule of {f}"))),
    };
    #[cfg(feature = "validate")]
    let emitted = emitted.and_then(|k| k.check().map(|()| k));
    emitted.map_err(|d| locate(d, kernel))
}

/// Workgroups that cover `groups` in the x-then-y order in which templates number them.
pub fn fold_workgroups(groups: &Dim, max: u32) -> [Dim; 3] {
    let max = i64::from(max.max(1));
    match groups.as_const() {
        Some(g) if g <= max => [groups.clone(), Poly::ONE, Poly::ONE],
        Some(g) => {
            let y = (g + max - 1) / max;
            [Poly::constant((g + y - 1) / y), Poly::constant(y), Poly::ONE]
        }
        None => [groups.min_of(&Poly::constant(max), &[]), groups.ceil_div(max), Poly::ONE],
    }
}

/// A template that does not render.
pub(crate) fn template_error(e: wgfc_codegen_templates::RenderError) -> Diagnostic {
    Diagnostic::internal(e.to_string())
}
