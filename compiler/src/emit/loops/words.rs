//! Results of which several elements are in a word.
//!
//! An element that is less than a word is written with two atomic operations, so that the rest of its word stays as it is. Where an
//! invocation writes all elements of each word that it writes to, it stores words instead. That is so if each store is one of
//!
//! - stores of neighbours that are whole words;
//! - a store in a loop over the elements of whole words, `per*q + v` with the loop's variable `v`, whose conditions are the same for all
//!   `v`, or say that the element exists.
//!
//! Then two invocations that wrote to one word would both write its first element, which no kernel in the loop form does.

use super::listing::Item;
use crate::kernel::bindings::{Binding, Encoding, component, neighbours, per_word};
use crate::kernel::{Body, Expr, ExprId, KernelGraph, Store, TensorId};
use wgfc_ir::{BinaryOp, Dim, Poly};

/// A search for the loops that put words of a tensor together.
pub(super) struct Search<'k> {
    body: &'k Body,
    vars: &'k [(String, Dim)],
    tensor: TensorId,
    /// Elements of a word, and of the tensor.
    per: u32,
    elements: Poly,
    loops: Vec<usize>,
}

impl<'k> Search<'k> {
    /// A search among the stores of a binding whose elements are written with atomic operations.
    pub fn new(
        body: &'k Body,
        vars: &'k [(String, Dim)],
        binding: &Binding,
        graph: &KernelGraph,
    ) -> Option<Search<'k>> {
        let (tensor, per) = (binding.tensor, per_word(binding.dtype));
        let elements = graph.tensors.get(tensor)?.ty.numel();
        (binding.encoding == Encoding::Atomic).then(|| Search {
            body,
            vars,
            tensor,
            per,
            elements,
            loops: vec![],
        })
    }

    /// The variables of the loops; none where not all stores are of whole words.
    pub fn loops(mut self, items: &[Item]) -> Vec<usize> {
        let found = self.times(items) == 1 && self.is_whole(items, &[], &[]);
        if found { self.loops } else { vec![] }
    }

    /// Whether all stores write whole words. `around` are the loops around them, `conditions` those inside of the innermost one.
    fn is_whole(&mut self, items: &[Item], around: &[usize], conditions: &[ExprId]) -> bool {
        items.iter().all(|i| match i {
            Item::Store(all) => {
                all.iter().all(|s| s.tensor != self.tensor) || self.is_word(all, around, conditions)
            }
            Item::Loop { var, down, condition, body } => {
                let plain = !*down && condition.is_none();
                let inside = [around, &[*var]].concat();
                plain && self.is_whole(body, &inside, &[]) || self.times(body) == 0
            }
            Item::If { condition, then, otherwise } => {
                // A condition that is false says nothing about the first elements of a word.
                let apart = around.is_empty() || self.times(otherwise) == 0;
                let inside = [conditions, &[*condition]].concat();
                apart && self.is_whole(then, around, &inside) && self.is_whole(otherwise, around, conditions)
            }
            _ => true,
        })
    }

    /// How many stores an execution passes at most, not counting that loops repeat them.
    fn times(&self, items: &[Item]) -> usize {
        let own = |i: &Item| match i {
            Item::Store(all) => usize::from(all.iter().any(|s| s.tensor == self.tensor)),
            Item::Loop { body, .. } => self.times(body),
            Item::If { then, otherwise, .. } => self.times(then).max(self.times(otherwise)),
            _ => 0,
        };
        items.iter().map(own).sum()
    }

    fn is_word(&mut self, all: &[Store], around: &[usize], conditions: &[ExprId]) -> bool {
        let words = all.chunks(self.per as usize);
        let mut whole =
            words.map(|w| w.len() == self.per as usize && neighbours(w.iter().map(|s| &s.offset)));
        if whole.all(|w| w) {
            return true;
        }
        let ([s], [var]) = (all, around) else { return false };
        let first = &s.offset - &Poly::var(*var);
        let starts = !first.vars().contains(var)
            && first.data().is_empty()
            && component(&first, self.per).is_some_and(|(_, rest)| rest == 0);
        let points = self.vars[*var].1.as_const().unwrap_or(1);
        let known = |c: &ExprId| self.is_known(*c, *var, &s.offset);
        let found = starts && points % i64::from(self.per) == 0 && conditions.iter().all(known);
        if found {
            self.loops.push(*var);
        }
        found
    }

    /// Whether a condition does not depend on the variable of a loop, or says that element `at` exists.
    fn is_known(&self, condition: ExprId, var: usize, at: &Poly) -> bool {
        match self.body.expr(condition) {
            Expr::Binary(BinaryOp::And, a, b) => self.is_known(*a, var, at) && self.is_known(*b, var, at),
            Expr::Binary(BinaryOp::Lt | BinaryOp::Ge, a, b) => {
                let (Expr::Index(a), Expr::Index(b)) = (self.body.expr(*a), self.body.expr(*b)) else {
                    return false;
                };
                let same = |p: &Poly| p.data().is_empty() && !p.vars().contains(&var);
                let less = matches!(self.body.expr(condition), Expr::Binary(BinaryOp::Lt, ..));
                same(a) && same(b) || less && b - a == &self.elements - at
            }
            _ => false,
        }
    }
}
