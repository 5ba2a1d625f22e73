//! Lowers nodes to core operators.

use super::aliases::{self, Shared};
use super::cx::{Cx, Number};
use super::messages::{self, Argument, Graph, Node, SymArgument, SymInt, TensorMeta};
use super::op::{self, Lowered, OpError, diagnostic, location};
use super::ops::{self, Found};
use super::schema::{self, Schema};
use super::scope::{self, Scope, Slot};
use super::weights::Weights;
use super::{expr, op::OpDef};
use crate::lower::{Lowering, Place, Result, check_dims, complex as complex_numbers, shape};
use crate::{Diagnostic, Location};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use wgfc_ir::{Atom, BinaryOp, DType, Dim, Poly, TensorType, Value};

/// The maximum nesting depth of graphs.
pub const MAX_DEPTH: usize = 16;

/// The state of an import.
pub struct Importer<'m> {
    /// The tensors of the archive.
    pub(super) weights: Weights<'m>,
    /// The errors so far.
    pub(super) errors: Vec<Diagnostic>,
    /// The values of symbols: sizes of inputs and sizes that a run computes. A symbol that an input's size decides has itself as its
    /// value.
    pub(super) symbols: BTreeMap<String, Dim>,
    /// Tensor elements that the program reads as numbers and that are no sizes, by symbol, with the depth of their graph.
    pub(super) taken: BTreeMap<String, (usize, Value)>,
    /// Numbers computed from sizes with a rounding towards 0, by the name of the result.
    pub(super) rounded: BTreeMap<String, expr::Expr>,
    /// The symbols in the values of `symbols`; a run knows them.
    pub(super) decided: BTreeSet<Arc<str>>,
    /// The ranges of symbols that no input's shape decides.
    pub(super) ranges: BTreeMap<String, messages::Range>,
    /// The lower bounds of symbols that shapes of inputs decide.
    pub(super) least: BTreeMap<String, i64>,
    /// Bytes moved if every node were a kernel of its own.
    pub(super) bytes_unfused: Dim,
    /// The operator of each node, by the node's name.
    pub(super) operators: BTreeMap<String, String>,
    pub(super) depth: usize,
    /// Other names by which results can be tapped, those of outputs and of modules that return them: the result's name, and the other
    /// name.
    pub(super) also: Vec<(&'m str, String)>,
    /// The program's graph.
    pub(super) graph: &'m Graph,
}

