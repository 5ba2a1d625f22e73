//! Convolutions of few channels on matrix units, by way of a padded copy of the input.
//!
//! With three channels, as in an image, sums over channels and windows would read one element at a time. In the copy the channels are
//! innermost and padded with zeros, so that the elements that a window reads of a row are contiguous, and every eight of them can be
//! loaded as a vector. Weights are padded with zeros at the same places, at compile time if they are constants.
//!
//! ```text
//! sum over c, i, j of x[c, 2h + i, 2w + j] · g[o, c, i, j]   →   sum over i, t of copy[2h + i, 8w + t] · g'[o, i, t]
//! ```
//!
//! for four channels in the copy, where `t` runs over window columns, and over channels within each.

use crate::cost::Work;
use crate::options::{Options, Precision};
use crate::schedule::products::{self, Contiguous, SINGLE, cost, problem::Problem};
use wgfc_ir::build::{Builder, Built};
use wgfc_ir::{Atom, Contract, DType, Dim, Graph, NodeId, Op, Poly, Scalar, Value};

/// Elements of a vector load.
const EIGHT: i64 = products::EIGHT as i64;
/// The least share of the estimated time that must be saved, since estimates are not more accurate than this.
const LEAST_GAIN: f64 = 0.15;
/// The largest stride, dilation or extent of a window that is considered, so that products of them fit 64 bits.
const MOST: i64 = 1 << 20;

/// A spatial axis of the convolution.
#[derive(Clone, Copy, Debug)]
struct Window {
    /// The axis of the convolution's input.
    axis: usize,
    /// The view's variable that is the output position along the axis, the stride between outputs, and the number of outputs.
    place: usize,
    stride: i64,
    places: i64,
    /// The view's variable within a window, the dilation, and the elements of a window.
    within: usize,
    dilation: i64,
    elements: i64,
    /// The position of the first window; negative with padding.
    first: i64,
}

impl Window {
    /// The extent of the input that all windows cover if each has `elements` elements.
    fn reach(&self, elements: i64) -> i64 {
        self.stride * (self.places - 1) + self.dilation * (elements - 1) + 1
    }
}

/// A convolution of few channels.
struct Conv {
    contract: Contract,
    x: Value,
    weights: Value,
    /// The shape of the input, and that of the unfolding view.
    from: Vec<Dim>,
    shape: Vec<Dim>,
    /// Input axes that the view passes through, each with its variable.
    outer: Vec<(usize, usize)>,
    /// The spatial axes; the last one is innermost in the copy.
    windows: Vec<Window>,
    /// The channel axis, its variable, and the number of channels.
    channels: (usize, usize, i64),
}

/// The layout of the copy.
#[derive(Clone, Copy, Debug)]
struct Layout {
    /// Channels with padding.
    channels: i64,
    /// Elements of a window along the innermost axis, with padding.
    elements: i64,
}

/// Gives convolutions of few channels a padded copy of their input where that is estimated to be faster. Returns the values that must be
/// in memory.
pub(crate) fn copy(graph: &mut Graph, options: &Options) -> Result<Vec<Value>, String> {
    if !options.profile.has_matrix_units() {
        return Ok(vec![]);
    }
    replace(graph, options, &|graph, conv, layout| conv.pays(layout, graph, options))
}

fn replace(
    graph: &mut Graph,
    options: &Options,
    pays: &dyn Fn(&Graph, &Conv, &Layout) -> bool,
) -> Result<Vec<Value>, String> {
    let mut copies = vec![];
    for n in graph.node_ids().collect::<Vec<_>>() {
        let Some(conv) = Conv::of(graph, n, options) else { continue };
        let Some(layout) = conv.layout().filter(|l| pays(graph, &conv, l)) else { continue };
        let node = graph.node(n).clone();
        let mut b = Builder { graph: &mut *graph, origin: node.origin.clone() };
        let (new, made) = conv.build(&mut b, layout)?;
        graph.node_mut(new.node).names = node.names.clone();
        graph.replace_uses(n.into(), new);
        copies.extend(made);
    }
    graph.remove_dead();
    Ok(copies)
}

