//! Attention, executed on every adapter and compared with plain loops.

use crate::gpu::gemv::elements;
use crate::gpu::*;
use std::collections::BTreeMap;
use wgfc_compiler::kernel::*;
use wgfc_compiler::schedule::attention::{Matrices, Stream, Tiles};
use wgfc_ir::{BinaryOp, DType, Dim, Poly, Scalar};

/// The kind of mask of an attention kernel.
#[derive(Clone, Copy, PartialEq)]
enum MaskOf {
    Nothing,
    Tensor,
    /// With `Positions(past, near)`, query `i` sees the key `i + past` and the `near` keys before it.
    Positions(i64, i64),
}

/// Attention with its tensors `[q, k, v, mask, out]`, the first three of a type.
fn attention_kernel(case: &mut Case, dtype: DType, dims: [Dim; 5], mask: MaskOf) -> (Kernel, [TensorId; 5]) {
    let [batch, s, t, d, e] = dims;
    let tq = case.typed(dtype, &[batch.clone(), s.clone(), d.clone()], TensorKind::Input(0));
    let tk = case.typed(dtype, &[batch.clone(), t.clone(), d.clone()], TensorKind::Input(1));
    let tv = case.typed(dtype, &[batch.clone(), t.clone(), e.clone()], TensorKind::Input(2));
    let tm = case.tensor(&[s.clone(), t.clone()], TensorKind::Input(3));
    let to = case.tensor(&[batch.clone(), s.clone(), e.clone()], TensorKind::Output(0));
    let mut body = Body::default();
    let row = |i: usize, ie: &Dim, j: usize, je: &Dim| (v(0) * ie + v(i)) * je + v(j);
    let mut load = |tensor, offset| {
        let own = body.push(Expr::Load { tensor, offset, guard: None }, dtype);
        if dtype == DType::F32 { own } else { body.push(Expr::Cast(DType::F32, own), DType::F32) }
    };
    let q = load(tq, row(1, &s, 3, &d));
    let k = load(tk, row(2, &t, 3, &d));
    let val = load(tv, row(2, &t, 4, &e));
    let m = match mask {
        MaskOf::Nothing => None,
        MaskOf::Tensor => {
            Some(body.push(Expr::Load { tensor: tm, offset: v(1) * &t + v(2), guard: None }, DType::F32))
        }
        MaskOf::Positions(past, near) => {
            let key = body.push(Expr::Index(v(2)), DType::I32);
            let last = body.push(Expr::Index(v(1) + c(past)), DType::I32);
            let first = body.push(Expr::Index(v(1) + c(past - near)), DType::I32);
            let to = body.push(Expr::Binary(BinaryOp::Le, key, last), DType::Bool);
            let from = body.push(Expr::Binary(BinaryOp::Ge, key, first), DType::Bool);
            let both = body.push(Expr::Binary(BinaryOp::And, from, to), DType::Bool);
            let [zero, low] = [0.0, f32::MIN]
                .map(|x| body.push(Expr::Const(Scalar::from_f64(DType::F32, f64::from(x))), DType::F32));
            Some(body.push(Expr::Select(both, zero, low), DType::F32))
        }
    };
    let value = body.push(Expr::Acc(0), DType::F32);
    let stores = vec![Store { tensor: to, offset: row(1, &s, 4, &e), value, guard: None, combine: None }];
    let family = Family::Attention(Attention {
        batch,
        s,
        t,
        d,
        e,
        q,
        k,
        v: val,
        mask: m,
        scale: 0.3,
        empty_is_zero: false,
        parts: c(1),
        part_stores: vec![],
    });
    let kernel = Kernel { family, body, stores, nodes: vec![] };
    (kernel, [tq, tk, tv, tm, to])
}

/// Checks attention for these extents, with a mask of these values if there is one.
fn check_attention(
    gpus: &[Gpu],
    dims: [Dim; 5],
    symbols: &[(&str, i64)],
    mask: Option<fn(usize, usize) -> f32>,
    forced: Option<Shape>,
) {
    let of = if mask.is_some() { MaskOf::Tensor } else { MaskOf::Nothing };
    check_masked(gpus, dims, symbols, of, &|i, j| mask.map_or(0.0, |f| f(i, j)), forced);
}

