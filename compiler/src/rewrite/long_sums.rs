//! Long sums with few results: a product whose tiles would leave a device idle is computed as a sum over slices
//! (split-K).
//!
//! ```text
//! sum over k of a[m, k] · b[k, n]   →   sum over s of (sum over k of a[m, s·K + k] · b[s·K + k, n])
//! ```
//!
//! The inner sums are one product in f32 with the slices as a batch axis; operators after the product follow the outer
//! sum. The order in which terms are added changes.

use super::canonical::topo;
use super::quantised::is_quantised;
use crate::cost::{Expected, Work};
use crate::device::DeviceProfile;
use crate::schedule::products::problem::{Making, Problem, Run};
use crate::schedule::products::{self, Contiguous, SINGLE, cost};
use wgfc_ir::build::{Builder, Built};
use wgfc_ir::{Contract, DType, Dim, Graph, NodeId, Op, Poly, ReduceOp, Reg, Value};

/// The minimum number of terms of a slice.
const LEAST: i64 = 128;
/// The maximum number of slices.
const MOST: i64 = 256;
/// The share of the estimated time for adding up slices that remains after a product on matrix units: the slices are
/// in caches, and the kernels run back to back. Fitted to models timed on an H100.
const CACHED: f64 = 0.4;

/// Cuts the sums of products; returns the number of products changed. `rounded` says that f32 operands are rounded for
/// matrix units.
pub fn cut(
    graph: &mut Graph,
    device: &DeviceProfile,
    expect: &Expected,
    rounded: bool,
) -> Result<usize, String> {
    let mut count = 0;
    for n in topo(graph)? {
        let Some((label, slices)) = slices(graph, n, device, expect, rounded) else { continue };
        let node = graph.node(n).clone();
        let Op::Contract(c) = &node.op else { continue };
        let mut b = Builder { graph: &mut *graph, origin: node.origin.clone() };
        let new = build(&mut b, c, [node.inputs[0], node.inputs[1]], label, slices, node.outputs[0].dtype)?;
        graph.node_mut(new.node).names = node.names.clone();
        graph.replace_uses(n.into(), new);
        count += 1;
    }
    graph.remove_dead();
    Ok(count)
}

/// The label to cut and the number of slices, if that is estimated to be faster.
fn slices(
    graph: &Graph,
    n: NodeId,
    device: &DeviceProfile,
    expect: &Expected,
    rounded: bool,
) -> Option<(u8, i64)> {
    let node = graph.node(n);
    let Op::Contract(c) = &node.op else { return None };
    if node.outputs[0].dtype.reg() != Reg::F32 {
        return None;
    }
    let shapes = [&graph.ty(node.inputs[0]).shape, &graph.ty(node.inputs[1]).shape];
    let extent = |l: u8| {
        let of =
            |labels: &[u8], shape: &[Dim]| Some(shape.get(labels.iter().position(|x| *x == l)?)?.clone());
        of(&c.a, shapes[0]).or_else(|| of(&c.b, shapes[1])).unwrap_or(Dim::ONE)
    };
    let product = |labels: &[u8]| labels.iter().map(|l| extent(*l)).product::<Dim>();
    let [batch, m, n, k] = [c.batch(), c.m(), c.n(), c.k()].map(|l| product(&l));
    let depth = k.as_const().filter(|k| *k >= 2 * LEAST)?;
    // Products with few rows or columns divide their sums within a workgroup.
    let [rows, cols, all] = [&m, &n, &batch].map(|d| expect.extent(d));
    let half = [0, 1].iter().all(|i| graph.ty(node.inputs[*i]).dtype == DType::F16 || rounded);
    // Slices gain nothing if there are enough tiles. Tiles for matrix units are larger, and two of them are resident on
    // a core.
    let tiles = |edge: f64| all * (rows / edge).ceil() * (cols / edge).ceil();
    let enough = if half { tiles(128.0) / 2.0 } else { tiles(64.0) };
    // The elements of quantised weights are computed where they are read.
    let runs = [0, 1].map(|i| if is_quantised(graph, node.inputs[i]) { Run::FIELDS } else { Run::HALVES });
    let quantised = runs.contains(&Run::FIELDS);
    let few = products::few_rows(quantised, device) as f64;
    if rows <= few || cols <= few || enough >= device.speeds.cores {
        return None;
    }
    let label = c.k().into_iter().max_by_key(|l| extent(*l).as_const().unwrap_or(0))?;
    let whole = extent(label).as_const()?;
    let time = |slices: i64| {
        let terms = depth / slices;
        let fours = [terms % 4 == 0, n.modulo(&4_i64.into(), &[]).is(0)];
        // The slices of convolutions are slices of channels, which are innermost for matrix units.
        let own = whole / slices;
        let eights = half && own % 8 == 0 && n.modulo(&8_i64.into(), &[]).is(0);
        let p = Problem {
            batch: &batch * slices,
            rows: m.clone(),
            cols: n.clone(),
            depth: terms.into(),
            x: Contiguous::Depth,
            y: Contiguous::Line,
            results: SINGLE,
            bits: match (quantised, half) {
                (true, _) => 4.5,
                (_, true) => 16.0,
                _ => 32.0,
            },
            vector: 4,
            staged: 0.0,
            making: runs.map(|run| Making {
                run,
                four: (run == Run::FIELDS).then_some(Run::FOUR_FIELDS),
                ..Making::default()
            }),
            half: eights,
            fours,
            eights: [eights; 2],
            windows: vec![],
            integers: None,
        };
        let tiled = products::candidates(&p, device, expect).into_iter();
        tiled.map(|g| cost::cycles(&g, &p, device, expect)).min_by(f64::total_cmp)
    };
    let possible =
        (1..).map(|i| 1_i64 << i).take_while(|s| *s <= MOST && depth / s >= LEAST && whole % s == 0);
    let results = all * rows * cols;
    let part = if half { CACHED } else { 1.0 };
    let timed = possible.filter_map(|s| Some((time(s)? + part * added(results, s, device), s)));
    let (least, best) = timed.min_by(|a, b| a.0.total_cmp(&b.0))?;
    // A small estimated gain may be a loss.
    (least * 1.1 < time(1)?).then_some((label, best))
}