/// Symbols.
impl Importer<'_> {
    /// The value of a symbol; the value of an unknown symbol is the symbol itself.
    pub fn symbol(&self, name: &str) -> Dim {
        self.symbols.get(name).cloned().unwrap_or_else(|| Dim::sym(name))
    }

    /// The lower bound of a symbol that torch assumes in its decisions.
    pub(super) fn least(&self, name: &str) -> i64 {
        let declared = self.ranges.get(name).map(|r| r.min_val.unwrap_or(0).max(0));
        declared.unwrap_or_else(|| self.least.get(name).map_or(2, |n| *n.max(&2)))
    }

    /// Simplifies minima and maxima in a size by the lower bounds of its symbols, which a run checks.
    fn bounded(&self, d: Dim) -> Dim {
        let symbols = d.symbols();
        let least = |s: &str| self.least.get(s).copied().filter(|_| symbols.contains(s));
        if self.least.is_empty() || !d.has_extremes() || !symbols.iter().any(|s| least(s).is_some()) {
            return d;
        }
        let from = |sign: i64| {
            move |a: &Atom| match a {
                Atom::Sym(s) => least(s).map(|n| &Dim::sym(s) + sign * n),
                _ => None,
            }
        };
        let decided = d.subst(&from(1), &[]).subst(&from(-1), &[]);
        if decided.size() < d.size() { decided } else { d }
    }

    /// Sets the value of a symbol.
    pub(super) fn define(&mut self, name: &str, size: Dim) {
        self.decided.extend(size.symbols());
        self.symbols.insert(name.to_owned(), size);
    }

    /// Parses a size.
    pub fn size(&self, text: &str) -> Result<Dim> {
        self.known_size(expr::size(text, &|s| self.symbol(s))?)
    }

    /// Checks that all symbols of a size are decided.
    pub(super) fn known_size(&self, d: Dim) -> Result<Dim> {
        let d = self.bounded(d);
        match d.symbols().iter().find(|s| !self.decided.contains(*s)) {
            None => Ok(d),
            Some(s) if self.taken.contains_key(&**s) => Err(OpError::unsupported(
                format!(
                    "the size {d} depends on the integer `{s}`, which is an element of a tensor without known bounds"
                ),
                "state its bounds in the module: torch._check(n >= 0), torch._check(n <= 4096)",
            )),
            Some(s) => Err(OpError::unsupported(
                format!("the size {d} depends on `{s}`, which no input's shape and no operator decides"),
                "export the program with a dimension of an input in place of it",
            )),
        }
    }

    /// The declared element type of an input.
    pub(super) fn declared_dtype(&self, name: &str) -> Result<wgfc_ir::DType> {
        let code = self.graph.tensor_values.get(name).map_or(0, |m| m.dtype);
        messages::dtype(code).map_err(|e| {
            OpError::unsupported(
                format!("a tensor of {e}"),
                "convert it to f32, f16, bf16 or an integer type",
            )
        })
    }

    /// Whether an input is declared to hold complex numbers.
    pub(super) fn declared_complex(&self, name: &str) -> bool {
        self.graph.tensor_values.get(name).is_some_and(|m| messages::is_complex(m.dtype))
    }

    pub(super) fn sym_int(&self, s: &SymInt) -> Result<Dim> {
        match s {
            SymInt::Int(n) => Ok((*n).into()),
            SymInt::Expr(text) => self.size(text),
        }
    }

    /// A declared type. Complex numbers are pairs along a last axis.
    pub fn tensor_type(&self, meta: &TensorMeta) -> Result<TensorType> {
        let dtype = messages::dtype(meta.dtype).map_err(|e| {
            OpError::unsupported(
                format!("a tensor of {e}"),
                "convert it to f32, f16, bf16 or an integer type",
            )
        })?;
        let mut shape = meta.sizes.iter().map(|s| self.sym_int(s)).collect::<Result<Vec<Dim>>>()?;
        if messages::is_complex(meta.dtype) {
            shape.push(2i64.into());
        }
        Ok(TensorType::new(dtype, shape))
    }
}

/// An error for a result whose type differs from the declared one.
fn contradiction(name: &str, have: &TensorType, want: &TensorType) -> OpError {
    OpError::model(format!("`{name}` is a {have} by the types of its operands, and the program says {want}")).help(
        "export the program again; if it says so unchanged, this is a bug in wgfc: please report it with the program",
    )
}

/// The inputs of a graph that its nodes write, directly or through views.
pub fn written<'m>(graph: &'m Graph) -> BTreeSet<&'m str> {
    let mut roots: HashMap<&'m str, &'m str> = HashMap::new();
    for i in &graph.inputs {
        if let Argument::Tensor(t) = i {
            roots.insert(&t.name, &t.name);
        }
    }
    let mut out = BTreeSet::new();
    for node in &graph.nodes {
        let target = op::target(node);
        let schema = schema::find(target);
        let found = ops::find(target);
        let implied = found.map_or(&[][..], |f| f.def.writes);
        let off =
            |flag: &str| node.inputs.iter().any(|i| i.name == flag && matches!(i.arg, Argument::Bool(false)));
        let writes = !found.is_some_and(|f| f.rebinds || f.def.writes_if.is_some_and(off));
        for i in node.inputs.iter().filter(|_| writes) {
            let declared = schema.as_ref().and_then(|s| s.argument(&i.name)).and_then(|d| d.alias);
            if declared.is_some_and(|a| a.written) || implied.contains(&i.name.as_str()) {
                out.extend(tensors(&i.arg).filter_map(|t| roots.get(t)));
            }
        }
        for (k, result) in node.results().enumerate() {
            let of = found.and_then(|f| aliases::operand(node, f.def, schema.as_ref(), k));
            if let Some(root) = of.and_then(|t| roots.get(t)) {
                roots.insert(result, root);
            }
        }
        let operands: Vec<&str> = node.inputs.iter().flat_map(|i| tensors(&i.arg)).collect();
        for i in &node.inputs {
            let Argument::Graph(g) = &i.arg else { continue };
            let inner = written(&g.graph);
            let skip = operands.len().saturating_sub(g.graph.inputs.len());
            for (formal, operand) in g.graph.inputs.iter().zip(&operands[skip..]) {
                if tensors(formal).any(|f| inner.contains(f)) {
                    out.extend(roots.get(operand));
                }
            }
        }
    }
    out
}

