//! The node that is being imported, as an operator's importer sees it: arguments, types, and the graph to add to.

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

/// A node of the program while it is imported. Dereferences to the [`Lowering`] of its graph.
pub struct Cx<'a, 'g, 'm> {
    pub(super) lowering: &'a mut Lowering<'g>,
    pub(super) importer: &'a mut Importer<'m>,
    pub(super) scope: &'a mut Scope,
    /// The graph that the node is in.
    pub graph: &'m Graph,
    /// The node.
    pub node: &'m Node,
    pub(super) schema: Option<Schema>,
    /// The values of the arguments that were read, with their names for messages.
    given: Vec<(Value, String)>,
    /// The part of complex numbers that operands are reduced to: 0 is the real one; `None` for both.
    pub(super) part: Option<usize>,
    /// Whether operands of narrower floats are converted to f32, and results keep the types that are computed so.
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

    /// Adds the name of the argument that an error is about.
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

    /// The argument with this name, or its default.
    pub fn argument(&self, name: &str) -> Result<Cow<'m, Argument>> {
        if let Some(given) = self.node.inputs.iter().find(|i| i.name == name) {
            return Ok(Cow::Borrowed(&given.arg));
        }
        // Older versions of torch leave out the names of positional arguments.
        let position = self.schema.as_ref().and_then(|s| s.arguments.iter().position(|a| a.name == name));
        if let Some(given) = position.and_then(|i| self.node.inputs.get(i)).filter(|i| i.name.is_empty()) {
            return Ok(Cow::Borrowed(&given.arg));
        }
        let default = self.declared(name).and_then(Declared::default);
        default.map(Cow::Owned).ok_or_else(|| OpError::model("is missing").at(format!("argument `{name}`")))
    }

    /// The arguments in order. Those of higher-order operators have no names.
    pub fn positional(&self) -> impl Iterator<Item = &'m Argument> {
        self.node.inputs.iter().map(|i| &i.arg)
    }

    /// Whether the operator's schema has an argument of that name.
    pub fn declares(&self, name: &str) -> bool {
        self.declared(name).is_some()
    }

    /// Whether an argument is given or has a default, and is not `None`.
    pub fn has(&self, name: &str) -> bool {
        self.argument(name)
            .is_ok_and(|a| !matches!(*a, Argument::None | Argument::OptionalTensor(OptionalTensor::None)))
    }

    fn wrong<T>(&self, name: &str, what: &str, got: &Argument) -> Result<T> {
        Err(OpError::model(format!("must be {what}, and is {}", got.kind())).at(format!("argument `{name}`")))
    }

    /// Keeps the name of an operand for messages.
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

