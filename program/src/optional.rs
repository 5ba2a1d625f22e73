//! Optional inputs, which are broadcast to the shape of another tensor.
//!
//! Such an input has a [`Port::broadcast`](crate::program::Port::broadcast), the shape to which it is broadcast, and
//! the same number of axes; the extents of its own shape are symbols that no other input has. A given tensor may lack
//! leading axes, which then have extent 1, and each of its extents must be that of the broadcast shape, or 1. An input
//! that is left out is a tensor without elements: all its extents are 0, and the kernels compute as if the input did
//! not exist. A given tensor without elements counts as left out.

/// The shape with which kernels read an optional input of this rank: leading axes are added to the given shape. All
/// extents are 0 if nothing is given, or a tensor without elements; `None` if it has too many axes.
///
/// ```
/// use wgfc_program::optional::{misfit, shape};
/// // A bias of 7 numbers is added to [2, 3, 7], and one of 5 cannot be.
/// assert_eq!(shape(Some(&[7]), 3), Some(vec![1, 1, 7]));
/// assert_eq!(misfit(&[1, 1, 7], &[2, 3, 7]), None);
/// assert_eq!(misfit(&[1, 1, 5], &[2, 3, 7]), Some(2));
/// ```
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
