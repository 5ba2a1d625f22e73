//! ONNX models in f64 instead of f32, for the reference evaluator.

use prost::Message;
use wgfc::Error;
use wgfc::compiler::import::onnx::{
    AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto, TypeProto, TypeValue,
    ValueInfoProto,
};
use wgfc::{DType, Tensor};

/// The numbers of ONNX's element types (onnx.proto, `TensorProto.DataType`).
const FLOAT: i32 = 1;
const DOUBLE: i32 = 11;

/// A model whose f32 inputs, constants and casts are f64, so that all of its arithmetic is. Its weights are in its file.
pub fn doubled(model: &[u8]) -> Result<Vec<u8>, Error> {
    let mut model = ModelProto::decode(model)
        .map_err(|e| Error::Internal(format!("a model of the suite is no ONNX: {e}")))?;
    model.graph.iter_mut().for_each(graph);
    model.functions.iter_mut().for_each(|f: &mut FunctionProto| f.node.iter_mut().for_each(node));
    Ok(model.encode_to_vec())
}

/// The tensor in f64, if it is in f32; others as they are.
pub fn doubled_tensor(t: Tensor) -> Tensor {
    match t.to_f32s() {
        Some(v) if t.dtype == DType::F32 => {
            let bytes = v.iter().flat_map(|x| f64::from(*x).to_le_bytes()).collect();
            Tensor::new(DType::F64, t.shape.to_vec(), bytes).unwrap_or(t)
        }
        _ => t,
    }
}

fn graph(g: &mut GraphProto) {
    g.initializer.iter_mut().for_each(tensor);
    g.input.iter_mut().chain(&mut g.output).chain(&mut g.value_info).for_each(value);
    g.node.iter_mut().for_each(node);
}

fn value(v: &mut ValueInfoProto) {
    if let Some(TypeProto { value: Some(TypeValue::Tensor(t)) }) = &mut v.r#type {
        element(&mut t.elem_type);
    }
}

fn element(t: &mut i32) {
    if *t == FLOAT {
        *t = DOUBLE;
    }
}

fn node(n: &mut NodeProto) {
    let is_cast = n.op_type == "Cast";
    for a in &mut n.attribute {
        attribute(a, is_cast);
    }
}

fn attribute(a: &mut AttributeProto, of_cast: bool) {
    if of_cast && a.name == "to" && a.i == i64::from(FLOAT) {
        a.i = DOUBLE.into();
    }
    a.t.iter_mut().for_each(tensor);
    a.g.iter_mut().for_each(graph);
}

fn tensor(t: &mut TensorProto) {
    if t.data_type != FLOAT {
        return;
    }
    t.data_type = DOUBLE;
    let packed = t.raw_data.chunks_exact(4).map(|b| f64::from(f32::from_le_bytes([b[0], b[1], b[2], b[3]])));
    t.double_data = packed.chain(t.float_data.iter().map(|f| f64::from(*f))).collect();
    t.float_data.clear();
    t.raw_data.clear();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::loops::workloads::{Size, Workload};
    use std::sync::Arc;
    use wgfc::{Model, ModelFile, Options};

    #[test]
    fn models_in_f64_compute_nearly_the_same() {
        let w = Workload::named("cartpole").unwrap();
        let size = Size { population: 9, steps: 20, dims: 1 };
        let run = |bytes: Vec<u8>, of: fn(Tensor) -> Tensor| {
            let (dims, values) = w.fixed(size);
            let inputs = w.inputs(size, 1).into_iter().map(|(n, t)| (n.to_owned(), of(t))).collect();
            let file = ModelFile::of_bytes(Arc::new(bytes));
            let options = Options { dims, values, ..Options::default() };
            Model::on_cpu(&file, &options).unwrap().run(&inputs).unwrap()
        };
        let singles = run(w.model.to_vec(), |t| t);
        let doubles = run(doubled(w.model).unwrap(), doubled_tensor);
        for (name, single) in &singles {
            let double = &doubles[name];
            assert_eq!(double.dtype, DType::F64, "{name}");
            let (a, b) = (single.scalars().unwrap(), double.scalars().unwrap());
            assert!(a.iter().zip(&b).all(|(a, b)| (a.as_f64() - b.as_f64()).abs() < 1e-4), "{name}");
            assert!(a.iter().zip(&b).any(|(a, b)| a.as_f64() != b.as_f64()) || name == "reward", "{name}");
        }
    }
}
