//! Inputs that a run may leave out, and that are broadcast to the shape of another tensor.
//!
//! Such an input has [`Port::broadcast`](crate::program::Port::broadcast), the shape it is broadcast to, and as many axes; the
//! extents of its own shape are symbols that no other input has. What is given for it may lack leading axes, which then have
//! extent 1, and has along each axis the extent of the broadcast shape, or 1. Left out, it is a tensor without elements: all its
//! extents are 0, and the kernels compute as if there were no such input. A tensor without elements that is given counts as left
//! out.

/// The shape with which kernels read what is given for an optional input of this many axes: leading axes are added. All 0 where
/// nothing is given, or nothing with elements; `None` where it has too many axes.
pub fn shape(given: Option<&[usize]>, rank: usize) -> Option<Vec<usize>> {
    let Some(given) = given else { return Some(vec![0; rank]) };
    let missing = rank.checked_sub(given.len())?;
    if given.contains(&0) {
        return Some(vec![0; rank]);
    }
    Some(std::iter::repeat_n(1, missing).chain(given.iter().copied()).collect())
}

/// The first axis along which a [shape](shape()) cannot be broadcast to `full`.
pub fn misfit(shape: &[usize], full: &[i64]) -> Option<usize> {
    if shape.iter().all(|n| *n == 0) {
        return None;
    }
    let fits = |n: usize, d: i64| n == 1 || i64::try_from(n) == Ok(d);
    shape.iter().zip(full).position(|(n, d)| !fits(*n, *d))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leading_axes_are_added_and_extents_are_one_or_the_whole() {
        assert_eq!(shape(None, 3), Some(vec![0, 0, 0]));
        assert_eq!(shape(Some(&[7]), 3), Some(vec![1, 1, 7]));
        assert_eq!(shape(Some(&[]), 1), Some(vec![1]));
        assert_eq!(shape(Some(&[4, 0]), 3), Some(vec![0, 0, 0]));
        assert_eq!(shape(Some(&[1, 2, 3, 4]), 3), None);
        assert_eq!(misfit(&[1, 1, 7], &[2, 3, 7]), None);
        assert_eq!(misfit(&[2, 3, 7], &[2, 3, 7]), None);
        assert_eq!(misfit(&[0, 0, 0], &[2, 3, 7]), None);
        assert_eq!(misfit(&[1, 2, 7], &[2, 3, 7]), Some(1));
    }
}