/// The names of the tensors in an argument.
pub fn tensors(a: &Argument) -> Box<dyn Iterator<Item = &str> + '_> {
    use messages::OptionalTensor::Tensor;
    match a {
        Argument::Tensor(t) | Argument::OptionalTensor(Tensor(t)) => {
            Box::new(std::iter::once(t.name.as_str()))
        }
        Argument::Tensors(ts) => Box::new(ts.iter().map(|t| t.name.as_str())),
        Argument::OptionalTensors(ts) => {
            Box::new(ts.iter().filter_map(|t| if let Tensor(t) = t { Some(t.name.as_str()) } else { None }))
        }
        _ => Box::new(std::iter::empty()),
    }
}

impl<'m> Importer<'m> {
    /// Lowers the nodes of a graph in order. Errors are collected; the results of a failed node are poisoned, and nodes that read them
    /// are skipped.
    pub(super) fn nodes(&mut self, to: &mut Lowering, scope: &mut Scope, graph: &'m Graph) {
        if self.depth >= MAX_DEPTH {
            let d = Diagnostic::unsupported(format!("graphs are nested more than {MAX_DEPTH} deep"));
            self.errors.push(d.help("write the innermost ones inline"));
            graph.nodes.iter().flat_map(Node::results).for_each(|n| scope.poison(n));
            return;
        }
        self.depth += 1;
        let place = to.at(Place::default());
        for (i, node) in graph.nodes.iter().enumerate() {
            self.node(to, scope, graph, node, i);
        }
        to.at(place);
        self.depth -= 1;
    }

    /// Lowers the nodes of an inner graph in place; its inputs share the memory of the names in `given`.
    pub(super) fn inline(
        &mut self,
        to: &mut Lowering,
        scope: &mut Scope,
        graph: &'m Graph,
        given: &[&str],
    ) -> Lowered {
        let formals: Vec<&str> = graph.inputs.iter().flat_map(tensors).collect();
        if formals.len() != given.len() {
            return Err(OpError::model(format!(
                "its graph has {} inputs, but is given {}",
                formals.len(),
                given.len()
            )));
        }
        let outer = scope.enter(&formals, given);
        self.nodes(to, scope, graph);
        let results = graph.outputs.iter().flat_map(tensors).map(|n| scope.read(to, n)).collect();
        scope.leave(outer);
        results
    }

    fn node(&mut self, to: &mut Lowering, scope: &mut Scope, graph: &'m Graph, node: &'m Node, index: usize) {
        let at = location(node, index);
        let target = op::target(node);
        let found = ops::find(target);
        if found.is_none() && op::makes_sizes(node) {
            self.follow_size(graph, node);
            return;
        }
        self.operators.insert(op::label(node, index), target.to_owned());
        let reads = node.inputs.iter().flat_map(|i| tensors(&i.arg));
        if reads.into_iter().any(|n| matches!(scope.get(n), Some(Slot::Poisoned))) {
            return node.results().for_each(|n| scope.poison(n));
        }
        let known = to.graph.constraints.len();
        let first = node.results().next().unwrap_or_default();
        to.at(Place::new(&op::label(node, index), first));
        // The survey has already reported all operators that are not supported.
        let lowered = match found {
            Some(f) => self.lower(to, scope, graph, node, &f),
            None => Err(OpError::reported()),
        };
        let lowered = lowered.and_then(|()| to.check_constraints(known));
        if let Err(e) = lowered {
            self.report(e, at);
            node.results().for_each(|n| scope.poison(n));
        }
    }

