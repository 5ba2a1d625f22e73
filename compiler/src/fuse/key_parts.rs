//! Attention whose keys are split: into how many parts, and which kernel combines the partial results.
//!
//! With one query a device is mostly idle unless the keys are split over several workgroups. Products with few rows combine a few parts
//! while they read them; for many parts, and for other readers, a separate kernel does.

use crate::device::DeviceProfile;
use crate::fuse::points::is_thin;
use crate::options::{Options, Technique};
use wgfc_ir::build::Builder;
use wgfc_ir::{Dim, Graph, NodeId, Op, ScalarFn, ScalarNode, Value};

/// The most parts that a product combines, in each of its invocations.
const MOST_OF_PRODUCTS: i64 = 32;
/// The most parts that a product combines where the heads, mostly eight or more, already occupy part of the device.
const FEW_OF_PRODUCTS: i64 = 16;
/// The most parts that a separate kernel combines.
const MOST: i64 = 64;
/// From this number of parts on, the number is a multiple of four.
const FOURS: i64 = 8;

/// The properties of an attention by which its keys are split.
struct Shared {
    /// Heads of the keys, of all sequences; several heads of queries may share one.
    groups: i64,
    /// Sequences of the batch: the product of all axes before the heads.
    sequences: i64,
    /// Heads of all sequences.
    heads: i64,
    /// Bytes of a key and a value of one head as they are in registers, in f32: an element of f16 takes as long.
    key_bytes: i64,
    /// The most keys there may be; `None` where it is known only at run time.
    room: Option<i64>,
}

impl Shared {
    /// The properties of an attention with one query; `None` for any other.
    fn of(graph: &Graph, anchor: NodeId, options: &Options) -> Option<Shared> {
        let node = graph.node(anchor);
        let Op::Attention { .. } = node.op else { return None };
        let shape = &graph.ty(anchor.into()).shape;
        shape.len().checked_sub(2).and_then(|i| shape.get(i)).filter(|s| s.is(1))?;
        let speeds = &options.profile.speeds;
        // Each part has as many results as the attention, which must be few enough to cost next to nothing to read.
        let results = shape.iter().cloned().product::<Dim>();
        let results = results.as_const().filter(|n| *n <= speeds.little_bytes() / 4)?;
        let heads = results / shape.last().and_then(Dim::as_const)?.max(1);
        let sequences = shape.iter().rev().skip(3).filter_map(Dim::as_const).product::<i64>().max(1);
        let mut keys = node.inputs[1];
        let width = |v: Value| graph.ty(v).shape.last()?.as_const();
        let key_bytes = (width(keys)?.max(1) + width(node.inputs[2])?.max(1)).saturating_mul(4);
        let expected = graph.ty(keys).shape.iter().rev().nth(1).and_then(|t| options.expect.known(t));
        keys = in_memory(graph, keys);
        let shape = &graph.ty(keys).shape;
        let mut states = graph.states.iter().filter(|s| s.after == keys || s.before == keys);
        let open = states.any(|s| s.growth.as_ref().is_some_and(|g| shape[g.axis].as_const().is_none()));
        let known = shape.iter().filter_map(Dim::as_const).max().unwrap_or(0);
        let room = known.max(expected.unwrap_or(0));
        // All axes but those of the keys and of their elements.
        let mut numbers: Vec<i64> = shape.iter().filter_map(Dim::as_const).collect();
        numbers.pop();
        if known == room && !open {
            let longest = numbers.iter().position(|n| *n == known);
            longest.map(|i| numbers.remove(i));
        }
        let groups = numbers.iter().product::<i64>().max(1);
        let room = (!open || expected.is_some()).then_some(room);
        Some(Shared { groups, sequences, heads, key_bytes, room })
    }

    /// The most parts that a separate kernel combines: one per core, in multiples of four, which are read as vectors.
    fn most(&self, cores: i64) -> i64 {
        match cores / self.groups {
            few if few < FOURS => few.max(1),
            n => ((n + 2) / 4 * 4).min(MOST),
        }
    }

    /// The number of parts where readers combine at most `most`; `few` where the number of keys is known only at run time.
    fn parts(&self, options: &Options, most: i64, few: i64) -> u32 {
        let keys = (options.profile.speeds.little_bytes() / self.key_bytes).max(1);
        self.room.map_or(few, |room| (room / keys).clamp(1, most)) as u32
    }
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

/// The number of parts the keys are split into. `banned` says which values must be in memory as they are.
pub(super) fn count(graph: &Graph, anchor: NodeId, options: &Options, banned: &dyn Fn(Value) -> bool) -> u32 {
    let Some(shared) = Shared::of(graph, anchor, options) else { return 1 };
    let v = Value::from(anchor);
    if banned(v) || graph.is_output(v) {
        return 1;
    }
    let cores = options.profile.speeds.cores as i64;
    if joined(graph, v, banned).is_some() {
        return shared.parts(options, shared.most(cores), 1);
    }
    if shared.sequences > 1 {
        // Each workgroup of a product combines all rows: with many parts that costs more than splitting saves.
        let most = (FEW_OF_PRODUCTS / shared.sequences.pow(2)).max(1);
        let parts = (cores / shared.heads.max(1)).clamp(1, most);
        return if readers_are_thin(graph, v, &options.profile) {
            shared.parts(options, parts, parts)
        } else {
            1
        };
    }
    let few = (cores / 8).clamp(1, FEW_OF_PRODUCTS);
    let most = (cores / shared.groups).clamp(few, MOST_OF_PRODUCTS.max(few));
    if readers_are_thin(graph, v, &options.profile) { shared.parts(options, most, few) } else { 1 }
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
    let v = Value::from(n);
    let speeds = &options.profile.speeds;
    let parts = shared.parts(options, shared.most(speeds.cores as i64), 1);
    // A workgroup reads the keys of a head, and where they are split, those of a part of it.
    let bytes = shared.room.unwrap_or(0) as f64 * shared.key_bytes as f64;
    let saved = bytes / speeds.workgroup_bandwidth * (1.0 - 1.0 / f64::from(parts.max(1)));
    let pays = saved > speeds.dispatch();
    pays && parts > 1
        && (shared.sequences > 1 || graph.is_output(v) || !readers_are_thin(graph, v, &options.profile))
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
