//! Sums and squares of narrow floats are those of f32, rounded once.

use super::super::testing::{tensor, values};
use super::super::window::{Padding, Window, Windows};
use super::super::{Lowering, elementwise, lp, norm, pool};
use super::*;
use wgfc_ir::Dim;

const NARROW: [DType; 2] = [DType::F16, DType::BF16];

/// A function of a tensor of 1,600 times 60, as a batch of one channel; the results are of its type and all the same.
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
        // A row of 60,000 squared, over a window of 3 of 1 channel.
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