/// Checks attention with a kind of mask and its values.
fn check_masked(
    gpus: &[Gpu],
    dims: [Dim; 5],
    symbols: &[(&str, i64)],
    mask: MaskOf,
    mask_at: &dyn Fn(usize, usize) -> f32,
    forced: Option<Shape>,
) {
    let mut case = Case::new(symbols);
    let (kernel, tensors) = attention_kernel(&mut case, DType::F32, dims.clone(), mask);
    let [tq, tk, tv, tm, to] = tensors;

    let [batch, s, t, d, e] = dims.map(|x| case.eval(&x));
    let mut data: BTreeMap<_, _> =
        [tq, tk, tv].into_iter().map(|t| (t, noise(case.numel(t), 3 + t as u32))).collect();
    data.insert(tm, (0..s * t).map(|i| mask_at(i / t, i % t)).collect());
    let want = expected([batch, s, t, d, e], &data, tensors, mask_at);
    let emit = |cx: &Cx| {
        let e = emit_as(&kernel, cx, forced).unwrap();
        e.check().unwrap();
        e
    };
    for (g, emitted) in variants(gpus, &mut case, emit).into_iter().filter(|(g, _)| g.takes_case()) {
        let what = format!("{batch}×{s}×{t}×{d}×{e} {forced:?} on {}", g.name);
        close(&what, &run(g, &case, &emitted, &data, to), &want);
    }
}

/// The attention of these tensors, computed with plain loops.
fn expected(
    [batch, s, t, d, e]: [usize; 5],
    data: &BTreeMap<TensorId, Vec<f32>>,
    [tq, tk, tv, ..]: [TensorId; 5],
    mask_at: &dyn Fn(usize, usize) -> f32,
) -> Vec<f64> {
    let mut want = vec![];
    for b in 0..batch {
        for i in 0..s {
            let scores: Vec<f64> = (0..t)
                .map(|j| {
                    let dot: f64 = (0..d)
                        .map(|x| {
                            f64::from(data[&tq][(b * s + i) * d + x])
                                * f64::from(data[&tk][(b * t + j) * d + x])
                        })
                        .sum();
                    let m = f64::from(mask_at(i, j));
                    if m < -1e37 { f64::from(f32::MIN) } else { dot * 0.3 + m }
                })
                .collect();
            let top = scores.iter().fold(f64::NEG_INFINITY, |a, b| a.max(*b));
            let p: Vec<f64> = scores.iter().map(|x| (x - top).exp()).collect();
            let sum: f64 = p.iter().sum();
            for x in 0..e {
                let dot: f64 = (0..t).map(|j| p[j] * f64::from(data[&tv][(b * t + j) * e + x])).sum();
                want.push(dot / sum);
            }
        }
    }
    want
}

