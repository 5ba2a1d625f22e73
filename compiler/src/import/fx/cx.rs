//! What an operator's decoder sees of its node.

use super::messages::{Argument, Graph, Node, OptionalTensor, SymArgument, SymFloat, SymInt, TensorMeta};
use super::op::OpError;
use super::promote::{self, Kind};
use super::schema::{Declared, Schema};
use super::scope::Scope;
use super::walk::{Importer, tensors};
use super::{expr, messages};
use crate::lower::control::{Body, Param};
use crate::lower::{self, Lowering, Part};
use std::borrow::Cow;
use std::ops::{Deref, DerefMut};
use wgfc_ir::{DType, Dim, Scalar, TensorType, Value};

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
}

/// A number in the program's text.
#[derive(Clone, Debug, PartialEq)]
pub enum Number {
    /// A truth value.
    Bool(bool),
    /// An integer, or an expression of sizes.
    Int(Dim),
    /// Another number.
    Float(f64),
    /// What sizes decide: a tensor without axes.
    Computed(Value),
}

/// A tensor, or a number that stands for one.
#[derive(Clone, Debug, PartialEq)]
pub enum Operand {
    /// A tensor.
    Tensor(Value),
    /// A number.
    Number(Number),
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
        Cx { lowering, importer, scope, graph, node, schema, given: vec![], part: None }
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

    /// What an operand is called in messages.
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
    /// What the program says of the type of an argument that is a tensor.
    pub fn declared_of(&self, name: &str) -> Option<&'m TensorMeta> {
        self.graph.tensor_values.get(self.tensor_name(name)?)
    }
    /// Sizes and strides of an argument that is a tensor, in elements, where it begins its memory.
    pub fn layout(&self, name: &str) -> Option<(Vec<Dim>, Vec<Dim>)> {
        let meta = self.declared_of(name)?;
        let sizes =
            |v: &[SymInt]| v.iter().map(|s| self.importer.sym_int(s).ok()).collect::<Option<Vec<Dim>>>();
        let begins = meta.storage_offset.as_ref().is_none_or(|o| *o == SymInt::Int(0));
        let (sizes, strides) = (sizes(&meta.sizes)?, sizes(&meta.strides)?);
        (begins && sizes.len() == strides.len()).then_some((sizes, strides))
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
    /// Writes over the tensor that an argument is, which its declaration or [`OpDef`](super::op::OpDef) says that it does.
    pub fn write(&mut self, name: &str, value: Value) -> Result<()> {
        let Some(tensor) = self.tensor_name(name) else {
            return self.wrong(name, "a tensor", &Argument::None);
        };
        self.scope.write(self.lowering, tensor, value)
    }
}

