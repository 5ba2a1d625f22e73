//! Branches, loops and scans over slices.
//!
//! The caller makes their graphs, each with a [`Lowering`] of its own ([`Lowering::body`]). The inputs of such a graph
//! are the parameters, followed by the captured values.

use super::counters::iterations;
use super::{Lowered, Lowering, OpError, Result, axis};
use crate::shape_eval::ShapeEval;
use wgfc_ir::{Border, Builder, DType, Dim, Graph, Op, Poly, Scalar, Tensor, TensorType, Value};

/// A parameter of a body.
#[derive(Clone, Debug)]
pub struct Param {
    /// Its type.
    pub ty: TensorType,
    /// Its elements, if they are equal in every iteration.
    pub known: Option<Vec<Dim>>,
    /// Whether it is the iteration number.
    pub iteration: bool,
    /// Whether the body in the model has no input for it.
    pub hidden: bool,
}

impl Param {
    /// A parameter whose elements differ between iterations.
    pub fn variable(ty: TensorType) -> Param {
        Param { ty, known: None, iteration: false, hidden: false }
    }
}

/// The graph of a branch or of a loop body.
pub struct Body {
    /// The graph.
    pub graph: Graph,
    /// The known values of the graph.
    pub eval: ShapeEval,
}

fn types(g: &Graph) -> Vec<TensorType> {
    g.outputs.iter().map(|o| g.ty(o.value).clone()).collect()
}

/// Adds a node and returns all its outputs in order.
fn push_all(cx: &mut Lowering, op: Op, inputs: &[Value]) -> Lowered {
    let node = cx.push(op, inputs)?.node;
    Ok((0..cx.graph.node(node).outputs.len()).map(|port| Value { node, port: port as u32 }).collect())
}

/// Reshapes a bool of one element to a scalar condition.
pub fn condition(cx: &mut Lowering, v: Value) -> Result {
    if cx.dtype(v) != DType::Bool {
        return Err(OpError::model(format!("the condition is {}", cx.ty(v))).operand(v));
    }
    Ok(cx.reshape(v, vec![])?)
}

/// An `if` with two branches that capture the same values.
pub fn branch(
    cx: &mut Lowering,
    condition: Value,
    then_branch: Graph,
    else_branch: Graph,
    captured: &[Value],
) -> Lowered {
    if types(&then_branch) != types(&else_branch) {
        return Err(OpError::unsupported(
            "branches whose outputs have different types or shapes",
            "make the condition a constant, or give both branches the same shapes",
        ));
    }
    let inputs: Vec<Value> = [condition].into_iter().chain(captured.iter().copied()).collect();
    push_all(cx, Op::If { then_branch: Box::new(then_branch), else_branch: Box::new(else_branch) }, &inputs)
}

/// Checks that carried values keep their types; the error says which type changes.
fn invariant(carried: &[TensorType], after: &[TensorType]) -> std::result::Result<(), String> {
    if after.len() < carried.len() {
        return Err(format!("its body returns {} values for {} carried ones", after.len(), carried.len()));
    }
    match carried.iter().zip(after).find(|(a, b)| a != b) {
        Some((a, b)) => Err(format!("a carried value of type {a} comes back as {b}")),
        None => Ok(()),
    }
}

/// The error for a body whose carried values change their type.
pub fn changing(what: String) -> OpError {
    OpError::unsupported(
        what,
        "carried values must keep their shape, or the number of iterations be a small constant",
    )
}

/// A loop whose body is not yet known.
pub struct Loop {
    /// The maximum number of iterations (i64).
    trips: Option<Value>,
    /// The condition before the first iteration.
    condition: Value,
    /// The initial values of the carried variables.
    initial: Vec<Value>,
    carried: Vec<TensorType>,
    /// Whether the initial condition is known to hold.
    starts: bool,
    /// The maximum number of iterations, if it is known.
    count: Option<Dim>,
}

