//! An operator's decoder's view of its node.

mod numbers;
mod types;

pub use numbers::{Number, Operand};

use super::aliases;
use super::messages::{self, Argument, Graph, Node, OptionalTensor, SymInt, TensorMeta};
use super::op::OpError;
use super::ops::draws;
use super::schema::{Declared, Schema};
use super::scope::Scope;
use super::walk::{Importer, tensors};
use crate::lower::control::{Body, Param};
use crate::lower::random::run_key;
use crate::lower::{Lowering, Part};
use std::borrow::Cow;
use std::ops::{Deref, DerefMut};
use wgfc_ir::{Atom, Dim, Poly, Value};

type Result<T = Value> = std::result::Result<T, OpError>;

/// A node of the program while it is decoded. Dereferences to the [`Lowering`] of its graph.
pub struct Cx<'a, 'g, 'm> {
    pub(super) lowering: &'a mut Lowering<'g>,
    pub(super) importer: &'a mut Importer<'m>,
    pub(super) scope: &'a mut Scope,
    /// The graph that the node is in.
    pub graph: &'m Graph,
    /// The node.
    pub node: &'m Node,
    pub(super) schema: Option<Schema>,
    /// Values that arguments gave.
    given: Vec<(Value, String)>,
    /// Which part of complex numbers it is given, where it is not both.
    pub(super) part: Option<usize>,
    /// Whether narrower floats are given as f32, and the results' types are those of what is computed so.
    pub(super) in_f32: bool,
}

impl<'g> Deref for Cx<'_, 'g, '_> {
    type Target = Lowering<'g>;
    fn deref(&self) -> &Lowering<'g> {
        self.lowering
    }
}
impl<'g> DerefMut for Cx<'_, 'g, '_> {
    fn deref_mut(&mut self) -> &mut Lowering<'g> {
        self.lowering
    }
}

impl<'a, 'g, 'm> Cx<'a, 'g, 'm> {
    pub(super) fn new(
        lowering: &'a mut Lowering<'g>,
        importer: &'a mut Importer<'m>,
        scope: &'a mut Scope,
        (graph, node): (&'m Graph, &'m Node),
        schema: Option<Schema>,
    ) -> Cx<'a, 'g, 'm> {
        Cx { lowering, importer, scope, graph, node, schema, given: vec![], part: None, in_f32: false }
    }

    /// An error with the argument it is about.
    pub(super) fn placed(&self, e: OpError) -> OpError {
        let part = match e.part {
            Some(Part::Operand(v)) => {
                let mut names: Vec<&str> =
                    self.given.iter().filter(|(given, _)| *given == v).map(|(_, n)| n.as_str()).collect();
                names.dedup();
                (!names.is_empty()).then(|| names.join(" or "))
            }
            Some(Part::Param(p)) => Some(format!("argument `{p}`")),
            Some(Part::Source(text)) => Some(text),
            None => None,
        };
        OpError { part: part.map(Part::Source), ..e }
    }

    fn declared(&self, name: &str) -> Option<&Declared> {
        self.schema.as_ref()?.argument(name)
    }

    /// The argument of a name, or its default.
    pub fn argument(&self, name: &str) -> Result<Cow<'m, Argument>> {
        if let Some(given) = self.node.inputs.iter().find(|i| i.name == name) {
            return Ok(Cow::Borrowed(&given.arg));
        }
        // Older versions give no names to what stands in its place.
        let position = self.schema.as_ref().and_then(|s| s.arguments.iter().position(|a| a.name == name));
        if let Some(given) = position.and_then(|i| self.node.inputs.get(i)).filter(|i| i.name.is_empty()) {
            return Ok(Cow::Borrowed(&given.arg));
        }
        let default = self.declared(name).and_then(Declared::default);
        default.map(Cow::Owned).ok_or_else(|| OpError::model("is missing").at(format!("argument `{name}`")))
    }

    /// The arguments in order: of higher-order operators they have no names.
    pub fn positional(&self) -> impl Iterator<Item = &'m Argument> {
        self.node.inputs.iter().map(|i| &i.arg)
    }

    /// Whether the operator has an argument of that name.
    pub fn declares(&self, name: &str) -> bool {
        self.declared(name).is_some()
    }

    /// Whether an argument is written, or has a default that is not `None`.
    pub fn has(&self, name: &str) -> bool {
        self.argument(name)
            .is_ok_and(|a| !matches!(*a, Argument::None | Argument::OptionalTensor(OptionalTensor::None)))
    }

    fn wrong<T>(&self, name: &str, what: &str, got: &Argument) -> Result<T> {
        Err(OpError::model(format!("must be {what}, and is {}", got.kind())).at(format!("argument `{name}`")))
    }

    /// Remembers the name of an operand in messages.
    fn remember(&mut self, v: Value, what: String) -> Value {
        self.given.push((v, what));
        v
    }

    fn named(&mut self, argument: &str, name: &str) -> Result {
        let mut v = self.scope.read(self.lowering, name)?;
        if let Some(part) = self.part
            && self.graph.tensor_values.get(name).is_some_and(|m| messages::is_complex(m.dtype))
        {
            v = crate::lower::complex::part(self.lowering, v, part)?;
        }
        if self.in_f32 {
            v = self.lowering.widened(v)?;
        }
        Ok(self.remember(v, format!("argument `{argument}` (`{name}`)")))
    }
}

