//! Operators that combine elements, expanded for one element of their result, so that a lane of a loop computes it in its own registers.

use crate::fuse::build::{greatest, least};
use crate::fuse::pulling::{Puller, Resolver};
use crate::kernel::{Expr, ExprId};
use wgfc_ir::{
    BinaryOp, Contract, DType, Dim, GatherAxis, Op, Poly, ReduceOp, Scalar, TensorType, UnaryOp, Value,
};

/// The most expressions of a lane's step: a bound on the text of a kernel.
pub const MOST: usize = 1 << 12;
/// The most instructions of a step, inlined functions included: some drivers take seconds to compile more.
pub const MOST_INSTRUCTIONS: usize = 4 * MOST;

impl<R: Resolver> Puller<'_, R> {
    /// Value `v` at `index`, as [`Puller::compute`].
    pub(in crate::fuse) fn expand(
        &mut self,
        v: Value,
        index: &[Poly],
        guard: Option<ExprId>,
    ) -> Result<ExprId, String> {
        if self.body().len() > MOST {
            return Err(format!("a step of a lane takes more than {MOST} operations"));
        }
        let graph = self.graph;
        let node = graph.node(v.node);
        let out = node.outputs[0].dtype;
        match &node.op {
            Op::Reduce { op, axes } => {
                let x = node.inputs[0];
                let wide = accumulator(out);
                let mut elements = vec![];
                for at in positions(graph.ty(x), axes)? {
                    let mut from = index.to_vec();
                    axes.iter().zip(at).for_each(|(a, p)| from[*a] = p);
                    let e = self.pull(x, &from, guard)?;
                    elements.push(self.cast(e, wide));
                }
                let result = self.all(*op, &elements, wide);
                Ok(self.cast(result, out))
            }
            Op::ArgReduce { op, axis, last } => {
                let x = node.inputs[0];
                let better = match (op, last) {
                    (ReduceOp::Max, false) => BinaryOp::Gt,
                    (ReduceOp::Max, true) => BinaryOp::Ge,
                    (_, false) => BinaryOp::Lt,
                    (_, true) => BinaryOp::Le,
                };
                let mut best: Option<(ExprId, ExprId)> = None;
                for (i, at) in positions(graph.ty(x), &[*axis])?.into_iter().enumerate() {
                    let mut from = index.to_vec();
                    from[*axis] = at[0].clone();
                    let e = self.pull(x, &from, guard)?;
                    let place = self.constant(Scalar::from_i64(DType::I64, i as i64));
                    best = Some(match best {
                        None => (e, place),
                        Some((b, p)) => {
                            let wins = self.binary(better, e, b);
                            let wins = self.before_numbers(wins, e, b, *last);
                            (self.select(wins, e, b), self.select(wins, place, p))
                        }
                    });
                }
                best.map(|(_, place)| place).ok_or_else(|| "the largest of no elements".into())
            }
            Op::PrefixScan { op, axis, exclusive, reverse } => {
                let x = node.inputs[0];
                let wide = accumulator(out);
                let (here, len) = (index[*axis].as_const(), extent(&graph.ty(x).shape[*axis])?);
                let here = here.ok_or("a running sum at a position that is not a constant")?;
                let upto = |i: &i64| {
                    let before = if *reverse { *i > here } else { *i < here };
                    before || (*i == here && !exclusive)
                };
                let mut places: Vec<i64> = (0..len).filter(upto).collect();
                if *reverse {
                    places.reverse();
                }
                let mut result = self.constant(identity(*op, wide));
                for i in places {
                    let mut from = index.to_vec();
                    from[*axis] = Poly::constant(i);
                    let e = self.pull(x, &from, guard)?;
                    let e = self.cast(e, wide);
                    result = self.combined(*op, Some(result), e);
                }
                Ok(self.cast(result, out))
            }
            Op::Softmax { axis, log } => {
                let mut elements = vec![];
                for at in positions(graph.ty(node.inputs[0]), &[*axis])? {
                    let mut from = index.to_vec();
                    from[*axis] = at[0].clone();
                    let e = self.pull(node.inputs[0], &from, guard)?;
                    elements.push(self.cast(e, DType::F32));
                }
                let own = self.pull(node.inputs[0], index, guard)?;
                let own = self.cast(own, DType::F32);
                let top = self.all(ReduceOp::Max, &elements, DType::F32);
                // At most 0, and the sum of exponentials at least 1, anyway: a share is known to be at most 1 where both are said.
                let (zero, one) = (self.f32(0.0), self.f32(1.0));
                let shifted = |p: &mut Self, e| {
                    let e = p.binary(BinaryOp::Sub, e, top);
                    p.binary(BinaryOp::Min, e, zero)
                };
                let mut terms = vec![];
                for e in elements {
                    let e = shifted(self, e);
                    terms.push(self.unary(UnaryOp::Exp, e));
                }
                let sum = self.all(ReduceOp::Sum, &terms, DType::F32);
                let own = shifted(self, own);
                let share = if *log {
                    let sum = self.unary(UnaryOp::Log, sum);
                    self.binary(BinaryOp::Sub, own, sum)
                } else {
                    let e = self.unary(UnaryOp::Exp, own);
                    let sum = self.binary(BinaryOp::Max, sum, one);
                    self.binary(BinaryOp::Div, e, sum)
                };
                Ok(self.cast(share, out))
            }
            Op::Contract(c) => self.expand_contract(v, c, index, guard),
            Op::Scatter { reduce, index: to } => self.expand_scatter(v, *reduce, to, index, guard),
            Op::While { .. } | Op::Scan { .. } => Err("its body contains another loop".into()),
            op => Err(format!("`{}` in the body of a loop", op.name())),
        }
    }

    fn expand_contract(
        &mut self,
        v: Value,
        c: &Contract,
        index: &[Poly],
        guard: Option<ExprId>,
    ) -> Result<ExprId, String> {
        let node = self.graph.node(v.node);
        let (a, b) = (node.inputs[0], node.inputs[1]);
        let out = node.outputs[0].dtype;
        let wide = accumulator(out);
        let k = c.k();
        let axes: Vec<usize> = k.iter().filter_map(|l| c.a.iter().position(|x| x == l)).collect();
        let mut products = vec![];
        for at in positions(self.graph.ty(a), &axes)? {
            let place = |labels: &[u8]| -> Option<Vec<Poly>> {
                let of = |l: &u8| match c.out.iter().position(|x| x == l) {
                    Some(i) => index.get(i).cloned(),
                    None => k.iter().position(|x| x == l).and_then(|i| at.get(i).cloned()),
                };
                labels.iter().map(of).collect()
            };
            let (Some(at_a), Some(at_b)) = (place(&c.a), place(&c.b)) else {
                return Err("a product whose labels do not fit".into());
            };
            let (x, y) = (self.pull(a, &at_a, guard)?, self.pull(b, &at_b, guard)?);
            let (x, y) = (self.cast(x, wide), self.cast(y, wide));
            products.push(self.binary(BinaryOp::Mul, x, y));
        }
        let result = self.all(ReduceOp::Sum, &products, wide);
        Ok(self.cast(result, out))
    }

    /// The old element, combined with or replaced by every update whose position is the element's.
    fn expand_scatter(
        &mut self,
        v: Value,
        reduce: Option<ReduceOp>,
        to: &[GatherAxis],
        index: &[Poly],
        guard: Option<ExprId>,
    ) -> Result<ExprId, String> {
        let graph = self.graph;
        let node = graph.node(v.node);
        let (data, updates) = (node.inputs[0], node.inputs[1]);
        let shape = &graph.ty(updates).shape;
        // Where an axis of the data is an axis of the updates, only the updates at this position are looked at.
        let mut fixed: Vec<Option<Poly>> = vec![None; shape.len()];
        for (ax, here) in to.iter().zip(index) {
            if let GatherAxis::Affine(p) = ax
                && let Some(i) = p.as_var()
                && fixed.get(i) == Some(&None)
            {
                fixed[i] = Some(here.clone());
            }
        }
        let free: Vec<usize> = (0..shape.len()).filter(|i| fixed[*i].is_none()).collect();
        let mut result = self.pull(data, index, guard)?;
        for at in positions(graph.ty(updates), &free)? {
            let mut from: Vec<Poly> = fixed.iter().map(|p| p.clone().unwrap_or_default()).collect();
            free.iter().zip(at).for_each(|(i, p)| from[*i] = p);
            let mut hit = None;
            for ((ax, here), d) in to.iter().zip(index).zip(&graph.ty(data).shape) {
                let there = match ax {
                    GatherAxis::Affine(p) => {
                        let p = p.subst_vars(&from, &self.domain);
                        if p == *here {
                            continue;
                        }
                        self.index(p)
                    }
                    GatherAxis::Data { input, at } => {
                        let e = self.index_element(node.inputs[*input], at, &from, guard)?;
                        self.wrap(e, d)
                    }
                };
                let here = self.index(here.clone());
                let same = self.binary(BinaryOp::Eq, there, here);
                hit = self.and(hit, Some(same));
            }
            let mut inside = None;
            for (p, d) in from.iter().zip(shape) {
                let ok = self.inside(p, d);
                inside = self.and(inside, ok);
            }
            let hit = self.and(hit, inside);
            let guard = self.and(guard, inside);
            let new = self.pull(updates, &from, guard)?;
            let new = match reduce {
                None => new,
                Some(op) => self.combined(op, Some(result), new),
            };
            result = match hit {
                Some(hit) => self.select(hit, new, result),
                None => new,
            };
        }
        Ok(result)
    }

    /// The combination of all elements. Long lists are combined in halves, which shortens the chain of dependent operations.
    pub(in crate::fuse) fn all(&mut self, op: ReduceOp, elements: &[ExprId], dtype: DType) -> ExprId {
        const CHAIN: usize = 8;
        if elements.len() > CHAIN {
            let (a, b) = elements.split_at(elements.len() / 2);
            let (a, b) = (self.all(op, a, dtype), self.all(op, b, dtype));
            return self.combined(op, Some(a), b);
        }
        let mut result = None;
        for e in elements {
            result = Some(self.combined(op, result, *e));
        }
        match result {
            Some(r) => r,
            None => self.constant(identity(op, dtype)),
        }
    }

    /// Whether `e` replaces `best`, an element before it. `by_value` says so for two numbers; NaN comes before numbers.
    fn before_numbers(&mut self, by_value: ExprId, e: ExprId, best: ExprId, last: bool) -> ExprId {
        if !self.body().dtype(e).is_float() {
            return by_value;
        }
        let [e, best] = [e, best].map(|x| self.push(Expr::Unary(UnaryOp::IsNan, x), DType::Bool));
        let number = self.push(Expr::Unary(UnaryOp::Not, best), DType::Bool);
        if last {
            let wins = self.binary(BinaryOp::And, by_value, number);
            return self.binary(BinaryOp::Or, wins, e);
        }
        let wins = self.binary(BinaryOp::Or, by_value, e);
        self.binary(BinaryOp::And, wins, number)
    }

    fn combined(&mut self, op: ReduceOp, so_far: Option<ExprId>, e: ExprId) -> ExprId {
        let Some(a) = so_far else { return e };
        let bool = self.body().dtype(e) == DType::Bool;
        let op = match op {
            ReduceOp::Max if bool => BinaryOp::Or,
            ReduceOp::Min if bool => BinaryOp::And,
            op => op.operator(),
        };
        self.binary(op, a, e)
    }

    /// `if c { a } else { b }`.
    pub(in crate::fuse) fn select(&mut self, c: ExprId, a: ExprId, b: ExprId) -> ExprId {
        let ty = self.body().dtype(a);
        self.push(Expr::Select(c, a, b), ty)
    }

    /// The element of `choices` with the given number, a non-constant index expression.
    pub(in crate::fuse) fn choose(&mut self, number: &Poly, choices: &[ExprId]) -> Option<ExprId> {
        let (last, rest) = choices.split_last()?;
        let i = self.index(number.clone());
        let mut result = *last;
        for (n, c) in rest.iter().enumerate().rev() {
            let n = self.constant(Scalar::from_i64(DType::I32, n as i64));
            let here = self.binary(BinaryOp::Eq, i, n);
            result = self.select(here, *c, result);
        }
        Some(result)
    }
}