/// The cycles for writing slices of this many results, and reading them in another dispatch.
fn added(results: f64, slices: i64, device: &DeviceProfile) -> f64 {
    let memory = results * 8.0 * slices as f64;
    Work { memory, waits: 1.0, dispatches: 1.0, ..Work::default() }.cycles(&device.speeds)
}

/// The sizes of a product of f32 whose first operand lies along the depth and whose second lies along the columns.
pub(super) struct Sizes {
    /// The number of independent products.
    pub batch: Dim,
    /// Rows of the result.
    pub rows: Dim,
    /// Columns of the result.
    pub cols: Dim,
    /// The number of terms of a sum.
    pub depth: Dim,
}

/// The estimated cycles of a product, with its sums cut into slices if that is faster.
pub(super) fn least(sizes: Sizes, device: &DeviceProfile, expect: &Expected) -> f64 {
    let Sizes { batch, rows, cols, depth } = sizes;
    let p = &Problem {
        fours: [&depth, &cols].map(|d| d.modulo(&4_i64.into(), &[]).is(0)),
        batch,
        rows,
        cols,
        depth,
        x: Contiguous::Depth,
        y: Contiguous::Line,
        results: SINGLE,
        bits: 32.0,
        vector: 4,
        staged: 0.0,
        making: Default::default(),
        half: false,
        eights: [false; 2],
        windows: vec![],
        integers: None,
    };
    let time = |p: &Problem| {
        let all = products::candidates(p, device, expect).into_iter();
        all.map(|g| cost::cycles(&g, p, device, expect)).fold(f64::INFINITY, f64::min)
    };
    let depth = p.depth.as_const().unwrap_or(0);
    let results = [&p.batch, &p.rows, &p.cols].iter().map(|d| expect.extent(d)).product::<f64>();
    let possible =
        (1..).map(|i| 1_i64 << i).take_while(|s| *s <= MOST && depth / s >= LEAST && depth % s == 0);
    let cut = |s: i64| Problem { batch: &p.batch * s, depth: (depth / s).into(), ..p.clone() };
    possible.map(|s| time(&cut(s)) + added(results, s, device)).fold(time(p), f64::min)
}

