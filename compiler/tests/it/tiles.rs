//! Products of matrices, executed on every adapter and compared with plain loops.

use crate::gpu::gemv::*;
use crate::gpu::*;
use std::collections::BTreeMap;
use wgfc_compiler::emit::EmittedKernel;
use wgfc_compiler::kernel::*;
use wgfc_compiler::schedule::products::problem::{Problem, problem};
use wgfc_compiler::schedule::products::{
    self, BLOCKS, COOPERATIVE, INTEGER_TILES, Product, SINGLE, TILES, TileShape, VECTOR_BLOCKS,
};
use wgfc_ir::{DType, Dim, Poly};

/// Checks `out = a · b + bias` on all adapters with a given geometry.
fn check_product(gpus: &[Gpu], dims: [Dim; 4], symbols: &[(&str, i64)], l: Layout, forced: Option<Shape>) {
    let case = Case::new(symbols);
    check_typed_product(gpus, case, DType::F32, dims, l, forced);
}

/// Checks a product with factors of a type, for the device of the case.
fn check_typed_product(
    gpus: &[Gpu],
    mut case: Case,
    dtype: DType,
    dims: [Dim; 4],
    l: Layout,
    forced: Option<Shape>,
) {
    let (kernel, [ta, tb, tbias, to]) = typed_product(&mut case, dtype, dims.clone(), l);
    let mut emitted = case.with_context(|cx| {
        let e = emit_as(&kernel, cx, forced).unwrap();
        e.check().unwrap();
        e
    });
    if gpus.iter().any(|g| !g.multiplies_matrices) && matches!(forced, Some(Shape::Cooperative(_))) {
        emitted.wgsl = units::written_out(&emitted.wgsl);
    }
    if gpus.is_empty() {
        return;
    }
    let [batch, m, n, k] = dims.map(|d| case.eval(&d));
    let (mut data, mut bytes) = (BTreeMap::new(), BTreeMap::new());
    for t in [ta, tb, tbias] {
        let (values, packed) = elements(case.graph.tensors[t].ty.dtype, case.numel(t), t as u32 + 1);
        data.insert(t, values);
        bytes.insert(t, packed);
    }
    let at = |b: usize, i: usize, ie: usize, j: usize, je: usize, t: bool| {
        b * ie * je + if t { j * ie + i } else { i * je + j }
    };
    let mut want = vec![0.0; batch * m * n];
    for b in 0..batch {
        for i in 0..m {
            for j in 0..n {
                let mut sum = data[&tbias][j];
                for q in 0..k {
                    let x = data[&ta][at(b, i, m, q, k, l.a)];
                    sum += x * data[&tb][at(b, q, k, j, n, l.b)];
                }
                want[at(b, i, m, j, n, l.out)] = sum;
            }
        }
    }
    let fits = |g: &&Gpu| emitted.workgroup_bytes <= g.device.limits().max_compute_workgroup_storage_size;
    for g in gpus.iter().filter(fits).filter(|g| g.takes_case()) {
        let what = format!("{batch}×{m}×{n}×{k} {dtype} {l:?} {forced:?} on {}", g.name);
        let got = execute(g, &prepare_bytes(g, &case, &emitted, &bytes), to);
        let got = got.chunks_exact(4).map(|c| f32::from_le_bytes([c[0], c[1], c[2], c[3]]));
        close(&what, &got.take(want.len()).collect::<Vec<_>>(), &want);
    }
}

fn fixed(d: [i64; 4]) -> [Dim; 4] {
    d.map(Poly::constant)
}

const PLAIN: Layout = Layout { a: false, b: false, out: false };
const LAYOUTS: [Layout; 4] = [
    PLAIN,
    Layout { a: false, b: true, out: false },
    Layout { a: true, b: false, out: false },
    Layout { a: true, b: true, out: true },
];

#[test]
fn every_tile_shape() {
    let gpus = gpus();
    for (i, t) in TILES.iter().enumerate() {
        let g = Some(Shape::Tiled(*t));
        check_product(&gpus, fixed([1, 65, 129, 33]), &[], LAYOUTS[i % 4], g);
        if i % 2 == 0 {
            check_product(&gpus, fixed([3, 7, 13, 5]), &[], LAYOUTS[(i / 2) % 4], g);
        } else {
            check_product(&gpus, fixed([2, 128, 128, 128]), &[], LAYOUTS[(i / 2) % 4], g);
        }
    }
}

