//! Loops of lanes.

use super::builder::Builder;
use super::rows::Running;
use crate::kernel::{ExprId, Loop, Part, Stage, StagedLoop, Store as KernelStore};
use rustc_hash::FxHashMap;
use wgfc_ir::{Atom, BinaryOp, DType, Dim, Poly, Scalar};
use wgfc_loops::{Expr, For, Kind, Space, Stmt, Store};

/// Variables of the lanes.
fn lanes(b: &mut Builder, extents: &[Dim]) -> Vec<usize> {
    (0..extents.len()).map(|i| b.open(i, &format!("lane{i}"))).collect()
}

/// The statements in a loop for each axis of the lanes.
fn each_lane(b: &Builder, vars: &[usize], extents: &[Dim], mut body: Vec<Stmt>) -> Vec<Stmt> {
    for (var, extent) in vars.iter().zip(extents).rev() {
        body = vec![b.parallel(*var, extent, body)];
    }
    body
}

/// The loop of the steps, or of those of a part, whose statements are to be added; variable `i` of the kernel is the step.
fn steps(
    b: &mut Builder,
    i: usize,
    steps: &Dim,
    part: Option<Part>,
    to: &mut Vec<Stmt>,
) -> Result<For, String> {
    let step = b.out.add_var("step");
    let Some(part) = part else {
        b.assign(i, Poly::var(step));
        return Ok(For::new(step, steps.clone(), Kind::Serial, vec![]));
    };
    let first = b.values(&[part.first], to)?.pop().ok_or("a part without a first step")?;
    // The number of a step is not negative.
    let first = Expr::binary(BinaryOp::Max, first, Expr::Const(Scalar::from_i64(DType::I32, 0)));
    let first = Poly::atom(Atom::Data(b.name("first", first, to)?));
    b.assign(i, &first + &Poly::var(step));
    let rest = (steps - &first).min_of(&Poly::from(i64::from(part.most)), &[]).max_of(&Poly::ZERO, &[]);
    Ok(For::new(step, rest, Kind::Serial, vec![]))
}

/// A loop whose lanes carry values in registers.
pub(super) fn lane(b: &mut Builder, k: &Loop) -> Result<Vec<Stmt>, String> {
    let vars = lanes(b, &k.lanes);
    let mut inside = vec![];
    let first: Vec<ExprId> = k.carries.iter().map(|c| c.init).collect();
    let mut carried = vec![];
    for v in b.values(&first, &mut inside)? {
        let register = b.register("carried", v.dtype(&b.out)?);
        inside.push(b.set(register, v));
        carried.push(register);
    }
    let mut l = steps(b, k.lanes.len(), &k.steps, k.part, &mut inside)?;
    b.accs.extend(carried.iter().enumerate().map(|(i, r)| (i as u32, Expr::load(*r, vec![]))));
    let going = match k.alive {
        None => None,
        Some(alive) => {
            let going = b.register("going", DType::Bool);
            let v = b.values(&[alive], &mut inside)?.pop().ok_or("a condition without a value")?;
            inside.push(b.set(going, v));
            l.condition = Some(Expr::load(going, vec![]));
            Some((going, alive))
        }
    };
    let mut each = vec![];
    let next: Vec<ExprId> = k.carries.iter().map(|c| c.next).collect();
    // All new values are computed before the first old one is replaced.
    let mut new = vec![];
    for v in b.values(&next, &mut each)? {
        new.push(b.name("next", v, &mut each)?);
    }
    b.stores(&k.step_stores, &mut each)?;
    for (register, v) in carried.iter().zip(new) {
        each.push(b.set(*register, Expr::Value(v)));
    }
    if let Some((going, alive)) = going {
        let v = b.values(&[alive], &mut each)?.pop().ok_or("a condition without a value")?;
        each.push(b.set(going, v));
    }
    l.body = each;
    inside.push(Stmt::For(l));
    b.stores(&b.kernel.stores, &mut inside)?;
    Ok(each_lane(b, &vars, &k.lanes, inside))
}

