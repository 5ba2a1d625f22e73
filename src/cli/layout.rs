//! Draws a directed acyclic graph in layers from top to bottom (Sugiyama's method).
//!
//! 1. Layers: the layer of a box is the length of the longest path from a source; then sources move down to just above
//!    their first reader.
//! 2. Long edges get a point in each layer that they cross; edges from the same source share these points.
//! 3. Order within layers: sweeps down and up sort each layer by the barycentres of neighbours; the order with the fewest
//!    crossings is kept.
//! 4. Positions: each sweep moves the members of a layer as near to the mean of their neighbours as order and widths allow
//!    (least squares, solved exactly by pooling adjacent violators).

use std::collections::HashMap;

/// The size of a box.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    /// Width of the box.
    pub w: f64,
    /// Height of the box.
    pub h: f64,
}

/// A drawing: the positions of boxes and edges.
#[derive(Clone, Debug, Default)]
pub struct Placed {
    /// Centres of the boxes.
    pub centres: Vec<(f64, f64)>,
    /// The points of each edge, from the bottom of its source to the top of its target.
    pub edges: Vec<Vec<(f64, f64)>>,
    /// Width of the drawing.
    pub width: f64,
    /// Height of the drawing.
    pub height: f64,
}

const GAP_X: f64 = 26.0;
const GAP_Y: f64 = 34.0;
const SWEEPS: usize = 12;

/// A member of a layer: a box, or a point of a long edge.
struct Item {
    layer: usize,
    w: f64,
    up: Vec<usize>,
    down: Vec<usize>,
    x: f64,
}

/// Computes the positions of boxes and edges. Every edge must go from a smaller to a larger index.
pub fn place(sizes: &[Size], edges: &[(usize, usize)]) -> Placed {
    if sizes.is_empty() {
        return Placed::default();
    }
    let layer = layers(sizes.len(), edges);
    let depth = layer.iter().max().map_or(0, |m| m + 1);
    let mut items: Vec<Item> = sizes
        .iter()
        .zip(&layer)
        .map(|(s, l)| Item { layer: *l, w: s.w, up: vec![], down: vec![], x: 0.0 })
        .collect();
    let mut paths = Vec::with_capacity(edges.len());
    let mut passing: HashMap<(usize, usize), usize> = HashMap::new();
    for (a, b) in edges {
        let mut path = vec![*a];
        for l in layer[*a] + 1..layer[*b] {
            path.push(*passing.entry((*a, l)).or_insert_with(|| {
                items.push(Item { layer: l, w: 4.0, up: vec![], down: vec![], x: 0.0 });
                items.len() - 1
            }));
        }
        path.push(*b);
        for w in path.windows(2) {
            if !items[w[0]].down.contains(&w[1]) {
                items[w[0]].down.push(w[1]);
                items[w[1]].up.push(w[0]);
            }
        }
        paths.push(path);
    }
    let mut rows: Vec<Vec<usize>> = vec![vec![]; depth];
    for (i, item) in items.iter().enumerate() {
        rows[item.layer].push(i);
    }
    order(&mut rows, &items);
    positions(&rows, &mut items);

    let mut top = GAP_Y;
    let mut middle = vec![0.0; depth];
    let mut half = vec![0.0; depth];
    for (l, row) in rows.iter().enumerate() {
        let h = row.iter().filter_map(|i| sizes.get(*i)).map(|s| s.h).fold(0.0, f64::max);
        middle[l] = top + h / 2.0;
        half[l] = h / 2.0;
        top += h + GAP_Y;
    }
    let left = items.iter().map(|i| i.x - i.w / 2.0).fold(f64::INFINITY, f64::min) - GAP_X;
    let right = items.iter().map(|i| i.x + i.w / 2.0).fold(f64::NEG_INFINITY, f64::max) + GAP_X;
    let at = |i: usize| (items[i].x - left, middle[items[i].layer]);
    let edges = paths
        .iter()
        .map(|path| {
            let mut points = Vec::with_capacity(2 * path.len());
            for (k, i) in path.iter().enumerate() {
                let (x, y) = at(*i);
                match sizes.get(*i) {
                    Some(s) if k == 0 => points.push((x, y + s.h / 2.0)),
                    Some(s) => points.push((x, y - s.h / 2.0)),
                    // A long edge runs straight past the boxes of the layers that it crosses.
                    None => {
                        points.push((x, y - half[items[*i].layer]));
                        points.push((x, y + half[items[*i].layer]));
                    }
                }
            }
            points
        })
        .collect();
    Placed { centres: (0..sizes.len()).map(at).collect(), edges, width: right - left, height: top }
}

fn layers(n: usize, edges: &[(usize, usize)]) -> Vec<usize> {
    let mut sorted = edges.to_vec();
    sorted.sort_unstable();
    let mut layer = vec![0usize; n];
    for (a, b) in &sorted {
        layer[*b] = layer[*b].max(layer[*a] + 1);
    }
    let has_source = |i: usize, edges: &[(usize, usize)]| edges.iter().any(|(_, b)| *b == i);
    for i in 0..n {
        if !has_source(i, edges)
            && let Some(first) = edges.iter().filter(|(a, _)| *a == i).map(|(_, b)| layer[*b]).min()
        {
            layer[i] = first - 1;
        }
    }
    layer
}