/// Different unrollings of the loop over a tile's depth, one buffer or two, and both orders of workgroups.
#[test]
fn every_form_of_a_tile() {
    let gpus = gpus();
    for (i, shape) in [TILES[1], TILES[6], TILES[12]].into_iter().enumerate() {
        let fours = shape.k / 4;
        for (j, unroll) in [1, fours / 2, fours].into_iter().enumerate() {
            let buffers = 1 + (i as u32 + j as u32) % 2;
            let tiled = products::Tiled { shape, buffers, unroll, rows_first: i % 2 == 0 };
            let g = Some(Shape::Exactly(Product::Tiled(tiled)));
            check_product(&gpus, fixed([2, 260, 132, 72]), &[], LAYOUTS[(i + j) % 4], g);
            check_product(&gpus, fixed([1, 257, 70, 37]), &[], LAYOUTS[(i + j + 1) % 4], g);
        }
    }
}

/// Blocks of results whose sums are unrolled.
#[test]
fn every_window() {
    let gpus = gpus();
    for (i, l) in LAYOUTS.iter().enumerate() {
        for (d, rows, cols) in
            [([3, 1, 36, 9], 1, 4), ([2, 4, 18, 5], 4, 2), ([5, 2, 12, 1], 1, 4), ([1, 8, 20, 7], 2, 4)]
        {
            let window = products::window::Window { threads: [32, 128][i % 2], rows, cols };
            check_product(&gpus, fixed(d), &[], *l, Some(Shape::Exactly(Product::Window(window))));
        }
    }
}

/// Every shape is emitted and validated for a device with matrix units, and runs on adapters that have them.
#[test]
fn products_on_matrix_units() {
    let gpus: Vec<Gpu> = gpus().into_iter().filter(|g| g.multiplies_matrices).collect();
    for (i, shape) in COOPERATIVE.iter().enumerate() {
        for (j, d) in [[1, 64, 128, 64], [2, 40, 72, 200], [1, 136, 264, 896]].into_iter().enumerate() {
            let l = LAYOUTS[(i + j) % 4];
            check_typed_product(
                &gpus,
                Case::on_units_of_either(i + j),
                DType::F16,
                fixed(d),
                l,
                Some(Shape::Cooperative(*shape)),
            );
        }
    }
}

/// Products on adapters without matrix units, with the units' operations emulated, also where rows are not
/// multiples of a vector.
#[test]
fn products_on_units_written_out() {
    let half = |g: &Gpu| !g.multiplies_matrices && g.device.features().contains(wgpu::Features::SHADER_F16);
    let gpus: Vec<Gpu> = gpus().into_iter().filter(half).collect();
    let dims = [[1, 64, 128, 32], [2, 40, 72, 40], [1, 37, 50, 27]];
    for (i, shape) in COOPERATIVE.iter().enumerate().filter(|(i, _)| i % 3 == 1) {
        let d = fixed(dims[i / 3 % 3]);
        check_typed_product(
            &gpus,
            Case::on_units_of_either(i / 3),
            DType::F16,
            d,
            LAYOUTS[i % 4],
            Some(Shape::Cooperative(*shape)),
        );
    }
}

