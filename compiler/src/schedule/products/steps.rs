//! The steps of products.

use super::TileShape;
use super::shapes::Contiguous;
use crate::schedule::nested::Nest;
use std::collections::BTreeSet;
use wgfc_ir::{BinaryOp, Poly, ReduceOp};
use wgfc_loops::steps::{Layout, Step};
use wgfc_loops::{Expr, Kind, Name, Space, Stmt, Write, visit};

/// Neighbours of a group of results, and of a vector.
const FOUR: u32 = 4;

/// Rows and columns of groups of results whose invocations are neighbours: those of a subgroup of 32 read few vectors of each operand.
const PATCH: [u32; 2] = [4, 8];

/// An operand of a product in the loop form.
struct Operand {
    tensor: Name,
    order: Contiguous,
}

impl Nest {
    /// Makes a workgroup of each tile of a product, and copies the operands' parts to workgroup memory, those of the next step of k through
    /// registers. An invocation makes groups of 4 × 4 results that are apart from each other; `unroll` fours of k are written out.
    pub fn product(
        mut self,
        shape: TileShape,
        buffers: u32,
        unroll: u32,
        rows_first: bool,
    ) -> Result<Nest, String> {
        let TileShape { rows, cols, k, thread_rows, thread_cols, split } = shape;
        if split != 1 || buffers != 1 {
            return Err("slices of k and two buffers have no steps yet".into());
        }
        let divides = |n: u32, of: u32| n > 0 && of.is_multiple_of(n);
        if !divides(thread_rows, rows) || !divides(thread_cols, cols) || !divides(FOUR * unroll, k) {
            return Err(format!(
                "a product does not go in tiles as {shape:?}, {unroll} fours of k at a time"
            ));
        }
        let [x, y] = self.operands()?;
        let [batch, row, col, depth] = [0, 1, 2, 3].map(|i| self.name(i));
        let (batch, row, col, depth) = (batch?, row?, col?, depth?);
        let mut order = vec![batch.clone(), row.clone(), col.clone()];
        // Each axis as tiles, groups of an invocation, invocations and neighbours of a group.
        let (mut grid, mut invocations, mut own) = (vec![batch], vec![], vec![]);
        let parts = [(row, rows, thread_rows, PATCH[0]), (col, cols, thread_cols, PATCH[1])];
        let patched = divides(PATCH[0], rows / thread_rows) && divides(PATCH[1], cols / thread_cols);
        for (axis, all, each, patch) in parts {
            let group = if divides(FOUR, each) { FOUR } else { each };
            let among = all / each;
            let mut of = vec![axis];
            let mut last = |nest: Nest, by: u32, order: &mut Vec<Name>| {
                let at = of.len() - 1;
                nest.divided(order, &mut of, at, |l| Step::Split(l, i64::from(by).into()))
            };
            self = last(self, all, &mut order)?;
            let several = each > group;
            if several {
                self = last(self, all / (each / group), &mut order)?;
            }
            if group > 1 {
                self = last(self, group, &mut order)?;
            }
            let at = 1 + usize::from(several);
            let neighbours = of.get(at + 1).cloned();
            let halves = several.then(|| of[1].clone());
            let mut lanes = vec![of[at].clone()];
            if patched && among > patch {
                self =
                    self.divided(&mut order, &mut lanes, 0, |l| Step::Split(l, i64::from(patch).into()))?;
            }
            grid.push(of[0].clone());
            invocations.push(lanes);
            own.push([halves, neighbours]);
        }
        if rows_first {
            grid.swap(1, 2);
        }
        // Patches of neighbours are together.
        let outer = invocations.iter().filter(|l| l.len() > 1).map(|l| l[0].clone());
        let lanes: Vec<Name> = outer.chain(invocations.iter().filter_map(|l| l.last().cloned())).collect();
        let own: Vec<Name> = own.into_iter().flatten().flatten().collect();
        self = self.ordered(&mut order, &[&grid[..], &lanes, &own].concat())?;
        for (names, kind) in [(&grid, Kind::Grid), (&lanes, Kind::Invocation)] {
            for name in names {
                self = self.apply(Step::Place(name.clone(), kind))?;
            }
        }
        // Sums get loops of their own, inside of that of k.
        let sums = self.register()?;
        for name in &own {
            self = self.apply(Step::Expand(sums.clone(), name.clone()))?;
        }
        let mut loops: Vec<Vec<Name>> = vec![];
        for name in own.iter().rev() {
            let (next, new) = self.with_new(Step::Distribute(name.clone()))?;
            if new.len() < 2 {
                return Err("a product without a sum and a result".into());
            }
            self = next;
            loops.push([std::slice::from_ref(name), &new].concat());
        }
        for of in &loops {
            self = self.apply(Step::Swap(of[1].clone(), depth.clone()))?;
        }
        let (next, inside) = self.with_new(Step::Split(depth, i64::from(k).into()))?;
        self = next;
        let [around, mut inner] = <[Name; 2]>::try_from(inside).map_err(|_| "a loop of k that is none")?;
        if FOUR * unroll < k {
            let (next, inside) = self.with_new(Step::Split(inner, i64::from(FOUR * unroll).into()))?;
            self = next;
            inner = inside.last().cloned().ok_or("a loop of k that is none")?;
        }
        self = match self.clone().apply(Step::Fill(sums)) {
            Ok(filled) => filled,
            Err(_) => self,
        };
        for (operand, lines) in [(x, rows), (y, cols)] {
            let layout = operand.layout(lines, lines * k / shape.threads())?;
            let (next, new) = self.with_new(Step::Stage(operand.tensor, around.clone(), layout))?;
            self = next;
            for name in new {
                self = self.apply(Step::Place(name, Kind::Unroll))?;
            }
        }
        self = self.apply(Step::Pipeline(around))?.apply(Step::Place(inner, Kind::Unroll))?;
        for (i, of) in loops.into_iter().enumerate() {
            for (j, name) in of.into_iter().enumerate() {
                let kind = if i == 0 && j > 0 { Kind::Vector } else { Kind::Unroll };
                self = self.apply(Step::Place(name, kind))?;
            }
        }
        Ok(self)
    }

