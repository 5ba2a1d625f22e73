//! Sums and squares of narrow floats equal those computed in f32 and rounded once.

use super::super::testing::{tensor, values};
use super::super::window::{Padding, Window, Windows};
use super::super::{Lowering, elementwise, lp, norm, pool};
use super::*;
use wgfc_ir::Dim;

const NARROW: [DType; 2] = [DType::F16, DType::BF16];

/// Applies `f` to a `[1, 1, 40, 40]` tensor of 60s. The results must have its type and all be equal.
fn of_sixties(dtype: DType, f: impl Fn(&mut Lowering, Value) -> Result) -> f64 {
    let y = values(|cx| {
        let x = cx.constant(tensor(dtype, &[1, 1, 40, 40], &[60.0; 1600]));
        let y = f(cx, x)?;
        assert_eq!(cx.dtype(y), dtype);
        Ok(vec![y])
    });
    assert!(y[0].iter().all(|v| *v == y[0][0]));
    y[0][0]
}

fn close(a: f64, b: f64) {
    assert!((a - b).abs() <= 5e-3 * b.abs(), "{a} for {b}");
}

#[test]
fn reductions_of_narrow_floats_do_not_overflow() {
    for dtype in NARROW {
        let reduced = |r| of_sixties(dtype, |cx, x| reduce(cx, r, x, Some(&[2, 3]), false));
        assert_eq!(reduced(Reduction::Mean), 60.0);
        close(reduced(Reduction::L2), 2400.0);
        close(reduced(Reduction::LogSum), 96_000f64.ln());
        close(of_sixties(dtype, |cx, x| lp::norm(cx, x, 2, &[2, 3])), 2400.0);
        close(of_sixties(dtype, |cx, x| lp::norm(cx, x, 3, &[2, 3])), 345_600_000f64.powf(1.0 / 3.0));
        let flat = |cx: &mut Lowering, x| -> Result { Ok(cx.reshape(x, vec![Dim::from(1600i64)])?) };
        close(
            of_sixties(dtype, |cx, x| {
                let x = flat(cx, x)?;
                lp::normalised(cx, x, 2, 0)
            }),
            0.025,
        );
        let large = |cx: &mut Lowering, x| cx.binary_scalar(BinaryOp::Mul, x, 1000.0);
        close(
            of_sixties(dtype, |cx, x| {
                let x = large(cx, x)?;
                elementwise::mean(cx, &[x, x, x])
            }),
            60_000.0,
        );
        // A row of 60,000s, squared, with a window of 3 channels over a single one.
        let p = norm::LocalResponse { size: 3, alpha: 3e-6, beta: 0.5, bias: 0.0 };
        close(
            of_sixties(dtype, |cx, x| {
                let x = large(cx, x)?;
                norm::local_response(cx, x, &p)
            }),
            1000.0,
        );
    }
}

#[test]
fn the_sum_of_many_exponentials_of_halves_does_not_overflow() {
    let y = values(|cx| {
        let x = cx.constant(tensor(DType::F16, &[70_000], &[0.0; 70_000]));
        Ok(vec![reduce(cx, Reduction::LogSumExp, x, Some(&[0]), false)?])
    });
    close(y[0][0], 70_000f64.ln());
}

#[test]
fn pools_of_narrow_floats_do_not_overflow() {
    let windows = |padding: i64| -> Windows {
        let p = Window {
            strides: vec![40, 40],
            dilations: vec![1, 1],
            padding: Padding::Explicit(vec![padding; 4]),
            ceil: false,
        };
        let dims = [Dim::from(40i64), Dim::from(40i64)];
        Windows::over(&dims, vec![Dim::from(40i64 + padding); 2], &p).expect("they fit")
    };
    for dtype in NARROW {
        for (padding, with) in [(0, true), (0, false), (2, false)] {
            assert_eq!(of_sixties(dtype, |cx, x| pool::average(cx, x, &windows(padding), with)), 60.0);
        }
        close(of_sixties(dtype, |cx, x| lp::pool(cx, x, 2, &windows(0))), 2400.0);
        for parts in [1i64, 3] {
            let out = [Dim::from(parts), Dim::from(parts)];
            let mean = |cx: &mut Lowering, x| Ok(pool::adaptive(cx, x, &out, pool::Adaptive::Average)?.0);
            assert_eq!(of_sixties(dtype, mean), 60.0);
        }
    }
}