/// Checks a product with quantised weights on adapters without matrix units, with the units' operations emulated. Weights are rounded to f16.
fn check_quantised_on_units(gpus: &[Gpu], g: Gemv, shape: products::CooperativeShape, ahead: u32) {
    let mut case = Case::on_matrix_units();
    let (kernel, t) = g.kernel(&mut case);
    let shape_on = |cx: &Cx| {
        let subgroup = cx.schedule.device.subgroup.unwrap_or(1);
        Shape::Exactly(Product::Cooperative(products::Cooperative { shape, ahead, subgroup }))
    };
    let mut emitted = case.with_context(|cx| emit_as(&kernel, cx, Some(shape_on(cx))).unwrap());
    emitted.check().unwrap();
    emitted.wgsl = units::written_out(&emitted.wgsl);
    let mut bytes = BTreeMap::new();
    let [x, weights, scales, zeros] = [t.x, t.weights[0], t.scales[0], t.zeros[0]].map(|tensor| {
        let (values, b) =
            elements(case.graph.tensors[tensor].ty.dtype, case.numel(tensor), tensor as u32 + 3);
        bytes.insert(tensor, b);
        values
    });
    let [rows, depth, cols] = [g.rows, g.depth, g.cols].map(|d| d as usize);
    let at = |k: usize, deep: usize, n: usize| if g.by_column { k * cols + n } else { n * deep + k };
    let weight = |k: usize, n: usize| {
        let block = at(k / BLOCK as usize, g.blocks() as usize, n);
        half::f16::from_f64((weights[at(k, depth, n)] - zeros[block]) * scales[block]).to_f64()
    };
    let sum = |m: usize, n: usize| (0..depth).map(|k| x[m * depth + k] * weight(k, n)).sum::<f64>();
    let want: Vec<f64> =
        (0..rows).flat_map(|m| (0..cols).map(move |n| (m, n))).map(|(m, n)| sum(m, n)).collect();
    for gpu in gpus.iter().filter(|g| g.takes_case()) {
        let got = execute(gpu, &prepare_bytes(gpu, &case, &emitted, &bytes), t.outs[0]);
        let got = got.chunks_exact(4).map(|c| f32::from_le_bytes([c[0], c[1], c[2], c[3]]));
        close(
            &format!("{g:?} {shape:?} {ahead} ahead on {}", gpu.name),
            &got.take(want.len()).collect::<Vec<_>>(),
            &want,
        );
    }
}

/// Weights of few bits in runs of 32, 16 and 8, in whole tiles along the depth and not, with the words of one and of two steps held.
#[test]
fn quantised_products_on_units_written_out() {
    let half = |g: &Gpu| !g.multiplies_matrices && g.device.features().contains(wgpu::Features::SHADER_F16);
    let gpus: Vec<Gpu> = gpus().into_iter().filter(half).collect();
    let of = |k: u32, cols: u32| COOPERATIVE.iter().find(|s| s.k == k && s.cols == cols).copied().unwrap();
    let plain = |depth, cols, by_column| Gemv { input: DType::F16, ..Gemv::plain(depth, cols, by_column) };
    for (weights, rows, depth, cols, by_column, shape, ahead) in [
        (DType::U4, 20, 96, 72, false, of(32, 128), 1),
        (DType::U4, 20, 96, 72, false, of(64, 64), 1),
        (DType::I8, 17, 224, 40, false, of(128, 32), 1),
        (DType::U2, 12, 112, 33, false, of(64, 128), 1),
        (DType::I4, 20, 40, 96, true, of(32, 64), 1),
        (DType::U4, 20, 192, 72, false, of(32, 128), 2),
        (DType::U4, 5, 64, 72, false, of(32, 64), 2),
        (DType::I8, 17, 256, 40, false, of(128, 32), 2),
        (DType::I4, 20, 256, 96, true, of(64, 64), 2),
    ] {
        check_quantised_on_units(
            &gpus,
            Gemv { weights, rows, ..plain(depth, cols, by_column) },
            shape,
            ahead,
        );
    }
}

#[test]
fn all_layouts_of_a_tile() {
    let gpus = gpus();
    for t in [TILES[0], TILES[9], TILES[15]] {
        for bits in 0..8 {
            let l = Layout { a: bits & 1 != 0, b: bits & 2 != 0, out: bits & 4 != 0 };
            check_product(&gpus, fixed([2, 37, 70, 29]), &[], l, Some(Shape::Tiled(t)));
            let fours = if bits % 3 == 0 { [1, 44, 70, 36] } else { [2, 44, 68, 36] };
            check_product(&gpus, fixed(fours), &[], l, Some(Shape::Tiled(t)));
        }
    }
}

/// Some of the thin geometries for a case, varying between cases.
fn thin_candidates(case: &Case, kernel: &Kernel, count: usize) -> Vec<Shape> {
    let p = problem(kernel).unwrap();
    let shape = |s| match s {
        Product::Thin(t) if t.integers => Some(Shape::Integers(t.shape)),
        Product::Thin(t) => Some(Shape::Thin(t.shape)),
        _ => None,
    };
    let mut thin: Vec<Shape> =
        products::candidates(&p, &case.profile, &case.expect).into_iter().filter_map(shape).collect();
    if p.integers.is_some() {
        thin.retain(|s| matches!(s, Shape::Integers(_)));
    }
    assert!(!thin.is_empty(), "{p:?}");
    let seed = thin.len() as u32 + p.cols.as_const().unwrap_or(0) as u32;
    let pick = |x: &f32| thin[((x + 1.0) / 2.0 * thin.len() as f32) as usize % thin.len()];
    noise(count, seed).iter().map(pick).collect()
}

