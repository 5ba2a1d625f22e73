//! Caches in fewer bits ([`CacheType`]).
//!
//! ```text
//! after = scatter(cache, new) at past         →  after = scatter(cache, rounded(new)) at past
//! x = … after …                               →  x = … widened(after) …
//! after = concat(cache, new)[seq..]           →  after = concat(cache, rounded(new))[seq..]
//! ```
//!
//! In f16 `rounded` and `widened` are casts. In 8 bits a cache becomes two states: integers, and the scales of groups of
//! [`GROUP`] elements of a head, or of all of them if their number is no multiple of that. A scale is the greatest magnitude of its
//! group over 127, and an element `round(x / scale)`. Integers and scales that are only moved, as those of a sliding window, are
//! not rounded again. Scales stay f32: a position of each state is a number of whole words, so that it can be copied.
//!
//! Everything is made of ordinary operators. Fusion computes `integer · scale` where attention loads an element.

use crate::options::CacheType;
use rustc_hash::FxHashMap;
use wgfc_ir::build::Built;
use wgfc_ir::{
    BinaryOp as B, Builder, DType, Dim, GatherAxis, Graph, Growth, Op, Poly, ReduceOp, Scalar, ScalarFn,
    ScalarNode as N, State, TensorType, UnaryOp, Value,
};

/// The elements that share a scale.
pub const GROUP: i64 = 32;
/// The greatest magnitude of an integer.
const MOST: f64 = 127.0;
/// Bytes of a word, which is the unit in which positions of states are copied.
const WORD: i64 = 4;

/// Keeps the caches among the states in the given type. Returns a sentence for each cache that stays as it is.
///
/// # Errors
/// Operators whose types do not fit, which is a bug.
///
/// ```
/// use wgfc_compiler::{CacheType, States, states};
/// let model = r#"
/// graph (k: %0, x: %1) -> (k_out: %2) {
///   %0 = input : f32[2, past, 64] as "k"
///   %1 = input : f32[2, seq, 64] as "x"
///   %2 = concat axis 1 (%0, %1) : f32[2, past + seq, 64] as "k_out" @ "join"
/// }
/// "#;
/// let mut graph = wgfc_ir::text::parse(model)?;
/// states::introduce(&mut graph, &States::Auto { capacity: None })?;
/// let left = states::narrow(&mut graph, CacheType::Q8)?;
/// assert!(left.is_empty());
/// let names: Vec<&str> = graph.states.iter().map(|s| &*s.name).collect();
/// assert_eq!(names, ["k", "k.scale"]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn narrow(graph: &mut Graph, to: CacheType) -> Result<Vec<String>, String> {
    let mut left = vec![];
    if !matches!(to, CacheType::F16 | CacheType::Q8) {
        return Ok(left);
    }
    let mut out = vec![];
    for state in std::mem::take(&mut graph.states) {
        let ty = graph.ty(state.before).clone();
        if !is_cache(graph, &state) || to == CacheType::F16 && ty.dtype != DType::F32 {
            out.push(state);
            continue;
        }
        match Form::of(graph, &state, &ty, to) {
            Ok(form) => out.extend(form.apply(graph, &state)?),
            Err(why) => {
                left.push(format!("the cache \"{}\", {ty}, is kept as it is: {why}", state.name));
                out.push(state);
            }
        }
    }
    graph.states = out;
    graph.remove_dead();
    Ok(left)
}

/// Whether a state holds floats of positions: it grows, or is written at positions that a run is given.
fn is_cache(graph: &Graph, state: &State) -> bool {
    let ty = graph.ty(state.before);
    let given = |a: &GatherAxis| matches!(a, GatherAxis::Data { .. });
    let written = match &graph.node(state.after.node).op {
        Op::Scatter { reduce: None, index } => index.iter().any(given),
        _ => false,
    };
    let float = matches!(ty.dtype, DType::F32 | DType::F16 | DType::BF16);
    float && ty.rank() > 2 && state.initial.is_none() && (state.growth.is_some() || written)
}