/// Runs on adapters with matrix units, and on the others with the matrix operations emulated.
#[test]
fn attention_on_matrix_units() {
    let f16 = |g: &Gpu| g.device.features().contains(wgpu::Features::SHADER_F16);
    let gpus: Vec<Gpu> = gpus().into_iter().filter(f16).collect();
    let causal = |i: usize, j: usize| if j <= i + 3 && i <= j + 40 { 0.0 } else { f32::MIN };
    let cases = [
        ((64, 16, 32), [70, 50, 32, 32], MaskOf::Positions(3, 43), true),
        ((32, 16, 32), [40, 37, 16, 48], MaskOf::Tensor, false),
        ((32, 16, 64), [40, 84, 32, 32], MaskOf::Tensor, true),
        ((64, 16, 64), [130, 200, 64, 64], MaskOf::Positions(3, 43), true),
        // Queries pass through the tile in parts of their width.
        ((64, 16, 32), [150, 84, 64, 32], MaskOf::Tensor, false),
        ((96, 32, 32), [140, 200, 48, 48], MaskOf::Positions(3, 43), true),
    ];
    for (i, ((queries, sub_queries, keys), [s, t, d, e], mask, ahead)) in cases.into_iter().enumerate() {
        let matrices = Matrices { queries, sub_queries, keys, ahead, subgroup: 32 };
        let dims: [i64; 5] = [2, s, t, d, e];
        let mut case = Case::on_units_of_either(i / 2);
        let (kernel, tensors) = attention_kernel(&mut case, DType::F16, dims.map(Dim::from), mask);
        let [tq, tk, tv, tm, to] = tensors;
        let at = |i: usize, j: usize| match mask {
            MaskOf::Nothing => 0.0,
            // Scores of every other query grow so much from step to step that its results are scaled.
            MaskOf::Tensor => ((i * 7 + j * 3) % 5) as f32 / 4.0 + (i % 2 * j) as f32 * 0.4,
            MaskOf::Positions(..) => causal(i, j),
        };
        let (mut data, mut bytes) = (BTreeMap::new(), BTreeMap::new());
        for tensor in [tq, tk, tv] {
            let (values, packed) = elements(DType::F16, case.numel(tensor), 3 + tensor as u32);
            data.insert(tensor, values.into_iter().map(|x| x as f32).collect());
            bytes.insert(tensor, packed);
        }
        let numbers = (0..(s * t) as usize).map(|i| at(i / t as usize, i % t as usize));
        bytes.insert(tm, numbers.flat_map(f32::to_le_bytes).collect());
        let want = expected(dims.map(|n| n as usize), &data, tensors, &at);
        let emitted = case.with_context(|cx| {
            let e = emit_as(&kernel, cx, Some(Shape::Matrices(matrices))).unwrap();
            e.check().unwrap();
            assert!(e.wgsl.contains("array<vec4<f32>>"), "results are stored in vectors");
            let fours = mask == MaskOf::Tensor && t % 4 == 0;
            assert_eq!(e.wgsl.contains("load_masks"), fours, "the mask is read in vectors");
            e
        });
        for g in &gpus {
            let mut emitted = emitted.clone();
            if !g.multiplies_matrices {
                emitted.wgsl = units::attention_written_out(&emitted.wgsl, matrices.threads());
            }
            let got = execute(g, &prepare_bytes(g, &case, &emitted, &bytes), to);
            let got = got.chunks_exact(4).map(|c| f32::from_le_bytes([c[0], c[1], c[2], c[3]]));
            for (got, want) in got.take(want.len()).zip(&want) {
                // Probabilities are rounded to f16.
                let near = (f64::from(got) - want).abs() <= 2e-3;
                assert!(near, "{matrices:?} {dims:?} on {}: {got} {want}", g.name);
            }
        }
    }
}

fn causal(i: usize, j: usize) -> f32 {
    if j > i + 20 { f32::MIN } else { (j % 3) as f32 }
}
fn hidden(i: usize, j: usize) -> f32 {
    if i == 1 || j < 33 { f32::MIN } else { 0.0 }
}

#[test]
fn attention_geometries() {
    let gpus = gpus();
    let tiles = |queries, thread_queries, keys, lanes, depth, kept| {
        Shape::Queries(Tiles { queries, thread_queries, keys, lanes, depth, kept, ahead: kept })
    };
    for g in [
        tiles(8, 1, 32, 8, 32, false),
        tiles(16, 2, 64, 16, 64, true),
        tiles(32, 4, 32, 8, 32, false),
        tiles(24, 3, 32, 8, 64, true),
        tiles(8, 1, 128, 32, 128, true),
        Shape::Decode,
    ] {
        check_attention(&gpus, [2, 3, 7, 5, 3].map(c), &[], None, Some(g));
        check_attention(&gpus, [3, 37, 45, 33, 70].map(c), &[], Some(causal), Some(g));
        check_attention(&gpus, [1, 5, 300, 64, 32].map(c), &[], Some(hidden), Some(g));
        check_attention(&gpus, [2, 65, 33, 40, 256].map(c), &[], None, Some(g));
    }
}