#[test]
fn thin_and_serial_products() {
    let gpus = gpus();
    for (i, l) in LAYOUTS.iter().enumerate() {
        for rows in [1, 3, 8] {
            for d in [[1, rows, 77, 333], [2, 77, rows, 8 + i as i64], [3, rows, 16, 24]] {
                let mut case = Case::new(&[]);
                let (kernel, _) = product(&mut case, fixed(d), *l);
                for g in thin_candidates(&case, &kernel, 2) {
                    check_product(&gpus, fixed(d), &[], *l, Some(g));
                }
            }
        }
        if !l.b {
            let d = fixed([2, 13 + i as i64, 36, 70]);
            let mut case = Case::new(&[]);
            let (kernel, _) = product(&mut case, d.clone(), *l);
            for g in thin_candidates(&case, &kernel, 1) {
                check_product(&gpus, d.clone(), &[], *l, Some(g));
            }
        }
        check_product(&gpus, fixed([3, 7, 13, 5]), &[], *l, Some(Shape::Serial));
        check_product(&gpus, fixed([3, 1, 65, 50]), &[], *l, Some(Shape::Serial));
    }
}

#[test]
fn blocks_of_results() {
    let gpus = gpus();
    let symbols = [("b", 2), ("m", 9), ("n", 19), ("k", 5)];
    for (i, l) in LAYOUTS.iter().enumerate() {
        for (j, (rows, cols)) in BLOCKS.iter().copied().enumerate() {
            if (i + j) % 3 != 0 {
                continue;
            }
            let block =
                Shape::Exactly(Product::Block(products::Block { threads: 128, rows, cols, width: 1 }));
            check_product(&gpus, fixed([3, 13, 70, 5 + i as i64]), &[], *l, Some(block));
            check_product(&gpus, fixed([1, 16, 8, 9]), &[], *l, Some(block));
        }
        let block =
            Shape::Exactly(Product::Block(products::Block { threads: 64, rows: 4, cols: 2, width: 1 }));
        check_product(&gpus, ["b", "m", "n", "k"].map(Poly::sym), &symbols, *l, Some(block));
    }
    let block = Shape::Exactly(Product::Block(products::Block { threads: 128, rows: 8, cols: 4, width: 1 }));
    check_product(&gpus, fixed([2, 5, 6, 0]), &[], PLAIN, Some(block));
}

#[test]
fn blocks_of_vectors() {
    let gpus = gpus();
    let mut seen = vec![];
    for (i, l) in LAYOUTS.iter().enumerate() {
        for d in [[3, 13, 72, 5], [1, 16, 8, 12], [2, 40, 36, 8]] {
            let mut case = Case::new(&[]);
            let p = problem(&product(&mut case, fixed(d), *l).0).unwrap();
            let all = products::candidates(&p, &case.profile, &case.expect).into_iter();
            let wide = all.filter(|g| matches!(g, Product::Block(b) if b.width == 4));
            for block in wide.skip(i % 2).step_by(2) {
                check_product(&gpus, fixed(d), &[], *l, Some(Shape::Exactly(block)));
                seen.push(block);
            }
        }
    }
    for (rows, cols) in VECTOR_BLOCKS.iter().copied() {
        let block = Product::Block(products::Block { threads: 128, rows, cols, width: 4 });
        assert!(seen.contains(&block), "{block:?}");
    }
    let block = Shape::Exactly(Product::Block(products::Block { threads: 128, rows: 8, cols: 4, width: 4 }));
    check_product(&gpus, fixed([2, 5, 8, 0]), &[], PLAIN, Some(block));
    let [b, m, n, k] = ["b", "m", "n", "k"].map(Poly::sym);
    check_product(&gpus, [b, m, n * 4, k], &[("b", 2), ("m", 9), ("n", 5), ("k", 6)], PLAIN, Some(block));
}