/// How a state's new contents are made of its old ones and of new values.
struct Form {
    to: CacheType,
    /// The type of the values that are rounded.
    own: DType,
    /// Elements that share a scale.
    group: i64,
    /// Values made of the old contents by operators that only move elements, operands first, with the axis of the elements of a head.
    moved: Vec<(Value, usize)>,
}

impl Form {
    /// The form of a state; otherwise the reason why it has none.
    fn of(graph: &Graph, state: &State, ty: &TensorType, to: CacheType) -> Result<Form, String> {
        let last = ty.rank() - 1;
        let width = ty.shape[last].as_const().ok_or("its last axis is not fixed")?;
        if state.growth.as_ref().is_some_and(|g| g.axis == last) {
            return Err("its positions are along its last axis".into());
        }
        let bytes = if to == CacheType::Q8 { width } else { 2 * width };
        if width < 1 || bytes % WORD != 0 {
            return Err(format!("{width} elements are no whole words of {to}"));
        }
        let moved = follow(graph, state.before, state.after, last)
            .ok_or("its new contents are not its old ones with elements written, appended or moved")?;
        if moved.iter().any(|(v, axis)| *v == state.before && *axis != last) {
            return Err("its axes change places".into());
        }
        let group = if width % GROUP == 0 { GROUP } else { width };
        Ok(Form { to, own: ty.dtype, group, moved })
    }

    /// Rewrites the graph. Returns the states that take the place of `state`.
    fn apply(&self, graph: &mut Graph, state: &State) -> Result<Vec<State>, String> {
        let ty = graph.ty(state.before).clone();
        let names = self.names(&state.name);
        let mut planes: FxHashMap<Value, Vec<Value>> = FxHashMap::default();
        for (v, axis) in &self.moved {
            let made = match *v == state.before {
                true => {
                    let types = self.types(&ty);
                    let inputs = names.iter().zip(types).map(|(n, ty)| {
                        let v = graph.add_input(n, ty);
                        graph.inputs.retain(|b| b.value != v);
                        v
                    });
                    inputs.collect()
                }
                false => self.rebuilt(graph, *v, *axis, &mut planes)?,
            };
            planes.insert(*v, made);
        }
        // Others read what the integers stand for.
        for (v, axis) in &self.moved {
            let scattered = matches!(graph.node(v.node).op, Op::Scatter { .. });
            if scattered || *v == state.before {
                let mut b = builder(graph, *v, &state.name);
                let wide = self.widened(&mut b, &planes[v], *axis)?;
                graph.replace_uses(*v, wide);
            }
        }
        let (before, after) = (planes.get(&state.before), planes.get(&state.after));
        let (Some(before), Some(after)) = (before, after) else {
            return Err("a state without its planes".into());
        };
        let each = names.into_iter().zip(before.iter().zip(after));
        let growth = |g: &Growth| Growth { axis: g.axis, length: g.length.clone(), by: g.by.clone() };
        Ok(each
            .map(|(name, (before, after))| State {
                name: name.into(),
                before: *before,
                after: *after,
                growth: state.growth.as_ref().map(growth),
                initial: None,
            })
            .collect())
    }

    /// The names of the states.
    fn names(&self, name: &str) -> Vec<String> {
        match self.to {
            CacheType::Q8 => vec![name.to_owned(), format!("{name}.scale")],
            _ => vec![name.to_owned()],
        }
    }

    /// The types of the states in place of one.
    fn types(&self, ty: &TensorType) -> Vec<TensorType> {
        if self.to != CacheType::Q8 {
            return vec![TensorType::new(DType::F16, ty.shape.clone())];
        }
        let mut scales = ty.shape.clone();
        if let Some(width) = scales.last_mut() {
            *width = width.div(&self.group.into(), &[]);
        }
        vec![TensorType::new(DType::I8, ty.shape.clone()), TensorType::new(DType::F32, scales)]
    }