impl Conv {
    fn of(graph: &Graph, n: NodeId, options: &Options) -> Option<Conv> {
        let node = graph.node(n);
        let Op::Contract(c) = &node.op else { return None };
        let [unfolded, weights] = [*node.inputs.first()?, *node.inputs.get(1)?];
        let Op::View { shape, index, fill } = &graph.node(unfolded.node).op else { return None };
        let x = graph.node(unfolded.node).inputs[0];
        let rounded = options.precision == Precision::F16;
        let taken = |v: Value| match graph.ty(v).dtype {
            DType::F16 => true,
            DType::F32 => rounded,
            _ => false,
        };
        let zeros = fill.is_none_or(|f| f.as_f64() == 0.0);
        if !zeros || !taken(x) || !taken(weights) || !c.batch().is_empty() || c.n().len() != 1 {
            return None;
        }
        let from = graph.ty(x).shape.clone();
        let summed = |v: usize| c.a.get(v).is_some_and(|l| !c.out.contains(l));
        let (mut outer, mut windows, mut channels) = (vec![], vec![], vec![]);
        for (axis, p) in index.iter().enumerate() {
            let (terms, first) = linear(p)?;
            match terms[..] {
                [(v, 1)] if first == 0 && shape[v] == from[axis] && !summed(v) => outer.push((axis, v)),
                [(v, 1)] if first == 0 && shape[v] == from[axis] => {
                    channels.push((axis, v, shape[v].as_const()?));
                }
                [(a, s), (b, d)]
                    if (1..=MOST).contains(&s) && (1..=MOST).contains(&d) && summed(a) != summed(b) =>
                {
                    let ((place, stride), (within, dilation)) =
                        if summed(b) { ((a, s), (b, d)) } else { ((b, d), (a, s)) };
                    windows.push(Window {
                        axis,
                        place,
                        stride,
                        places: shape[place].as_const().filter(|n| (1..=MOST).contains(n))?,
                        within,
                        dilation,
                        elements: shape[within].as_const().filter(|n| (1..=MOST).contains(n))?,
                        first,
                    });
                }
                _ => return None,
            }
        }
        let [channels] = channels[..] else { return None };
        // Each variable runs along one axis.
        let used = outer.len() + 2 * windows.len() + 1;
        let mut vars: Vec<usize> = outer.iter().map(|o| o.1).chain([channels.1]).collect();
        vars.extend(windows.iter().flat_map(|w| [w.place, w.within]));
        vars.sort_unstable();
        vars.dedup();
        let few = (1..EIGHT).contains(&channels.2) && !windows.is_empty();
        (few && vars.len() == used && used == shape.len()).then(|| Conv {
            contract: c.clone(),
            x,
            weights,
            from,
            shape: shape.clone(),
            outer,
            windows,
            channels,
        })
    }

    /// The window whose elements are contiguous in the copy, and the other windows.
    fn innermost(&self) -> Option<(&Window, &[Window])> {
        self.windows.split_last()
    }

    /// The layout with the fewest terms in which every window starts at a multiple of a vector.
    fn layout(&self) -> Option<Layout> {
        let (w, _) = self.innermost()?;
        let possible = [1, 2, 4, EIGHT].into_iter().filter_map(|channels| {
            let together = EIGHT / channels;
            let fits = channels >= self.channels.2 && w.stride % together == 0;
            let elements = (w.elements + together - 1) / together * together;
            (fits && (w.dilation == 1 || together == 1)).then_some(Layout { channels, elements })
        });
        // The elements of a dilated window are not contiguous.
        possible.filter(|_| w.dilation == 1).min_by_key(|l| l.channels * l.elements)
    }

    /// Whether the convolution of the copy is estimated to be faster.
    fn pays(&self, l: &Layout, graph: &Graph, options: &Options) -> bool {
        let (device, expect) = (&options.profile, &options.expect);
        let Some((_, others)) = self.innermost() else { return false };
        let c = &self.contract;
        let outputs = c.b.iter().position(|o| c.n().contains(o));
        let Some(cols) = outputs.map(|i| graph.ty(self.weights).shape[i].clone()) else { return false };
        let images: Dim = self.outer.iter().map(|(axis, _)| self.from[*axis].clone()).product();
        let places: i64 = self.windows.iter().map(|w| w.places).product();
        let window: i64 = others.iter().map(|w| w.elements).product();
        let own: i64 = self.windows.iter().map(|w| w.elements).product::<i64>() * self.channels.2;
        let time = |depth: i64, vectors: bool| {
            let p = Problem {
                batch: Dim::ONE,
                rows: &images * places,
                cols: cols.clone(),
                depth: depth.into(),
                x: Contiguous::Depth,
                y: Contiguous::Depth,
                results: SINGLE,
                bits: 16.0,
                vector: 1,
                staged: 0.0,
                making: Default::default(),
                half: true,
                fours: [vectors; 2],
                eights: [vectors; 2],
                windows: vec![],
                integers: None,
            };
            let all = products::candidates(&p, device, expect).into_iter();
            all.map(|g| cost::cycles(&g, &p, device, expect)).fold(f64::INFINITY, f64::min)
        };
        let (speeds, images) = (&device.speeds, expect.extent(&images));
        let read: f64 = self.from.iter().map(|d| expect.extent(d)).product();
        let written = images * self.extents(l).into_iter().map(|n| n as f64).product::<f64>();
        // Weights that are not constants need a copy at run time, too.
        let copies = if matches!(graph.node(self.weights.node).op, Op::Const(_)) { 1.0 } else { 2.0 };
        let memory = 4.0 * read + 2.0 * written;
        let copied = Work { memory, waits: copies, dispatches: copies, ..Work::default() }.cycles(speeds);
        time(window * l.elements * l.channels, true) + copied < time(own, false) * (1.0 - LEAST_GAIN)
    }

