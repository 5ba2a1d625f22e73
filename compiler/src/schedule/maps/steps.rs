//! The steps of maps.

use super::neighbours::is_long;
use super::tiles::Along;
use super::{Flat, Tiled, grouped};
use crate::kernel::{Family, Kernel};
use crate::schedule::nested::Nest;
use std::collections::BTreeMap;
use wgfc_ir::{Atom, Poly};
use wgfc_loops::steps::{Layout, Step};
use wgfc_loops::{Expr, For, Kind, Name, Stmt, visit};

impl Nest {
    /// Makes groups of neighbouring elements of a map's loop, and an invocation of some groups, a workgroup's width apart.
    pub fn flat(mut self, kernel: &Kernel, schedule: &Flat) -> Result<Nest, String> {
        let Flat { threads, elements, unroll } = *schedule;
        let by = Poly::from(i64::from(elements));
        let whole = matches!(&kernel.family, Family::Map(k) if k.elements.modulo(&by, &[]).is(0));
        if elements > 1 && (!whole || is_long(kernel, elements)) {
            return self.groups(kernel, schedule, whole);
        }
        if elements > 1 {
            // Over the axes quotients and remainders of neighbours are told to be equal.
            let axes = grouped(kernel, &by)
                .ok_or_else(|| format!("the elements are no whole number of groups of {elements}"))?;
            for extent in axes.iter().skip(1).rev() {
                self = self.split(0, extent.clone())?;
            }
            self = self.split(axes.len() - 1, by)?;
            for _ in 1..axes.len() {
                self = self.fuse(0)?;
            }
        }
        if unroll == 1 {
            let done = self.invocations(1, threads)?;
            return if elements > 1 { done.place(2, Kind::Vector) } else { Ok(done) };
        }
        let first = self.name(0)?;
        let all = i64::from(threads * unroll);
        // Points behind the last one read what it reads, unless it also writes there: then a condition leaves them out.
        self = match self.clone().apply(Step::Clamp(first, all)) {
            Ok(clamped) => clamped,
            Err(_) => self.split(0, all)?,
        };
        self = self.split(1, i64::from(threads))?.place(0, Kind::Grid)?;
        let (group, own) = (self.name(1)?, self.name(2)?);
        self = self.apply(Step::Swap(group, own))?.place(1, Kind::Invocation)?;
        if elements > 1 {
            self = self.fuse(2)?;
        }
        let points = self.name(2)?;
        self.apply(Step::Fetch(points))?.place(2, Kind::Vector)
    }

    /// Makes an invocation of each group of neighbouring elements of a map's loop, of which the last one may have fewer than the others, or
    /// whose elements are too long to be written out.
    fn groups(mut self, kernel: &Kernel, schedule: &Flat, whole: bool) -> Result<Nest, String> {
        let Flat { threads, elements, unroll } = *schedule;
        if unroll != 1 {
            return Err(
                "an invocation makes one group of neighbours that are computed one after another".into()
            );
        }
        if whole {
            return self.split(0, i64::from(elements))?.invocations(1, threads);
        }
        self = self.split(0, i64::from(threads) * i64::from(elements))?.split(1, i64::from(elements))?;
        self = self.place(0, Kind::Grid)?.place(1, Kind::Invocation)?;
        if is_long(kernel, elements) {
            return Ok(self);
        }
        let group = self.name(2)?;
        self.apply(Step::Version(group))?.place(2, Kind::Vector)
    }

