//! Parsing of graphs.

use super::TextError;
use super::parser::{Parsed, Parser};
use crate::graph::{Border, Computed, Constraint, Graph, Growth, Node, State, TensorType, Value};
use crate::op::{Contract, GatherAxis, NormKind, Op, ReduceOp};
use crate::poly::Poly;
use crate::tensor::{Tensor, checked_numel};
use std::collections::HashMap;
use std::sync::Arc;

/// Parses a graph. Types are taken as written: the result need not pass the verifier.
///
/// ```
/// use wgfc_ir::text::{parse, print};
/// let graph = parse(
///     "graph (x: %0) -> (y: %1) {
///        %0 = input : f32[n, 7] as \"x\"
///        %1 = view [7, n] reads [%1, %0] (%0) : f32[7, n] @ \"transpose\"
///      }",
/// ).unwrap();
/// assert_eq!(print(&parse(&print(&graph)).unwrap()), print(&graph));
/// ```
pub fn parse(text: &str) -> Result<Graph, TextError> {
    Parser::whole(text, Parser::graph)
}

/// A name, the number of a value, and its position in the text.
type Named = (Arc<str>, usize, usize);

/// A state: its old and new contents, its growth, and the position in the text of its initial contents, if it has any
/// and they are not absent.
type Kept = (Named, Named, Option<Growth>, Option<Option<usize>>);