/// Numbers, texts and lists of them.
impl Cx<'_, '_, '_> {
    /// What an integer of the graph is.
    pub fn sym_int(&self, name: &str) -> Result<Dim> {
        match self.graph.sym_int_values.get(name) {
            Some(SymInt::Int(n)) => Ok((*n).into()),
            Some(SymInt::Expr(text)) => self.importer.size(text),
            None => Err(OpError::model(format!("nothing makes the integer `{name}`"))),
        }
    }
    fn sym(&self, s: &SymArgument) -> Result<Dim> {
        match s {
            SymArgument::Int(n) => Ok((*n).into()),
            SymArgument::Name(n) => self.sym_int(n),
        }
    }
    /// The number that a tensor decides, if a symbol is one that is no size.
    fn taken(&self, text: &str) -> Option<Value> {
        let Ok(expr::Expr::Symbol(symbol)) = expr::parse(text) else { return None };
        let (depth, v) = self.importer.taken.get(&symbol)?;
        (*depth == self.importer.depth).then_some(*v)
    }
    /// [`Cx::taken`] of an integer of the graph.
    fn taken_int(&self, a: &Argument) -> Option<Value> {
        match a {
            Argument::SymInt(SymArgument::Name(n)) => match self.graph.sym_int_values.get(n)? {
                SymInt::Expr(text) => self.taken(text),
                SymInt::Int(_) => None,
            },
            _ => None,
        }
    }
    /// A position, which a tensor may decide, or none.
    pub fn opt_place(&self, name: &str) -> Result<Option<lower::Size>> {
        match self.taken_int(&*self.argument(name)?) {
            Some(v) => Ok(Some(lower::Size::Computed(v))),
            None => Ok(self.opt_size(name)?.map(lower::Size::Known)),
        }
    }
    /// The number that an argument is.
    fn number_of(&mut self, a: &Argument) -> Result<Option<Number>> {
        if let Some(v) = self.taken_int(a) {
            return Ok(Some(Number::Computed(v)));
        }
        Ok(Some(match a {
            Argument::Bool(b) => Number::Bool(*b),
            Argument::Int(n) => Number::Int((*n).into()),
            Argument::Float(x) => Number::Float(*x),
            Argument::SymInt(s) => Number::Int(self.sym(s)?),
            Argument::SymFloat(name) => match self.graph.sym_float_values.get(name) {
                Some(SymFloat::Float(x)) => Number::Float(*x),
                Some(SymFloat::Expr(text)) => match self.taken(text) {
                    Some(v) => Number::Computed(v),
                    None => {
                        let e = expr::parse(text)?;
                        self.real(&e)?
                    }
                },
                None => return Err(OpError::model(format!("nothing makes the number `{name}`"))),
            },
            _ => return Ok(None),
        }))
    }
    /// A number that sizes decide.
    fn real(&mut self, e: &expr::Expr) -> Result<Number> {
        use wgfc_ir::{BinaryOp, UnaryOp};
        let (head, args) = match e {
            expr::Expr::Float(x) => return Ok(Number::Float(*x)),
            expr::Expr::Call(head, args) if !args.is_empty() => (head.as_str(), args),
            _ => return Ok(Number::Int(e.size(&|s| self.importer.symbol(s))?)),
        };
        if head == "ToFloat" {
            let d = args[0].size(&|s| self.importer.symbol(s))?;
            return Ok(match d.as_const() {
                Some(n) => Number::Float(n as f64),
                None => Number::Computed(self.lowering.dim_scalar(&d, promote::DEFAULT)?),
            });
        }
        let mut values = vec![];
        for a in args {
            let n = self.real(a)?;
            values.push(self.number_in(&n, promote::DEFAULT)?);
        }
        let to = &mut *self.lowering;
        let fold = |to: &mut Lowering, op: BinaryOp| {
            values[1..].iter().try_fold(values[0], |a, b| to.binary(op, a, *b)).map_err(OpError::from)
        };
        let v = match head {
            "Add" => fold(to, BinaryOp::Add)?,
            "Mul" => fold(to, BinaryOp::Mul)?,
            "IntTrueDiv" | "FloatTrueDiv" => fold(to, BinaryOp::Div)?,
            "FloatPow" | "Pow" => fold(to, BinaryOp::Pow)?,
            "Min" => fold(to, BinaryOp::Min)?,
            "Max" => fold(to, BinaryOp::Max)?,
            "OpaqueUnaryFn_sqrt" => to.unary(UnaryOp::Sqrt, values[0])?,
            "OpaqueUnaryFn_exp" => to.unary(UnaryOp::Exp, values[0])?,
            "OpaqueUnaryFn_log" => to.unary(UnaryOp::Log, values[0])?,
            "OpaqueUnaryFn_cos" => to.unary(UnaryOp::Cos, values[0])?,
            "OpaqueUnaryFn_sin" => to.unary(UnaryOp::Sin, values[0])?,
            _ => {
                return Err(OpError::unsupported(
                    format!("`{head}` of sizes as a number"),
                    "give the dimensions it depends on with --dim, or compute the number with tensors",
                ));
            }
        };
        Ok(Number::Computed(v))
    }
    /// A number.
    pub fn number(&mut self, name: &str) -> Result<Number> {
        match self.opt_number(name)? {
            Some(n) => Ok(n),
            None => Err(OpError::model("must be a number").at(format!("argument `{name}`"))),
        }
    }
    /// A number, or none.
    pub fn opt_number(&mut self, name: &str) -> Result<Option<Number>> {
        let a = self.argument(name)?;
        match self.number_of(&a)? {
            Some(n) => Ok(Some(n)),
            None if matches!(*a, Argument::None) => Ok(None),
            None => self.wrong(name, "a number", &a),
        }
    }
    /// A size: an integer or an expression of dimensions.
    pub fn size(&self, name: &str) -> Result<Dim> {
        self.opt_size(name)?.ok_or_else(|| OpError::model("is missing").at(format!("argument `{name}`")))
    }
    /// A size, or none.
    pub fn opt_size(&self, name: &str) -> Result<Option<Dim>> {
        match &*self.argument(name)? {
            Argument::None => Ok(None),
            Argument::Int(n) => Ok(Some((*n).into())),
            Argument::SymInt(s) => self.sym(s).map(Some),
            a => self.wrong(name, "an integer", a),
        }
    }
    /// Sizes.
    pub fn sizes(&self, name: &str) -> Result<Vec<Dim>> {
        Ok(self.opt_sizes(name)?.unwrap_or_default())
    }
    /// Sizes, or none.
    pub fn opt_sizes(&self, name: &str) -> Result<Option<Vec<Dim>>> {
        match &*self.argument(name)? {
            Argument::None => Ok(None),
            Argument::Ints(v) => Ok(Some(v.iter().map(|n| (*n).into()).collect())),
            Argument::SymInts(v) => v.iter().map(|s| self.sym(s)).collect::<Result<_>>().map(Some),
            _ => Ok(self.opt_size(name)?.map(|d| vec![d])),
        }
    }
    /// An integer that must be known.
    pub fn int(&self, name: &str) -> Result<i64> {
        self.opt_int(name)?.ok_or_else(|| OpError::model("is missing").at(format!("argument `{name}`")))
    }
    /// An integer that must be known, or none.
    pub fn opt_int(&self, name: &str) -> Result<Option<i64>> {
        match self.opt_size(name)? {
            None => Ok(None),
            Some(d) => d.as_const().map(Some).ok_or_else(|| {
                OpError::symbolic(format!("it is {d}, and must be known")).at(format!("argument `{name}`"))
            }),
        }
    }
    /// Integers that must be known.
    pub fn ints(&self, name: &str) -> Result<Vec<i64>> {
        Ok(self.opt_ints(name)?.unwrap_or_default())
    }
    /// Integers that must be known, or none.
    pub fn opt_ints(&self, name: &str) -> Result<Option<Vec<i64>>> {
        let Some(sizes) = self.opt_sizes(name)? else { return Ok(None) };
        let known = |d: &Dim| {
            d.as_const().ok_or_else(|| {
                OpError::symbolic(format!("{d} must be known")).at(format!("argument `{name}`"))
            })
        };
        sizes.iter().map(known).collect::<Result<_>>().map(Some)
    }
    /// `n` integers, of which one may stand for all: a stride, a padding.
    pub fn ints_of(&self, name: &str, n: usize) -> Result<Vec<i64>> {
        match self.ints(name)? {
            v if v.len() == n => Ok(v),
            v if v.len() == 1 => Ok(vec![v[0]; n]),
            v => Err(OpError::model(format!("must have {n} numbers, and has {}", v.len()))
                .at(format!("argument `{name}`"))),
        }
    }
    /// A number that is known.
    pub fn float(&mut self, name: &str) -> Result<f64> {
        self.opt_float(name)?.ok_or_else(|| OpError::model("is missing").at(format!("argument `{name}`")))
    }
    /// A number that is known, or none.
    pub fn opt_float(&mut self, name: &str) -> Result<Option<f64>> {
        match self.opt_number(name)? {
            None => Ok(None),
            Some(n) => n.known().map(Some).ok_or_else(|| {
                OpError::symbolic("it depends on sizes, and must be known").at(format!("argument `{name}`"))
            }),
        }
    }
    /// Numbers that are known, or none.
    pub fn opt_floats(&self, name: &str) -> Result<Option<Vec<f64>>> {
        match &*self.argument(name)? {
            Argument::None => Ok(None),
            Argument::Floats(v) => Ok(Some(v.clone())),
            Argument::Float(x) => Ok(Some(vec![*x])),
            _ => Ok(self.opt_ints(name)?.map(|v| v.into_iter().map(|n| n as f64).collect())),
        }
    }
    /// A truth value.
    pub fn flag(&self, name: &str) -> Result<bool> {
        match &*self.argument(name)? {
            Argument::Bool(b) => Ok(*b),
            Argument::Int(n) => Ok(*n != 0),
            Argument::None => Ok(false),
            a => self.wrong(name, "a truth value", a),
        }
    }
    /// Truth values.
    pub fn flags(&self, name: &str) -> Result<Vec<bool>> {
        match &*self.argument(name)? {
            Argument::Bools(b) => Ok(b.clone()),
            Argument::Ints(v) if v.is_empty() => Ok(vec![]),
            a => self.wrong(name, "a list of truth values", a),
        }
    }
    /// A text, or none.
    pub fn text(&self, name: &str) -> Result<Option<String>> {
        match &*self.argument(name)? {
            Argument::None => Ok(None),
            Argument::String(t) => Ok(Some(t.clone())),
            a => self.wrong(name, "a text", a),
        }
    }
    /// An element type, or none.
    pub fn element_type(&self, name: &str) -> Result<Option<DType>> {
        match &*self.argument(name)? {
            Argument::None => Ok(None),
            Argument::ScalarType(code) | Argument::Int(code) => {
                messages::dtype(*code).map(Some).map_err(|e| {
                    OpError::unsupported(
                        format!("elements of type {e}"),
                        "convert to f32, f16, bf16 or an integer type",
                    )
                    .at(format!("argument `{name}`"))
                })
            }
            a => self.wrong(name, "an element type", a),
        }
    }
    /// An axis of a tensor of `rank`; of a tensor without axes there is one.
    pub fn axis(&self, name: &str, rank: usize) -> Result<usize> {
        let at = |e: OpError| e.at(format!("argument `{name}`"));
        lower::axis(self.int(name)?, rank.max(1)).map_err(at)
    }
    /// Axes of a tensor of `rank`, sorted; all of them where none is given.
    pub fn axes(&self, name: &str, rank: usize) -> Result<Vec<usize>> {
        let at = |e: OpError| e.at(format!("argument `{name}`"));
        let mut axes = match self.opt_ints(name)? {
            Some(v) if !v.is_empty() => {
                let axes = v.iter().map(|a| lower::axis(*a, rank.max(1))).collect::<Result<Vec<_>>>();
                axes.map_err(at)?
            }
            _ => (0..rank).collect(),
        };
        axes.retain(|a| *a < rank);
        axes.sort_unstable();
        Ok(axes)
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
    /// What a name of this graph holds.
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
    /// A graph of its own, whose inputs are `params` and then what it captures; `make` builds it and gives its results.
    pub fn body(
        &mut self,
        params: &[Param],
        captured: &[Value],
        make: impl FnOnce(&mut Cx<'_, '_, 'm>, &[Value], &[Value]) -> Result<Vec<Value>>,
    ) -> Result<Body> {
        let mut g = wgfc_ir::Graph::new();
        let mut to = Lowering::body(&mut g);
        to.at(self.lowering.place());
        let mut inputs = vec![];
        for (i, p) in params.iter().enumerate() {
            let v = to.graph.add_input(&format!("parameter_{i}"), p.ty.clone());
            if let Some(d) = &p.known {
                to.set_dims(v, d);
            }
            inputs.push(v);
        }
        let mut outer = vec![];
        for (i, v) in captured.iter().enumerate() {
            let inner = to.graph.add_input(&format!("captured_{i}"), self.lowering.ty(*v).clone());
            // What is known of it, the body may know, too.
            let node = self.lowering.graph.node(v.node).clone();
            let pure = node.inputs.is_empty() && !matches!(node.op, wgfc_ir::Op::Input);
            outer.push(match pure {
                true => Value { node: to.graph.add_node(node), port: v.port },
                false => inner,
            });
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

/// Types and promotion.
impl<'m> Cx<'_, '_, 'm> {
    /// How many results the node has.
    pub fn result_count(&self) -> usize {
        self.node.results().count()
    }
    /// What the program says of the type of a result.
    pub fn result(&self, i: usize) -> Result<TensorType> {
        let meta = self.node.results().nth(i).and_then(|n| self.graph.tensor_values.get(n));
        let meta = meta.ok_or_else(|| {
            OpError::model(format!("the program says nothing of the type of its result {i}"))
        })?;
        let mut ty = self.importer.tensor_type(meta)?;
        if self.part.is_some() && messages::is_complex(meta.dtype) {
            ty.shape.pop();
        }
        Ok(ty)
    }
    /// What an extent of a result that data decides is at most.
    pub fn most(&self, i: usize, axis: usize) -> Result<Dim> {
        let meta = self.node.results().nth(i).and_then(|n| self.graph.tensor_values.get(n));
        let text = match meta.and_then(|m| m.sizes.get(axis)) {
            Some(SymInt::Int(n)) => return Ok((*n).into()),
            Some(SymInt::Expr(text)) => text,
            None => return Err(OpError::model(format!("its result {i} is said to have no axis {axis}"))),
        };
        let symbol = match expr::parse(text)? {
            expr::Expr::Symbol(s) if !self.importer.symbols.contains_key(&s) => s,
            _ => return self.importer.size(text),
        };
        let most = self.importer.ranges.get(&symbol).and_then(|r| r.max_val).filter(|m| *m < 1 << 31);
        most.map(Dim::from).ok_or_else(|| {
            OpError::unsupported(
                format!("data decides how many elements there are, `{symbol}`, without an upper bound"),
                "say in the module what it is at most: torch._check(result.shape[0] <= 4096)",
            )
        })
    }
    /// What the program says of the element type of a result.
    pub fn result_dtype(&self, i: usize) -> Result<DType> {
        let meta = self.node.results().nth(i).and_then(|n| self.graph.tensor_values.get(n));
        let code = meta.map_or(0, |m| m.dtype);
        messages::dtype(code)
            .map_err(|e| OpError::unsupported(format!("a result of type {e}"), "convert to f32 first"))
    }
    /// The kind of an operand for [`promote::common`].
    pub fn kind(&self, o: &Operand) -> Kind {
        match o {
            Operand::Tensor(v) if self.rank(*v) == 0 => Kind::Scalar(self.dtype(*v)),
            Operand::Tensor(v) => Kind::Tensor(self.dtype(*v)),
            Operand::Number(n) => Kind::Number(n.dtype(self.lowering)),
        }
    }
    /// An operand as a tensor of a type.
    pub fn in_type(&mut self, o: &Operand, dtype: DType) -> Result {
        match o {
            Operand::Tensor(v) => self.converted(*v, dtype),
            Operand::Number(n) => self.number_in(n, dtype),
        }
    }
    /// Elements in another type, as torch converts them.
    pub fn converted(&mut self, v: Value, dtype: DType) -> Result {
        Ok(self.lowering.cast(v, dtype)?)
    }
    /// An integer as a tensor without axes ([`Builder::int`](wgfc_ir::Builder::int), which [`Cx::int`] hides).
    pub fn int_const(&mut self, dtype: DType, v: i64) -> Value {
        self.lowering.int(dtype, v)
    }
    /// A number as a tensor without axes.
    pub fn scalar(&mut self, dtype: DType, v: f64) -> Value {
        self.lowering.scalar(dtype, v)
    }
    /// A number as a tensor without axes.
    pub fn number_in(&mut self, n: &Number, dtype: DType) -> Result {
        let to = &mut *self.lowering;
        Ok(match n {
            Number::Bool(b) => {
                let v = to.constant(wgfc_ir::Tensor::scalar(Scalar::bool(*b)));
                to.cast(v, dtype)?
            }
            Number::Int(d) => match d.as_const() {
                Some(n) if dtype.is_float() => to.scalar(dtype, n as f64),
                Some(n) if dtype == DType::Bool => to.constant(wgfc_ir::Tensor::scalar(Scalar::bool(n != 0))),
                Some(n) => to.int(dtype, n),
                None => to.dim_scalar(d, dtype)?,
            },
            Number::Float(x) if dtype.is_float() => to.scalar(dtype, *x),
            Number::Float(x) if dtype == DType::Bool => {
                to.constant(wgfc_ir::Tensor::scalar(Scalar::bool(*x != 0.0)))
            }
            Number::Float(x) => to.int(dtype, x.trunc() as i64),
            Number::Computed(v) => to.cast(*v, dtype)?,
        })
    }
    /// Arguments as tensors of the type that all of them have in common.
    pub fn promoted<const N: usize>(&mut self, names: [&str; N]) -> Result<[Value; N]> {
        let mut operands = vec![];
        for name in names {
            operands.push(self.operand(name)?);
        }
        let kinds: Vec<Kind> = operands.iter().map(|o| self.kind(o)).collect();
        let dtype = promote::common(&kinds);
        let mut out = [Value { node: Default::default(), port: 0 }; N];
        for (slot, o) in out.iter_mut().zip(&operands) {
            *slot = self.in_type(o, dtype)?;
        }
        Ok(out)
    }
    /// Arguments as tensors of one type.
    pub fn all_in<const N: usize>(&mut self, names: [&str; N], dtype: DType) -> Result<[Value; N]> {
        let mut out = [Value { node: Default::default(), port: 0 }; N];
        for (slot, name) in out.iter_mut().zip(names) {
            let o = self.operand(name)?;
            *slot = self.in_type(&o, dtype)?;
        }
        Ok(out)
    }
    /// A tensor as floats: integers and bools in the default type.
    pub fn as_float(&mut self, v: Value) -> Result {
        if self.dtype(v).is_float() { Ok(v) } else { self.converted(v, promote::DEFAULT) }
    }
}

impl Number {
    /// The type that it has by itself.
    pub fn dtype(&self, to: &Lowering) -> DType {
        match self {
            Number::Bool(_) => DType::Bool,
            Number::Int(_) => DType::I64,
            Number::Float(_) => promote::DEFAULT,
            Number::Computed(v) => to.dtype(*v),
        }
    }
    /// The number, if it is known.
    pub fn known(&self) -> Option<f64> {
        match self {
            Number::Bool(b) => Some(f64::from(u8::from(*b))),
            Number::Int(d) => d.as_const().map(|n| n as f64),
            Number::Float(x) => Some(*x),
            Number::Computed(_) => None,
        }
    }
    /// Whether it is known to be that.
    pub fn is(&self, v: f64) -> bool {
        self.known() == Some(v)
    }
}