    /// Makes a workgroup of each tile of two axes of a map. What is read along the other axis than results are stored along goes through
    /// workgroup memory; the loads of all elements of an invocation come first.
    pub fn tiled(mut self, kernel: &Kernel, schedule: &Tiled) -> Result<Nest, String> {
        let Tiled { threads, axis, rows, cols, elements, lines, pitch } = *schedule;
        let refused = || format!("a map does not go in tiles as `{schedule:?}`");
        let along = Along::new(kernel).ok_or_else(refused)?;
        let axis = axis as usize;
        // Rows of a tile that a workgroup makes at a time.
        let each = threads.checked_mul(elements).and_then(|n| n.checked_div(cols)).ok_or_else(refused)?;
        let divides = |n: u32, of: u32| n > 0 && of.is_multiple_of(n);
        let parts = [divides(elements, cols), divides(lines, rows), divides(each, rows)];
        if axis >= along.axes.len()
            || axis == along.along
            || pitch < cols
            || each * cols != threads * elements
            || parts.contains(&false)
            || !divides(lines, each) && !divides(each, lines)
        {
            return Err(refused());
        }
        for extent in along.axes.iter().skip(1).rev() {
            self = self.split(0, extent.clone())?;
        }
        let mut order: Vec<Name> = self.kernel.vars.clone();
        let (row, col) = (order[axis].clone(), order[along.along].clone());
        let mut grid: Vec<Name> = order.iter().filter(|n| **n != row && **n != col).cloned().collect();
        let want = [&grid[..], &[row.clone(), col.clone()]].concat();
        self = self.ordered(&mut order, &want)?;
        // Each axis as tiles, groups of a tile and neighbours of a group. Groups behind the last one load what that one does.
        let (mut cols_of, mut rows_of) = (vec![col], vec![row]);
        for (of, neighbours, all) in [(&mut cols_of, elements, cols), (&mut rows_of, lines, rows)] {
            if neighbours > 1 {
                let whole =
                    self.extent(&of[0]).is_some_and(|e| e.modulo(&i64::from(neighbours).into(), &[]).is(0));
                if !whole {
                    return Err(refused());
                }
                self = self.divided(&mut order, of, 0, |l| Step::Split(l, i64::from(neighbours).into()))?;
            }
            self = self.divided(&mut order, of, 0, |l| Step::Clamp(l, i64::from(all / neighbours)))?;
        }
        // The last rows that the invocations share are neighbours of a group, or groups.
        let (at, by) = if lines > 1 && each <= lines { (2, each) } else { (1, each / lines) };
        self = self.divided(&mut order, &mut rows_of, at, |l| Step::Split(l, i64::from(by).into()))?;
        grid.extend([rows_of[0].clone(), cols_of[0].clone()]);
        let (mut serial, mut shared) = (rows_of[1..=at].to_vec(), rows_of[at + 1..].to_vec());
        shared.push(cols_of[1].clone());
        serial.extend_from_slice(&cols_of[2..]);
        self = self.ordered(&mut order, &[&grid[..], &shared, &serial].concat())?;
        for (names, kind) in [(&grid, Kind::Grid), (&shared, Kind::Invocation)] {
            for name in names {
                self = self.apply(Step::Place(name.clone(), kind))?;
            }
        }
        // Loads before all else have no conditions, and so have copies none.
        if let Some(last) = serial.last() {
            self = self.apply(Step::Fetch(last.clone()))?;
        }
        let turns = self.extent(&serial[0]).ok_or_else(refused)?;
        self = self.divided(&mut order, &mut serial, 0, |l| Step::Split(l, turns.clone()))?;
        let (around, turn) = (serial[0].clone(), serial[1].clone());
        let ends = [&rows_of, &cols_of].map(|of| of.last().cloned().unwrap_or_default());
        let crossing = self.crossing(&ends);
        if crossing.is_empty() {
            return Err("nothing is read along the axis alone".into());
        }
        for (tensor, position) in crossing {
            let layout = Layout {
                position: Some(position),
                row: i64::from(rows),
                order: vec![1, 0],
                pad: i64::from(pitch - cols),
                by: (lines > 1).then(|| i64::from(lines)).into_iter().collect(),
                rotate: 0,
            };
            self = self.apply(Step::Stage(tensor, around.clone(), layout))?;
        }
        let copies: Vec<Name> = self.inside(&around).into_iter().filter(|l| *l != turn).collect();
        for copy in &copies {
            self = self.apply(Step::Fetch(copy.clone()))?.apply(Step::Place(copy.clone(), Kind::Vector))?;
        }
        for name in &serial[2..] {
            self = self.apply(Step::Fuse(turn.clone(), name.clone()))?;
        }
        self = self.apply(Step::Place(turn.clone(), Kind::Vector))?;
        // All loads come before the first store to workgroup memory.
        let first: &[Name] = if copies.len() > 1 { &copies } else { &[] };
        for l in [turn].iter().chain(first.iter().rev()) {
            self = match self.clone().apply(Step::Ahead(l.clone())) {
                Ok(ahead) => ahead,
                Err(_) => self,
            };
        }
        Ok(self)
    }

    fn find(&self, name: &Name) -> Option<&For> {
        let var = self.kernel.vars.iter().position(|v| v == name)?;
        let mut found = None;
        visit(&self.kernel.body, &mut |s| match s {
            Stmt::For(l) if l.var == var => found = Some(l),
            _ => {}
        });
        found
    }

    fn extent(&self, name: &Name) -> Option<Poly> {
        self.find(name).map(|l| l.extent.clone())
    }

    /// The loops that are statements of a loop.
    fn inside(&self, name: &Name) -> Vec<Name> {
        let each = |s: &Stmt| match s {
            Stmt::For(l) => self.kernel.vars.get(l.var).cloned(),
            _ => None,
        };
        self.find(name).map_or(vec![], |l| l.body.iter().filter_map(each).collect())
    }

    /// The tensors that are read along the first of two loops and across the second one, each with the position among those at which it is
    /// read: the number that it has once those before are read no more.
    fn crossing(&self, [row, col]: &[Name; 2]) -> Vec<(Name, usize)> {
        let var = |name: &Name| self.kernel.vars.iter().position(|v| v == name).unwrap_or(usize::MAX);
        let (row, col) = (var(row), var(col));
        let mut read: Vec<(usize, Vec<Poly>)> = vec![];
        visit(&self.kernel.body, &mut |s| {
            s.exprs(&mut |e| {
                e.visit(&mut |e| match e {
                    Expr::Load { tensor, at, .. } if !read.contains(&(*tensor, at.clone())) => {
                        read.push((*tensor, at.clone()));
                    }
                    _ => {}
                });
            });
        });
        let mut out = vec![];
        let mut left: BTreeMap<usize, usize> = BTreeMap::new();
        for (t, at) in &read {
            let tensor = &self.kernel.tensors[*t];
            let p = unclamped(&tensor.offset(at));
            let unit = |v: usize| !(&p - &Poly::var(v)).vars().contains(&v);
            let next = left.entry(*t).or_default();
            if p.data().is_empty() && p.vars().contains(&col) && !unit(col) && unit(row) {
                out.push((tensor.name.clone(), *next));
            } else {
                *next += 1;
            }
        }
        out
    }
}

/// An index expression without the clamps of variables: `min(16*i + j, n - 1)` is `16*i + j`.
fn unclamped(p: &Poly) -> Poly {
    let atom = |a: &Atom| match a {
        Atom::Min(x, y) if x.vars().is_empty() != y.vars().is_empty() => {
            Some(unclamped(if x.vars().is_empty() { y } else { x }))
        }
        _ => None,
    };
    p.subst(&atom, &[])
}
