//! The places at which a kernel evaluates its expressions, each with its variables and available results.

use super::{
    Attention, Carry, ExprId, Family, Kernel, Loop, Map, Matmul, PrefixScan, ReduceKind, Reduction, Row,
    Sort, Stage, StagedLoop, Store,
};
use wgfc_ir::{DType, Dim};

/// A result of a family that can be read as `acc`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Result<'k> {
    /// Its number.
    pub acc: u32,
    /// Its type.
    pub dtype: DType,
    /// The reduction it comes from.
    pub reduction: Option<&'k Reduction>,
}

/// Expressions and stores that a kernel evaluates over the same variables.
#[derive(Clone, Debug)]
pub struct Place<'k> {
    /// The name of the place, for messages.
    pub name: &'static str,
    /// The extent of each variable that has a value here.
    pub extents: Vec<Option<Dim>>,
    /// Variables that have a value whenever the kernel runs. An expression that depends on none of the other variables may be evaluated
    /// even if those have no values.
    pub outer: Vec<usize>,
    /// The available results.
    pub results: Vec<Result<'k>>,
    /// Expressions, with the type that each must have if that is known.
    pub exprs: Vec<(ExprId, Option<DType>)>,
    /// Stores.
    pub stores: Vec<&'k Store>,
}

impl<'k> Place<'k> {
    fn new(name: &'static str, extents: &[Dim], inside: &[usize], outer: &[usize]) -> Place<'k> {
        let extents = (0..extents.len()).map(|i| inside.contains(&i).then(|| extents[i].clone())).collect();
        let outer = outer.to_vec();
        Place { name, extents, outer, results: vec![], exprs: vec![], stores: vec![] }
    }
    /// The extents of its variables; 0 for those without a value.
    pub fn domain(&self) -> Vec<Dim> {
        self.extents.iter().map(|d| d.clone().unwrap_or_default()).collect()
    }
    fn evaluates(mut self, exprs: impl IntoIterator<Item = (ExprId, Option<DType>)>) -> Place<'k> {
        self.exprs.extend(exprs);
        self
    }
    fn stores(mut self, stores: &'k [Store]) -> Place<'k> {
        self.stores.extend(stores);
        self
    }
    fn with(mut self, results: &[Result<'k>]) -> Place<'k> {
        self.results.extend(results);
        self
    }
    /// Adds the expressions of a reduction.
    fn reduces(self, r: &Reduction) -> Place<'k> {
        let dtype = (!matches!(r.kind, ReduceKind::Arg { .. })).then_some(r.dtype);
        let when = match r.kind {
            ReduceKind::Last { when, .. } => Some((when, Some(DType::Bool))),
            _ => None,
        };
        self.evaluates([(r.value, dtype)]).evaluates(when)
    }
    /// All expressions that are evaluated here.
    pub fn roots(&self) -> Vec<ExprId> {
        let stores = self.stores.iter().flat_map(|s| s.reads());
        self.exprs.iter().map(|e| e.0).chain(stores).collect()
    }
}

/// The expression that is evaluated before a reduction's first element.
fn initial(r: &Reduction) -> Option<(ExprId, Option<DType>)> {
    match r.kind {
        ReduceKind::Last { init, .. } => Some((init, Some(r.dtype))),
        _ => None,
    }
}

fn result(acc: usize, r: &Reduction) -> Result<'_> {
    Result { acc: acc as u32, dtype: r.dtype, reduction: Some(r) }
}

impl Kernel {
    /// All places of the kernel, in order of evaluation.
    pub fn places(&self) -> Vec<Place<'_>> {
        let d = self.domain();
        let stores = self.stores.as_slice();
        let f32 = Some(DType::F32);
        match &self.family {
            Family::Map(Map { .. }) => vec![Place::new("an element", &d, &[0], &[0]).stores(stores)],
            Family::Row(Row { reductions, row_stores, .. }) => {
                let all: Vec<Result<'_>> = reductions.iter().enumerate().map(|(i, r)| result(i, r)).collect();
                let mut out = vec![];
                for (i, r) in reductions.iter().enumerate() {
                    let first = Place::new("a row", &d, &[0], &[0]).with(&all[..i]);
                    out.extend(initial(r).map(|e| first.evaluates([e])));
                    out.push(Place::new("a position", &d, &[0, 1], &[0]).with(&all[..i]).reduces(r));
                }
                out.push(Place::new("a row", &d, &[0], &[0]).with(&all).stores(row_stores));
                out.push(Place::new("a position", &d, &[0, 1], &[0]).with(&all).stores(stores));
                out
            }
            Family::PrefixScan(PrefixScan { reduction, .. }) => vec![
                Place::new("a row", &d, &[0], &[0]).evaluates(initial(reduction)),
                Place::new("a position", &d, &[0, 1], &[0]).reduces(reduction),
                Place::new("a position", &d, &[0, 1], &[0]).with(&[result(0, reduction)]).stores(stores),
            ],
            Family::Sort(Sort { key, .. }) => {
                let sorted = Result { acc: 0, dtype: DType::U64, reduction: None };
                vec![
                    Place::new("a position", &d, &[0, 1], &[0]).evaluates([(*key, Some(DType::U64))]),
                    Place::new("a place", &d, &[0, 2], &[0]).with(&[sorted]).stores(stores),
                ]
            }
            Family::Loop(Loop { lanes, carries, alive, part, step_stores, .. }) => {
                let lanes: Vec<usize> = (0..lanes.len()).collect();
                let step: Vec<usize> = (0..=lanes.len()).collect();
                let carried = |(i, c): (usize, &Carry)| Result {
                    acc: i as u32,
                    dtype: self.body.dtype(c.init),
                    reduction: None,
                };
                let all: Vec<Result<'_>> = carries.iter().enumerate().map(carried).collect();
                let typed = |e: ExprId, c: &Carry| (e, Some(self.body.dtype(c.init)));
                vec![
                    Place::new("before all", &d, &[], &[])
                        .evaluates(part.iter().map(|p| (p.first, Some(DType::I32)))),
                    Place::new("a lane", &d, &lanes, &lanes)
                        .evaluates(carries.iter().map(|c| typed(c.init, c))),
                    Place::new("a lane", &d, &lanes, &lanes)
                        .with(&all)
                        .evaluates(alive.iter().map(|e| (*e, Some(DType::Bool)))),
                    Place::new("a step", &d, &step, &lanes)
                        .with(&all)
                        .evaluates(carries.iter().map(|c| typed(c.next, c)))
                        .stores(step_stores),
                    Place::new("a lane", &d, &lanes, &lanes).with(&all).stores(stores),
                ]
            }
            Family::StagedLoop(f) => self.staged(f, &d),
            Family::Matmul(Matmul { a, b, sums, .. }) => {
                let acc = |i: usize| Result { acc: i as u32, dtype: DType::F32, reduction: None };
                let all: Vec<Result<'_>> = (0..b.len() + sums.len()).map(acc).collect();
                let outer = [0, 1, 2];
                vec![
                    Place::new("the first operand", &d, &[0, 1, 3], &outer).evaluates([(*a, f32)]),
                    Place::new("a second operand", &d, &[0, 2, 3], &outer)
                        .evaluates(b.iter().map(|e| (*e, f32))),
                    Place::new("a sum", &d, &[0, 1, 3], &outer).evaluates(sums.iter().map(|e| (*e, f32))),
                    Place::new("a result", &d, &[0, 1, 2], &outer).with(&all).stores(stores),
                ]
            }
            Family::Attention(Attention { q, k, v, mask, part_stores, .. }) => {
                let acc = |acc| Result { acc, dtype: DType::F32, reduction: None };
                let all = [acc(0), acc(1), acc(2)];
                let outer = [0, 1, 5];
                let own = if part_stores.is_empty() { &all[..1] } else { &all[..] };
                vec![
                    Place::new("queries", &d, &[0, 1, 3], &outer).evaluates([(*q, f32)]),
                    Place::new("keys", &d, &[0, 2, 3], &outer).evaluates([(*k, f32)]),
                    Place::new("values", &d, &[0, 2, 4], &outer).evaluates([(*v, f32)]),
                    Place::new("the mask", &d, &[0, 1, 2], &outer).evaluates(mask.iter().map(|e| (*e, f32))),
                    Place::new("a part", &d, &[0, 1, 5], &outer).with(&all).stores(part_stores),
                    Place::new("a result", &d, &[0, 1, 4, 5], &outer).with(own).stores(stores),
                ]
            }
        }
    }