/// Windows far larger than their tensor read the elements inside of it, not the padding.
#[test]
fn windows_larger_than_their_tensor_end_with_it() {
    // Window extents, strides, dilations, and padding on all sides.
    let cases = [
        ([5001, 7002], [1, 1], [1, 1], [2500, 3501]),
        ([20, 9], [3, 2], [2, 3], [19, 12]),
        ([4, 900], [1, 5], [3, 1], [6, 450]),
        ([3, 2], [1, 1], [1, 1], [1, 1]),
    ];
    let (rows, cols) = (7i64, 5i64);
    let data: Vec<f64> = (0..rows * cols).map(|i| ((i * 8) % 35 - 17) as f64).collect();
    for (kernel, strides, dilations, pads) in cases {
        let window = Window {
            strides: strides.to_vec(),
            dilations: dilations.to_vec(),
            padding: Padding::Explicit([pads, pads].concat()),
            ceil: false,
        };
        let mut out = vec![];
        let got = values(|cx| {
            let x = cx.constant(tensor(DType::F32, &[1, 1, rows as usize, cols as usize], &data));
            let w = pool::over(cx, x, &kernel.map(Dim::from), &window)?;
            out = w.out.iter().map(|d| d.as_const().unwrap()).collect();
            let (y, at) = pool::max(cx, x, &w, Some(pool::Order::RowMajor))?;
            let mean = pool::average(cx, x, &w, false)?;
            let padded = pool::average(cx, x, &w, true)?;
            let norm = lp::pool(cx, x, 2, &w)?;
            let most = cx.graph.node_ids().flat_map(|n| cx.graph.node(n).outputs.clone());
            let most = most.filter_map(|t| t.numel().as_const()).max().unwrap();
            assert!(most <= out.iter().product::<i64>() * rows * cols, "{kernel:?}: {most} elements");
            Ok(vec![y, at.unwrap(), mean, padded, norm])
        });
        let mut want = vec![vec![]; 5];
        for (i, j) in (0..out[0]).flat_map(|i| (0..out[1]).map(move |j| (i, j))) {
            let met = |at: i64, o: i64, axis: usize| {
                let k = at - strides[axis] * o + pads[axis];
                k >= 0 && k % dilations[axis] == 0 && k / dilations[axis] < kernel[axis]
            };
            let inside = (0..rows * cols).filter(|p| met(p / cols, i, 0) && met(p % cols, j, 1));
            let inside: Vec<(i64, f64)> = inside.map(|p| (p, data[p as usize])).collect();
            let (at, top) = inside.iter().copied().fold((0, f64::MIN), |a, b| if b.1 > a.1 { b } else { a });
            let sum: f64 = inside.iter().map(|p| p.1).sum();
            let count = |o: i64, axis: usize, extent: i64| {
                let places = (0..kernel[axis]).map(|k| strides[axis] * o + dilations[axis] * k);
                places.filter(|p| *p < extent + 2 * pads[axis]).count() as f64
            };
            let all = count(i, 0, rows) * count(j, 1, cols);
            let squares: f64 = inside.iter().map(|p| p.1 * p.1).sum();
            let results = [top, at as f64, sum / inside.len() as f64, sum / all, squares.sqrt()];
            want.iter_mut().zip(results).for_each(|(w, r)| w.push(r));
        }
        for (n, (got, want)) in got.iter().zip(&want).enumerate() {
            assert_eq!(got.len(), want.len());
            for (g, w) in got.iter().zip(want) {
                assert!((g - w).abs() <= 1e-5 * w.abs().max(1.0), "{kernel:?} result {n}: {g} for {w}");
            }
        }
    }
}
