//! The adapters that tests run on, and small programs for examples.
//!
//! On a machine without a GPU these are the software implementations of Vulkan. The Vulkan loader reads `VK_DRIVER_FILES` when it
//! is first used: set it to the manifests of all drivers, separated by colons, and [`gpus`] opens each of their adapters. A
//! kernel must be correct on all of them.

use crate::gpu::{AdapterChoice, Gpu};
use std::sync::OnceLock;
use wgfc_program::program::{Access, Buffer, BufferKind, Dispatch, Growth, Kernel, Port, State};
use wgfc_program::{DType, Dim, Program};

/// All adapters, or the one that `WGFC_ADAPTER` names, opened once for the whole process. SwiftShader, which takes longest to
/// compile a kernel, comes last: a test that needs only one adapter uses the first.
///
/// If there is no adapter, this prints a message to stderr and returns none, so that the calling test is *skipped*. It panics
/// instead if the environment variable `CI` is set and not empty, so that a skip is not overlooked there.
///
/// ```
/// use wgfc_runtime::testing::gpus;
/// for gpu in gpus() {
///     println!("tested on {}", gpu.summary().name);
/// }
/// ```
pub fn gpus() -> &'static [Gpu] {
    static GPUS: OnceLock<Vec<Gpu>> = OnceLock::new();
    let gpus = GPUS.get_or_init(|| {
        let chosen = AdapterChoice::from_env();
        let choices = match chosen {
            AdapterChoice::Best => (0..Gpu::adapters_blocking().len()).map(AdapterChoice::Index).collect(),
            one => vec![one],
        };
        let opened = choices.iter().map(Gpu::request_blocking);
        let mut gpus: Vec<Gpu> =
            opened.filter_map(|g| g.inspect_err(|e| eprintln!("cannot open an adapter: {e}")).ok()).collect();
        gpus.sort_by_key(|g| g.summary().name.contains("SwiftShader"));
        gpus
    });
    if gpus.is_empty() {
        let test = std::thread::current().name().unwrap_or("a test").to_owned();
        let ci = std::env::var("CI").is_ok_and(|v| !v.is_empty());
        assert!(!ci, "{test} needs a GPU adapter, there is none, and CI is set");
        eprintln!("SKIPPED {test}: no GPU adapter (set VK_DRIVER_FILES to a software Vulkan driver)");
    }
    gpus
}

/// A program that computes `y = 2·x`, where `x` and `y` are `f32[n]`.
///
/// ```
/// assert_eq!(wgfc_runtime::check::check(&wgfc_runtime::testing::doubling()), Vec::<String>::new());
/// ```
pub fn doubling() -> Program {
    let body = "if i < u32(dims.n) { y[i] = 2.0 * x[i]; }";
    let n = Dim::sym("n");
    Program {
        inputs: vec![port("x", &n, 0)],
        outputs: vec![port("y", &n, 1)],
        symbols: vec!["n".to_owned()],
        buffers: vec![
            buffer(BufferKind::Input { index: 0 }, &n),
            buffer(BufferKind::Output { index: 0 }, &n),
        ],
        kernels: vec![kernel("double", &[("x", Access::Read), ("y", Access::ReadWrite)], &["n"], body)],
        dispatches: vec![dispatch(2, n.ceil_div(64), &(&n * 8))],
        ..Program::default()
    }
}

/// A program with a state that grows: each run appends the number `x`, `f32[1]`, to the state `seen`, whose length is the symbol
/// `past`, and `y`, `f32[1]`, is the sum of all numbers so far.
///
/// ```
/// let program = wgfc_runtime::testing::summing();
/// assert_eq!(program.states[0].name, "seen");
/// ```
pub fn summing() -> Program {
    let body = "if i == 0u {
        seen[dims.past] = x[0];
        var sum = 0.0;
        for (var k = 0; k <= dims.past; k++) { sum += seen[k]; }
        y[0] = sum;
    }";
    let (past, capacity) = (Dim::sym("past"), Dim::sym("capacity"));
    let bindings = [("x", Access::Read), ("seen", Access::ReadWrite), ("y", Access::ReadWrite)];
    Program {
        inputs: vec![port("x", &Dim::ONE, 0)],
        outputs: vec![port("y", &Dim::ONE, 2)],
        states: vec![State {
            name: "seen".to_owned(),
            dtype: DType::F32,
            shape: vec![capacity.clone()],
            buffer: 1,
            growth: Some(Growth { axis: 0, length: "past".to_owned(), by: Dim::ONE }),
            initial: None,
        }],
        symbols: vec!["past".to_owned(), "capacity".to_owned()],
        buffers: vec![
            buffer(BufferKind::Input { index: 0 }, &Dim::ONE),
            buffer(BufferKind::State { name: "seen".to_owned() }, &capacity),
            buffer(BufferKind::Output { index: 0 }, &Dim::ONE),
        ],
        kernels: vec![kernel("sum", &bindings, &["past", "capacity"], body)],
        dispatches: vec![dispatch(3, Dim::ONE, &(past * 4 + 12))],
        ..Program::default()
    }
}

fn port(name: &str, extent: &Dim, buffer: usize) -> Port {
    Port { name: name.to_owned(), dtype: DType::F32, shape: vec![extent.clone()], buffer, broadcast: None }
}

fn buffer(kind: BufferKind, elements: &Dim) -> Buffer {
    Buffer { kind, dtype: DType::F32, elements: elements.clone() }
}

/// A kernel over arrays of f32 in workgroups of 64; `i` is the number of the invocation.
fn kernel(name: &str, bindings: &[(&str, Access)], symbols: &[&str], body: &str) -> Kernel {
    let mut wgsl = String::new();
    for (i, (name, access)) in bindings.iter().enumerate() {
        let access = if *access == Access::Read { "read" } else { "read_write" };
        wgsl += &format!("@group(0) @binding({i}) var<storage, {access}> {name}: array<f32>;\n");
    }
    let fields: Vec<String> = symbols.iter().map(|s| format!("{s}: i32")).collect();
    wgsl += &format!(
        "struct Dims {{ {} }}\n@group(0) @binding({}) var<uniform> dims: Dims;\n@compute @workgroup_size(64)\n\
         fn main(@builtin(global_invocation_id) id: vec3<u32>) {{\n    let i = id.x;\n    {body}\n}}\n",
        fields.join(", "),
        bindings.len()
    );
    Kernel {
        name: name.to_owned(),
        family: "map".to_owned(),
        wgsl,
        workgroup_size: [64, 1, 1],
        bindings: bindings.iter().map(|b| b.1).collect(),
        uses_dims: true,
        workgroup_bytes: 0,
        features: vec![],
        subgroup_size: None,
    }
}

/// A dispatch of the only kernel, with the first buffers.
fn dispatch(bindings: usize, workgroups: Dim, bytes: &Dim) -> Dispatch {
    Dispatch {
        kernel: 0,
        bindings: (0..bindings).collect(),
        workgroups: [workgroups, Dim::ONE, Dim::ONE],
        nodes: vec![],
        writes: vec![],
        bytes: bytes.clone(),
        flops: Dim::ONE,
    }
}