    /// An extent or an axis of a plane in place of that of the elements of a head.
    fn extent(&self, plane: usize, width: &Dim) -> Dim {
        if plane == 0 { width.clone() } else { width.div(&self.group.into(), &[]) }
    }

    /// The planes of a value that is moved, from those of its operands.
    fn rebuilt(
        &self,
        graph: &mut Graph,
        v: Value,
        axis: usize,
        planes: &mut FxHashMap<Value, Vec<Value>>,
    ) -> Result<Vec<Value>, String> {
        let node = graph.node(v.node).clone();
        let operands: Vec<(Value, usize)> = match operands(graph, v, axis) {
            Some(all) => all,
            None => return Err("a value that is not moved".into()),
        };
        for (o, axis) in &operands {
            if !planes.contains_key(o) {
                let mut b = builder(graph, v, "cache");
                let new = self.rounded(&mut b, *o, *axis)?;
                planes.insert(*o, new);
            }
        }
        let mut b = builder(graph, v, "cache");
        let mut out = vec![];
        let each: Vec<&Vec<Value>> = operands.iter().map(|(o, _)| &planes[o]).collect();
        let count = each.first().map_or(0, |p| p.len());
        for plane in 0..count {
            let mut inputs: Vec<Value> = each.iter().map(|p| p[plane]).collect();
            let op = match &node.op {
                Op::View { shape, index, fill } => {
                    let mut shape = shape.clone();
                    shape[axis] = self.extent(plane, &shape[axis]);
                    let zero = fill.map(|_| Scalar::from_i64(b.dtype(inputs[0]), 0));
                    Op::View { shape, index: index.clone(), fill: zero }
                }
                Op::Scatter { .. } => {
                    inputs.extend(&node.inputs[2..]);
                    node.op.clone()
                }
                op => op.clone(),
            };
            out.push(b.push(op, &inputs)?);
        }
        Ok(out)
    }

    /// The planes of a new value.
    fn rounded(&self, b: &mut Builder<'_>, x: Value, axis: usize) -> Built<Vec<Value>> {
        if self.to != CacheType::Q8 {
            return Ok(vec![b.cast(x, DType::F16)?]);
        }
        let x = b.cast(x, DType::F32)?;
        let shape = b.shape(x);
        let mut split = shape.clone();
        split[axis] = self.extent(1, &shape[axis]);
        split.insert(axis + 1, self.group.into());
        let size = b.unary(UnaryOp::Abs, x)?;
        let size = b.reshape(size, split)?;
        let most = b.reduce(ReduceOp::Max, size, &[axis + 1], false)?;
        let scale = b.binary_scalar(B::Div, most, MOST)?;
        let each = self.of_each(b, scale, &shape, axis)?;
        let mut f = ScalarFn::default();
        let (x_arg, scale_arg) = (f.push(N::Arg(0)), f.push(N::Arg(1)));
        let zero = f.push(N::Const(Scalar::from_f64(DType::F32, 0.0)));
        let steps = f.push(N::Binary(B::Div, x_arg, scale_arg));
        let none = f.push(N::Binary(B::Eq, scale_arg, zero));
        let steps = f.push(N::Select(none, zero, steps));
        let nearest = f.push(N::Unary(UnaryOp::Round, steps));
        f.push(N::Cast(DType::I8, nearest));
        Ok(vec![b.map(f, &[x, each])?, scale])
    }

    /// The values that planes stand for.
    fn widened(&self, b: &mut Builder<'_>, planes: &[Value], axis: usize) -> Built {
        let [integers, scales] = planes else { return b.cast(planes[0], self.own) };
        let shape = b.shape(*integers);
        let each = self.of_each(b, *scales, &shape, axis)?;
        let mut f = ScalarFn::default();
        let integer = f.push(N::Arg(0));
        let number = f.push(N::Cast(DType::F32, integer));
        let scale = f.push(N::Arg(1));
        let product = f.push(N::Binary(B::Mul, number, scale));
        if self.own != DType::F32 {
            f.push(N::Cast(self.own, product));
        }
        b.map(f, &[*integers, each])
    }