    /// Remembers the expression of a number that a node computes from sizes if it rounds towards 0. The program's own expressions for
    /// later numbers may round down instead.
    fn follow_size(&mut self, graph: &'m Graph, node: &'m Node) {
        let [Argument::SymInt(SymArgument::Name(name)) | Argument::SymFloat(name)] = &node.outputs[..] else {
            return;
        };
        self.rounded.remove(name);
        let given = |a: &Argument| -> Option<expr::Expr> {
            let of = |n: &str, text: Option<&String>| match self.rounded.get(n) {
                Some(e) => Some(e.clone()),
                None => expr::parse(text?).ok(),
            };
            match a {
                Argument::Int(n) => Some(expr::Expr::Int(*n)),
                Argument::Float(x) => Some(expr::Expr::Float(*x)),
                Argument::SymInt(SymArgument::Int(n)) => Some(expr::Expr::Int(*n)),
                Argument::SymInt(SymArgument::Name(n)) => match graph.sym_int_values.get(n)? {
                    SymInt::Int(n) => Some(expr::Expr::Int(*n)),
                    SymInt::Expr(text) => of(n, Some(text)),
                },
                Argument::SymFloat(n) => match graph.sym_float_values.get(n)? {
                    messages::SymFloat::Float(x) => Some(expr::Expr::Float(*x)),
                    messages::SymFloat::Expr(text) => of(n, Some(text)),
                },
                _ => None,
            }
        };
        let Some(args) = node.inputs.iter().map(|i| given(&i.arg)).collect::<Option<Vec<_>>>() else {
            return;
        };
        if let Some(e) = expr::of_operator(op::target(node), args).filter(expr::Expr::truncates) {
            self.rounded.insert(name.clone(), e);
        }
    }

    fn report(&mut self, e: OpError, at: Location) {
        if !e.reported {
            self.errors.push(diagnostic(e, at));
        }
    }

    fn lower(
        &mut self,
        to: &mut Lowering,
        scope: &mut Scope,
        graph: &'m Graph,
        node: &'m Node,
        found: &Found,
    ) -> Result<()> {
        let target = op::target(node);
        let schema = schema::find(target);
        complex(graph, node, found.def)?;
        let mut cx = Cx::new(to, self, scope, (graph, node), schema.clone());
        if let Some(values) = nothing(&mut cx, found)? {
            return self.bind(to, scope, (graph, node), found, schema.as_ref(), values);
        }
        cx.in_f32 = found.def.in_f32;
        let mut values = if found.def.by_parts && has_complex(graph, node).is_some() {
            by_parts(&mut cx, found.def, schema.as_ref()).map_err(|e| cx.placed(e))?
        } else {
            (found.def.lower)(&mut cx).map_err(|e| cx.placed(e))?
        };
        if std::mem::take(&mut cx.in_f32) {
            for (i, v) in values.iter_mut().enumerate().take(cx.result_count()) {
                if cx.dtype(*v) == DType::F32
                    && let Ok(dtype) = cx.result_dtype(i)
                    && dtype.is_float()
                {
                    *v = cx.converted(*v, dtype)?;
                }
            }
        }
        if found.in_place {
            let name =
                schema.as_ref().and_then(|s| s.arguments.iter().find(|a| a.alias.is_some_and(|a| a.written)));
            let name = name.ok_or_else(|| OpError::internal("an operator in place writes no argument"))?.name;
            let old = cx.tensor(name)?;
            let first = values.first_mut().ok_or_else(|| OpError::internal("an operator without results"))?;
            let converted = cx.converted(*first, cx.dtype(old))?;
            let want = cx.shape(old);
            *first = shape::expand(&mut cx, converted, &want)?;
            let written = *first;
            cx.write(name, written)?;
        }
        self.bind(to, scope, (graph, node), found, schema.as_ref(), values)
    }