/// A loop in stages, whose values are in arrays.
pub(super) fn staged(b: &mut Builder, k: &StagedLoop) -> Result<Vec<Stmt>, String> {
    let vars = lanes(b, &k.lanes);
    let array = |b: &mut Builder, i: usize, a: &crate::kernel::Array| {
        b.out.add_tensor(&format!("s{i}"), a.dtype, vec![Dim::from(i64::from(a.len))], Space::Workgroup)
    };
    b.arrays = k.arrays.iter().enumerate().map(|(i, a)| array(b, i, a)).collect();
    let mut inside = vec![];
    let mut l = steps(b, k.lanes.len(), &k.steps, k.part, &mut inside)?;
    for s in &k.first {
        stage(b, k, s, &mut inside)?;
    }
    if let Some(a) = k.alive {
        let array = *b.arrays.get(a as usize).ok_or("a condition in no array")?;
        l.condition = Some(Expr::load(array, vec![Poly::ZERO]));
    }
    for s in &k.each {
        stage(b, k, s, &mut l.body)?;
    }
    inside.push(Stmt::For(l));
    for s in &k.last {
        stage(b, k, s, &mut inside)?;
    }
    Ok(each_lane(b, &vars, &k.lanes, inside))
}

/// All elements of a stage, which are computed before any is written.
fn stage(b: &mut Builder, k: &StagedLoop, s: &Stage, to: &mut Vec<Stmt>) -> Result<(), String> {
    let (element, term) = (k.lanes.len() + 1, k.lanes.len() + 2);
    let elements = Dim::from(i64::from(s.elements));
    let i = b.open(element, "i");
    let mut each = vec![];
    if let Some(c) = &s.combined {
        let running = Running::begin(b, &c.reduction, &mut each)?;
        let position = b.open(term, "term");
        let mut terms = vec![];
        running.take(b, &Poly::var(position), &mut terms)?;
        each.push(b.repeat(position, &Dim::from(i64::from(c.terms)), terms));
        b.accs.insert(c.acc, running.result());
    }
    // The values of all elements are kept, with the guards of stores and the data of their offsets.
    let roots: Vec<ExprId> =
        s.writes.iter().map(|w| w.value).chain(s.stores.iter().flat_map(KernelStore::reads)).collect();
    let mut kept: FxHashMap<ExprId, usize> = FxHashMap::default();
    let values = b.values(&roots, &mut each)?;
    for (id, v) in roots.iter().zip(values) {
        if kept.contains_key(id) {
            continue;
        }
        let all = b.out.add_tensor("kept", v.dtype(&b.out)?, vec![elements.clone()], Space::Register);
        each.push(Stmt::Store(Store::new(all, vec![Poly::var(i)], v)));
        kept.insert(*id, all);
    }
    to.push(b.repeat(i, &elements, each));

    let i = b.open(element, "i");
    let mut each = vec![];
    let own = |id: &ExprId| kept.get(id).map(|all| Expr::load(*all, vec![Poly::var(i)]));
    for w in &s.writes {
        let array = *b.arrays.get(w.array as usize).ok_or("a write to no array")?;
        let value = own(&w.value).ok_or("a write without a value")?;
        each.push(Stmt::Store(Store::new(array, vec![Poly::var(i)], value)));
    }
    for store in &s.stores {
        let mut data: FxHashMap<ExprId, Expr> = FxHashMap::default();
        for d in store.offset.data() {
            let value = own(&d).ok_or("an offset without a value")?;
            let value = b.name("at", value, &mut each)?;
            data.insert(d, Expr::Value(value));
        }
        let at = b.place(&store.offset, &data)?;
        each.push(b.store(store, at, own(&store.value), store.guard.and_then(|g| own(&g)))?);
    }
    to.push(b.repeat(i, &elements, each));
    Ok(())
}