/// Tensors.
impl<'m> Cx<'_, '_, 'm> {
    /// A tensor.
    pub fn tensor(&mut self, name: &str) -> Result {
        match self.opt_tensor(name)? {
            Some(v) => Ok(v),
            None => Err(OpError::model("is missing").at(format!("argument `{name}`"))),
        }
    }
    /// A tensor, or none. A number stands for a tensor without axes.
    pub fn opt_tensor(&mut self, name: &str) -> Result<Option<Value>> {
        match &*self.argument(name)? {
            Argument::None | Argument::OptionalTensor(OptionalTensor::None) => Ok(None),
            Argument::Tensor(t) | Argument::OptionalTensor(OptionalTensor::Tensor(t)) => {
                self.named(name, &t.name).map(Some)
            }
            a => match self.number_of(a)? {
                Some(n) => {
                    let dtype = n.dtype(self.lowering);
                    self.number_in(&n, dtype).map(Some)
                }
                None => self.wrong(name, "a tensor", a),
            },
        }
    }
    /// A list of tensors.
    pub fn tensors(&mut self, name: &str) -> Result<Vec<Value>> {
        match &*self.argument(name)? {
            Argument::None => Ok(vec![]),
            Argument::Ints(v) if v.is_empty() => Ok(vec![]),
            Argument::Tensor(t) => Ok(vec![self.named(name, &t.name)?]),
            Argument::Tensors(ts) => ts.iter().map(|t| self.named(name, &t.name)).collect(),
            a => self.wrong(name, "a list of tensors", a),
        }
    }
    /// A list of tensors with gaps.
    pub fn opt_tensors(&mut self, name: &str) -> Result<Vec<Option<Value>>> {
        match &*self.argument(name)? {
            Argument::OptionalTensors(ts) => {
                let read = |t: &OptionalTensor| match t {
                    OptionalTensor::Tensor(t) => self.named(name, &t.name).map(Some),
                    OptionalTensor::None => Ok(None),
                };
                ts.iter().map(read).collect()
            }
            _ => Ok(self.tensors(name)?.into_iter().map(Some).collect()),
        }
    }
    /// A tensor, or a number that stands for one.
    pub fn operand(&mut self, name: &str) -> Result<Operand> {
        let a = self.argument(name)?;
        if let Some(n) = self.number_of(&a)? {
            return Ok(Operand::Number(n));
        }
        self.tensor(name).map(Operand::Tensor)
    }
    /// The name of the tensor that an argument is.
    pub fn tensor_name(&self, name: &str) -> Option<&'m str> {
        match self.argument(name).ok()? {
            Cow::Borrowed(Argument::Tensor(t) | Argument::OptionalTensor(OptionalTensor::Tensor(t))) => {
                Some(&t.name)
            }
            _ => None,
        }
    }
    /// The declared type of an argument that is a tensor.
    pub fn declared_of(&self, name: &str) -> Option<&'m TensorMeta> {
        self.graph.tensor_values.get(self.tensor_name(name)?)
    }
    /// The name of a tensor that sees all of the memory that an argument sees: its own, where that is not known.
    pub fn memory(&self, name: &str) -> Option<String> {
        let own = self.tensor_name(name)?;
        Some(self.scope.whole(own).unwrap_or(own).to_owned())
    }
    /// How many elements of its memory are before an argument that is a tensor.
    pub fn offset(&self, name: &str) -> Option<Dim> {
        match &self.declared_of(name)?.storage_offset {
            None => Some(Dim::ZERO),
            Some(n) => self.importer.sym_int(n).ok(),
        }
    }
    /// Sizes and strides of a tensor, in elements, where it begins its memory.
    pub fn layout(&self, tensor: &str) -> Option<(Vec<Dim>, Vec<Dim>)> {
        let meta = self.graph.tensor_values.get(tensor)?;
        let sizes =
            |v: &[SymInt]| v.iter().map(|s| self.importer.sym_int(s).ok()).collect::<Option<Vec<Dim>>>();
        let begins = meta.storage_offset.as_ref().is_none_or(|o| *o == SymInt::Int(0));
        let (sizes, strides) = (sizes(&meta.sizes)?, sizes(&meta.strides)?);
        (begins && sizes.len() == strides.len()).then_some((sizes, strides))
    }
    /// Whether an expression of sizes is at least 0 for all that the program says of them.
    pub fn never_negative(&self, p: &Poly) -> bool {
        let from_least = |a: &Atom| match a {
            Atom::Sym(s) => self.importer.least.get(&**s).map(|n| &Dim::sym(s) + *n),
            _ => None,
        };
        p.proves_nonneg(&[]) || p.subst(&from_least, &[]).proves_nonneg(&[])
    }
    /// Whether a result is a tensor of complex numbers.
    pub fn makes_complex(&self, i: usize) -> bool {
        let meta = self.node.results().nth(i).and_then(|n| self.graph.tensor_values.get(n));
        meta.is_some_and(|m| messages::is_complex(m.dtype))
    }
    /// Whether an argument is a tensor of complex numbers.
    pub fn is_complex(&self, name: &str) -> bool {
        self.declared_of(name).is_some_and(|m| messages::is_complex(m.dtype))
    }
    /// Whether each element of a tensor is at a place of its own in memory, other than along axes whose strides are `passed`. Where sizes
    /// decide it, a run is for those alone that do so.
    fn elements_apart(&mut self, tensor: &str, passed: Option<i64>) -> bool {
        let apart = self.scope.is_apart(tensor);
        let Some(meta) = self.graph.tensor_values.get(tensor) else { return apart };
        let axes = meta
            .sizes
            .iter()
            .zip(&meta.strides)
            .filter(|(_, s)| passed.is_none_or(|p| **s != SymInt::Int(p)));
        let axes = axes.map(|(n, s)| Some((self.importer.sym_int(n).ok()?, self.importer.sym_int(s).ok()?)));
        let Some((sizes, strides)) = axes.collect::<Option<(Vec<Dim>, Vec<Dim>)>>() else { return apart };
        match apart {
            true => !aliases::overlaps(&sizes, &strides),
            false => meta.sizes.len() == meta.strides.len() && self.require_apart(&sizes, &strides),
        }
    }
    /// Whether elements with these strides are at places of their own, where a run is for those sizes alone that make it so.
    pub fn require_apart(&mut self, sizes: &[Dim], strides: &[Dim]) -> bool {
        let found = aliases::apart(sizes, strides, &|s| self.importer.least(s));
        for (first, stride) in found.iter().flatten() {
            self.require_at_most(first, stride);
        }
        found.is_some()
    }
    /// An error where several elements of an argument may be at one place in memory: torch copies it as it lies there, and replaces all of
    /// them. Where neighbours along an axis are at one place, it does not.
    pub fn apart(&mut self, name: &str) -> Result<()> {
        if self.tensor_name(name).is_some_and(|t| !self.elements_apart(t, Some(0))) {
            return Err(OpError::unsupported(
                "several elements of its tensor may be at one place in memory, in which it replaces all of them",
                "give it a copy, which clone(memory_format=torch.contiguous_format) makes",
            ));
        }
        Ok(())
    }
    /// Writes over the tensor that an argument is, which its declaration or [`OpDef`](super::op::OpDef) says that it does.
    pub fn write(&mut self, name: &str, value: Value) -> Result<()> {
        let Some(tensor) = self.tensor_name(name) else {
            return self.wrong(name, "a tensor", &Argument::None);
        };
        if !self.elements_apart(tensor, None) {
            return Err(OpError::unsupported(
                format!("it writes `{tensor}`, of which several elements may be at one place in memory"),
                "write to a copy of it, which clone() makes",
            ));
        }
        self.scope.write(self.lowering, tensor, value)
    }
}