    /// Names the results of a node, and checks them against their declared types.
    fn bind(
        &mut self,
        to: &mut Lowering,
        scope: &mut Scope,
        (graph, node): (&'m Graph, &'m Node),
        found: &Found,
        schema: Option<&Schema>,
        values: Vec<Value>,
    ) -> Result<()> {
        self.integers(to, graph, node, &values)?;
        for (i, name) in node.results().enumerate() {
            let Some(v) = values.get(i).copied() else {
                return Err(OpError::unsupported(
                    format!("its result {i} (`{name}`) is not supported"),
                    "export the model without the nodes that read this result",
                ));
            };
            let v = self.declared(to, graph, name, v)?;
            check_dims(to.ty(v))
                .map_err(|e| OpError::model(format!("its result {i} has type {}: {e}", to.ty(v))))?;
            let of = aliases::operand(node, found.def, schema, i);
            let writes = !found.rebinds && schema.and_then(|s| s.aliased(i)).is_some_and(|(_, a)| a.written);
            let least = |s: &str| self.least(s);
            let shared = of.map_or(Shared::No, |of| aliases::shared(graph, node, schema, (of, name), &least));
            let v = match (of, shared) {
                (Some(of), _) if writes => {
                    scope.rename(name, of);
                    let changed = self.called(to, name, v);
                    if changed != v {
                        scope.write(to, name, changed)?;
                    }
                    changed
                }
                // `called` may replace the value; a replaced value is no view, so the alias is then unknown.
                (Some(of), Shared::Yes | Shared::Unknown) => {
                    let v = self.called(to, name, v);
                    scope.alias(to.graph, name, of, v, shared == Shared::Yes);
                    if found.def.repeats {
                        scope.repeats(name);
                    }
                    if found.rebinds {
                        scope.rename(of, name);
                    }
                    v
                }
                (Some(of), Shared::IfViews) if scope.is_view(to.graph, of, v) => {
                    let v = self.called(to, name, v);
                    scope.alias(to.graph, name, of, v, true);
                    if found.def.repeats {
                        scope.repeats(name);
                    }
                    v
                }
                _ => {
                    let v = to.evaluated(v);
                    let v = self.called(to, name, v);
                    scope.insert(name, v);
                    v
                }
            };
            if let Some(slot @ None) = to.graph.node_mut(v.node).names.get_mut(v.port as usize) {
                *slot = Some(name.into());
            }
        }
        if schema.is_none_or(|s| s.aliased(0).is_none_or(|(_, a)| a.written)) {
            let read = node.inputs.iter().flat_map(|i| tensors(&i.arg));
            let names = read.chain(node.results());
            let sizes =
                names.filter_map(|n| graph.tensor_values.get(n)).filter_map(|m| self.tensor_type(m).ok());
            let bytes: Dim = sizes.map(|ty| crate::assemble::packed(ty.dtype, &ty.numel())).sum();
            let total = &self.bytes_unfused + &bytes;
            if !total.is_too_large() {
                self.bytes_unfused = total;
            }
        }
        Ok(())
    }

    /// The value that later nodes read under a result's name; options that change tensors may replace it.
    fn called(&self, to: &mut Lowering, name: &str, v: Value) -> Value {
        if self.depth > 1 {
            return v;
        }
        to.named_all(&self.names_of(name), v)
    }

    /// All names by which a tensor can be tapped.
    pub(super) fn names_of<'n>(&'n self, name: &'n str) -> Vec<&'n str> {
        let also = self.also.iter().filter(|m| m.0 == name).map(|m| m.1.as_str());
        std::iter::once(name).chain(also).collect()
    }