fn build(b: &mut Builder, c: &Contract, inputs: [Value; 2], label: u8, slices: i64, out: DType) -> Built {
    let slice = c.a.iter().chain(&c.b).chain(&c.out).max().map_or(0, |l| l + 1);
    let operand = |b: &mut Builder, x: Value, labels: &[u8]| -> Built<(Value, Vec<u8>)> {
        let x = b.cast(x, DType::F32)?;
        let at =
            labels.iter().position(|l| *l == label).ok_or("a label that is summed is in both operands")?;
        let (mut shape, mut labels) = (b.shape(x), labels.to_vec());
        let terms = shape[at].div(&slices.into(), &[]);
        let place = &(Poly::var(at) * &terms) + &Poly::var(at + 1);
        shape.splice(at..=at, [slices.into(), terms]);
        labels.insert(at, slice);
        // Windows remain one view, whose index distinguishes them from channels.
        let Op::View { index, fill, .. } = &b.graph.node(x.node).op else {
            return Ok((b.reshape(x, shape)?, labels));
        };
        let var = |i: usize| if i < at { Poly::var(i) } else { Poly::var(i + 1) };
        let vars: Vec<Poly> =
            (0..shape.len() - 1).map(|i| if i == at { place.clone() } else { var(i) }).collect();
        let index = index.iter().map(|p| p.subst_vars(&vars, &shape)).collect();
        let (op, from) = (Op::View { shape, index, fill: *fill }, b.graph.node(x.node).inputs[0]);
        Ok((b.push(op, &[from])?, labels))
    };
    let (x, a) = operand(b, inputs[0], &c.a)?;
    let (y, labels) = operand(b, inputs[1], &c.b)?;
    let contract = Contract { a, b: labels, out: [&[slice], &c.out[..]].concat() };
    let parts = b.push(Op::Contract(contract), &[x, y])?;
    let sum = b.reduce(ReduceOp::Sum, parts, &[0], false)?;
    b.cast(sum, out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Speeds;
    use wgfc_ir::{Border, Tensor, TensorType, eval};

    #[test]
    fn sums_of_slices_are_the_sum() {
        for dtype in [DType::F32, DType::F16] {
            let mut g = Graph::new();
            let mut input = |name: &str, shape: [usize; 2]| {
                let x = g.add_input(name, TensorType::new(DType::F32, shape.map(Dim::from)));
                Builder::new(&mut g, "x").cast(x, dtype).unwrap()
            };
            let (x, y) = (input("x", [17, 4096]), input("y", [4096, 12]));
            let c = Contract { a: vec![0, 2], b: vec![2, 1], out: vec![0, 1] };
            let z = g.push(Op::Contract(c), &[x, y], &[]).unwrap();
            g.outputs.push(Border { name: "z".into(), value: z.into() });
            // Values whose sums are exact.
            let tensor = |shape: [usize; 2], f: usize| {
                let n = shape[0] * shape[1];
                let values: Vec<f32> = (0..n).map(|i| ((i * f) % 13) as f32 / 8.0 - 0.75).collect();
                Tensor::from_f32(shape.to_vec(), &values)
            };
            let inputs =
                [("x".to_owned(), tensor([17, 4096], 7)), ("y".to_owned(), tensor([4096, 12], 5))].into();
            let want = eval::evaluate(&g, &inputs).unwrap();
            let device = |speeds| DeviceProfile { speeds, ..DeviceProfile::default() };
            // A core that is as fast as all of the others together.
            let Speeds { cores, operation, .. } = Speeds::DISCRETE;
            let one_core = device(Speeds { cores: 1.0, operation: operation / cores, ..Speeds::DISCRETE });
            assert_eq!(cut(&mut g, &one_core, &Expected::default(), false).unwrap(), 0);
            assert_eq!(cut(&mut g, &device(Speeds::DISCRETE), &Expected::default(), false).unwrap(), 1);
            wgfc_ir::verify::verify(&g).unwrap();
            assert_eq!(eval::evaluate(&g, &inputs).unwrap(), want, "{dtype}");
        }
    }

    #[test]
    fn slices_of_a_convolution_are_of_channels() {
        let text = "graph (x: %0, w: %1) -> (y: %3) {
  %0 = input : f32[1, 256, 5, 6] as \"x\"
  %1 = input : f32[12, 256, 3, 3] as \"w\"
  %2 = view [1, 256, 5, 6, 3, 3] reads [%0, %1, %2 + %4 - 1, %3 + %5 - 1] else 0.0:f32 (%0) : f32[1, 256, 5, 6, 3, 3]
  %3 = contract [acdefg, bcfg -> abde] (%2, %1) : f32[1, 12, 5, 6]
}
";
        let mut g = wgfc_ir::text::parse(text).unwrap();
        // Values whose sums are exact.
        let tensor = |shape: &[usize], f: usize| {
            let n = shape.iter().product::<usize>();
            let values: Vec<f32> = (0..n).map(|i| ((i * f) % 13) as f32 / 8.0 - 0.75).collect();
            Tensor::from_f32(shape.to_vec(), &values)
        };
        let inputs =
            [("x".to_owned(), tensor(&[1, 256, 5, 6], 7)), ("w".to_owned(), tensor(&[12, 256, 3, 3], 5))];
        let inputs = inputs.into();
        let want = eval::evaluate(&g, &inputs).unwrap();
        let device = DeviceProfile { speeds: Speeds::DISCRETE, ..DeviceProfile::default() };
        assert_eq!(cut(&mut g, &device, &Expected::default(), false).unwrap(), 1);
        wgfc_ir::verify::verify(&g).unwrap();
        assert_eq!(eval::evaluate(&g, &inputs).unwrap(), want);
        // The windows remain one view of the input, after the slices of its channels.
        let views: Vec<&Op> = g.node_ids().map(|n| &g.node(n).op).collect();
        let unfolds = |op: &&&Op| matches!(op, Op::View { shape, fill: Some(_), .. } if shape.len() == 7);
        assert_eq!(views.iter().filter(unfolds).count(), 1);
    }
}