/// A row rounded to 8 bits: the multiple of each group's scale that is nearest, and of two the one that is even.
fn rounded(row: &[f64]) -> Vec<f64> {
    let group = |group: &[f64]| {
        let greatest = group.iter().fold(0.0f32, |g, x| g.max(x.abs() as f32));
        let inverse = if greatest < 1e-36 { 0.0 } else { 127.0 / greatest };
        let scale = f64::from(greatest / 127.0);
        group.iter().map(|x| f64::from((*x as f32 * inverse).round_ties_even()) * scale).collect::<Vec<f64>>()
    };
    row.chunks(GROUP as usize).flat_map(group).collect()
}

/// Checks a product with few rows with the chosen geometry and some others.
fn check_gemv(gpus: &[Gpu], g: Gemv, others: usize) {
    let mut case = Case::new(&[]);
    let (kernel, _) = g.kernel(&mut case);
    let candidates = thin_candidates(&case, &kernel, others).into_iter().map(Some);
    let chosen = (!g.rounded).then_some(None);
    check_gemv_as(gpus, g, chosen.into_iter().chain(candidates));
}

/// Compares a product in forced shapes, or in that which is chosen, with one in f64.
fn check_gemv_as(gpus: &[Gpu], g: Gemv, shapes: impl IntoIterator<Item = Option<Shape>>) {
    let mut case = Case::new(&[]);
    let (kernel, t) = g.kernel(&mut case);
    let [rows, depth, cols] = [g.rows, g.depth, g.cols].map(|d| d as usize);
    let mut bytes = BTreeMap::new();
    let mut make = |tensor: TensorId| {
        let dtype = case.graph.tensors[tensor].ty.dtype;
        let (values, b) = elements(dtype, case.numel(tensor), tensor as u32 + 3);
        bytes.insert(tensor, b);
        values
    };
    let x = make(t.x);
    let weights: Vec<_> = t.weights.iter().map(|w| make(*w)).collect();
    let scales: Vec<_> = t.scales.iter().map(|w| make(*w)).collect();
    let zeros: Vec<_> = t.zeros.iter().map(|w| make(*w)).collect();
    let at = |k: usize, deep: usize, n: usize| if g.by_column { k * cols + n } else { n * deep + k };
    let mut want = vec![vec![]; t.outs.len()];
    for m in 0..rows {
        let row = &x[m * depth..][..depth];
        let mean = row.iter().map(|x| x * x).sum::<f64>() / depth as f64;
        let norm = if g.norm { 1.0 / (mean + 1e-6).sqrt() } else { 1.0 };
        let row = &if g.rounded { rounded(row) } else { row.to_vec() };
        for n in 0..cols {
            let mut value = 1.0;
            for (i, w) in weights.iter().enumerate() {
                let weight = |k: usize| {
                    let (q, b) = (w[at(k, depth, n)], at(k / BLOCK as usize, g.blocks() as usize, n));
                    if scales.is_empty() { q } else { (q - zeros[i][b]) * scales[i][b] }
                };
                value *= (0..depth).map(|k| row[k] * weight(k)).sum::<f64>() * norm;
            }
            let second = g.split.is_some_and(|s| n as i64 >= s);
            want[usize::from(second)].push(value);
        }
    }
    for forced in shapes {
        let emit = |cx: &Cx| {
            let e = emit_as(&kernel, cx, forced).unwrap();
            e.check().unwrap();
            e
        };
        // SwiftShader takes seconds to compile one of these, so it runs only some of those with the chosen
        // geometry.
        let some = (forced.is_none() || g.rounded)
            && g.rows <= 2
            && matches!(g.weights, DType::F32 | DType::F16 | DType::U4);
        let slow = |gpu: &Gpu, e: &EmittedKernel| {
            gpu.name.contains("SwiftShader") && !(some && e.subgroup_size == gpu.subgroup && gpu.takes_case())
        };
        for (gpu, emitted) in variants(gpus, &mut case, emit) {
            if slow(gpu, &emitted) {
                continue;
            }
            let r = prepare_bytes(gpu, &case, &emitted, &bytes);
            dispatch(gpu, &r);
            for (out, want) in t.outs.iter().zip(&want) {
                let got = read(gpu, &r, *out);
                let got: Vec<f32> =
                    got.chunks_exact(4).map(|c| f32::from_le_bytes([c[0], c[1], c[2], c[3]])).collect();
                close(&format!("{g:?} {forced:?} on {}", gpu.name), &got[..want.len()], want);
            }
        }
    }
}