    /// A result with its declared type.
    fn declared(&mut self, to: &mut Lowering, graph: &'m Graph, name: &str, v: Value) -> Result {
        let Some(meta) = graph.tensor_values.get(name) else { return Ok(v) };
        let have = to.ty(v).clone();
        let complex = messages::is_complex(meta.dtype);
        // The program's symbols for sizes that the operator has decided are defined.
        for (s, d) in meta.sizes.iter().zip(&have.shape) {
            if let SymInt::Expr(text) = s
                && let Ok(expr::Expr::Symbol(symbol)) = expr::parse(text)
                && !self.symbols.contains_key(&symbol)
            {
                self.define(&symbol, d.clone());
            }
        }
        let want = self.tensor_type(meta)?;
        if have.rank() != want.rank() || have.dtype != want.dtype {
            return Err(contradiction(name, &have, &want));
        }
        let mut changed = false;
        for (h, w) in have.shape.iter().zip(&want.shape) {
            if let (Some(a), Some(b)) = (h.as_const(), w.as_const())
                && a != b
            {
                return Err(contradiction(name, &have, &want));
            }
            changed |= h != w;
            to.require_equal(h, w);
        }
        if !changed || complex {
            return Ok(v);
        }
        let index = (0..want.rank()).map(Poly::var).collect();
        Ok(to.view(v, want.shape, index)?)
    }

    /// Defines the program's symbols for numbers that a node reads from tensors.
    fn integers(
        &mut self,
        to: &mut Lowering,
        graph: &'m Graph,
        node: &'m Node,
        values: &[Value],
    ) -> Result<()> {
        let results = node.outputs.iter().filter_map(|o| match o {
            Argument::SymInt(SymArgument::Name(n)) => match graph.sym_int_values.get(n) {
                Some(SymInt::Expr(text)) => Some((text, true)),
                _ => None,
            },
            Argument::SymFloat(n) => match graph.sym_float_values.get(n) {
                Some(messages::SymFloat::Expr(text)) => Some((text, false)),
                _ => None,
            },
            _ => None,
        });
        for (o, v) in node.outputs.iter().zip(values) {
            // A size that the program asserts is a constant while compiling, and each run compares it with its value.
            let known = match o {
                Argument::SymBool(n) => match graph.sym_bool_values.get(n) {
                    Some(messages::SymBool::Bool(b)) => Some(i64::from(*b)),
                    _ => None,
                },
                Argument::SymInt(SymArgument::Name(n)) => match graph.sym_int_values.get(n) {
                    Some(SymInt::Int(n)) => Some(*n),
                    _ => None,
                },
                _ => None,
            };
            if let Some(known) = known
                && to.ty(*v).numel().is(1)
                && to.dims(*v).is_none_or(|d| d.first().is_none_or(|d| !d.is(known)))
            {
                let v = to.cast(*v, DType::I64)?;
                let wanted = to.dim_scalar(&known.into(), DType::I64)?;
                let holds = to.binary(BinaryOp::Eq, v, wanted)?;
                if let Some(holds) = to.checked_number("truth", holds, &Poly::ONE)? {
                    to.require_equal(&holds, &Poly::ONE);
                }
                continue;
            }
            let Argument::SymBool(n) = o else { continue };
            let Some(messages::SymBool::Expr(text)) = graph.sym_bool_values.get(n) else { continue };
            let Ok(expr::Expr::Call(head, args)) = expr::parse(text) else { continue };
            if let ("Equality" | "Eq", [expr::Expr::Symbol(s), expr::Expr::Int(1)]) =
                (head.as_str(), &args[..])
                && !self.symbols.contains_key(s)
                && let Some(truth) = to.checked_number("truth", *v, &Poly::ONE)?
            {
                self.define(s, truth);
            }
        }
        for ((text, is_integer), v) in results.zip(values) {
            let Ok(expr::Expr::Symbol(symbol)) = expr::parse(text) else { continue };
            if !is_integer {
                self.taken.insert(symbol, (self.depth, *v));
                continue;
            }
            if self.symbols.contains_key(&symbol) {
                continue;
            }
            let known = to.dims(*v).and_then(|d| d.first().cloned());
            let size = match known {
                Some(d) => d,
                None => {
                    let range = self.ranges.get(&symbol);
                    let most = range.and_then(|r| r.max_val).filter(|m| *m < 1 << 31);
                    let least = range.and_then(|r| r.min_val).filter(|m| *m >= 0);
                    let (Some(most), Some(_)) = (most, least) else {
                        // Without a range it may be a position or a number, but not a size.
                        self.taken.insert(symbol, (self.depth, *v));
                        continue;
                    };
                    to.require_open_sizes(*v)?;
                    to.computed_size(*v, most.into())
                }
            };
            self.define(&symbol, size);
        }
        Ok(())
    }
}