    /// Extents of the copy along the spatial axes; the innermost also runs over channels.
    fn extents(&self, l: &Layout) -> Vec<i64> {
        let last = self.windows.len() - 1;
        let of = |(i, w): (usize, &Window)| {
            if i < last {
                return w.reach(w.elements);
            }
            // Each row is padded to whole vectors.
            let together = EIGHT / l.channels;
            (w.reach(l.elements) + together - 1) / together * together * l.channels
        };
        self.windows.iter().enumerate().map(of).collect()
    }

    /// Builds the new convolution. Returns it and the values that must be in memory: the copy of the input and the padded weights.
    fn build(&self, b: &mut Builder, l: Layout) -> Built<(Value, [Value; 2])> {
        let c = &self.contract;
        let (inner, others) = self.innermost().ok_or("a convolution without windows")?;
        let (channel_axis, channel_var, _) = self.channels;
        let fill = |v: Value, b: &Builder| Some(Scalar::from_f64(b.dtype(v), 0.0));
        let each = Poly::constant(l.channels);

        let mut shape: Vec<Dim> = self.outer.iter().map(|(axis, _)| self.from[*axis].clone()).collect();
        shape.extend(self.extents(&l).into_iter().map(Dim::constant));
        let last = shape.len() - 1;
        let mut index = vec![Poly::ZERO; self.from.len()];
        for (i, (axis, _)) in self.outer.iter().enumerate() {
            index[*axis] = Poly::var(i);
        }
        for (i, w) in others.iter().enumerate() {
            index[w.axis] = &Poly::var(self.outer.len() + i) + &w.first.into();
        }
        index[inner.axis] = &Poly::var(last).div(&each, &shape) + &inner.first.into();
        index[channel_axis] = Poly::var(last).modulo(&each, &shape);
        let zero = fill(self.x, b);
        let copy = b.push(Op::View { shape, index, fill: zero }, &[self.x])?;

        // The variables of the outputs come first, then those within windows; the last also runs over channels.
        let places: Vec<usize> = (0..self.shape.len()).filter(|v| c.out.contains(&c.a[*v])).collect();
        let at = |v: usize| places.iter().position(|p| *p == v).unwrap_or(0);
        let mut shape: Vec<Dim> = places.iter().map(|v| self.shape[*v].clone()).collect();
        let stretch = Dim::constant(l.elements * l.channels);
        shape.extend(others.iter().map(|w| Dim::constant(w.elements)));
        shape.push(stretch.clone());
        let mut index: Vec<Poly> = self.outer.iter().map(|(_, v)| Poly::var(at(*v))).collect();
        for (i, w) in self.windows.iter().enumerate() {
            let each = if i < others.len() { 1 } else { l.channels };
            let dilation = if i < others.len() { w.dilation } else { 1 };
            let within = Poly::var(places.len() + i) * dilation;
            index.push(&(Poly::var(at(w.place)) * (w.stride * each)) + &within);
        }
        let unfolded = b.push(Op::View { shape, index, fill: None }, &[copy])?;

        let n = c.n();
        let outputs = c.b.iter().position(|o| n.contains(o)).ok_or("weights without outputs")?;
        let own = b.shape(self.weights);
        let mut shape = vec![own[outputs].clone()];
        shape.extend(others.iter().map(|w| Dim::constant(w.elements)));
        shape.push(stretch);
        let last = shape.len() - 1;
        let mut index = vec![Poly::ZERO; own.len()];
        index[outputs] = Poly::var(0);
        let axis = |v: usize| c.b.iter().position(|o| *o == c.a[v]).ok_or("a label of the weights");
        for (i, w) in others.iter().enumerate() {
            index[axis(w.within)?] = Poly::var(1 + i);
        }
        index[axis(inner.within)?] = Poly::var(last).div(&each, &shape);
        index[axis(channel_var)?] = Poly::var(last).modulo(&each, &shape);
        let zero = fill(self.weights, b);
        let weights = b.push(Op::View { shape, index, fill: zero }, &[self.weights])?;

        let within: Vec<u8> = self.windows.iter().map(|w| c.a[w.within]).collect();
        let a = places.iter().map(|v| c.a[*v]).chain(within.iter().copied()).collect();
        let contract = Contract { a, b: [&n[..], &within].concat(), out: c.out.clone() };
        let new = b.push(Op::Contract(contract), &[unfolded, weights])?;
        Ok((new, [copy, weights]))
    }
}