#[test]
fn thin_products_of_odd_sizes() {
    let gpus = gpus();
    for by_column in [false, true] {
        for (depth, cols) in [(7, 33), (33, 7), (130, 36), (896, 48)] {
            let g = Gemv::plain(depth, cols, by_column);
            check_gemv(&gpus, g, 3);
            check_gemv(&gpus, Gemv { rows: 2, products: 2, norm: true, ..g }, 1);
            check_gemv(&gpus, Gemv { rows: 5, split: Some(cols / 3), norm: true, ..g }, 1);
        }
        check_gemv(
            &gpus,
            Gemv { rows: 8, products: 2, split: Some(1), ..Gemv::plain(64, 130, by_column) },
            1,
        );
    }
}

#[test]
fn thin_products_of_narrow_types() {
    let gpus = gpus();
    use DType::*;
    for by_column in [false, true] {
        for weights in [F16, BF16, U8, I8, U4, I4, U2] {
            let g = |depth, cols| Gemv { weights, ..Gemv::plain(depth, cols, by_column) };
            check_gemv(&gpus, Gemv { input: F16, ..g(192, 64) }, 2);
            check_gemv(&gpus, Gemv { rows: 3, products: 2, norm: true, split: Some(5), ..g(96, 34) }, 1);
            check_gemv(&gpus, Gemv { split: Some(5), ..g(33, 7) }, 1);
        }
        // As many sums as fit the registers, so that loads are narrower than 16 bytes.
        let g = Gemv { weights: F16, rows: 8, products: 3, norm: true, ..Gemv::plain(64, 32, by_column) };
        check_gemv(&gpus, g, 1);
    }
}

/// Products of rows that are rounded to 8 bits, in integers.
#[test]
fn thin_products_in_integers() {
    let gpus = gpus();
    use DType::*;
    for weights in [U8, I8, U4, I4, U2, I2] {
        let g = |rows, depth, cols| Gemv { weights, rounded: true, rows, ..Gemv::plain(depth, cols, false) };
        check_gemv(&gpus, Gemv { products: 2, norm: true, split: Some(5), ..g(1, 1120, 35) }, 1);
        if matches!(weights, U8 | U4) {
            check_gemv(&gpus, Gemv { input: F16, ..g(1, 192, 64) }, 1);
            check_gemv(&gpus, Gemv { norm: true, ..g(3, 96, 33) }, 1);
            check_gemv(&gpus, g(8, 448, 20), 1);
        }
    }
}

/// Tiles of integers, each with whole and with partial tiles of rows and columns, one or several steps, and stores of vectors or not.
#[test]
fn tiled_products_in_integers() {
    let gpus = gpus();
    use DType::*;
    let tiled = |shape: TileShape, buffers| {
        Shape::Exactly(Product::TiledIntegers(products::TiledIntegers {
            shape,
            buffers,
            rows_first: shape.rows > 32,
        }))
    };
    let exactly = |shape| Some(tiled(shape, 1));
    for (i, weights) in [U8, I8, U4, I4, U2, I2].into_iter().enumerate() {
        let g = |rows, depth, cols| Gemv { weights, rounded: true, rows, ..Gemv::plain(depth, cols, false) };
        let i = i as i64;
        check_gemv_as(
            &gpus,
            g([1, 8, 2, 22, 29, 36][i as usize], 128, 61 + i),
            [exactly(INTEGER_TILES[INTEGER_TILES.len() - 1])],
        );
        check_gemv_as(&gpus, Gemv { input: F16, ..g(19, 192, 64) }, [Some(tiled(INTEGER_TILES[7], 2))]);
    }
    for shape in INTEGER_TILES {
        let depth = i64::from(shape.k) * 2;
        let (rows, cols) = (i64::from(shape.rows) + 3, i64::from(shape.cols));
        let g = |rows, cols| Gemv { weights: U4, rounded: true, rows, ..Gemv::plain(depth, cols, false) };
        check_gemv_as(&gpus, g(rows, cols + 5), [exactly(*shape), Some(tiled(*shape, 2))]);
        check_gemv_as(&gpus, Gemv { split: Some(5), ..g(rows - 3, cols) }, [exactly(*shape)]);
    }
    let mut case = Case::new(&[]);
    let g = Gemv { weights: U4, rounded: true, rows: 40, ..Gemv::plain(96, 40, false) };
    let (kernel, _) = g.kernel(&mut case);
    let e = case.with_context(|cx| emit_as(&kernel, cx, exactly(INTEGER_TILES[7])).unwrap_err());
    assert!(e.message.contains("does not fit"), "{e}");
}

