//! Several plans over one store of weights, and where the weights' bytes are.
//!
//! Plans of a bundle are the same model compiled in several ways: for one token and for many, with `f16` and without.
//! Whoever runs it takes for each run the first plan that its device can run and that the inputs fit.

use crate::program::{Buffer, BufferKind, FORMAT_VERSION, Kernel, Program};
use crate::recipe::Recipes;
use crate::remote::Stretch;
use crate::tensor::{Data, Tensor};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};

/// Plans over one store of weights, and on the same states.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Bundle {
    /// [`FORMAT_VERSION`].
    pub version: u32,
    /// The version that made it: `wgfc 0.1.0`.
    pub producer: String,
    /// The plans; those that come first are preferred.
    pub plans: Vec<Plan>,
    /// In files, where the weights are; absent where all of them lie beside the plan.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weights: Option<Recipes>,
}

/// One of the plans of a [`Bundle`].
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Plan {
    /// The name that people give it: `decode`, `f16`.
    pub name: String,
    /// The abilities that a device must have to run it.
    pub needs: Needs,
    /// The plan itself.
    #[serde(flatten)]
    pub program: Program,
}

/// The abilities that a device must have to run a plan.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Needs {
    /// WebGPU's names of features, in order.
    #[serde(default)]
    pub features: Vec<String>,
    /// The least that limits must be, by WebGPU's names.
    #[serde(default)]
    pub limits: BTreeMap<String, u64>,
    /// Sizes, of which all subgroups must have one; absent where it does not matter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subgroup_sizes: Option<Vec<u32>>,
}

/// WebGPU's name of a limit that plans need: storage buffers of a kernel.
pub const STORAGE_BUFFERS: &str = "maxStorageBuffersPerShaderStage";
/// As [`STORAGE_BUFFERS`]: bytes of workgroup memory.
pub const WORKGROUP_BYTES: &str = "maxComputeWorkgroupStorageSize";
/// As [`STORAGE_BUFFERS`]: invocations of a workgroup.
pub const INVOCATIONS: &str = "maxComputeInvocationsPerWorkgroup";
/// As [`STORAGE_BUFFERS`]: invocations along each axis of a workgroup.
pub const WORKGROUP_SIZE: [&str; 3] =
    ["maxComputeWorkgroupSizeX", "maxComputeWorkgroupSizeY", "maxComputeWorkgroupSizeZ"];

impl Needs {
    /// The abilities that all kernels of a program need together.
    pub fn of(program: &Program) -> Needs {
        let mut features = BTreeSet::new();
        let mut limits = BTreeMap::new();
        let mut sizes: Option<Vec<u32>> = None;
        for k in &program.kernels {
            features.extend(k.features.iter().cloned());
            let invocations = k.workgroup_size.iter().fold(1u64, |n, s| n.saturating_mul(u64::from(*s)));
            let extents = WORKGROUP_SIZE.into_iter().zip(k.workgroup_size.map(u64::from));
            let own = [
                (STORAGE_BUFFERS, k.bindings.len() as u64),
                (WORKGROUP_BYTES, u64::from(k.workgroup_bytes)),
                (INVOCATIONS, invocations),
            ];
            for (name, need) in own.into_iter().chain(extents) {
                let most = limits.entry(name.to_owned()).or_insert(0);
                *most = need.max(*most);
            }
            if let Some(size) = k.subgroup_size {
                // Kernels that want different sizes have none in common.
                sizes.get_or_insert_with(|| vec![size]).retain(|s| *s == size);
            }
        }
        Needs { features: features.into_iter().collect(), limits, subgroup_sizes: sizes }
    }
}

impl Bundle {
    /// A bundle of these programs, each with its name. Weights with the same bytes become one, also of different programs, and
    /// equal kernels have one name.
    pub fn new(programs: Vec<(String, Program)>) -> Bundle {
        let (mut weights, mut kernels) = (Store::default(), Names::default());
        let plans = programs.into_iter().map(|(name, mut program)| {
            weights.unite(&mut program);
            kernels.unite(&mut program.kernels);
            Plan { name, needs: Needs::of(&program), program }
        });
        let producer = concat!("wgfc ", env!("CARGO_PKG_VERSION")).to_owned();
        Bundle { version: FORMAT_VERSION, plans: plans.collect(), producer, weights: None }
    }

    /// All weights, each once: in the order in which the plans use them first, then those that none uses.
    pub fn store(&self) -> Vec<(&str, &Tensor)> {
        let mut seen = BTreeSet::new();
        let mut all: Vec<(&str, &Tensor)> = vec![];
        let used = self.plans.iter().flat_map(|p| used(&p.program).into_iter().map(move |n| (p, n)));
        let rest = self.plans.iter().flat_map(|p| p.program.weights.keys().map(move |n| (p, n.as_str())));
        for (plan, name) in used.chain(rest) {
            if let Some(t) = plan.program.weights.get(name)
                && seen.insert(name)
            {
                all.push((name, t));
            }
        }
        all
    }

    /// All kernels, each once, by name.
    pub fn kernels(&self) -> BTreeMap<&str, &Kernel> {
        self.plans.iter().flat_map(|p| &p.program.kernels).map(|k| (k.name.as_str(), k)).collect()
    }
}

