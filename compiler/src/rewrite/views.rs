//! Composition of index maps.

use crate::cost::Expected;
use wgfc_ir::{Dim, Op, Poly, Scalar, TensorType};

/// The maximum number of characters of a composed index map: two loads with simple maps are cheaper than one with a
/// map that cannot be simplified.
const MAX_TEXT: usize = 400;

/// The attributes of an [`Op::View`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ViewMap {
    /// The shape of the result.
    pub shape: Vec<Dim>,
    /// One expression per axis of the operand, over the variables of `shape`.
    pub index: Vec<Poly>,
    /// The value outside of the operand; `None` promises that `index` is always inside.
    pub fill: Option<Scalar>,
}

impl ViewMap {
    /// The view of a node's operator, if it is one.
    pub fn of(op: &Op) -> Option<ViewMap> {
        match op {
            Op::View { shape, index, fill } => {
                Some(ViewMap { shape: shape.clone(), index: index.clone(), fill: *fill })
            }
            _ => None,
        }
    }

    /// The view as an operator of the graph.
    pub fn op(self) -> Op {
        Op::View { shape: self.shape, index: self.index, fill: self.fill }
    }

    /// The view that reads its operand unchanged.
    pub fn identity(shape: &[Dim]) -> ViewMap {
        ViewMap { shape: shape.to_vec(), index: (0..shape.len()).map(Poly::var).collect(), fill: None }
    }

    /// The transpose whose axis `i` is axis `perm[i]` of an operand of shape `of`.
    pub fn permutation(of: &[Dim], perm: &[usize]) -> ViewMap {
        let mut index = vec![Poly::ZERO; of.len()];
        for (i, p) in perm.iter().enumerate() {
            index[*p] = Poly::var(i);
        }
        ViewMap { shape: perm.iter().map(|p| of[*p].clone()).collect(), index, fill: None }
    }

    /// Whether it reads an operand of shape `of` unchanged. An axis of extent 1 may be read at 0 or at its variable,
    /// which are the same position.
    pub fn is_identity(&self, of: &[Dim]) -> bool {
        self.shape == of
            && self.index.iter().enumerate().all(|(i, p)| p.as_var() == Some(i) || (of[i].is(1) && p.is(0)))
    }

    /// Whether it only broadcasts an operand of shape `of`, aligned at the last axis.
    pub fn is_broadcast(&self, of: &[Dim]) -> bool {
        let Some(skip) = self.shape.len().checked_sub(of.len()) else { return false };
        self.index.iter().zip(of).enumerate().all(|(i, (p, d))| {
            let same = d == &self.shape[skip + i];
            (same && p.as_var() == Some(skip + i)) || (d.is(1) && (p.is(0) || same))
        })
    }

    /// The axes whose index expressions are not proven to stay inside an operand of shape `of`.
    fn loose(&self, of: &[Dim]) -> Vec<usize> {
        match self.fill {
            None => vec![],
            Some(_) => (0..of.len()).filter(|d| !self.index[*d].in_range(&of[*d], &self.shape)).collect(),
        }
    }

    /// The composition of `self` and then `outer`, as one view of an operand of shape `of`; `None` if it is not a
    /// view, or too large.
    ///
    /// A fill of `self` is kept. A fill of `outer` requires that every position outside of `self`'s result is outside
    /// of the operand, too, which holds for the axes that `self` passes through.
    pub fn then(&self, outer: &ViewMap, of: &[Dim]) -> Option<ViewMap> {
        let mut fill = self.fill;
        for j in outer.loose(&self.shape) {
            let passed = (0..of.len()).any(|d| self.index[d].as_var() == Some(j) && of[d] == self.shape[j]);
            let f = outer.fill?;
            if !passed || fill.is_some_and(|g| g != f) || (self.fill.is_none() && self.guards_nothing(of)) {
                return None;
            }
            fill = Some(f);
        }
        // The variable of an axis of extent 1 is 0.
        let unit = |i: usize| if outer.shape[i].is(1) { Poly::ZERO } else { Poly::var(i) };
        let vars: Vec<Poly> = (0..outer.shape.len()).map(unit).collect();
        let read: Vec<Poly> = outer.index.iter().map(|p| p.subst_vars(&vars, &outer.shape)).collect();
        let index: Vec<Poly> = self.index.iter().map(|p| p.subst_vars(&read, &outer.shape)).collect();
        if index.iter().any(|p| p.is_too_large() || p.size() as usize > MAX_TEXT) {
            return None;
        }
        let text: usize = index.iter().map(|p| p.to_string().len()).sum();
        (text <= MAX_TEXT).then_some(ViewMap { shape: outer.shape.clone(), index, fill })
    }