/// Inner graphs.
impl<'g, 'm> Cx<'_, 'g, 'm> {
    /// The graph that an argument of a higher-order operator is.
    pub fn inner(&self, a: &'m Argument) -> Result<&'m Graph> {
        match a {
            Argument::Graph(g) => Ok(&g.graph),
            a => Err(OpError::model(format!("a graph is expected, and got {}", a.kind()))),
        }
    }
    /// The value that a name of this graph holds.
    pub fn by_name(&mut self, name: &str) -> Result {
        self.scope.read(self.lowering, name)
    }
    /// Lowers the nodes of an inner graph in place, given tensors by their names. Returns its results.
    pub fn inline(&mut self, graph: &'m Graph, given: &[&str]) -> Result<Vec<Value>> {
        self.importer.inline(self.lowering, self.scope, graph, given)
    }
    /// Lowers the nodes of an inner graph in place, given values: memory of its own.
    pub fn nodes_of(&mut self, graph: &'m Graph, given: &[Value]) -> Result<Vec<Value>> {
        let mut scope = Scope::default();
        let formals: Vec<String> = graph.inputs.iter().flat_map(tensors).map(str::to_owned).collect();
        if formals.len() != given.len() {
            let e = format!("its graph has {} inputs, and is given {}", formals.len(), given.len());
            return Err(OpError::model(e));
        }
        for (name, v) in formals.iter().zip(given) {
            scope.insert(name, *v);
        }
        let formals: Vec<&str> = formals.iter().map(String::as_str).collect();
        self.importer.inline(self.lowering, &mut scope, graph, &formals)
    }
    /// These values, and what random numbers in the graphs need besides.
    pub fn captured(&mut self, graphs: &[&'m Graph], mut values: Vec<Value>) -> Result<Vec<Value>> {
        if graphs.iter().any(|g| draws(g)) {
            values.extend(self.lowering.iteration);
            values.push(run_key(self.lowering)?);
        }
        Ok(values)
    }
    /// A graph of its own, whose inputs are `params` and then what it captures; `make` builds it and gives its results. What is
    /// there for random numbers alone it is not given.
    pub fn body(
        &mut self,
        params: &[Param],
        captured: &[Value],
        make: impl FnOnce(&mut Cx<'_, '_, 'm>, &[Value], &[Value]) -> Result<Vec<Value>>,
    ) -> Result<Body> {
        let mut g = wgfc_ir::Graph::new();
        let mut to = Lowering::body(&mut g);
        to.at(self.lowering.place());
        let (mut inputs, mut number) = (vec![], None);
        for (i, p) in params.iter().enumerate() {
            let v = to.graph.add_input(&format!("parameter_{i}"), p.ty.clone());
            if let Some(d) = &p.known {
                to.set_dims(v, d);
            }
            if p.iteration {
                number = Some(v);
            }
            if !p.hidden {
                inputs.push(v);
            }
        }
        let mut outer = vec![];
        for (i, v) in captured.iter().enumerate() {
            let inner = to.graph.add_input(&format!("captured_{i}"), self.lowering.ty(*v).clone());
            // Facts known of it are known to the body, too.
            let node = self.lowering.graph.node(v.node).clone();
            let pure = node.inputs.is_empty() && !matches!(node.op, wgfc_ir::Op::Input);
            if Some(*v) == self.lowering.run_key {
                to.run_key = Some(inner);
                continue;
            }
            if Some(*v) == self.lowering.iteration {
                to.iteration = Some(inner);
                continue;
            }
            outer.push(match pure {
                true => Value { node: to.graph.add_node(node), port: v.port },
                false => inner,
            });
        }
        if let Some(own) = number {
            to.number_iterations(own)?;
        }
        let mut scope = Scope::default();
        let mut cx = Cx::new(&mut to, self.importer, &mut scope, (self.graph, self.node), None);
        let results = make(&mut cx, &inputs, &outer).map_err(|e| cx.placed(e))?;
        let notes = to.finish();
        let eval = self.lowering.absorb(notes);
        for (i, value) in results.into_iter().enumerate() {
            g.outputs.push(wgfc_ir::Border { name: format!("result_{i}").into(), value });
        }
        Ok(Body { graph: g, eval })
    }
}