fn order(rows: &mut [Vec<usize>], items: &[Item]) {
    let mut place = vec![0usize; items.len()];
    let number = |rows: &[Vec<usize>], place: &mut [usize]| {
        for row in rows {
            for (p, i) in row.iter().enumerate() {
                place[*i] = p;
            }
        }
    };
    number(rows, &mut place);
    let mut best = (crossings(rows, items, &place), rows.to_vec());
    for sweep in 0..SWEEPS {
        let down = sweep % 2 == 0;
        let depth = rows.len();
        for step in 1..depth {
            let l = if down { step } else { depth - 1 - step };
            let mut keyed: Vec<(f64, usize)> = rows[l]
                .iter()
                .map(|i| {
                    let near = if down { &items[*i].up } else { &items[*i].down };
                    let sum: usize = near.iter().map(|n| place[*n]).sum();
                    let key = if near.is_empty() { place[*i] as f64 } else { sum as f64 / near.len() as f64 };
                    (key, *i)
                })
                .collect();
            keyed.sort_by(|a, b| a.0.total_cmp(&b.0));
            rows[l] = keyed.into_iter().map(|(_, i)| i).collect();
            for (p, i) in rows[l].iter().enumerate() {
                place[*i] = p;
            }
        }
        let now = crossings(rows, items, &place);
        if now < best.0 {
            best = (now, rows.to_vec());
        }
    }
    rows.clone_from_slice(&best.1);
}

/// The number of crossings between edges of neighbouring layers.
fn crossings(rows: &[Vec<usize>], items: &[Item], place: &[usize]) -> usize {
    let mut n = 0;
    for row in rows {
        let mut targets: Vec<usize> = Vec::new();
        for i in row {
            let mut mine: Vec<usize> = items[*i].down.iter().map(|d| place[*d]).collect();
            mine.sort_unstable();
            n += mine.iter().map(|t| targets.iter().filter(|o| *o > t).count()).sum::<usize>();
            targets.append(&mut mine);
        }
    }
    n
}

fn positions(rows: &[Vec<usize>], items: &mut [Item]) {
    for row in rows {
        let mut x = 0.0;
        for i in row {
            items[*i].x = x + items[*i].w / 2.0;
            x += items[*i].w + GAP_X;
        }
    }
    for sweep in 0..SWEEPS {
        let down = sweep % 2 == 0;
        for step in 0..rows.len() {
            let row = &rows[if down { step } else { rows.len() - 1 - step }];
            let wanted: Vec<f64> = row
                .iter()
                .map(|i| {
                    let near = match (sweep, down) {
                        (0, _) | (_, true) if !items[*i].up.is_empty() => &items[*i].up,
                        (_, false) if !items[*i].down.is_empty() => &items[*i].down,
                        _ => return items[*i].x,
                    };
                    near.iter().map(|n| items[*n].x).sum::<f64>() / near.len() as f64
                })
                .collect();
            let widths: Vec<f64> = row.iter().map(|i| items[*i].w).collect();
            for (i, x) in row.iter().zip(spread(&wanted, &widths)) {
                items[*i].x = x;
            }
        }
    }
}

/// The centres nearest to `wanted` that keep the order and [`GAP_X`] between neighbours.
fn spread(wanted: &[f64], widths: &[f64]) -> Vec<f64> {
    // After subtracting the least distances, the centres only have to be in ascending order.
    let mut offset = Vec::with_capacity(wanted.len());
    let mut at = 0.0;
    for (k, w) in widths.iter().enumerate() {
        if k > 0 {
            at += (widths[k - 1] + w) / 2.0 + GAP_X;
        }
        offset.push(at);
    }
    let mut pools: Vec<(f64, usize)> = Vec::new();
    for (x, o) in wanted.iter().zip(&offset) {
        let mut pool = (x - o, 1);
        while let Some(last) = pools.last().copied().filter(|l| l.0 > pool.0) {
            pools.pop();
            let n = last.1 + pool.1;
            pool = ((last.0 * last.1 as f64 + pool.0 * pool.1 as f64) / n as f64, n);
        }
        pools.push(pool);
    }
    let flat = pools.iter().flat_map(|(x, n)| std::iter::repeat_n(*x, *n));
    flat.zip(&offset).map(|(x, o)| x + o).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boxes_do_not_overlap_and_edges_go_down() {
        // A residual block with a second input: 0 → 1 → 2 → 3, 0 → 3, 4 … → 5.
        let sizes: Vec<Size> =
            (0..7).map(|i| Size { w: 50.0 + 17.0 * i as f64, h: 30.0 + i as f64 }).collect();
        let edges = [(0, 1), (1, 2), (2, 3), (0, 3), (3, 5), (4, 5), (0, 5), (0, 6), (1, 6)];
        let p = place(&sizes, &edges);
        for i in 0..sizes.len() {
            for j in 0..i {
                let dx = (p.centres[i].0 - p.centres[j].0).abs();
                let dy = (p.centres[i].1 - p.centres[j].1).abs();
                let apart = dx >= (sizes[i].w + sizes[j].w) / 2.0 || dy >= (sizes[i].h + sizes[j].h) / 2.0;
                assert!(apart, "boxes {i} and {j} overlap");
            }
            let (x, y) = p.centres[i];
            assert!(x - sizes[i].w / 2.0 >= 0.0 && x + sizes[i].w / 2.0 <= p.width && y <= p.height);
        }
        for points in &p.edges {
            assert!(points.windows(2).all(|w| w[0].1 <= w[1].1), "{points:?}");
        }
        // The unconnected input stands just above its reader.
        assert!(p.centres[4].1 > p.centres[1].1 && p.centres[4].1 < p.centres[5].1);
    }

    #[test]
    fn spreading_is_least_squares() {
        assert_eq!(spread(&[0.0, 100.0], &[10.0, 10.0]), [0.0, 100.0]);
        assert_eq!(spread(&[0.0, 0.0], &[10.0, 10.0]), [-18.0, 18.0]);
    }
}