/// Arguments that are tensors.
impl<'m> Cx<'_, '_, 'm> {
    /// The value of an argument that must be a tensor or a number.
    pub fn tensor(&mut self, name: &str) -> Result {
        match self.opt_tensor(name)? {
            Some(v) => Ok(v),
            None => Err(OpError::model("is missing").at(format!("argument `{name}`"))),
        }
    }
    /// The value of an argument that may be `None`. A number is a tensor of rank 0.
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
    /// The values of a list of tensors.
    pub fn tensors(&mut self, name: &str) -> Result<Vec<Value>> {
        match &*self.argument(name)? {
            Argument::None => Ok(vec![]),
            Argument::Ints(v) if v.is_empty() => Ok(vec![]),
            Argument::Tensor(t) => Ok(vec![self.named(name, &t.name)?]),
            Argument::Tensors(ts) => ts.iter().map(|t| self.named(name, &t.name)).collect(),
            a => self.wrong(name, "a list of tensors", a),
        }
    }
    /// The values of a list of tensors, some of which may be `None`.
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
    /// The value of an argument that is a tensor, or a number in its place.
    pub fn operand(&mut self, name: &str) -> Result<Operand> {
        let a = self.argument(name)?;
        if let Some(n) = self.number_of(&a)? {
            return Ok(Operand::Number(n));
        }
        self.tensor(name).map(Operand::Tensor)
    }
    /// The name of the tensor that an argument refers to.
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
    /// The name of the tensor that owns the memory of which an argument is a view, or its own name if that is not known.
    pub fn memory(&self, name: &str) -> Option<String> {
        let own = self.tensor_name(name)?;
        Some(self.scope.whole(own).unwrap_or(own).to_owned())
    }
    /// The storage offset of a tensor argument, in elements.
    pub fn offset(&self, name: &str) -> Option<Dim> {
        match &self.declared_of(name)?.storage_offset {
            None => Some(Dim::ZERO),
            Some(n) => self.importer.sym_int(n).ok(),
        }
    }
    /// Sizes and strides of a tensor, in elements; `None` if its storage offset is not 0.
    pub fn layout(&self, tensor: &str) -> Option<(Vec<Dim>, Vec<Dim>)> {
        let meta = self.graph.tensor_values.get(tensor)?;
        let sizes =
            |v: &[SymInt]| v.iter().map(|s| self.importer.sym_int(s).ok()).collect::<Option<Vec<Dim>>>();
        let begins = meta.storage_offset.as_ref().is_none_or(|o| *o == SymInt::Int(0));
        let (sizes, strides) = (sizes(&meta.sizes)?, sizes(&meta.strides)?);
        (begins && sizes.len() == strides.len()).then_some((sizes, strides))
    }
    /// Whether an expression is at least 0 for all sizes in the ranges that the program declares.
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
    /// Whether all elements of a tensor have addresses of their own, ignoring axes whose stride is `passed`. If that depends on sizes, the
    /// program is constrained to sizes for which it holds.
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
    /// Whether elements with these sizes and strides have addresses of their own. The program is constrained to sizes for which it holds.
    pub fn require_apart(&mut self, sizes: &[Dim], strides: &[Dim]) -> bool {
        let found = aliases::apart(sizes, strides, &|s| self.importer.least(s));
        for (first, stride) in found.iter().flatten() {
            self.require_at_most(first, stride);
        }
        found.is_some()
    }
    /// Fails if elements of an argument may have the same address. Torch copies such a tensor with its strides, so that replacing one element
    /// replaces all at that address. Expanded axes are no problem, as torch makes them dense.
    pub fn apart(&mut self, name: &str) -> Result<()> {
        if self.tensor_name(name).is_some_and(|t| !self.elements_apart(t, Some(0))) {
            return Err(OpError::unsupported(
                "several elements of its tensor may be at one place in memory, in which it replaces all of them",
                "give it a copy, which clone(memory_format=torch.contiguous_format) makes",
            ));
        }
        Ok(())
    }
    /// Replaces the content of a tensor argument, for an operator whose schema or [`OpDef`](super::op::OpDef) says that it writes it.
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

/// The graphs of control flow.
impl<'g, 'm> Cx<'_, 'g, 'm> {
    /// The graph in an argument of a higher-order operator.
    pub fn inner(&self, a: &'m Argument) -> Result<&'m Graph> {
        match a {
            Argument::Graph(g) => Ok(&g.graph),
            a => Err(OpError::model(format!("a graph is expected, and got {}", a.kind()))),
        }
    }
    /// The value of a name in this graph.
    pub fn by_name(&mut self, name: &str) -> Result {
        self.scope.read(self.lowering, name)
    }
    /// Lowers the nodes of an inner graph in place; `given` are names of tensors for its inputs, with which it shares memory. Returns its results.
    pub fn inline(&mut self, graph: &'m Graph, given: &[&str]) -> Result<Vec<Value>> {
        self.importer.inline(self.lowering, self.scope, graph, given)
    }
    /// Lowers the nodes of an inner graph in place; `given` are values for its inputs, which it may overwrite without effect outside.
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
    /// Adds to captured values those that random numbers in the graphs need: the run's key and the number of the iteration.
    pub fn captured(&mut self, graphs: &[&'m Graph], mut values: Vec<Value>) -> Result<Vec<Value>> {
        if graphs.iter().any(|g| draws(g)) {
            values.extend(self.lowering.iteration);
            values.push(run_key(self.lowering)?);
        }
        Ok(values)
    }
    /// Builds a body graph, whose inputs are `params` and then the captured values. `make` gets the values of both, without those that
    /// serve random numbers alone, and returns the results.
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
            // Constants stay known inside of the body.
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