/// The variables with their factors, and the constant term, of a linear expression; `None` if it is not linear.
fn linear(p: &Poly) -> Option<(Vec<(usize, i64)>, i64)> {
    let (mut terms, mut constant) = (vec![], 0);
    for (atoms, factor) in p.terms() {
        match atoms[..] {
            [] => constant = factor,
            [Atom::Var(v)] => terms.push((v as usize, factor)),
            _ => return None,
        }
    }
    Some((terms, constant))
}

#[cfg(test)]
mod tests {
    use super::*;
    use wgfc_ir::testing::{Rng, random_tensor};
    use wgfc_ir::{eval, text, verify};

    /// A convolution of `x [n, c, h, w]` with `w [o, c, i, j]` with these strides and dilations, padded by two on each side.
    fn graph(dims: [i64; 6], strides: [i64; 2], dilations: [i64; 2]) -> Graph {
        let [c, h, w, o, i, j] = dims;
        let places = |n: i64, k: i64, a: usize| (n + 4 - dilations[a] * (k - 1) - 1) / strides[a] + 1;
        let (oh, ow) = (places(h, i, 0), places(w, j, 1));
        let ([s, t], [d, e]) = (strides, dilations);
        let text = format!(
            "graph (x: %0, w: %1) -> (y: %3) {{
  %0 = input : f32[n, {c}, {h}, {w}] as \"x\"
  %1 = input : f32[{o}, {c}, {i}, {j}] as \"w\"
  %2 = view [n, {c}, {oh}, {ow}, {i}, {j}] reads [%0, %1, {s}*%2 + {d}*%4 - 2, {t}*%3 + {e}*%5 - 2] else 0.0:f32 (%0) : f32[n, {c}, {oh}, {ow}, {i}, {j}]
  %3 = contract [acdefg, bcfg -> abde] (%2, %1) : f32[n, {o}, {oh}, {ow}]
}}
"
        );
        text::parse(&text).unwrap()
    }

    #[test]
    fn copies_are_convolved_as_what_they_are_of() {
        let options = Options { precision: Precision::F16, ..Options::default() };
        let mut rng = Rng::new(3);
        for (dims, strides, dilations, stretch) in [
            ([3, 9, 11, 5, 7, 7], [2, 2], [1, 1], Some(32)),
            ([3, 6, 5, 4, 3, 3], [1, 1], [1, 1], Some(24)),
            ([1, 7, 9, 3, 2, 5], [3, 8], [2, 1], Some(8)),
            ([2, 8, 8, 3, 4, 3], [1, 4], [1, 1], Some(8)),
            ([7, 5, 6, 2, 1, 3], [1, 1], [1, 1], Some(24)),
            ([3, 9, 9, 2, 3, 3], [1, 2], [1, 2], None),
            ([8, 5, 5, 2, 3, 3], [1, 1], [1, 1], None),
        ] {
            let mut g = graph(dims, strides, dilations);
            let [c, h, w, o, i, j] = dims.map(|n| n as usize);
            let inputs = [
                ("x".to_owned(), random_tensor(&mut rng, DType::F32, vec![2, c, h, w])),
                ("w".to_owned(), random_tensor(&mut rng, DType::F32, vec![o, c, i, j])),
            ];
            let inputs = inputs.into();
            let want = eval::evaluate(&g, &inputs).unwrap()[0].to_f32s().unwrap();
            let copies = replace(&mut g, &options, &|_, _, _| true).unwrap();
            verify::verify(&g).unwrap();
            assert_eq!(copies.len(), if stretch.is_some() { 2 } else { 0 }, "{dims:?}");
            let weights = copies.get(1).map(|v| g.ty(*v).shape.last().and_then(Dim::as_const).unwrap());
            assert_eq!(weights, stretch, "{dims:?}");
            let got = eval::evaluate(&g, &inputs).unwrap()[0].to_f32s().unwrap();
            for (g, w) in got.iter().zip(&want) {
                assert!((g - w).abs() <= 1e-4, "{dims:?}: {g} {w}");
            }
        }
    }
}
