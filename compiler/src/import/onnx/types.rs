//! Types of a model's tensors, for tools that split models.

use super::messages::ModelProto;
use super::{importer, model};
use crate::import::ExternalData;
use crate::{Errors, Options};
use std::collections::BTreeMap;
use wgfc_ir::{Graph, Op, Tensor, TensorType, Value};

/// The maximum number of elements of the constants that [`known_types`] returns.
const MOST_ELEMENTS: usize = 4096;

/// The type of a tensor, and its value if it is known.
#[derive(Clone, Debug)]
pub struct Known {
    /// Element type and shape.
    pub ty: TensorType,
    /// Its elements, if they are few and independent of the inputs, such as computed shapes.
    pub value: Option<Tensor>,
}

impl Known {
    pub(super) fn of(g: &Graph, v: Value) -> Known {
        let value = match &g.node(v.node).op {
            Op::Const(t) if t.numel() <= MOST_ELEMENTS && t.is_present() && !t.is_remote() => {
                Some((**t).clone())
            }
            _ => None,
        };
        Known { ty: g.ty(v).clone(), value }
    }
}

/// The types of the tensors that the model's nodes produce, by name, including those in branches and loop bodies. For a model that cannot
/// be imported they are the types of the nodes before the first failing one on each path. Tensors within functions are not included. The
/// second result tells whether the whole model can be imported.
///
/// Weights are not read.
pub fn known_types(
    model: &ModelProto,
    external: &dyn ExternalData,
    options: &Options,
) -> (BTreeMap<String, Known>, Result<(), Errors>) {
    let options = Options { graph_only: true, ..options.clone() };
    let proto = match model::check_header(model) {
        Ok(p) => p,
        Err(e) => return (BTreeMap::new(), Err(e)),
    };
    let mut im = importer(model, external, &options);
    im.known = Some(BTreeMap::new());
    let (result, _) = model::import(&mut im, proto, &options);
    (im.known.unwrap_or_default(), result.map(drop))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::import::NoExternalData;
    use crate::import::onnx::*;

    #[test]
    fn types_and_shapes_are_known_up_to_what_fails() {
        let value = |name: &str, dims: Vec<DimensionValue>| ValueInfoProto {
            name: name.into(),
            r#type: Some(TypeProto::tensor(wgfc_ir::DType::F32, dims)),
        };
        let node = |op: &str, input: &[&str], output: &str| NodeProto {
            op_type: op.into(),
            input: input.iter().map(|s| (*s).to_owned()).collect(),
            output: vec![output.into()],
            ..NodeProto::default()
        };
        let dims = vec![DimensionValue::Param("n".into()), DimensionValue::Value(3)];
        let graph = GraphProto {
            input: vec![value("x", dims)],
            output: vec![value("z", vec![])],
            node: vec![node("Relu", &["x"], "y"), node("Shape", &["y"], "s"), node("Whirl", &["y"], "z")],
            ..GraphProto::default()
        };
        let opset_import = vec![OperatorSetIdProto { domain: String::new(), version: 17 }];
        let mut model =
            ModelProto { ir_version: 8, graph: Some(graph), opset_import, ..ModelProto::default() };
        let (types, result) = known_types(&model, &NoExternalData, &Options::default());
        assert!(result.is_err());
        assert_eq!(types["y"].ty.to_string(), "f32[n, 3]");
        assert!(types.contains_key("s") && !types.contains_key("z"));
        if let Some(g) = &mut model.graph {
            g.node[2].op_type = "Neg".into();
            g.output[0].r#type = None;
        }
        let fixed = Options { dims: [("n".to_owned(), 5)].into(), ..Options::default() };
        let (types, result) = known_types(&model, &NoExternalData, &fixed);
        assert!(result.is_ok(), "{result:?}");
        assert_eq!(types["z"].ty.to_string(), "f32[5, 3]");
        assert_eq!(types["s"].value.as_ref().and_then(Tensor::to_i64s), Some(vec![5, 3]));
    }
}