    /// Whether the operand has no axes, so that no index is out of range.
    fn guards_nothing(&self, of: &[Dim]) -> bool {
        of.is_empty()
    }

    /// This view without its fill if the index is proven to stay inside.
    pub fn tightened(mut self, of: &[Dim]) -> ViewMap {
        if self.fill.is_some() && self.loose(of).is_empty() {
            self.fill = None;
        }
        self
    }
}

/// The shape to which these shapes broadcast, aligned at the last axis.
pub fn broadcast<'a>(shapes: impl Iterator<Item = &'a [Dim]> + Clone) -> Option<Vec<Dim>> {
    let rank = shapes.clone().map(<[Dim]>::len).max().unwrap_or(0);
    let mut out = vec![Dim::ONE; rank];
    for s in shapes {
        for (o, d) in out[rank - s.len()..].iter_mut().zip(s) {
            if o.is(1) {
                *o = d.clone();
            } else if !d.is(1) && d != o {
                return None;
            }
        }
    }
    Some(out)
}

/// The number of elements, with symbols at their expected values.
pub fn elements(t: &TensorType, expect: &Expected) -> f64 {
    t.shape.iter().map(|d| expect.estimate(d) as f64).product()
}

#[cfg(test)]
mod tests {
    use super::*;
    use wgfc_ir::DType;
    use wgfc_ir::build::reshape_index;

    fn shape(s: &str) -> Vec<Dim> {
        s.split_whitespace().map(|d| Poly::parse(d).unwrap()).collect()
    }
    fn reshape(from: &str, to: &str) -> ViewMap {
        let (from, to) = (shape(from), shape(to));
        ViewMap { index: reshape_index(&from, &to), shape: to, fill: None }
    }

    #[test]
    fn reshapes_and_transposes_cancel() {
        let of = shape("b 7 s 13");
        let p = ViewMap::permutation(&of, &[0, 2, 1, 3]);
        let back = ViewMap::permutation(&p.shape, &[0, 2, 1, 3]);
        assert!(p.then(&back, &of).unwrap().is_identity(&of));
        let r = reshape("b 7 s 13", "7*b s 13");
        let back = reshape("7*b s 13", "b 7 s 13");
        assert!(r.then(&back, &of).unwrap().is_identity(&of));
    }

    #[test]
    fn merging_batch_axes_around_a_transpose_is_a_transpose() {
        let of = shape("b 7 s 13");
        let a = reshape("b 7 s 13", "7*b s 13");
        let t = ViewMap::permutation(&a.shape, &[0, 2, 1]);
        let b = reshape("7*b 13 s", "b 7 13 s");
        let all = a.then(&t, &of).unwrap().then(&b, &of).unwrap();
        assert_eq!(all, ViewMap::permutation(&of, &[0, 1, 3, 2]));
    }

    #[test]
    fn a_pad_passes_through_a_transpose_but_not_through_a_reshape() {
        let of = shape("5 7");
        let zero = Some(Scalar::from_f64(DType::F32, 0.0));
        let pad = |s: &str, at: usize| {
            let mut v = ViewMap::identity(&shape(s));
            v.shape[at] = &v.shape[at] + &Poly::from(2i64);
            v.index[at] = &v.index[at] - &Poly::ONE;
            ViewMap { fill: zero, ..v }
        };
        let t = ViewMap::permutation(&of, &[1, 0]);
        let both = t.then(&pad("7 5", 0), &of).unwrap();
        assert_eq!(both.index, [Poly::var(1), Poly::parse("%0 - 1").unwrap()]);
        assert_eq!(both.fill, zero);
        assert_eq!(reshape("5 7", "35").then(&pad("35", 0), &of), None);
        // A different inner fill cannot be merged in one view.
        let one = ViewMap { fill: Some(Scalar::from_f64(DType::F32, 1.0)), ..pad("5 7", 0) };
        assert_eq!(one.then(&pad("7 7", 0), &of), None);
    }

    #[test]
    fn broadcasts_are_recognised() {
        let of = shape("1 s");
        let v = ViewMap { shape: shape("4 3 s"), index: vec![Poly::ZERO, Poly::var(2)], fill: None };
        assert!(v.is_broadcast(&of));
        let t = ViewMap { shape: shape("s s"), index: vec![Poly::ZERO, Poly::var(0)], fill: None };
        assert!(!t.is_broadcast(&of));
    }
}