impl Loop {
    /// A loop of at most `trips` iterations (by default unbounded) that runs while a condition holds; `held` is the
    /// initial condition, by default true.
    pub fn new(
        cx: &mut Lowering,
        trips: Option<Value>,
        held: Option<Value>,
        initial: &[Value],
    ) -> Result<Loop> {
        let trips = match trips {
            Some(v) => {
                let v = cx.reshape(v, vec![])?;
                Some(cx.cast(v, DType::I64)?)
            }
            None => None,
        };
        let condition = match held {
            Some(v) => condition(cx, v)?,
            None => cx.constant(Tensor::scalar(Scalar::bool(true))),
        };
        let starts = cx.dims(condition).is_some_and(|c| c == [Dim::ONE]);
        let count = trips.and_then(|t| cx.dims(t)).and_then(|d| d.into_iter().next());
        let carried = initial.iter().map(|v| cx.ty(*v).clone()).collect();
        Ok(Loop { trips, condition, initial: initial.to_vec(), carried, starts, count })
    }

    /// The parameters of the body: the iteration number, the condition and the carried values. The body must return
    /// the condition, the carried values, and the results to be stacked.
    pub fn params(&self) -> Vec<Param> {
        // The body only runs while its condition holds, so the condition is known to be true in it.
        let mut params = vec![
            Param { iteration: true, ..Param::variable(TensorType::new(DType::I64, vec![])) },
            Param { known: Some(vec![Dim::ONE]), ..Param::variable(TensorType::new(DType::Bool, vec![])) },
        ];
        params.extend(self.carried.iter().cloned().map(Param::variable));
        params
    }

    /// The number of iterations, if it is known and at most `most`.
    pub fn few(&self, most: i64) -> Option<i64> {
        let count = self.count.as_ref().and_then(|c| c.as_const());
        count.filter(|c| self.starts && (0..=most).contains(c))
    }

    /// The first change of type of a carried value, if there is one.
    pub fn changes(&self, body: &Body) -> Result<Option<String>> {
        let after = types(&body.graph);
        let Some((first, rest)) = after.split_first() else {
            return Err("its body returns no condition".into());
        };
        if first.dtype != DType::Bool {
            return Err(OpError::model(format!("its body's condition is {first}")));
        }
        Ok(invariant(&self.carried, rest).err())
    }

    /// Returns the carried values after the loop, then the stacked results. A loop that always runs for its full trip
    /// count, or whose condition only counts, becomes a scan over the iteration numbers. Any other loop becomes
    /// [`Op::While`]; its stacked results may have no known shape, and `unknown` are the values that decide it.
    pub fn lower(self, cx: &mut Lowering, mut body: Body, captured: &[Value], unknown: &[Value]) -> Lowered {
        let n = self.carried.len();
        let (condition, initial) = (self.condition, &self.initial);
        let outcome = body.graph.outputs[0].value;
        let goes_on = body.eval.dims(&body.graph, outcome).is_some_and(|c| c == [Dim::ONE]);
        let counted = match (self.starts && goes_on, self.trips.is_some()) {
            (true, _) => self.count,
            (false, given) => {
                let inner = (&body.graph, &mut body.eval);
                let counted = iterations(cx, inner, condition, initial, captured);
                match (given, counted, self.count) {
                    (false, counted, _) => counted,
                    (true, Some(a), Some(b)) => Some(a.min_of(&b, &[])),
                    (true, ..) => None,
                }
            }
        };
        let mut g = body.graph;
        if let Some(count) = counted {
            let length = count.max_of(&Dim::ZERO, &[]);
            let numbers = cx.iota(&[length], Poly::var(0), DType::I64)?;
            let condition = g.inputs[1].value;
            let yes = Builder::new(&mut g, "").constant(Tensor::scalar(Scalar::bool(true)));
            g.replace_uses(condition, yes);
            g.outputs.remove(0);
            g.inputs.remove(1);
            // Moves the iteration number behind the carried values.
            g.inputs[..=n].rotate_left(1);
            g.remove_dead();
            let inputs: Vec<Value> = [&initial[..], &[numbers], captured].concat();
            let outputs = g.outputs.len() - n;
            let op = Op::Scan {
                body: Box::new(g),
                carried: n,
                scanned: 1,
                reverse_inputs: vec![false],
                reverse_outputs: vec![false; outputs],
            };
            return push_all(cx, op, &inputs);
        }
        if g.outputs.len() > 1 + n {
            // If these were known, the result would have a static shape.
            unknown.iter().for_each(|v| cx.depends_on_data_of(*v));
        }
        let out = g.outputs[0].value;
        let origin = cx.origin.first().cloned().unwrap_or_default();
        g.outputs[0].value = Builder::new(&mut g, &origin).reshape(out, vec![])?;
        let trips = self.trips.unwrap_or_else(|| cx.int(DType::I64, i64::MAX));
        let inputs: Vec<Value> = [&[trips, condition][..], initial, captured].concat();
        push_all(cx, Op::While { body: Box::new(g), carried: n }, &inputs)
    }
}

