//! Attention whose keys are split: into how many parts, and which kernel combines the partial results.
//!
//! With one query a device is mostly idle unless the keys are split over several workgroups. Products with few rows combine a few parts
//! while they read them, in each of their workgroups; for many parts, for many results, and for other readers, a separate kernel does.

use crate::cost::Expected;
use crate::device::{DeviceProfile, Speeds};
use crate::fuse::points::is_thin;
use crate::fuse::unit::{KeyParts, LEAST_KEYS};
use crate::options::{Options, Technique};
use crate::schedule::attention::OPEN_KEYS;
use wgfc_ir::build::Builder;
use wgfc_ir::{Dim, Graph, NodeId, Op, ScalarFn, ScalarNode, Value};

/// The most parts that a product combines, in each of its invocations.
const MOST_OF_PRODUCTS: i64 = 16;
/// The most parts that a separate kernel combines.
const MOST: i64 = 64;
/// The workgroups of a core, at most, into which keys are split.
const WORKGROUPS: i64 = 4;
/// How many times as long as plain reading a workgroup takes to go through keys: as the next two, fitted to decoders of 0.5 to 8 B
/// parameters timed on an H100.
const STREAMED: f64 = 7.0;
/// How many times as long as plain reading a product's workgroup takes to combine parts.
const COMBINED: f64 = 5.0;
/// How many times as long as a tiny dispatch the separate kernel takes beside the bytes that it reads.
const JOIN: f64 = 1.5;

/// The properties of an attention by which its keys are split.
struct Shared {
    /// Heads of the keys, of all sequences; several heads of queries may share one.
    groups: f64,
    /// The number of results.
    results: f64,
    /// Bytes of a key and a value of one head as they are in registers, in f32: an element of f16 takes as long.
    key_bytes: f64,
    /// The expected number of keys.
    keys: f64,
}

impl Shared {
    /// The properties of an attention with one query; `None` for any other.
    fn of(graph: &Graph, anchor: NodeId, options: &Options) -> Option<Shared> {
        let node = graph.node(anchor);
        let Op::Attention { .. } = node.op else { return None };
        let shape = &graph.ty(anchor.into()).shape;
        shape.len().checked_sub(2).and_then(|i| shape.get(i)).filter(|s| s.is(1))?;
        let results = shape.iter().cloned().product::<Dim>().as_const()?;
        let heads = results / shape.last().and_then(Dim::as_const)?.max(1);
        let (k, v) = (node.inputs[1], node.inputs[2]);
        let width = |v: Value| graph.ty(v).shape.last()?.as_const();
        let key_bytes = 4 * (width(k)?.max(1) + width(v)?.max(1));
        let t = graph.ty(k).shape.iter().rev().nth(1)?;
        let keys = options.expect.known(t).unwrap_or(OPEN_KEYS);
        let groups = heads / shared_heads(graph, k, heads, &options.expect);
        let [groups, results, key_bytes, keys] = [groups, results, key_bytes, keys].map(|n| n.max(1) as f64);
        Some(Shared { groups, results, key_bytes, keys })
    }

    /// The time in seconds of attention in so many parts, each of at least so many keys.
    fn attention(&self, parts: i64, least: i64, speeds: &Speeds) -> f64 {
        let bytes = self.keys * self.key_bytes;
        let parts = (parts as f64).min((self.keys / least as f64).ceil());
        let alone = bytes / parts * STREAMED / speeds.workgroup_bandwidth;
        // Half of the bytes are in memory where keys are f16.
        let all = self.groups * bytes / 2.0 / speeds.bandwidth;
        let waves = (self.groups * parts / (speeds.cores * WORKGROUPS as f64)).max(1.0);
        alone.max(all) * waves
    }

    /// The number of parts that products combine, and the time of both.
    fn of_products(&self, speeds: &Speeds) -> (i64, f64) {
        let time = |parts: i64| {
            let read = if parts > 1 { parts as f64 * self.results * 4.0 } else { 0.0 };
            self.attention(parts, 1, speeds) + read * COMBINED / speeds.workgroup_bandwidth
        };
        let all = (1..=MOST_OF_PRODUCTS).map(|p| (p, time(p)));
        all.min_by(|a, b| a.1.total_cmp(&b.1)).unwrap_or((1, f64::INFINITY))
    }

    /// The number of parts that a separate kernel combines, and the time of both.
    fn of_a_kernel(&self, speeds: &Speeds) -> (i64, f64) {
        let parts = (WORKGROUPS * speeds.cores as i64 / self.groups as i64).clamp(1, MOST);
        let passed = parts as f64 * self.results * 8.0 / speeds.bandwidth;
        (parts, self.attention(parts, LEAST_KEYS, speeds) + passed + JOIN * speeds.dispatch_cost)
    }
}