/// Blocks of keys that no query of a block sees are skipped; a query that sees no key averages all of them.
#[test]
fn attention_over_the_keys_that_are_seen() {
    let gpus = gpus();
    let check = |dims: [i64; 5], past: i64, near: i64, g| {
        let at = move |i: usize, j: usize| {
            let (last, j) = (i as i64 + past, j as i64);
            if (last - near..=last).contains(&j) { 0.0 } else { f32::MIN }
        };
        check_masked(&gpus, dims.map(c), &[], MaskOf::Positions(past, near), &at, g);
    };
    let tiles = |queries, thread_queries, keys, lanes, depth| {
        Some(Shape::Queries(Tiles { queries, thread_queries, keys, lanes, depth, kept: true, ahead: false }))
    };
    for g in [None, tiles(16, 2, 64, 16, 64), tiles(32, 4, 32, 8, 32)] {
        check([2, 70, 70, 8, 20], 0, 1000, g);
        check([1, 50, 131, 12, 8], 81, 1000, g);
        check([1, 200, 200, 8, 8], 0, 7, g);
        // Some queries see no key: their keys would lie before the first or after the last.
        check([1, 40, 100, 8, 8], -3, 1000, g);
        check([1, 90, 40, 8, 8], 0, 2, g);
    }
}

#[test]
fn attention_chosen() {
    let gpus = gpus();
    check_attention(&gpus, [14, 1, 517, 64, 64].map(c), &[], None, None);
    check_attention(&gpus, [12, 128, 128, 64, 64].map(c), &[], Some(causal), None);
    let s = Poly::sym;
    let symbols = [("b", 2), ("past", 30), ("seq", 7)];
    check_attention(
        &gpus,
        [s("b") * 3, s("seq"), s("past") + s("seq"), c(48), c(20)],
        &symbols,
        Some(causal),
        None,
    );
}

/// A NaN or infinite score makes the results of its query NaN and does not affect other queries; −∞ hides its
/// key.
#[test]
fn attention_beyond_numbers() {
    let gpus = gpus();
    for dims in [[2, 9, 37, 16, 8], [3, 1, 517, 64, 64], [2, 70, 70, 32, 20]] {
        let [batch, s, t, d, e] = dims;
        let mut case = Case::new(&[]);
        let (kernel, tensors) = attention_kernel(&mut case, DType::F32, dims.map(c), MaskOf::Tensor);
        let [tq, tk, tv, tm, to] = tensors;
        let [batch, s, t, d, e] = [batch, s, t, d, e].map(|x| x as usize);
        let mut data: BTreeMap<_, _> =
            [tq, tk, tv].into_iter().map(|t| (t, noise(case.numel(t), 3 + t as u32))).collect();
        let emit = |cx: &Cx| emit_as(&kernel, cx, None).unwrap();
        for odd in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            // The odd value is in the mask of the last query of every batch.
            let mask = |i: usize, j: usize| if i + 1 == s && j == t / 2 { odd } else { 0.0 };
            data.insert(tm, (0..s * t).map(|i| mask(i / t, i % t)).collect());
            let want = expected([batch, s, t, d, e], &data, tensors, &mask);
            for (g, emitted) in variants(&gpus, &mut case, emit).into_iter().filter(|(g, _)| g.takes_case()) {
                let got = run(g, &case, &emitted, &data, to);
                let lost = |i: usize| i / e % s + 1 == s && odd != f32::NEG_INFINITY;
                for (i, (y, w)) in got.iter().zip(&want).enumerate() {
                    let near = if lost(i) { y.is_nan() } else { (f64::from(*y) - w).abs() < 1e-4 };
                    assert!(near, "{dims:?}, {odd}: element {i} is {y}, not {w}, on {}", g.name);
                }
            }
        }
    }
}