/// The type in which values of type `t` are accumulated: floats in f32, whatever the storage type.
pub(in crate::fuse) fn accumulator(t: DType) -> DType {
    if t.is_float() { DType::F32 } else { t }
}

fn identity(op: ReduceOp, t: DType) -> Scalar {
    match op {
        ReduceOp::Sum => Scalar::from_i64(t, 0),
        ReduceOp::Prod => Scalar::from_i64(t, 1),
        ReduceOp::Max => least(t),
        ReduceOp::Min => greatest(t),
    }
}

/// A constant extent that is small enough to be expanded.
pub(in crate::fuse) fn extent(d: &Dim) -> Result<i64, String> {
    match d.as_const() {
        Some(n) if n <= MOST as i64 => Ok(n),
        Some(n) => Err(format!("a step combines {n} elements per lane, more than {MOST}")),
        None => Err(format!("a step combines `{d}` elements per lane, which is not a constant")),
    }
}

/// All positions along some axes.
fn positions(ty: &TensorType, axes: &[usize]) -> Result<Vec<Vec<Poly>>, String> {
    let mut all = vec![vec![]];
    for a in axes {
        let n = extent(&ty.shape[*a])?;
        if n.saturating_mul(all.len() as i64) > MOST as i64 {
            return Err(format!("a step combines more than {MOST} elements per lane"));
        }
        all = all
            .into_iter()
            .flat_map(|at: Vec<Poly>| {
                (0..n).map(move |i| at.iter().cloned().chain([Poly::constant(i)]).collect::<Vec<Poly>>())
            })
            .collect();
    }
    Ok(all)
}