#[test]
fn several_products_are_made_by_few_geometries() {
    let mut case = Case::new(&[]);
    let (kernel, _) = Gemv { products: 2, ..Gemv::plain(64, 48, true) }.kernel(&mut case);
    let e = case.with_context(|cx| emit_as(&kernel, cx, Some(Shape::Tiled(TILES[0]))).unwrap_err());
    assert!(e.message.contains("only thin and serial schedules make more than one"), "{e}");
    assert!(case.with_context(|cx| emit_as(&kernel, cx, Some(Shape::Serial))).is_ok());
    let Shape::Thin(mut shape) = thin_candidates(&case, &kernel, 1)[0] else { panic!() };
    shape.k = 5;
    let e = case.with_context(|cx| emit_as(&kernel, cx, Some(Shape::Thin(shape))).unwrap_err());
    assert!(e.message.contains("does not fit"), "{e}");
}

#[test]
fn chosen_geometries_and_symbolic_extents() {
    let gpus = gpus();
    for l in LAYOUTS {
        for d in [
            [1, 1, 500, 300],
            [1, 300, 1, 500],
            [1, 1, 1, 777],
            [3, 7, 13, 5],
            [1, 65, 129, 33],
            [5, 1, 49, 9],
        ] {
            check_product(&gpus, fixed(d), &[], l, None);
        }
        let s = Poly::sym;
        let symbols = [("b", 2), ("past", 30), ("seq", 7), ("h", 19)];
        check_product(&gpus, [s("b"), s("past") + s("seq"), s("h") * 3, s("h")], &symbols, l, None);
        check_product(&gpus, [Poly::ONE, s("seq"), s("h"), c(64)], &symbols, l, None);
        for g in [TILES[0], TILES[8]] {
            let d = [s("b"), s("past") + s("seq"), s("h") * 3, s("h")];
            check_product(&gpus, d, &symbols, l, Some(Shape::Tiled(g)));
        }
        check_product(&gpus, [c(2), c(3), s("h"), s("past")], &symbols, l, Some(Shape::Serial));
    }
    // An empty sum, which leaves only the epilogue, and an empty result, which needs no workgroups.
    check_product(&gpus, fixed([1, 5, 6, 0]), &[], PLAIN, None);
    check_product(
        &gpus,
        [c(1), c(5), c(6), Poly::sym("k")],
        &[("k", 0)],
        PLAIN,
        Some(Shape::Tiled(TILES[4])),
    );
    check_product(&gpus, [c(1), Poly::sym("m"), c(6), c(3)], &[("m", 0)], PLAIN, None);
}

#[test]
fn more_workgroups_than_one_dimension_holds() {
    let gpus = gpus();
    let smallest = TILES.iter().min_by_key(|t| t.rows * t.cols).unwrap();
    let g = Some(Shape::Tiled(*smallest));
    let mut case = Case::new(&[]);
    case.profile.max_workgroups = 7;
    let (kernel, [ta, tb, tbias, to]) = product(&mut case, fixed([3, 50, 60, 9]), PLAIN);
    let emitted = case.with_context(|cx| emit_as(&kernel, cx, g).unwrap());
    assert!(emitted.workgroups[1] != Poly::ONE);
    let data: BTreeMap<_, _> = [ta, tb, tbias].into_iter().map(|t| (t, vec![1.0; case.numel(t)])).collect();
    for g in &gpus {
        close("folded", &run(g, &case, &emitted, &data, to), &vec![10.0; 9000]);
    }
}

