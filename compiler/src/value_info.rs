//! The inputs and outputs of a model.

use crate::Diagnostic;
use std::collections::BTreeMap;
use wgfc_ir::{DType, Dim, Graph, symbols};

/// An input or output of a model: its name, element type and extents over the model's symbols.
///
/// ```
/// use wgfc_compiler::ValueInfo;
/// use wgfc_ir::{DType, Dim};
/// let shape = vec![Dim::sym("batch"), Dim::constant(13)];
/// let x = ValueInfo { name: "x".to_owned(), dtype: DType::F32, shape, broadcast: None };
/// assert_eq!(x.type_text(), "f32[batch, 13]");
/// assert_eq!(x.shape_at(&[("batch".to_owned(), 4)].into()), Ok(vec![4, 13]));
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct ValueInfo {
    /// Its name in the model.
    pub name: String,
    /// Element type.
    pub dtype: DType,
    /// Extents, outermost first.
    pub shape: Vec<Dim>,
    /// For an input that a run may leave out, the shape to which it is broadcast: see [`wgfc_ir::optional`].
    pub broadcast: Option<Vec<Dim>>,
}

impl ValueInfo {
    /// The type as text, such as `f32[batch, 3, 224, 224]`.
    pub fn type_text(&self) -> String {
        let dims: Vec<String> = self.whole().iter().map(ToString::to_string).collect();
        let broadcast = if self.broadcast.is_some() { ", broadcast, optional" } else { "" };
        format!("{}[{}]{broadcast}", self.dtype, dims.join(", "))
    }
    /// The shape, or the shape to which the input is broadcast.
    pub fn whole(&self) -> &[Dim] {
        self.broadcast.as_ref().unwrap_or(&self.shape)
    }
    /// The extents ([`ValueInfo::whole`]) for these values of symbols; `Err` names the symbols that have no value.
    ///
    /// ```
    /// # use wgfc_compiler::ValueInfo;
    /// # use wgfc_ir::{DType, Dim};
    /// # let x = ValueInfo { name: "x".into(), dtype: DType::F32, shape: vec![Dim::sym("batch")], broadcast: None };
    /// assert_eq!(x.shape_at(&[("batch".to_owned(), 2)].into()), Ok(vec![2]));
    /// assert_eq!(x.shape_at(&Default::default()), Err(vec!["batch".to_owned()]));
    /// ```
    pub fn shape_at(&self, dims: &BTreeMap<String, i64>) -> Result<Vec<usize>, Vec<String>> {
        let mut missing = Vec::new();
        for d in self.whole() {
            for s in d.symbols() {
                if !dims.contains_key(&*s) && !missing.iter().any(|m: &String| **m == *s) {
                    missing.push(s.to_string());
                }
            }
        }
        if !missing.is_empty() {
            return Err(missing);
        }
        self.whole()
            .iter()
            .map(|d| d.eval_syms(&|s| dims.get(s).copied()).and_then(|v| usize::try_from(v).ok()))
            .collect::<Option<Vec<_>>>()
            .ok_or_else(Vec::new)
    }
}

/// The inputs or outputs of a program.
pub fn program_values(declared: &[wgfc_ir::program::Port]) -> Vec<ValueInfo> {
    let info = |p: &wgfc_ir::program::Port| ValueInfo {
        name: p.name.clone(),
        dtype: p.dtype,
        shape: p.shape.clone(),
        broadcast: p.broadcast.clone(),
    };
    declared.iter().map(info).collect()
}

/// The inputs or outputs of a graph.
///
/// ```
/// use std::collections::BTreeMap;
/// use wgfc_compiler::value_info::{bind, graph_values};
/// use wgfc_ir::{DType, Dim, Graph, TensorType};
/// let mut graph = Graph::new();
/// graph.add_input("x", TensorType::new(DType::F32, [Dim::sym("batch"), Dim::constant(13)]));
/// let inputs = graph_values(&graph, &graph.inputs);
/// let mut dims = BTreeMap::new();
/// bind(&[(&inputs[0], &[4, 13])], &mut dims);
/// assert_eq!(dims["batch"], 4);
/// ```
pub fn graph_values(graph: &Graph, borders: &[wgfc_ir::Border]) -> Vec<ValueInfo> {
    borders
        .iter()
        .map(|b| {
            let ty = graph.ty(b.value);
            let broadcast = graph.optional.get(&b.name).cloned();
            ValueInfo { name: b.name.to_string(), dtype: ty.dtype, shape: ty.shape.clone(), broadcast }
        })
        .collect()
}

/// Derives values of symbols from the shapes of inputs and adds them to `dims`. Optional inputs are skipped.
/// See the example of [`graph_values`].
pub fn bind(given: &[(&ValueInfo, &[usize])], dims: &mut BTreeMap<String, i64>) {
    let fit = given.iter().filter(|(p, s)| p.broadcast.is_none() && p.shape.len() == s.len());
    let extents: Vec<(&Dim, i64)> = fit
        .flat_map(|(info, shape)| info.shape.iter().zip(*shape))
        .filter_map(|(d, n)| Some((d, i64::try_from(*n).ok()?)))
        .collect();
    let found = symbols::bind(&extents, &|s| dims.get(s).copied());
    dims.extend(found.into_iter().map(|f| (f.symbol.to_string(), f.value)));
}

/// The error of an input that the model does not have.
pub fn no_such_input(name: &str, declared: &[ValueInfo]) -> Diagnostic {
    let all: Vec<String> = declared.iter().map(|p| format!("`{}`", p.name)).collect();
    let help = if all.is_empty() {
        "the model has no inputs".into()
    } else {
        format!("its inputs are {}", all.join(", "))
    };
    Diagnostic::model(format!("the model has no input `{name}`")).help(help)
}