/// The axis along which a scan slices or stacks, and its direction.
#[derive(Clone, Copy, Debug)]
pub struct Along {
    /// The axis; negative ones count from the end.
    pub axis: i64,
    /// Whether the scan runs from the last slice to the first.
    pub reverse: bool,
}

/// A scan whose body is not yet known.
pub struct Scan {
    inputs: Vec<Value>,
    carried: Vec<TensorType>,
    params: Vec<Param>,
    reverse: Vec<bool>,
}

impl Scan {
    /// A scan over the slices of `scanned`, which must all have the same extent along their axes; `carried` are the
    /// initial values. If `numbered`, the body also gets the iteration number as its last parameter.
    pub fn new(
        cx: &mut Lowering,
        carried: &[Value],
        scanned: &[(Value, Along)],
        numbered: bool,
    ) -> Result<Scan> {
        let mut inputs = carried.to_vec();
        let carried: Vec<TensorType> = carried.iter().map(|v| cx.ty(*v).clone()).collect();
        let mut params: Vec<Param> = carried.iter().cloned().map(Param::variable).collect();
        let mut length: Option<Dim> = None;
        for (x, along) in scanned {
            // Moves the scanned axis to the front.
            let axis = axis(along.axis, cx.rank(*x))?;
            let mut order: Vec<usize> = (0..cx.rank(*x)).filter(|d| *d != axis).collect();
            order.insert(0, axis);
            let x = cx.transpose(*x, &order)?;
            let mut shape = cx.shape(x);
            let mine = shape.remove(0);
            match &length {
                None => length = Some(mine),
                Some(l) if *l != mine => {
                    if l.as_const().is_some() && mine.as_const().is_some() {
                        return Err(OpError::model(format!("scanned inputs have lengths {l} and {mine}")));
                    }
                    let l = l.clone();
                    cx.require_equal(&l, &mine);
                }
                Some(_) => {}
            }
            params.push(Param::variable(TensorType::new(cx.dtype(x), shape)));
            inputs.push(x);
        }
        let mut reverse: Vec<bool> = scanned.iter().map(|(_, along)| along.reverse).collect();
        if let Some(length) = length.filter(|_| numbered) {
            inputs.push(cx.iota(&[length], Poly::var(0), DType::I64)?);
            let number = Param::variable(TensorType::new(DType::I64, vec![]));
            params.push(Param { iteration: true, hidden: true, ..number });
            reverse.push(false);
        }
        Ok(Scan { inputs, carried, params, reverse })
    }

    /// The parameters of the body: the carried values, the slices and, if requested, the iteration number. The body
    /// must return the carried values and the results to be stacked.
    pub fn params(&self) -> &[Param] {
        &self.params
    }