#[test]
fn convolutions() {
    let gpus = gpus();
    let conv = |batch, groups, cin, cout, size, kernel, stride| Conv {
        batch,
        groups,
        cin,
        cout,
        size,
        kernel,
        stride,
    };
    for (s, forced) in [
        (conv(1, 1, 3, 20, 17, 7, 2), None),
        (conv(2, 1, 5, 9, 11, 3, 1), Some(Shape::Tiled(TILES[0]))),
        (conv(2, 1, 5, 9, 11, 3, 2), Some(Shape::Tiled(TILES[15]))),
        (conv(3, 1, 33, 40, 7, 1, 1), Some(Shape::Tiled(TILES[4]))),
        (conv(2, 1, 40, 50, 7, 3, 1), None),
        (conv(2, 13, 1, 1, 9, 3, 1), None),
        (conv(2, 3, 4, 2, 9, 3, 2), None),
    ] {
        let mut case = Case::new(&[]);
        let (kernel, [tx, tw, to]) = convolution(&mut case, s);
        let data: BTreeMap<_, _> =
            [tx, tw].into_iter().map(|t| (t, noise(case.numel(t), 7 + t as u32))).collect();
        let o = s.out_size();
        let mut want = vec![];
        for image in 0..s.batch {
            for (g, m) in (0..s.groups).flat_map(|g| (0..s.cout).map(move |m| (g, m))) {
                for (oy, ox) in (0..o).flat_map(|y| (0..o).map(move |x| (y, x))) {
                    let mut sum = 0.0;
                    for ch in 0..s.cin {
                        for (ky, kx) in (0..s.kernel).flat_map(|y| (0..s.kernel).map(move |x| (y, x))) {
                            let (y, x) =
                                (oy * s.stride + ky - s.kernel / 2, ox * s.stride + kx - s.kernel / 2);
                            if (0..s.size).contains(&y) && (0..s.size).contains(&x) {
                                let at =
                                    ((image * s.groups * s.cin + g * s.cin + ch) * s.size + y) * s.size + x;
                                let w = (((g * s.cout + m) * s.cin + ch) * s.kernel + ky) * s.kernel + kx;
                                sum += f64::from(data[&tx][at as usize]) * f64::from(data[&tw][w as usize]);
                            }
                        }
                    }
                    want.push(sum);
                }
            }
        }
        let emitted = case.with_context(|cx| emit_as(&kernel, cx, forced).unwrap());
        for g in gpus.iter().filter(|g| g.takes_case()) {
            close(&format!("{s:?} on {}", g.name), &run(g, &case, &emitted, &data, to), &want);
        }
    }
}

/// The template chosen for a device whose properties are not known.
#[test]
fn choices() {
    use wgfc_compiler::schedule::products::Contiguous::{Depth, Line};
    let profile = wgfc_compiler::DeviceProfile::default();
    for (what, d, x, y, want) in [
        ("large", [1, 4096, 4096, 4096], Depth, Line, "tiled"),
        ("bert projection", [1, 128, 768, 768], Depth, Line, "tiled"),
        ("bert feed-forward", [1, 128, 3072, 768], Depth, Line, "tiled"),
        ("bert scores", [12, 128, 128, 64], Depth, Depth, "tiled"),
        ("classifier", [1, 1, 1000, 2048], Depth, Depth, "thin"),
        ("vector times matrix", [1, 1, 896, 4864], Depth, Line, "thin"),
        ("first convolution", [1, 64, 12544, 147], Depth, Line, "tiled"),
        ("56×56, 1×1", [1, 256, 3136, 64], Depth, Line, "tiled"),
        ("56×56, 3×3", [1, 64, 3136, 576], Depth, Line, "tiled"),
        ("14×14, 3×3", [1, 256, 196, 2304], Depth, Line, "tiled"),
        ("7×7, 3×3", [1, 512, 49, 4608], Depth, Line, "tiled"),
        ("7×7, 1×1", [1, 2048, 49, 512], Depth, Line, "tiled"),
        ("depthwise", [144, 1, 3136, 9], Depth, Line, "serial"),
    ] {
        let [batch, rows, cols, depth] = d.map(c);
        let vector = if y == Depth { 4 } else { 1 };
        let p = Problem {
            batch,
            rows,
            cols,
            depth,
            x,
            y,
            results: SINGLE,
            bits: 32.0,
            vector,
            staged: 0.0,
            making: Default::default(),
            half: false,
            windows: vec![],
            integers: None,
            fours: [true, y == Depth || what != "first convolution"],
            eights: [false; 2],
        };
        let chosen = products::choose(&p, &profile, &Default::default());
        let template = match chosen {
            Product::Tiled(_) => "tiled",
            Product::Thin(_) => "thin",
            Product::Serial(_) => "serial",
            _ => "another",
        };
        assert_eq!(template, want, "{what} {d:?}: {chosen:?}");
    }
}