/// The names of the weights that a program uses, in the order in which its dispatches do.
pub fn used(program: &Program) -> Vec<&str> {
    let mut seen = BTreeSet::new();
    let buffers = program.dispatches.iter().flat_map(|d| &d.bindings).filter_map(|b| program.buffers.get(*b));
    let initial = program.states.iter().filter_map(|s| s.initial.as_deref());
    fn weight(b: &Buffer) -> Option<&str> {
        match &b.kind {
            BufferKind::Weight { name } => Some(name),
            _ => None,
        }
    }
    let ran = buffers.filter_map(weight);
    let others = program.buffers.iter().filter_map(weight);
    // Initial values of states are needed before the first dispatch.
    initial.chain(ran).chain(others).filter(|n| seen.insert(*n)).collect()
}

/// Weights by name, none of whose bytes are there twice.
#[derive(Default)]
struct Store {
    weights: BTreeMap<String, Tensor>,
    /// Names of weights by what a glance tells of them.
    alike: HashMap<u64, Vec<String>, BuildHasherDefault<DefaultHasher>>,
}

impl Store {
    /// Adds the weights of a program, which then has those of the store.
    fn unite(&mut self, program: &mut Program) {
        let mut renamed: BTreeMap<String, String> = BTreeMap::new();
        let mut own = BTreeMap::new();
        for (name, tensor) in std::mem::take(&mut program.weights) {
            let (known, tensor) = self.add(&name, tensor);
            own.insert(known.clone(), tensor);
            renamed.insert(name, known);
        }
        program.weights = own;
        let buffers = program.buffers.iter_mut().filter_map(|b| match &mut b.kind {
            BufferKind::Weight { name } => Some(name),
            _ => None,
        });
        for name in buffers.chain(program.states.iter_mut().filter_map(|s| s.initial.as_mut())) {
            if let Some(known) = renamed.get(name) {
                name.clone_from(known);
            }
        }
    }

    fn add(&mut self, name: &str, tensor: Tensor) -> (String, Tensor) {
        let glance = glance(&tensor);
        let alike = self.alike.entry(glance).or_default();
        // The one of this name, of two that are equal.
        alike.sort_by_key(|n| n != name);
        for other in alike.iter() {
            if let Some(t) = self.weights.get(other).filter(|t| same_bytes(t, &tensor)) {
                return (other.clone(), t.clone());
            }
        }
        let free = free_name(name, |n| self.weights.contains_key(n));
        alike.push(free.clone());
        self.weights.insert(free.clone(), tensor.clone());
        (free, tensor)
    }
}

/// A number that tells most tensors apart without reading all of them, and reads nothing of those in files.
fn glance(t: &Tensor) -> u64 {
    const BYTES: usize = 4096;
    let len = t.byte_len();
    let build: BuildHasherDefault<DefaultHasher> = BuildHasherDefault::default();
    if let Data::Halved(h) = &t.data {
        return build.hash_one((t.dtype, glance(h.of())));
    }
    if t.is_remote() {
        let stretches: Vec<Stretch<'_>> = t.stretches(0..len.unwrap_or(0).min(BYTES)).collect();
        return build.hash_one((t.dtype, t.numel(), len, stretches));
    }
    let ends = len.map(|n| [0..n.min(BYTES), n - n.min(BYTES)..n]);
    let pieces = ends.into_iter().flatten().map(|r| t.pieces(r).flatten().copied().collect::<Vec<u8>>());
    let shape = (!t.is_present()).then_some(&t.shape);
    build.hash_one((t.dtype, t.numel(), len, shape, pieces.collect::<Vec<_>>()))
}

fn same_bytes(a: &Tensor, b: &Tensor) -> bool {
    a.dtype == b.dtype
        && a.numel() == b.numel()
        && (a.shares_bytes(b)
            || a.is_present() && b.is_present() && !a.is_remote() && !b.is_remote() && a.bytes() == b.bytes())
}

/// Texts of kernels by name.
#[derive(Default)]
struct Names {
    by_text: HashMap<String, String>,
    taken: BTreeSet<String>,
}

impl Names {
    /// Gives kernels with a text that another program's kernel has that one's name, and the others names of their own.
    fn unite(&mut self, kernels: &mut [Kernel]) {
        let mut own = BTreeSet::new();
        for k in kernels {
            if let Some(known) = self.by_text.get(&k.wgsl).filter(|n| !own.contains(*n)) {
                k.name.clone_from(known);
            } else {
                k.name = free_name(&k.name, |n| self.taken.contains(n));
                self.taken.insert(k.name.clone());
                self.by_text.insert(k.wgsl.clone(), k.name.clone());
            }
            own.insert(k.name.clone());
        }
    }
}

/// The name, or with a number behind it the first that is not taken.
fn free_name(name: &str, taken: impl Fn(&str) -> bool) -> String {
    let numbered = (2..).map(|n: u64| format!("{name}-{n}"));
    let mut all = std::iter::once(name.to_owned()).chain(numbered);
    all.find(|n| !taken(n)).unwrap_or_else(|| name.to_owned())
}
