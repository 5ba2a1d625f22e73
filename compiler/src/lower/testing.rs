//! Helpers for tests of lowerings: graphs of constants, evaluated.

use super::{Lowered, Lowering};
use std::collections::BTreeMap;
use wgfc_ir::eval::evaluate;
use wgfc_ir::{Border, DType, Graph, Scalar, Tensor};

/// A tensor with these elements.
pub fn tensor(dtype: DType, shape: &[usize], v: &[f64]) -> Tensor {
    let v: Vec<Scalar> = v.iter().map(|v| Scalar::from_f64(dtype, *v)).collect();
    Tensor::from_scalars(dtype, shape.to_vec(), &v)
}

/// The outputs of a graph of constants.
pub fn values(f: impl FnOnce(&mut Lowering) -> Lowered) -> Vec<Vec<f64>> {
    let mut g = Graph::new();
    let mut cx = Lowering::new(&mut g);
    let made = f(&mut cx).unwrap_or_else(|e| panic!("{e:?}"));
    g.outputs.extend(
        made.into_iter().enumerate().map(|(i, value)| Border { name: format!("y{i}").into(), value }),
    );
    wgfc_ir::verify::verify(&g).expect("it is sound");
    let y = evaluate(&g, &BTreeMap::new()).unwrap_or_else(|e| panic!("{e}"));
    y.iter().map(|t| t.scalars().expect("it is in memory").iter().map(|s| s.as_f64()).collect()).collect()
}