impl Parser<'_> {
    fn value_number(&mut self) -> Parsed<usize> {
        self.expect("%")?;
        self.integer()
    }

    fn border(&mut self) -> Parsed<Named> {
        let name = self.name()?;
        self.expect(":")?;
        self.space();
        let at = self.at;
        Ok((name, self.value_number()?, at))
    }

    /// The rest of a line after `state`.
    fn state(&mut self) -> Parsed<Kept> {
        let before = self.border()?;
        self.expect("->")?;
        self.space();
        let at = self.at;
        let after = (before.0.clone(), self.value_number()?, at);
        if self.eat_word("initial") {
            return Ok((before, after, None, Some(self.constant_start()?)));
        }
        if !self.eat_word("axis") {
            return Ok((before, after, None, None));
        }
        let axis = self.integer()?;
        self.expect_word("from")?;
        let length = self.name()?;
        self.expect_word("by")?;
        Ok((before, after, Some(Growth { axis, length, by: self.poly("\n")? }), None))
    }

    /// The rest of a line after `compute`.
    fn computed(&mut self) -> Parsed<(Named, Poly)> {
        let symbol = self.word("a symbol")?.into();
        self.expect("=")?;
        self.space();
        let at = self.at;
        let value = self.value_number()?;
        self.expect_word("up")?;
        self.expect_word("to")?;
        Ok(((symbol, value, at), self.poly("\n")?))
    }

    fn graph(&mut self) -> Parsed<Graph> {
        self.nested(Parser::graph_inner)
    }

    fn graph_inner(&mut self) -> Parsed<Graph> {
        let mut g = Graph::new();
        let mut values: HashMap<usize, Value> = HashMap::new();
        let (mut states, mut computed) = (vec![], vec![]);
        self.expect_word("graph")?;
        let inputs = self.list("(", ")", Parser::border)?;
        self.expect("->")?;
        let outputs = self.list("(", ")", Parser::border)?;
        self.expect("{")?;
        while !self.eat("}") {
            if self.eat_word("require") {
                let a = self.poly("=")?;
                self.expect("==")?;
                let b = self.poly("@\n")?;
                let origin = if self.eat("@") { self.string()? } else { "".into() };
                g.constraints.push(Constraint { a, b, origin });
            } else if self.eat_word("state") {
                states.push(self.state()?);
            } else if self.eat_word("compute") {
                computed.push(self.computed()?);
            } else if self.eat_word("optional") {
                let name = self.name()?;
                self.expect_word("to")?;
                g.optional.insert(name, self.polys()?);
            } else {
                self.node(&mut g, &mut values)?;
            }
        }
        let end = self.at;
        let mut resolve = |list: Vec<(Arc<str>, usize, usize)>| {
            list.into_iter()
                .map(|(name, n, at)| match values.get(&n) {
                    Some(v) => Ok(Border { name, value: *v }),
                    None => {
                        self.at = at;
                        Err(format!("no node makes %{n}"))
                    }
                })
                .collect::<Parsed<Vec<_>>>()
        };
        g.inputs = resolve(inputs)?;
        g.outputs = resolve(outputs)?;
        let mut initial = vec![];
        for (before, (_, after, at), growth, values) in states {
            let name = before.0.clone();
            initial.extend(values.map(|v| (g.states.len(), v, before.2)));
            let ends = resolve(vec![before, (name.clone(), after, at)])?;
            let [before, after] = [ends[0].value, ends[1].value];
            g.states.push(State { name, before, after, growth, initial: None });
        }
        for (named, bound) in computed {
            let symbol = named.0.clone();
            let value = resolve(vec![named])?[0].value;
            g.computed.push(Computed { symbol, value, bound });
        }
        for (state, values, at) in initial {
            let ty = g.ty(g.states[state].before).clone();
            g.states[state].initial = Some(Arc::new(self.constant(values, &ty, at)?));
        }
        self.at = end;
        Ok(g)
    }

    fn node(&mut self, g: &mut Graph, values: &mut HashMap<usize, Value>) -> Parsed<()> {
        let mut results = vec![self.value_number()?];
        while self.eat(",") {
            results.push(self.value_number()?);
        }
        self.expect("=")?;
        self.space();
        let start = self.at;
        let name = self.word("an operator")?;
        // The numbers of a constant come before its type, so they are parsed later.
        let mut constant = None;
        let op = match name {
            "const" => {
                constant = Some(self.constant_start()?);
                Op::Input
            }
            name => self.op(name).inspect_err(|e| {
                if e.starts_with("unknown operator") {
                    self.at = start;
                }
            })?,
        };
        let mut inputs = vec![];
        if !matches!(op, Op::Input) {
            inputs = self.list("(", ")", |p| {
                p.space();
                let at = p.at;
                let n = p.value_number()?;
                values.get(&n).copied().ok_or_else(|| {
                    p.at = at;
                    format!("%{n} is used before it is made")
                })
            })?;
        }
        self.expect(":")?;
        self.space();
        let types_at = self.at;
        let mut outputs = vec![self.ty()?];
        while self.eat(",") {
            outputs.push(self.ty()?);
        }
        if outputs.len() != results.len() {
            self.at = types_at;
            return Err(format!("{} types for {} results", outputs.len(), results.len()));
        }
        let op = match constant {
            Some(at) => Op::Const(Arc::new(self.constant(at, &outputs[0], types_at)?)),
            None => op,
        };
        let mut names = vec![None; outputs.len()];
        if self.eat_word("as") {
            for (i, slot) in names.iter_mut().enumerate() {
                if i > 0 {
                    self.expect(",")?;
                }
                if !self.eat_word("_") {
                    *slot = Some(self.string()?);
                }
            }
        }
        let mut origin = vec![];
        if self.eat("@") {
            origin.push(self.string()?);
            while self.eat(",") {
                origin.push(self.string()?);
            }
        }
        let id = g.add_node(Node { op, inputs, outputs, origin, names });
        for (port, n) in results.into_iter().enumerate() {
            if values.insert(n, Value { node: id, port: port as u32 }).is_some() {
                return Err(format!("%{n} is made twice"));
            }
        }
        Ok(())
    }

    /// Skips the values of a constant and returns their position, or `None` if they are absent.
    fn constant_start(&mut self) -> Parsed<Option<usize>> {
        if self.eat_word("absent") {
            return Ok(None);
        }
        if self.eat_word("hash") {
            self.word("a hash")?;
            return Ok(None);
        }
        self.space();
        let at = self.at;
        self.list("[", "]", |p| p.literal().map(|_| ()))?;
        Ok(Some(at))
    }

    fn constant(&mut self, values: Option<usize>, ty: &TensorType, types_at: usize) -> Parsed<Tensor> {
        let end = std::mem::replace(&mut self.at, types_at);
        let shape = ty.static_shape().ok_or("a constant needs a constant shape")?;
        let n = checked_numel(&shape).ok_or("the shape overflows")?;
        let t = match values {
            None => Tensor::absent(ty.dtype, shape),
            Some(at) => {
                self.at = at;
                self.numbers(ty, shape, n)?
            }
        };
        self.at = end;
        Ok(t)
    }

    fn axis(&mut self) -> Parsed<usize> {
        self.expect_word("axis")?;
        self.integer()
    }
    fn axes(&mut self) -> Parsed<Vec<usize>> {
        self.expect_word("axes")?;
        self.list("[", "]", Parser::integer)
    }
    fn reduce_op(&mut self) -> Parsed<ReduceOp> {
        let w = self.peek();
        let op = ReduceOp::ALL.into_iter().find(|o| o.name() == w);
        let op = op.ok_or_else(|| self.unexpected("`sum`, `prod`, `max` or `min`"))?;
        self.at += w.len();
        Ok(op)
    }
    fn gather_axes(&mut self) -> Parsed<Vec<GatherAxis>> {
        self.list("[", "]", |p| {
            if p.eat("$") {
                let input = p.integer()?;
                Ok(GatherAxis::Data { input, at: p.polys()? })
            } else {
                Ok(GatherAxis::Affine(p.poly(",]")?))
            }
        })
    }
    fn flags(&mut self) -> Parsed<Vec<bool>> {
        self.list("[", "]", |p| {
            let w = p.peek();
            let b = w.parse().map_err(|_| p.unexpected("`true` or `false`"))?;
            p.at += w.len();
            Ok(b)
        })
    }
    fn labels(&mut self) -> Parsed<Vec<u8>> {
        let mut out = vec![];
        loop {
            self.space();
            match self.rest().bytes().next() {
                Some(c @ b'a'..=b'z') => out.push(c - b'a'),
                Some(c @ b'A'..=b'Z') => out.push(c - b'A' + 26),
                Some(b'<') => {
                    self.at += 1;
                    out.push(u8::try_from(self.integer()?).map_err(|e| e.to_string())?);
                    if !self.rest().starts_with('>') {
                        return Err(self.unexpected("`>`"));
                    }
                }
                _ => return Ok(out),
            }
            self.at += 1;
        }
    }

    fn op(&mut self, name: &str) -> Parsed<Op> {
        Ok(match name {
            "input" => Op::Input,
            "map" => {
                let shape = self.polys()?;
                Op::Map { shape, body: self.body()? }
            }
            "view" => {
                let shape = self.polys()?;
                self.expect_word("reads")?;
                let index = self.polys()?;
                let fill = if self.eat_word("else") { Some(self.scalar()?) } else { None };
                Op::View { shape, index, fill }
            }
            "reduce" => Op::Reduce { op: self.reduce_op()?, axes: self.axes()? },
            "arg_reduce" => {
                Op::ArgReduce { op: self.reduce_op()?, axis: self.axis()?, last: self.eat_word("last") }
            }
            "prefix_scan" => Op::PrefixScan {
                op: self.reduce_op()?,
                axis: self.axis()?,
                exclusive: self.eat_word("exclusive"),
                reverse: self.eat_word("reverse"),
            },
            "contract" => {
                self.expect("[")?;
                let a = self.labels()?;
                self.expect(",")?;
                let b = self.labels()?;
                self.expect("->")?;
                let out = self.labels()?;
                self.expect("]")?;
                Op::Contract(Contract { a, b, out })
            }
            "gather" => {
                let shape = self.polys()?;
                self.expect_word("reads")?;
                Op::Gather { shape, index: self.gather_axes()? }
            }
            "scatter" => {
                let reduce = if self.eat_word("set") { None } else { Some(self.reduce_op()?) };
                self.expect_word("writes")?;
                Op::Scatter { reduce, index: self.gather_axes()? }
            }
            "place" => {
                let shape = self.polys()?;
                self.expect_word("writes")?;
                Op::Place { shape, index: self.gather_axes()? }
            }
            "concat" => Op::Concat { axis: self.axis()? },
            "top_k" => {
                let axis = self.axis()?;
                self.expect_word("k")?;
                self.expect("[")?;
                let k = self.poly("]")?;
                self.expect("]")?;
                let largest = self.eat_word("largest");
                if !largest {
                    self.expect_word("smallest")?;
                }
                Op::TopK { axis, k, largest }
            }
            "sort" => {
                let axis = self.axis()?;
                self.expect_word("sorted")?;
                let sorted = self.count()?;
                self.expect_word("part")?;
                let part = self.count()?;
                self.expect_word("keep")?;
                Op::Sort { axis, sorted, part, keep: self.count()? }
            }
            "softmax" => Op::Softmax { axis: self.axis()?, log: self.eat_word("log") },
            "norm" => {
                let kind = if self.eat_word("layer") {
                    NormKind::Layer
                } else {
                    self.expect_word("rms")?;
                    NormKind::Rms
                };
                let axes = self.axes()?;
                self.expect_word("epsilon")?;
                Op::Norm { kind, axes, epsilon: self.f32()?.to_bits() }
            }
            "attention" => {
                self.expect_word("scale")?;
                let scale = self.f32()?.to_bits();
                let empty_is_zero = self.eat_word("empty");
                if empty_is_zero {
                    self.expect_word("zero")?;
                }
                Op::Attention { scale, empty_is_zero }
            }
            "if" => {
                self.expect_word("then")?;
                let then_branch = Box::new(self.graph()?);
                self.expect_word("else")?;
                Op::If { then_branch, else_branch: Box::new(self.graph()?) }
            }
            "while" => {
                self.expect_word("carried")?;
                let carried = self.integer()?;
                Op::While { body: Box::new(self.graph()?), carried }
            }
            "scan" => {
                self.expect_word("carried")?;
                let carried = self.integer()?;
                self.expect_word("scanned")?;
                let scanned = self.integer()?;
                self.expect_word("reverse")?;
                let reverse_inputs = self.flags()?;
                let reverse_outputs = self.flags()?;
                Op::Scan { body: Box::new(self.graph()?), carried, scanned, reverse_inputs, reverse_outputs }
            }
            other => return Err(format!("unknown operator `{other}`")),
        })
    }
}
