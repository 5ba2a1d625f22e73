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
            let last_x = x0 + (nm - 1) * a.row + (nk - 1) * a.col;
            let last_y = y0 + (nk - 1) * b.row + (nn - 1) * b.col;
            assert!(last_x < x.len() && last_y < y.len() && dst.len() == nm * nn);
            // SAFETY: the assertion bounds the largest offset read in either operand; `dst` has
            // exactly the `nm` × `nn` elements written, row-major; T is f32 or f64.
            unsafe {
                gemm::gemm(
                    nm,
                    nn,
                    nk,
                    dst.as_mut_ptr(),
                    1,
                    nn as isize,
                    false,
                    x.as_ptr().add(x0),
                    a.col as isize,
                    a.row as isize,
                    y.as_ptr().add(y0),
                    b.col as isize,
                    b.row as isize,
                    zero,
                    one,
                    false,
                    false,
                    false,
                    if !split && work > 1 << 18 {
                        gemm::Parallelism::Rayon(0)
                    } else {
                        gemm::Parallelism::None
                    },
                );
            }
        }
    });
}
