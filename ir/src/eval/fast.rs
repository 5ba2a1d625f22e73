//! Matrix products with vector units and threads. Their last bits depend on the machine.

use super::array::Elem;
use super::contract::Matrices;
use super::par;

pub(super) fn products<T: Elem>(
    x: &[T],
    a: &Matrices,
    y: &[T],
    b: &Matrices,
    out: &mut [T],
    (nb, nm, nn, nk): (usize, usize, usize, usize),
    (zero, one): (T, T),
) {
    let work = nm * nn * nk;
    let split = nb > 1 && work < 1 << 22;
    // Several small products are grouped in one task.
    let group = if split { ((1 << 18) / work.max(1)).clamp(1, nb) } else { nb };
    par::chunks(out, group * nm * nn, |g, chunk| {
        for (i, dst) in chunk.chunks_mut(nm * nn).enumerate() {
            let (x0, y0) = (a.starts[g * group + i], b.starts[g * group + i]);
            let (x, y) = (&x[x0..], &y[y0..]);
            gemm_within(
                (nm, nn, nk),
                (dst, nn, 1),
                (x, a.row, a.col),
                (y, b.row, b.col),
                (zero, one),
                !split,
            );
        }
    });
}

/// One product of f32. Each matrix is given with the steps from row to row and from column to column.
pub(super) fn gemm(
    size: (usize, usize, usize),
    out: (&mut [f32], usize, usize),
    x: (&[f32], usize, usize),
    y: (&[f32], usize, usize),
) {
    gemm_within(size, out, x, y, (0.0, 1.0), true);
}

fn gemm_within<T: Elem>(
    (nm, nn, nk): (usize, usize, usize),
    (out, out_row, out_col): (&mut [T], usize, usize),
    (x, x_row, x_col): (&[T], usize, usize),
    (y, y_row, y_col): (&[T], usize, usize),
    (zero, one): (T, T),
    threads: bool,
) {
    let last = |rows: usize, row: usize, cols: usize, col: usize| (rows - 1) * row + (cols - 1) * col;
    assert!(last(nm, x_row, nk, x_col) < x.len() && last(nk, y_row, nn, y_col) < y.len());
    assert!(
        last(nm, out_row, nn, out_col) < out.len() && (out_row >= nn * out_col || out_col >= nm * out_row)
    );
    // SAFETY: the assertions bound the largest offset read in either operand and written in `out`, whose elements are each written by one
    // pair of a row and a column; T is f32 or f64.
    unsafe {
        gemm::gemm(
            nm,
            nn,
            nk,
            out.as_mut_ptr(),
            out_col as isize,
            out_row as isize,
            false,
            x.as_ptr(),
            x_col as isize,
            x_row as isize,
            y.as_ptr(),
            y_col as isize,
            y_row as isize,
            zero,
            one,
            false,
            false,
            false,
            parallelism(threads && nm * nn * nk > 1 << 18),
        );
    }
}

#[cfg(all(feature = "fast", not(target_arch = "wasm32")))]
fn parallelism(large: bool) -> gemm::Parallelism {
    if large { gemm::Parallelism::Rayon(0) } else { gemm::Parallelism::None }
}

#[cfg(not(all(feature = "fast", not(target_arch = "wasm32"))))]
fn parallelism(_: bool) -> gemm::Parallelism {
    gemm::Parallelism::None
}
