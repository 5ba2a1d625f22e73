//! Several plans over one store of weights, and the location of the weights' bytes.
//!
//! The plans of a bundle are the same model compiled in several ways: for one token and for many, with `f16` and
//! without, for GPUs and for the CPU. For each run, a runtime chooses the first plan that is for its device and that fits the inputs.

use crate::program::{Buffer, BufferKind, FORMAT_VERSION, Kernel, Program};
use crate::recipe::Recipes;
use crate::remote::Stretch;
use crate::tensor::{Data, Tensor};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};

/// Plans that share a store of weights and the states.
///
/// ```
/// use wgfc_program::{Bundle, Program, Tensor};
/// let weights = |v: &[f32]| [("w".to_owned(), Tensor::from_f32(vec![2], v))].into();
/// let one = Program { weights: weights(&[1.0, 2.0]), ..Program::default() };
/// let many = Program { weights: weights(&[1.0, 2.0]), ..Program::default() };
/// let bundle = Bundle::new(vec![("decode".to_owned(), one), ("prefill".to_owned(), many)]);
/// assert_eq!(bundle.plans[1].name, "prefill");
/// // Both plans have the same weight, which is stored once.
/// assert_eq!(bundle.store().len(), 1);
/// ```
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Bundle {
    /// [`FORMAT_VERSION`].
    pub version: u32,
    /// The version of wgfc that made it: `wgfc 0.1.0`.
    pub producer: String,
    /// The plans, in order of preference.
    pub plans: Vec<Plan>,
    /// The location of weights in files; absent if all of them lie beside the plan.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weights: Option<Recipes>,
}

/// One of the plans of a [`Bundle`]. See the example of [`Bundle`].
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Plan {
    /// A name for users: `decode`, `f16`.
    pub name: String,
    /// The capabilities that a device must have to run it.
    pub needs: Needs,
    /// The kind of adapter whose speeds it was compiled for: `discrete`, `integrated` or `software`; absent if it is for any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub adapter: Option<String>,
    /// The plan itself.
    #[serde(flatten)]
    pub program: Program,
}

/// The capabilities that a device must have to run a plan.
///
/// ```
/// use wgfc_program::bundle::{INVOCATIONS, Needs};
/// use wgfc_program::program::{Kernel, Program};
/// let kernel = Kernel {
///     workgroup_size: [8, 8, 1],
///     features: vec!["shader-f16".to_owned()],
/// #     name: "k".to_owned(),
/// #     family: "map".to_owned(),
/// #     wgsl: String::new(),
/// #     bindings: vec![],
/// #     uses_dims: false,
/// #     workgroup_bytes: 0,
/// #     subgroup_size: None,
///     // …
/// };
/// let needs = Needs::of(&Program { kernels: vec![kernel], ..Program::default() });
/// assert_eq!(needs.features, ["shader-f16"]);
/// assert_eq!(needs.limits[INVOCATIONS], 64);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Needs {
    /// The required features, by WebGPU's names, in order.
    #[serde(default)]
    pub features: Vec<String>,
    /// The minimum values of limits, by WebGPU's names.
    #[serde(default)]
    pub limits: BTreeMap<String, u64>,
    /// The permitted subgroup sizes, one of which all subgroups must have; absent if any size will do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subgroup_sizes: Option<Vec<u32>>,
}

/// WebGPU's name of the limit for storage buffers of a kernel.
pub const STORAGE_BUFFERS: &str = "maxStorageBuffersPerShaderStage";
/// WebGPU's name of the limit for bytes of workgroup memory.
pub const WORKGROUP_BYTES: &str = "maxComputeWorkgroupStorageSize";
/// WebGPU's name of the limit for invocations of a workgroup.
pub const INVOCATIONS: &str = "maxComputeInvocationsPerWorkgroup";
/// WebGPU's names of the limits for the invocations along each axis of a workgroup.
pub const WORKGROUP_SIZE: [&str; 3] =
    ["maxComputeWorkgroupSizeX", "maxComputeWorkgroupSizeY", "maxComputeWorkgroupSizeZ"];

impl Needs {
    /// The capabilities that all kernels of a program need together.
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
                // Kernels that require different sizes leave no common size.
                sizes.get_or_insert_with(|| vec![size]).retain(|s| *s == size);
            }
        }
        Needs { features: features.into_iter().collect(), limits, subgroup_sizes: sizes }
    }
}