/// Keys in parts: combining the sums and maxima of the parts gives the result for all keys.
#[test]
fn attention_in_parts() {
    let gpus = gpus();
    // With a number of keys for each part, the number of parts is known at run time only.
    for (t, most, each) in
        [(1usize, 3usize, 0), (7, 8, 0), (300, 2, 0), (1000, 3, 0), (1, 8, 64), (65, 8, 64), (1000, 8, 64)]
    {
        let (batch, d, e) = (3, 20, 24);
        let mut case = Case::new(&[("t", t as i64)]);
        let mut dims = [batch, 1, t, d, e].map(|x| c(x as i64));
        let (mut parts, mut len) = (most, c(most as i64));
        if each > 0 {
            dims[2] = Dim::sym("t");
            parts = t.div_ceil(each).min(most);
            len = Dim::sym("t").ceil_div(each as i64).max_of(&Dim::ONE, &[]).min_of(&len, &[]);
        }
        let (mut kernel, [tq, tk, tv, tm, to]) =
            attention_kernel(&mut case, DType::F32, dims, MaskOf::Tensor);
        let count = c(most as i64);
        let sums = case.tensor(&[c(batch as i64), c(e as i64), count.clone()], TensorKind::Output(1));
        let tops = case.tensor(&[c(batch as i64), count.clone()], TensorKind::Output(2));
        let totals = case.tensor(&[c(batch as i64), count.clone()], TensorKind::Output(3));
        kernel.stores[0].tensor = sums;
        kernel.stores[0].offset = (v(0) * &c(e as i64) + v(4)) * &count + v(5);
        let stores = [(1, tops), (2, totals)].map(|(i, tensor)| Store {
            tensor,
            offset: v(0) * &count + v(5),
            value: kernel.body.push(Expr::Acc(i), DType::F32),
            guard: None,
            combine: None,
        });
        if let Family::Attention(Attention { parts: p, part_stores, .. }) = &mut kernel.family {
            *p = len;
            part_stores.extend(stores);
        }
        let mut data: BTreeMap<_, _> =
            [tq, tk, tv].into_iter().map(|x| (x, noise(case.numel(x), 3 + x as u32))).collect();
        let mask: Vec<f32> = (0..t).map(|j| if j % 3 == 1 { f32::MIN } else { j as f32 * 0.01 }).collect();
        data.insert(tm, mask.clone());
        let _ = to;
        let mut want = vec![];
        for b in 0..batch {
            let at = |x: &[f32], i: usize| f64::from(x[i]);
            let score = |j: usize| {
                let dot: f64 =
                    (0..d).map(|x| at(&data[&tq], b * d + x) * at(&data[&tk], (b * t + j) * d + x)).sum();
                if mask[j] < -1e37 { f64::from(f32::MIN) } else { dot * 0.3 + f64::from(mask[j]) }
            };
            let scores: Vec<f64> = (0..t).map(score).collect();
            let top = scores.iter().fold(f64::NEG_INFINITY, |a, b| a.max(*b));
            let p: Vec<f64> = scores.iter().map(|x| (x - top).exp()).collect();
            let sum: f64 = p.iter().sum();
            for x in 0..e {
                want.push((0..t).map(|j| p[j] * at(&data[&tv], (b * t + j) * e + x)).sum::<f64>() / sum);
            }
        }
        let emit = |cx: &Cx| {
            let stream = |subgroup| Stream { threads: 64, lanes: 1, unroll: 2, heads: 1, run: 4, subgroup };
            emit_as(&kernel, cx, cx.schedule.device.subgroup.map(|s| Shape::Streamed(stream(s)))).unwrap()
        };
        for (g, emitted) in variants(&gpus, &mut case, emit).into_iter().filter(|(g, _)| g.takes_case()) {
            let [s, h, n] = [sums, tops, totals].map(|x| run(g, &case, &emitted, &data, x));
            let mut got = vec![];
            for b in 0..batch {
                let top = (0..parts).map(|i| h[b * most + i]).fold(f32::MIN, f32::max);
                let weight = |i: usize| (h[b * most + i] - top).max(-200.0).exp();
                let total: f32 = (0..parts).map(|i| weight(i) * n[b * most + i]).sum();
                for x in 0..e {
                    let sum: f32 = (0..parts).map(|i| weight(i) * s[(b * e + x) * most + i]).sum();
                    got.push(sum / total);
                }
            }
            close(&format!("{t} keys in {parts} parts on {}", g.name), &got, &want);
        }
    }
}