    /// The scale of each element.
    fn of_each(&self, b: &mut Builder<'_>, scales: Value, shape: &[Dim], axis: usize) -> Built {
        let mut index: Vec<Poly> = (0..shape.len()).map(Poly::var).collect();
        index[axis] = index[axis].div(&self.group.into(), shape);
        b.view(scales, shape.to_vec(), index)
    }
}

/// A builder of nodes on behalf of the node of `v`.
fn builder<'g>(graph: &'g mut Graph, v: Value, name: &str) -> Builder<'g> {
    let origin = graph.node(v.node).origin.clone();
    let mut b = Builder::new(graph, name);
    if !origin.is_empty() {
        b.origin = origin;
    }
    b
}

/// The most operators between the old and the new contents of a state.
const MOST_MOVES: usize = 64;

/// The values on the way from `before` to `after`, operands first, each with the axis of the elements of a head, if operators that only move
/// elements lead from one to the other; `axis` is that axis in `after`.
fn follow(graph: &Graph, before: Value, after: Value, axis: usize) -> Option<Vec<(Value, usize)>> {
    /// Whether `v` is made of `before`; `None` after too many operators.
    fn leads(
        graph: &Graph,
        before: Value,
        v: (Value, usize),
        seen: &mut FxHashMap<(Value, usize), bool>,
        to: &mut Vec<(Value, usize)>,
    ) -> Option<bool> {
        if let Some(found) = seen.get(&v) {
            return Some(*found);
        }
        if seen.len() >= MOST_MOVES {
            return None;
        }
        seen.insert(v, false);
        let mut found = v.0 == before;
        if !found {
            for o in operands(graph, v.0, v.1).unwrap_or_default() {
                found |= leads(graph, before, o, seen, to)?;
            }
        }
        if found {
            seen.insert(v, true);
            to.push(v);
        }
        Some(found)
    }
    let mut to = vec![];
    let found = leads(graph, before, (after, axis), &mut FxHashMap::default(), &mut to)?;
    found.then_some(to)
}

/// The operands whose elements a value holds, each with the axis of the elements of a head, of which none is left out or repeated;
/// `None` if the value is computed, or the elements of a head do not stay together.
fn operands(graph: &Graph, v: Value, axis: usize) -> Option<Vec<(Value, usize)>> {
    let node = graph.node(v.node);
    let own = &graph.ty(v).shape;
    let whole = |o: Value, at: usize| graph.ty(o).shape.get(at) == own.get(axis);
    match &node.op {
        Op::View { index, fill, .. } => {
            let mut using = index.iter().enumerate().filter(|(_, p)| p.vars().contains(&axis));
            let (at, p) = using.next()?;
            let zero = fill.is_none_or(|f| f.as_f64() == 0.0);
            let fits = p.as_var() == Some(axis) && using.next().is_none() && zero;
            let operand = node.inputs[0];
            (fits && whole(operand, at)).then(|| vec![(operand, at)])
        }
        Op::Concat { axis: along } if *along != axis => {
            Some(node.inputs.iter().map(|o| (*o, axis)).collect())
        }
        Op::Scatter { reduce: None, index } => {
            let GatherAxis::Affine(p) = index.get(axis)? else { return None };
            let at = p.as_var()?;
            let elsewhere = index.iter().enumerate().filter(|(d, _)| *d != axis).any(|(_, a)| match a {
                GatherAxis::Affine(p) => p.vars().contains(&at),
                GatherAxis::Data { at: all, .. } => all.iter().any(|p| p.vars().contains(&at)),
            });
            let (data, updates) = (node.inputs[0], node.inputs[1]);
            (!elsewhere && whole(updates, at)).then(|| vec![(data, axis), (updates, at)])
        }
        _ => None,
    }
}