impl Bundle {
    /// A bundle of these programs with their names. Weights with equal bytes are merged, also across programs, and
    /// equal kernels get the same name.
    pub fn new(programs: Vec<(String, Program)>) -> Bundle {
        let (mut weights, mut kernels) = (Store::default(), Names::default());
        let plans = programs.into_iter().map(|(name, mut program)| {
            weights.unite(&mut program);
            kernels.unite(&mut program.kernels);
            Plan { name, needs: Needs::of(&program), adapter: None, program }
        });
        let producer = concat!("wgfc ", env!("CARGO_PKG_VERSION")).to_owned();
        Bundle { version: FORMAT_VERSION, plans: plans.collect(), producer, weights: None }
    }

    /// All weights without duplicates: in the order in which the plans first use them, then the unused ones.
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

    /// All kernels without duplicates, by name.
    ///
    /// ```
    /// use wgfc_program::{Bundle, Program};
    /// let bundle = Bundle::new(vec![("all".to_owned(), Program::default())]);
    /// for (name, kernel) in bundle.kernels() {
    ///     println!("{name}: {}", kernel.wgsl);
    /// }
    /// ```
    pub fn kernels(&self) -> BTreeMap<&str, &Kernel> {
        self.plans.iter().flat_map(|p| &p.program.kernels).map(|k| (k.name.as_str(), k)).collect()
    }
}

/// The names of the weights that a program uses, in the order of its dispatches.
///
/// ```
/// use wgfc_program::program::{Buffer, BufferKind, Dispatch, Program};
/// use wgfc_program::{DType, Dim, bundle::used};
/// # let (dtype, elements) = (DType::F32, Dim::constant(4));
/// # let buffer = |kind| Buffer { kind, dtype, elements: elements.clone() };
/// let weight = |name: &str| buffer(BufferKind::Weight { name: name.to_owned() });
/// let dispatch = |binding| Dispatch {
///     bindings: vec![binding],
/// #     kernel: 0,
/// #     workgroups: [Dim::ONE, Dim::ONE, Dim::ONE],
/// #     nodes: vec![],
/// #     writes: vec![],
/// #     bytes: Dim::ONE,
/// #     flops: Dim::ONE,
///     // …
/// };
/// let (buffers, dispatches) = (vec![weight("a"), weight("b")], vec![dispatch(1), dispatch(0)]);
/// assert_eq!(used(&Program { buffers, dispatches, ..Program::default() }), ["b", "a"]);
/// ```
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
    // The initial values of states are needed before the first dispatch.
    initial.chain(ran).chain(others).filter(|n| seen.insert(*n)).collect()
}

/// Weights by name, without duplicate bytes.
#[derive(Default)]
struct Store {
    weights: BTreeMap<String, Tensor>,
    /// The names of weights by their [`glance`].
    alike: HashMap<u64, Vec<String>, BuildHasherDefault<DefaultHasher>>,
}

impl Store {
    /// Adds the weights of a program and makes it refer to those in the store.
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
        // Prefers the weight of the same name among equal ones.
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

/// A hash that distinguishes most tensors without reading all of their bytes, and without reading files.
fn glance(t: &Tensor) -> u64 {
    const BYTES: usize = 4096;
    let len = t.byte_len();
    let build: BuildHasherDefault<DefaultHasher> = BuildHasherDefault::default();
    if let Data::Halved(h) = &t.data {
        return build.hash_one((t.dtype, glance(h.of())));
    }
    if let Some((how, of)) = t.underived() {
        return build.hash_one((t.dtype, how.name, glance(&of)));
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
            || [a, b].iter().all(|t| t.is_present() && !t.is_remote() && !t.is_derived())
                && a.bytes() == b.bytes())
}

/// The names of kernels by their text.
#[derive(Default)]
struct Names {
    by_text: HashMap<String, String>,
    taken: BTreeSet<String>,
}

impl Names {
    /// Gives kernels whose text occurs in another program the name that it has there, and all others unique names.
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

/// The name, or if it is taken the first free one with a number appended.
fn free_name(name: &str, taken: impl Fn(&str) -> bool) -> String {
    let numbered = (2..).map(|n: u64| format!("{name}-{n}"));
    let mut all = std::iter::once(name.to_owned()).chain(numbered);
    all.find(|n| !taken(n)).unwrap_or_else(|| name.to_owned())
}