/// Threads that share a key each compute the scores of one head, with masks that differ between heads.
#[test]
fn heads_that_share_keys() {
    let gpus = gpus();
    for (heads, groups, t, width, unroll) in [
        (2usize, 3usize, 37usize, 32usize, 2u32),
        (3, 1, 1, 64, 4),
        (4, 2, 150, 32, 1),
        (7, 2, 300, 64, 4),
        (8, 1, 65, 32, 3),
    ] {
        let mut case = Case::new(&[]);
        let dims = [heads * groups, 1, t, width, width].map(|x| c(x as i64));
        let (mut kernel, [tq, _, _, _, to]) =
            attention_kernel(&mut case, DType::F32, dims.clone(), MaskOf::Nothing);
        let [tk, tv] = [0, 1].map(|i| {
            case.tensor(&[c(groups as i64), dims[2].clone(), dims[3].clone()], TensorKind::Input(4 + i))
        });
        let tm = case.tensor(&[dims[0].clone(), dims[2].clone()], TensorKind::Input(6));
        let mut load =
            |tensor, offset| kernel.body.push(Expr::Load { tensor, offset, guard: None }, DType::F32);
        let group = v(0).div(&c(heads as i64), &dims);
        let row = |j: usize| (&group * &dims[2] + v(2)) * &dims[3] + v(j);
        let (key, value, bias) = (load(tk, row(3)), load(tv, row(4)), load(tm, v(0) * &dims[2] + v(2)));
        if let Family::Attention(Attention { k, v, mask, .. }) = &mut kernel.family {
            (*k, *v, *mask) = (key, value, Some(bias));
        }
        let mut data: BTreeMap<_, _> =
            [tq, tk, tv].into_iter().map(|x| (x, noise(case.numel(x), 3 + x as u32))).collect();
        let mask =
            |h: usize, j: usize| if (h + j) % 5 == 1 { f32::MIN } else { (h % 3) as f32 - (j % 4) as f32 };
        data.insert(tm, (0..heads * groups * t).map(|i| mask(i / t, i % t)).collect());
        let mut want = vec![];
        for h in 0..heads * groups {
            let at = |x: TensorId, i: usize| f64::from(data[&x][i]);
            let score = |j: usize| {
                let key = h / heads * t + j;
                let dot: f64 = (0..width).map(|x| at(tq, h * width + x) * at(tk, key * width + x)).sum();
                if mask(h, j) < -1e37 { f64::from(f32::MIN) } else { dot * 0.3 + f64::from(mask(h, j)) }
            };
            let scores: Vec<f64> = (0..t).map(score).collect();
            let top = scores.iter().fold(f64::NEG_INFINITY, |a, b| a.max(*b));
            let p: Vec<f64> = scores.iter().map(|x| (x - top).exp()).collect();
            let sum: f64 = p.iter().sum();
            for x in 0..width {
                want.push((0..t).map(|j| p[j] * at(tv, (h / heads * t + j) * width + x)).sum::<f64>() / sum);
            }
        }
        for lanes in [1u32, 2, 4, 8] {
            let stream =
                |subgroup| Stream { threads: 64, lanes, unroll, heads: heads as u32, run: 4, subgroup };
            let emit = |cx: &Cx| {
                let width = width as u32;
                let fits = cx.schedule.device.subgroup.map(stream).filter(|s| s.fits(width, width));
                emit_as(&kernel, cx, fits.map(Shape::Streamed)).unwrap()
            };
            for (g, emitted) in variants(&gpus, &mut case, emit).into_iter().filter(|(g, _)| g.takes_case()) {
                let what = format!("{heads} heads, {t} keys, {lanes} lanes on {}", g.name);
                close(&what, &run(g, &case, &emitted, &data, to), &want);
            }
        }
    }
}

#[test]
fn attention_too_wide_is_refused() {
    let mut case = Case::new(&[]);
    let t = case.tensor(&[c(1)], TensorKind::Input(0));
    let mut body = Body::default();
    let x = body.push(Expr::Load { tensor: t, offset: Poly::ZERO, guard: None }, DType::F32);
    let one = Poly::ONE;
    let family = Family::Attention(Attention {
        batch: one.clone(),
        s: one.clone(),
        t: one.clone(),
        d: one.clone(),
        e: c(257),
        q: x,
        k: x,
        v: x,
        mask: None,
        scale: 1.0,
        empty_is_zero: false,
        parts: c(1),
        part_stores: vec![],
    });
    let kernel = Kernel { family, body, stores: vec![], nodes: vec![] };
    let e = case.with_context(|cx| emit_as(&kernel, cx, None).unwrap_err());
    assert!(e.message.contains("width 257"), "{e}");
}