    fn staged<'k>(&'k self, f: &'k StagedLoop, d: &[Dim]) -> Vec<Place<'k>> {
        let StagedLoop { lanes, part, first, each, last, meet, .. } = f;
        let n = lanes.len();
        let outer: Vec<usize> = (0..n).collect();
        let mut out = vec![
            Place::new("before all", d, &[], &[]).evaluates(part.iter().map(|p| (p.first, Some(DType::I32)))),
        ];
        out.extend(
            meet.iter().map(|s| Place::new("a lane", d, &outer, &outer).stores(std::slice::from_ref(s))),
        );
        let stages = first.iter().map(|s| (s, false)).chain(each.iter().map(|s| (s, true)));
        for (stage, step) in stages.chain(last.iter().map(|s| (s, false))) {
            let Stage { elements, combined, writes, stores } = stage;
            let mut extents = d.to_vec();
            extents[n + 1] = Dim::from(i64::from(*elements));
            extents[n + 2] = Dim::from(i64::from(combined.as_ref().map_or(1, |c| c.terms)));
            let mut inside = outer.clone();
            inside.extend(step.then_some(n));
            inside.push(n + 1);
            let element = |inside: &[usize]| Place::new("an element", &extents, inside, &outer);
            let mut results = vec![];
            if let Some(c) = combined {
                out.push(element(&inside).evaluates(initial(&c.reduction)));
                let term: Vec<usize> = inside.iter().copied().chain([n + 2]).collect();
                out.push(element(&term).reduces(&c.reduction));
                results.push(result(c.acc as usize, &c.reduction));
            }
            let dtype = |array: u32| f.arrays.get(array as usize).map(|a| a.dtype);
            out.push(
                element(&inside)
                    .with(&results)
                    .evaluates(writes.iter().map(|w| (w.value, dtype(w.array))))
                    .stores(stores),
            );
        }
        out
    }
}