    /// Returns the carried values after the last slice, then the results, each stacked along its axis.
    pub fn lower(self, cx: &mut Lowering, body: Graph, captured: &[Value], stacked: &[Along]) -> Lowered {
        let n = self.carried.len();
        invariant(&self.carried, &types(&body)).map_err(changing)?;
        let op = Op::Scan {
            body: Box::new(body),
            carried: n,
            scanned: self.reverse.len(),
            reverse_inputs: self.reverse,
            reverse_outputs: stacked.iter().map(|along| along.reverse).collect(),
        };
        let inputs: Vec<Value> = self.inputs.iter().chain(captured).copied().collect();
        let mut out = push_all(cx, op, &inputs)?;
        for (v, along) in out[n..].iter_mut().zip(stacked) {
            let rank = cx.rank(*v);
            let axis = axis(along.axis, rank)
                .map_err(|_| OpError::model(format!("axis {}", along.axis)).param("scan_output_axes"))?;
            let mut order: Vec<usize> = (1..rank).collect();
            order.insert(axis, 0);
            *v = cx.transpose(*v, &order)?;
        }
        Ok(out)
    }
}

/// A batch of independent scans whose body is not yet known: axis 0 of every operand is the batch axis.
pub struct BatchedScan {
    outer: Graph,
    given: Vec<Value>,
    inputs: Vec<Value>,
    params: Vec<Param>,
    carried: usize,
    reverse: Vec<bool>,
}

impl BatchedScan {
    /// The first `carried` of `inputs` are the initial values, the others are scanned along axis 1, backwards if
    /// `reverse`.
    pub fn new(
        cx: &mut Lowering,
        inputs: Vec<Value>,
        carried: usize,
        reverse: Vec<bool>,
    ) -> Result<BatchedScan> {
        // The outer graph handles one element of the batch: it scans over that element's sequence.
        let mut outer = Graph::new();
        let (mut given, mut params) = (vec![], vec![]);
        let (mut batch, mut length): (Option<Dim>, Option<Dim>) = (None, None);
        for (i, x) in inputs.iter().enumerate() {
            let least = if i < carried { 1 } else { 2 };
            let mut shape = cx.shape(*x);
            if shape.len() < least {
                let e = "it needs axes for the batch and the sequence";
                return Err(OpError::model(e).operand(*x));
            }
            let same = |cx: &mut Lowering, known: &mut Option<Dim>, d: Dim| match known {
                Some(k) if *k != d => cx.require_equal(&k.clone(), &d),
                _ => *known = Some(d),
            };
            same(cx, &mut batch, shape.remove(0));
            let dtype = cx.dtype(*x);
            given.push(outer.add_input(&format!("element {i}"), TensorType::new(dtype, shape.clone())));
            if i >= carried {
                same(cx, &mut length, shape.remove(0));
            }
            params.push(Param::variable(TensorType::new(dtype, shape)));
        }
        Ok(BatchedScan { outer, given, inputs, params, carried, reverse })
    }

    /// The parameters of the body: the carried values, then the slices.
    pub fn params(&self) -> &[Param] {
        &self.params
    }

    /// Returns the carried values after the last slice, then the stacked results.
    pub fn lower(self, cx: &mut Lowering, body: Graph, captured: &[Value]) -> Lowered {
        let BatchedScan { mut outer, mut given, inputs, params, carried: n, reverse } = self;
        let carried: Vec<TensorType> = params[..n].iter().map(|p| p.ty.clone()).collect();
        invariant(&carried, &types(&body)).map_err(changing)?;
        for (i, v) in captured.iter().enumerate() {
            given.push(outer.add_input(&format!("captured {i}"), cx.ty(*v).clone()));
        }
        let results: Vec<_> = body.outputs.iter().map(|o| o.name.clone()).collect();
        let inner = Op::Scan {
            body: Box::new(body),
            carried: n,
            scanned: reverse.len(),
            reverse_inputs: reverse,
            reverse_outputs: vec![false; results.len() - n],
        };
        let node = outer.push(inner, &given, &cx.origin)?;
        for (port, name) in results.iter().enumerate() {
            let value = Value { node, port: port as u32 };
            outer.outputs.push(Border { name: name.clone(), value });
        }
        let op = Op::Scan {
            body: Box::new(outer),
            carried: 0,
            scanned: inputs.len(),
            reverse_inputs: vec![false; inputs.len()],
            reverse_outputs: vec![false; results.len()],
        };
        let all: Vec<Value> = inputs.iter().chain(captured).copied().collect();
        push_all(cx, op, &all)
    }
}
