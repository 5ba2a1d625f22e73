//! Reads a model and prepares it for reduction.

use super::store::Store;
use super::{edits, graph};
use crate::{Error, ModelFile};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use wgfc_compiler::import::decode;
use wgfc_compiler::import::onnx::*;
use wgfc_ir::{Atom, Poly, Tensor};

/// A model that is ready for reduction.
pub struct Taken {
    /// The model with its nodes in topological order, constants as initialisers in the store, and given dimensions fixed.
    pub model: ModelProto,
    /// The types that it declares.
    pub declared: HashMap<String, TypeProto>,
    /// The names of its constants that have not been generated at random.
    pub own: BTreeSet<String>,
}

/// Reads a model and fixes the dimensions in `dims`.
pub fn taken(file: &ModelFile, dims: &BTreeMap<String, i64>, store: &mut Store) -> Result<Taken, Error> {
    let mut m = decode(file.bytes())?;
    let Some(mut g) = m.graph.take() else {
        return Err(Error::file_help(file.path(), "has no graph", "export the model again"));
    };
    m.metadata_props.clear();
    let mut declared = HashMap::new();
    for v in g.input.iter().chain(&g.output).chain(&g.value_info) {
        declared.extend(v.r#type.clone().map(|t| (v.name.clone(), t)));
    }
    let (constants, nodes) = g.node.into_iter().partition(|n| constant(n).is_some());
    g.node = nodes;
    let constants: Vec<TensorProto> = constants.iter().filter_map(constant).collect();
    g.initializer.extend(constants);
    graph::sort(&mut g.node);
    let names: HashSet<String> = g.initializer.iter().map(|t| t.name.clone()).collect();
    g.input.retain(|i| !names.contains(&i.name));
    let elsewhere = |t: &TensorProto| t.data_location == 1 || !t.external_data.is_empty();
    let own = g.initializer.iter().filter(|t| file.random_weights().is_none() || !elsewhere(t));
    let own = own.map(|t| t.name.clone()).collect();
    g.initializer = g.initializer.iter().map(|t| store.take(t, file)).collect::<Result<_, _>>()?;
    let mut found = BTreeSet::new();
    for v in &mut g.input {
        for d in edits::dims_mut(v) {
            let Some(DimensionValue::Param(p)) = &d.value else { continue };
            let Ok(poly) = Poly::parse(p) else { continue };
            found.extend(poly.symbols().iter().map(ToString::to_string));
            let fixed = poly.subst(
                &|a| match a {
                    Atom::Sym(s) => dims.get(&**s).map(|v| Poly::constant(*v)),
                    _ => None,
                },
                &[],
            );
            d.value = Some(match fixed.as_const() {
                Some(n) => DimensionValue::Value(n),
                None => DimensionValue::Param(fixed.to_string()),
            });
        }
    }
    if let Some(name) = dims.keys().find(|n| !found.contains(*n)) {
        let all: Vec<String> = found.into_iter().collect();
        return Err(Error::usage(
            format!("the model's inputs have no symbolic dimension `{name}`"),
            match all.is_empty() {
                true => "all of its dimensions are numbers: leave out --dim".to_owned(),
                false => format!("it has: {}", all.join(", ")),
            },
        ));
    }
    graph::prune(&mut g);
    m.graph = Some(g);
    Ok(Taken { model: m, declared, own })
}

/// The value of a `Constant` node; `None` for any other node.
fn constant(n: &NodeProto) -> Option<TensorProto> {
    if n.op_type != "Constant" || !matches!(n.domain.as_str(), "" | "ai.onnx") {
        return None;
    }
    let (name, [a]) = (n.output.first()?, n.attribute.as_slice()) else { return None };
    let of = |t: Tensor| Some(TensorProto::of(name, &t));
    match a.name.as_str() {
        "value" => Some(TensorProto { name: name.clone(), ..a.t.clone()? }),
        "value_float" => of(Tensor::from_f32(vec![], &[a.f])),
        "value_floats" => of(Tensor::from_f32(vec![a.floats.len()], &a.floats)),
        "value_int" => of(Tensor::from_i64(vec![], &[a.i])),
        "value_ints" => of(Tensor::from_i64(vec![a.ints.len()], &a.ints)),
        _ => None,
    }
}