    /// A step, with the loops that it adds.
    fn with_new(self, step: Step) -> Result<(Nest, Vec<Name>), String> {
        let before: BTreeSet<Name> = self.kernel.vars.iter().cloned().collect();
        let out = self.apply(step)?;
        let new = out.kernel.vars.iter().filter(|v| !before.contains(*v)).cloned().collect();
        Ok((out, new))
    }

    /// The register of the sums.
    fn register(&self) -> Result<Name, String> {
        let mut all = self.kernel.tensors.iter().filter(|t| t.space == Space::Register);
        match (all.next(), all.next()) {
            (Some(t), None) => Ok(t.name.clone()),
            _ => Err("a product has one sum".into()),
        }
    }

    /// The operands of the sum of a nest of batch, rows, columns and k: tensors as they are.
    fn operands(&self) -> Result<[Operand; 2], String> {
        let mut found = None;
        visit(&self.kernel.body, &mut |s| {
            if let Stmt::Store(s) = s
                && s.write == Write::Combine(ReduceOp::Sum)
                && let Expr::Binary(BinaryOp::Mul, a, b) = &s.value
            {
                found = Some([a, b]);
            }
        });
        let operands = found.filter(|_| self.kernel.vars.len() == 4);
        let operands = operands.ok_or("the nest is no product of two operands")?;
        let mut out = vec![];
        for (i, operand) in operands.into_iter().enumerate() {
            let load = match &**operand {
                Expr::Cast(_, a) => a,
                e => e,
            };
            let Expr::Load { tensor, at, guard: None } = load else {
                return Err("an operand is computed from tensors".into());
            };
            let t = &self.kernel.tensors[*tensor];
            let p = t.offset(at);
            let unit = |v: usize| p.vars().contains(&v) && !(&p - &Poly::var(v)).vars().contains(&v);
            let (line, other) = if i == 0 { (1, 2) } else { (2, 1) };
            let order = match (unit(3), unit(line)) {
                _ if !p.data().is_empty() || p.vars().contains(&other) => None,
                (true, _) => Some(Contiguous::Depth),
                (_, true) => Some(Contiguous::Line),
                _ => None,
            };
            let order = order.ok_or_else(|| format!("`{}` is not read along a line or k", t.name))?;
            out.push(Operand { tensor: t.name.clone(), order });
        }
        <[Operand; 2]>::try_from(out).map_err(|_| "a product has two operands".into())
    }
}

impl Operand {
    /// The layout of the copy of a part of so many lines, of which an invocation copies `share` elements: k outermost.
    fn layout(&self, lines: u32, share: u32) -> Result<Layout, String> {
        let four = i64::from(FOUR);
        match self.order {
            Contiguous::Line if share.is_multiple_of(FOUR) => {
                Ok(Layout { by: vec![four], ..Layout::default() })
            }
            Contiguous::Depth if share.is_multiple_of(FOUR) && lines > FOUR => Ok(Layout {
                order: vec![1, 0],
                by: vec![four, i64::from((share / FOUR).min(FOUR))],
                rotate: four,
                ..Layout::default()
            }),
            _ => Err(format!("an invocation copies {share} elements of `{}`", self.tensor)),
        }
    }
}