/// The results of an operator if all of them are empty tensors, which need no computation; `None` if one is not empty or shares memory
/// with an argument.
fn nothing(cx: &mut Cx, found: &Found) -> Result<Option<Vec<Value>>> {
    let mut types = vec![];
    for i in 0..cx.result_count() {
        match cx.result(i) {
            Ok(ty) if ty.shape.iter().any(|d| d.is(0)) => types.push(ty),
            _ => return Ok(None),
        }
    }
    let aliased = |i| cx.schema.as_ref().is_some_and(|s| s.aliased(i).is_some());
    if types.is_empty() || found.in_place || (0..types.len()).any(aliased) {
        return Ok(None);
    }
    let mut values = vec![];
    for ty in types {
        let zero = cx.number_in(&Number::Bool(false), ty.dtype)?;
        values.push(shape::expand(cx, zero, &ty.shape)?);
    }
    Ok(Some(values))
}

/// An error if an operator that does not support complex numbers takes or returns them.
fn complex(graph: &Graph, node: &Node, def: &OpDef) -> Result<()> {
    if def.complex {
        return Ok(());
    }
    match has_complex(graph, node) {
        None => Ok(()),
        Some(n) => Err(OpError::unsupported(
            format!("`{n}` is a tensor of complex numbers, which this operator does not take here"),
            "compute with torch.view_as_real of it",
        )),
    }
}

/// The name of a tensor of complex numbers that a node takes or returns.
fn has_complex<'m>(graph: &Graph, node: &'m Node) -> Option<&'m str> {
    let mut given = node.inputs.iter().flat_map(|i| tensors(&i.arg)).chain(node.results());
    given.find(|n| graph.tensor_values.get(*n).is_some_and(|m| messages::is_complex(m.dtype)))
}

/// Lowers an operator once for the real parts of complex numbers and once for the imaginary parts.
fn by_parts(cx: &mut Cx, def: &OpDef, schema: Option<&Schema>) -> Lowered {
    cx.part = Some(0);
    let real = (def.lower)(cx)?;
    cx.part = Some(1);
    let imaginary = (def.lower)(cx)?;
    cx.part = None;
    let mut out = vec![];
    for (i, (r, j)) in real.into_iter().zip(imaginary).enumerate() {
        let whole = match aliases::operand(cx.node, def, schema, i) {
            Some(of) => Some(cx.by_name(of)?),
            None => None,
        };
        out.push(match whole.and_then(|v| pairs(cx, v, [r, j])) {
            Some((whole, shape, index)) => cx.view(whole, shape, index)?,
            None => complex_numbers::of(cx, r, j)?,
        });
    }
    Ok(out)
}

/// The view of complex numbers whose real and imaginary parts are the given views of `whole`, if there is one.
fn pairs(cx: &Cx, whole: Value, parts: [Value; 2]) -> Option<(Value, Vec<Dim>, Vec<Poly>)> {
    let (mut shape, mut index) = scope::part_of(cx.lowering.graph, whole, parts[0])?;
    let (_, other) = scope::part_of(cx.lowering.graph, whole, parts[1])?;
    let (last, other_last) = (index.pop()?, other.last()?);
    if !last.is(0) || !other_last.is(1) || index != other[..other.len() - 1] {
        return None;
    }
    index.push(Poly::var(shape.len()));
    shape.push(2i64.into());
    Some((whole, shape, index))
}
