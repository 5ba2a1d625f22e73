//! Runs a program on an adapter with generated inputs.

use std::collections::{BTreeMap, BTreeSet};
use wgfc_compiler::DeviceProfile;
use wgfc_ir::program::Program;
use wgfc_ir::tensor::Tensor;
use wgfc_ir::wgsl::{CHROMIUM_MATRICES, WGPU_MATRICES};
use wgfc_ir::{Class, DType, Graph, Scalar};
use wgfc_runtime::testing::gpus;
use wgfc_runtime::{Gpu, Session};

/// The outcome of a run.
pub enum Outcome {
    /// There is no adapter.
    NoAdapter,
    /// The kernels need features that the adapter lacks.
    Cannot(String),
    /// The outputs of the program.
    Ran(Vec<Tensor>),
}

/// Inputs in which symbols are distinct odd numbers, except for those with given sizes.
pub fn inputs(graph: &Graph, sizes: &BTreeMap<String, i64>) -> BTreeMap<String, Tensor> {
    let symbols: BTreeSet<_> =
        graph.inputs.iter().flat_map(|b| &graph.ty(b.value).shape).flat_map(|d| d.symbols()).collect();
    let extent = |s: &str| {
        let own = symbols.iter().position(|t| &**t == s).map(|i| 3 + 2 * i as i64);
        sizes.get(s).copied().or(own)
    };
    let mut state = 1u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f64 / (1u64 << 24) as f64 * 2.0 - 1.0
    };
    let mut out = BTreeMap::new();
    for b in &graph.inputs {
        let ty = graph.ty(b.value);
        let shape: Vec<usize> = ty.shape.iter().map(|d| d.eval_syms(&extent).unwrap() as usize).collect();
        let values: Vec<Scalar> = (0..shape.iter().product())
            .map(|_| match ty.dtype {
                DType::Bool => Scalar::bool(next() > -0.5),
                d if d.class() == Class::Int => Scalar::from_i64(d, (next() * 7.9) as i64),
                d if d.is_int() => Scalar::from_i64(d, ((next() + 1.0) * 1.9) as i64),
                d => Scalar::from_f64(d, next()),
            })
            .collect();
        out.insert(b.name.to_string(), Tensor::from_scalars(ty.dtype, shape, &values));
    }
    out
}

/// Runs a program that was compiled for `profile` on the first adapter.
pub fn run(
    program: &Program,
    profile: &DeviceProfile,
    inputs: &BTreeMap<String, Tensor>,
) -> Result<Outcome, String> {
    gpus().first().map_or(Ok(Outcome::NoAdapter), |gpu| run_on(gpu, program, profile, inputs))
}

/// Runs a program that was compiled for `profile` on an adapter.
pub fn run_on(
    gpu: &Gpu,
    program: &Program,
    profile: &DeviceProfile,
    inputs: &BTreeMap<String, Tensor>,
) -> Result<Outcome, String> {
    let has = gpu.profile();
    let uses = |feature: &str| program.kernels.iter().any(|k| k.features.iter().any(|f| f == feature));
    let size = profile.subgroup.filter(|n| uses("subgroups") && has.subgroup != Some((*n, *n)));
    let lacks = [
        ((uses(WGPU_MATRICES) || uses(CHROMIUM_MATRICES)) && !has.cooperative_matrix)
            .then(|| "matrix units".to_owned()),
        (uses("shader-f16") && !has.f16).then(|| "f16".to_owned()),
        size.map(|n| format!("subgroups of {n}")),
    ];
    if let Some(needs) = lacks.into_iter().flatten().next() {
        return Ok(Outcome::Cannot(needs));
    }
    let mut session = Session::new_blocking(gpu, program).map_err(|e| e.to_string())?;
    let inputs: Vec<(&str, Tensor)> = inputs.iter().map(|(n, t)| (n.as_str(), t.clone())).collect();
    let outputs = session.run_blocking(&inputs).map_err(|e| e.to_string())?;
    Ok(Outcome::Ran(outputs.into_iter().map(|(_, t)| t).collect()))
}

/// Whether a result agrees with the evaluator's within the tolerance of `docs/testing.md`.
pub fn close(want: &Tensor, got: &Tensor) -> Result<(), String> {
    if want.shape != got.shape || want.dtype != got.dtype {
        return Err(format!("{}{:?}, not {}{:?}", got.dtype, got.shape, want.dtype, want.shape));
    }
    let (absolute, relative) = match want.dtype {
        DType::F16 => (2e-3, 1e-3),
        DType::BF16 => (1.6e-2, 1e-2),
        d if d.is_float() && d.bits() > 8 => (1e-5, 1e-3),
        _ => (0.0, 0.0),
    };
    let (w, g) = (want.scalars().unwrap_or_default(), got.scalars().unwrap_or_default());
    for (i, (w, g)) in w.iter().zip(&g).enumerate() {
        let (a, b) = (w.as_f64(), g.as_f64());
        let near =
            w.bits == g.bits || a.is_nan() && b.is_nan() || (a - b).abs() <= absolute + relative * a.abs();
        if !near {
            return Err(format!("element {i} is {g}, not {w}"));
        }
    }
    Ok(())
}

/// Whether a result differs from the evaluator's by at most 2 % of its norm, as sums of f16 values may.
pub fn similar(want: &Tensor, got: &Tensor) -> Result<(), String> {
    if want.shape != got.shape || want.dtype != got.dtype {
        return Err(format!("{}{:?}, not {}{:?}", got.dtype, got.shape, want.dtype, want.shape));
    }
    let (w, g) = (want.scalars().unwrap_or_default(), got.scalars().unwrap_or_default());
    let norm = |v: &mut dyn Iterator<Item = f64>| v.map(|x| x * x).sum::<f64>().sqrt();
    let all = norm(&mut w.iter().map(|w| w.as_f64()));
    let error =
        norm(&mut w.iter().zip(&g).filter(|(w, g)| w.bits != g.bits).map(|(w, g)| w.as_f64() - g.as_f64()));
    if error <= 2e-2 * all { Ok(()) } else { Err(format!("differs by {error:e} of {all:e}")) }
}