/// How many neighbouring heads of queries have the same keys: views may repeat those in memory.
fn shared_heads(graph: &Graph, keys: Value, heads: i64, expect: &Expected) -> i64 {
    let memory = in_memory(graph, keys);
    let shape = &graph.ty(keys).shape;
    let state = graph.states.iter().find(|s| s.after == memory || s.before == memory);
    let growth = state.and_then(|s| s.growth.as_ref());
    // The positions of a state that grows are a size of their own.
    let without = growth.map(|g| (shape.len().saturating_sub(2), g.axis));
    let elements = |v: Value, without: Option<usize>| {
        let all = graph.ty(v).shape.iter().enumerate().filter(|(i, _)| Some(*i) != without);
        all.map(|(_, d)| expect.extent(d)).product::<f64>()
    };
    let ratio = elements(keys, without.map(|w| w.0)) / elements(memory, without.map(|w| w.1));
    let away = |n: &i64| (*n as f64 - ratio).abs();
    (1..=heads).filter(|n| heads % n == 0).min_by(|a, b| away(a).total_cmp(&away(b))).unwrap_or(1)
}

/// The value behind views of which keys are read; behind elementwise functions, too, where it is a state, whose elements they widen.
fn in_memory(graph: &Graph, keys: Value) -> Value {
    let behind = |mut v: Value, maps: bool| loop {
        let node = graph.node(v.node);
        let same = |x: &&Value| graph.ty(**x).shape == graph.ty(v).shape;
        v = match &node.op {
            Op::View { .. } => node.inputs[0],
            Op::Map { .. } if maps => match node.inputs.iter().find(same) {
                Some(x) => *x,
                None => break v,
            },
            _ => break v,
        };
    };
    let state = behind(keys, true);
    let is_state = graph.states.iter().any(|s| s.after == state || s.before == state);
    if is_state { state } else { behind(keys, false) }
}

/// The parts the keys are split into. `banned` says which values must be in memory as they are.
pub(super) fn of(
    graph: &Graph,
    anchor: NodeId,
    options: &Options,
    banned: &dyn Fn(Value) -> bool,
) -> KeyParts {
    let Some(shared) = Shared::of(graph, anchor, options) else { return KeyParts::NONE };
    let v = Value::from(anchor);
    let speeds = &options.profile.speeds;
    let parts = |n: i64, by_keys| KeyParts { most: n as u32, by_keys };
    if banned(v) || graph.is_output(v) {
        KeyParts::NONE
    } else if joined(graph, v, banned).is_some() {
        parts(shared.of_a_kernel(speeds).0, true)
    } else if readers_are_thin(graph, v, &options.profile) {
        parts(shared.of_products(speeds).0, false)
    } else {
        KeyParts::NONE
    }
}

/// Adds a copy of the results of each attention whose readers cannot combine the parts; the copy's kernel combines them. Returns the
/// copies, which must be in memory.
pub(crate) fn add_copies(graph: &mut Graph, options: &Options) -> Result<Vec<Value>, String> {
    let mut copies = vec![];
    if !options.fuses(Technique::KeyParts) {
        return Ok(copies);
    }
    let all: Vec<NodeId> = graph.node_ids().filter(|n| wants_copy(graph, *n, options)).collect();
    for n in all {
        let v = Value::from(n);
        let mut body = ScalarFn::default();
        body.push(ScalarNode::Arg(0));
        let origin = graph.node(n).origin.clone();
        let copy = Builder { graph: &mut *graph, origin }.map(body, &[v])?;
        graph.replace_uses(v, copy);
        graph.set_input(copy.node, 0, v);
        copies.push(copy);
    }
    Ok(copies)
}

fn wants_copy(graph: &Graph, n: NodeId, options: &Options) -> bool {
    let Some(shared) = Shared::of(graph, n, options) else { return false };
    let (v, speeds) = (Value::from(n), &options.profile.speeds);
    let (parts, time) = shared.of_a_kernel(speeds);
    let by_readers = !graph.is_output(v) && readers_are_thin(graph, v, &options.profile);
    let otherwise = if by_readers { shared.of_products(speeds).1 } else { shared.attention(1, 1, speeds) };
    parts > 1 && time < otherwise
}

/// The copy that combines the parts of `v`, if it has one.
fn joined(graph: &Graph, v: Value, banned: &dyn Fn(Value) -> bool) -> Option<Value> {
    let [(n, 0)] = graph.uses(v)[..] else { return None };
    let Op::Map { body, .. } = &graph.node(n).op else { return None };
    (is_copy(body) && banned(n.into())).then(|| n.into())
}

/// Whether a function returns its argument unchanged.
pub(super) fn is_copy(body: &ScalarFn) -> bool {
    body.nodes == [ScalarNode::Arg(0)]
}

/// Whether all readers of a value are products with few rows, possibly through views.
fn readers_are_thin(graph: &Graph, v: Value, device: &DeviceProfile) -> bool {
    let uses = graph.uses(v);
    !uses.is_empty()
        && uses.iter().all(|(c, _)| match &graph.node(*c).op {
            Op::View { .. } => !graph.is_output((*c).into()) && readers_are_thin(graph, (*c).into(), device),
            Op::Contract(_) => is_thin(graph, *c, device),
            _ => false,
        })
}
