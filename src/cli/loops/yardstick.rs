//! Programs of hand-written kernels, which run in the same way as compiled ones.

use super::workloads::{Share, Size, Workload};
use std::collections::BTreeMap;
use wgfc::ir::Dim;
use wgfc::ir::program::{Access, Buffer, BufferKind, Dispatch, Kernel, Port, Program, Stats};
use wgfc::{DType, Tensor};

/// The most workgroups in a dispatch. With more individuals, each workgroup processes several in turn.
const MOST: usize = 65535;

/// The program of a workload's hand-written kernel for inputs and outputs of these types and shapes.
pub fn program(w: &Workload, size: Size, inputs: &[(&str, Tensor)], outputs: &[Output]) -> Program {
    let mut p = Program {
        inputs: vec![],
        outputs: vec![],
        states: vec![],
        symbols: vec![],
        computed: vec![],
        constraints: vec![],
        buffers: vec![],
        kernels: vec![],
        dispatches: vec![],
        repeats: vec![],
        stats: Stats::default(),
        weights: BTreeMap::new(),
        proof: Default::default(),
    };
    for (index, (name, t)) in inputs.iter().enumerate() {
        let port = port(&mut p, name, t.dtype, &t.shape, BufferKind::Input { index });
        p.inputs.push(port);
    }
    for (index, o) in outputs.iter().enumerate() {
        let port = port(&mut p, &o.name, o.dtype, &o.shape, BufferKind::Output { index });
        p.outputs.push(port);
    }
    let read = p.inputs.iter().map(|_| Access::Read);
    let bindings = read.chain(p.outputs.iter().map(|_| Access::ReadWrite)).collect();
    let threads = threads(w.wgsl);
    p.kernels.push(Kernel {
        name: w.name.to_owned(),
        family: "by-hand".to_owned(),
        wgsl: format!(
            "const POPULATION = {}u;\nconst STEPS = {}u;\nconst DIMS = {}u;\n{}",
            size.population, size.steps, size.dims, w.wgsl
        ),
        workgroup_size: [threads, 1, 1],
        bindings,
        uses_dims: false,
        workgroup_bytes: w.workgroup_bytes,
        features: vec![],
        subgroup_size: None,
    });
    let groups = match w.share {
        Share::Threads => size.population.div_ceil(threads as usize),
        Share::One | Share::OneStep => size.population.min(MOST),
    };
    let mut dispatch = |bindings: Vec<usize>| {
        p.dispatches.push(Dispatch {
            writes: vec![],
            kernel: 0,
            bindings,
            workgroups: [groups.into(), Dim::ONE, Dim::ONE],
            nodes: vec![],
            bytes: Dim::ZERO,
            flops: Dim::ZERO,
        });
    };
    if w.share != Share::OneStep {
        dispatch((0..inputs.len() + outputs.len()).collect());
        return p;
    }
    // Position and velocity alternate between two sets of buffers, so that the last step writes the outputs.
    let (carried, fixed) = (outputs.len(), outputs.len()..inputs.len());
    let spare = p.buffers.len();
    for step in 0..size.steps {
        // Counted from the last step, even steps write the outputs.
        let left = size.steps - 1 - step;
        let side = |left: usize| if left.is_multiple_of(2) { inputs.len() } else { spare };
        let from = if step == 0 { 0 } else { side(left + 1) };
        let to = side(left);
        dispatch((from..from + carried).chain(fixed.clone()).chain(to..to + carried).collect());
    }
    for (i, o) in outputs.iter().enumerate().filter(|_| size.steps > 1) {
        let kind = BufferKind::Arena { arena: i, first: size.steps % 2, last: size.steps - 1 };
        let elements = o.shape.iter().product::<usize>().into();
        p.buffers.push(Buffer { kind, dtype: o.dtype, elements });
    }
    p
}

/// An output of a hand-written kernel.
pub struct Output {
    pub name: String,
    pub dtype: DType,
    pub shape: Vec<usize>,
}

fn port(p: &mut Program, name: &str, dtype: DType, shape: &[usize], kind: BufferKind) -> Port {
    let elements = shape.iter().product::<usize>().into();
    p.buffers.push(Buffer { kind, dtype, elements });
    let shape = shape.iter().map(|d| (*d).into()).collect();
    Port { name: name.to_owned(), dtype, shape, buffer: p.buffers.len() - 1, broadcast: None }
}

/// The workgroup size in the kernel's text.
fn threads(wgsl: &str) -> u32 {
    let size = wgsl.split_once("@workgroup_size(").and_then(|(_, rest)| rest.split_once(')'));
    size.and_then(|(n, _)| n.parse().ok()).unwrap_or(1)
}
