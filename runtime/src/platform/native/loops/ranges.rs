//! Interval analysis of a kernel's integers, which bounds the iterations of its loops.

use super::{local, pointee};
use naga::{
    BinaryOperator, Binding, Block, BuiltIn, EntryPoint, Expression, Function, Handle, Literal,
    LocalVariable, MathFunction, Module, Statement,
};
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;

/// The smallest and the largest value of an expression. Sums and products are assumed not to overflow.
type Range = (i64, i64);

/// The largest number of calls that are followed in the analysis of one function.
const MOST_CALLS: u32 = 256;

const ANY: Range = (i32::MIN as i64, u32::MAX as i64);

/// The callee and the arguments of each call, by the call's result.
type Calls<'m> = HashMap<Handle<Expression>, (Handle<Function>, &'m [Handle<Expression>])>;

/// The ranges of a function's expressions.
pub(super) struct Ranges<'m> {
    module: &'m Module,
    function: &'m Function,
    entry: Option<&'m EntryPoint>,
    dims: &'m [(i64, i64)],
    /// The ranges of the function's arguments at the call that is analysed.
    given: Vec<Range>,
    /// All values that are stored to each variable, its initial value included.
    stores: HashMap<Handle<LocalVariable>, Vec<Handle<Expression>>>,
    /// The calls in the function.
    calls: Calls<'m>,
    /// The number of calls that may still be followed. Without a limit the number of paths through nested calls grows
    /// exponentially.
    left: Rc<Cell<u32>>,
    /// The ranges found so far; `None` while a range is being computed.
    known: RefCell<HashMap<Handle<Expression>, Option<Range>>>,
}

impl<'m> Ranges<'m> {
    /// The ranges in a function for symbols within `dims`. `entry` is the entry point if `function` belongs to one.
    pub(super) fn new(
        module: &'m Module,
        function: &'m Function,
        entry: Option<&'m EntryPoint>,
        dims: &'m [(i64, i64)],
    ) -> Ranges<'m> {
        let mut stores: HashMap<_, Vec<_>> = HashMap::new();
        for (v, variable) in function.local_variables.iter() {
            stores.entry(v).or_default().extend(variable.init);
        }
        collect(function, &function.body, &mut stores);
        let mut calls = HashMap::new();
        each(&function.body, &mut |s| {
            if let Statement::Call { function, arguments, result: Some(r) } = s {
                calls.insert(*r, (*function, &arguments[..]));
            }
        });
        Ranges {
            module,
            function,
            entry,
            dims,
            given: vec![],
            stores,
            calls,
            left: Rc::new(Cell::new(MOST_CALLS)),
            known: RefCell::default(),
        }
    }

    /// An upper bound of the iterations of a loop; `None` if none is found.
    pub(super) fn trips(&self, body: &Block, continuing: &Block) -> Option<u64> {
        let mut known: HashMap<Handle<LocalVariable>, Vec<_>> = HashMap::new();
        let mut least: Option<u64> = None;
        for statement in body.iter() {
            match statement {
                Statement::Emit(_) => {}
                // naga lowers `a && b` to a variable that is set in the branches of an `if` on `a`.
                Statement::If { condition, accept, reject } if !breaks(reject) => {
                    let (mut set, mut unset) = (HashMap::new(), HashMap::new());
                    collect(self.function, accept, &mut set);
                    collect(self.function, reject, &mut unset);
                    for (v, values) in set.into_iter().filter(|(v, _)| self.all_false(unset.get(v))) {
                        known.entry(v).or_default().extend(values.into_iter().chain([*condition]));
                    }
                }
                Statement::If { condition, accept, reject } if accept.is_empty() && breaks(reject) => {
                    let both = local(self.function, *condition).and_then(|v| known.get(&v));
                    let conditions = both.map_or(&[*condition][..], Vec::as_slice).to_vec();
                    for c in conditions {
                        let bound = self.bound(c, body, continuing);
                        least = least.into_iter().chain(bound).min();
                    }
                    return least;
                }
                _ => return None,
            }
        }
        None
    }

    /// Whether all of these values are the literal `false`.
    fn all_false(&self, values: Option<&Vec<Handle<Expression>>>) -> bool {
        let no = |e: &Handle<Expression>| {
            matches!(self.function.expressions[*e], Expression::Literal(Literal::Bool(false)))
        };
        values.is_some_and(|v| v.iter().all(no))
    }

    /// An upper bound of the iterations for which a condition holds.
    fn bound(&self, condition: Handle<Expression>, body: &Block, continuing: &Block) -> Option<u64> {
        let Expression::Binary { op, left, right } = self.function.expressions[condition] else {
            return None;
        };
        let counter = match self.function.expressions[left] {
            // A condition on `counter + right` with `right` ≥ 0 fails no later than one on `counter`.
            Expression::Binary { op: BinaryOperator::Add, left, right } if self.of(right).0 >= 0 => left,
            _ => left,
        };
        let v = local(self.function, counter)?;
        let each: Vec<_> = body
            .iter()
            .chain(continuing.iter())
            .flat_map(|s| unconditional_stores(self.function, s, v))
            .collect();
        let mut all = HashMap::new();
        collect(self.function, body, &mut all);
        collect(self.function, continuing, &mut all);
        let inside = all.remove(&v)?;
        // Each iteration must change the counter exactly once, outside of branches.
        let [change] = each[..] else { return None };
        if inside.len() != 1 {
            return None;
        }
        let Expression::Binary { op: how, left: from, right: by } = self.function.expressions[change] else {
            return None;
        };
        if local(self.function, from) != Some(v) {
            return None;
        }
        match (op, how) {
            (BinaryOperator::Less | BinaryOperator::LessEqual, BinaryOperator::Add) => {
                let step = self.of(by).0;
                if step < 1 {
                    return None;
                }
                let starts = self.stores[&v].iter().filter(|s| **s != change);
                let far = starts.map(|s| self.difference(right, *s)).max()?;
                if far > i64::from(i32::MAX) {
                    return None;
                }
                let far = far + i64::from(op == BinaryOperator::LessEqual);
                u64::try_from(far.max(0)).ok().map(|n| n.div_ceil(step as u64))
            }
            // A 32-bit counter that each iteration shifts by at least one bit, or divides by at least 2, ends within 32
            // iterations.
            (BinaryOperator::Less | BinaryOperator::LessEqual, BinaryOperator::ShiftLeft)
            | (
                BinaryOperator::Greater | BinaryOperator::GreaterEqual | BinaryOperator::NotEqual,
                BinaryOperator::ShiftRight,
            ) if self.of(by).0 >= 1 => Some(32),
            (BinaryOperator::Greater | BinaryOperator::NotEqual, BinaryOperator::Divide)
                if self.of(by).0 >= 2 =>
            {
                Some(32)
            }
            _ => None,
        }
    }

    /// An upper bound of `b - a`.
    fn difference(&self, b: Handle<Expression>, a: Handle<Expression>) -> i64 {
        // Counters of kernels start at 0 or above.
        let plain = self.of(b).1 - self.of(a).0.max(0);
        let related = match self.function.expressions[b] {
            _ if a == b => 0,
            Expression::Math { fun: MathFunction::Min, arg, arg1: Some(other), .. } => {
                self.difference(arg, a).min(self.difference(other, a))
            }
            Expression::Binary { op: BinaryOperator::Add, left, right } if left == a => self.of(right).1,
            Expression::Binary { op: BinaryOperator::Add, left, right } if right == a => self.of(left).1,
            _ => plain,
        };
        related.min(plain)
    }

    /// The range of an integer expression.
    fn of(&self, e: Handle<Expression>) -> Range {
        if let Some(known) = self.known.borrow().get(&e) {
            return known.unwrap_or(ANY);
        }
        self.known.borrow_mut().insert(e, None);
        let found = self.find(e);
        let found = (found.0.max(ANY.0), found.1.min(ANY.1));
        self.known.borrow_mut().insert(e, Some(found));
        found
    }

    fn find(&self, e: Handle<Expression>) -> Range {
        match self.function.expressions[e] {
            Expression::Literal(l) => literal(l),
            Expression::Constant(c) => match self.module.global_expressions[self.module.constants[c].init] {
                Expression::Literal(l) => literal(l),
                _ => ANY,
            },
            Expression::ZeroValue(_) => (0, 0),
            Expression::FunctionArgument(i) => self.argument(i),
            Expression::AccessIndex { base, .. } => match self.function.expressions[base] {
                Expression::FunctionArgument(i) => self.argument(i),
                _ => ANY,
            },
            Expression::Load { pointer } => match self.function.expressions[pointer] {
                Expression::LocalVariable(v) => self.variable(v),
                Expression::AccessIndex { base, index } => match self.function.expressions[base] {
                    Expression::GlobalVariable(g)
                        if self.module.global_variables[g].space == naga::AddressSpace::Uniform =>
                    {
                        self.dims.get(index as usize).copied().unwrap_or(ANY)
                    }
                    _ => ANY,
                },
                _ => ANY,
            },
            Expression::Binary { op, left, right } => binary(op, self.of(left), self.of(right)),
            Expression::Select { accept, reject, .. } => either(self.of(accept), self.of(reject)),
            Expression::Math { fun, arg, arg1, arg2, .. } => {
                let a = self.of(arg);
                let b = arg1.map_or(ANY, |b| self.of(b));
                match fun {
                    MathFunction::Min => (a.0.min(b.0), a.1.min(b.1)),
                    MathFunction::Max => (a.0.max(b.0), a.1.max(b.1)),
                    MathFunction::Clamp => {
                        let c = arg2.map_or(ANY, |c| self.of(c));
                        (a.0.max(b.0).min(c.0), a.1.max(b.1).min(c.1))
                    }
                    MathFunction::Abs => (0, a.0.abs().max(a.1.abs())),
                    _ => ANY,
                }
            }
            Expression::As { expr, .. } => self.of(expr),
            Expression::CallResult(_) => self.called(e).unwrap_or(ANY),
            _ => ANY,
        }
    }

    /// The range of a call's result. WGSL has no recursion.
    fn called(&self, result: Handle<Expression>) -> Option<Range> {
        self.left.set(self.left.get().checked_sub(1)?);
        let (function, arguments) = self.calls.get(&result)?;
        let callee = &self.module.functions[*function];
        let mut inner = Ranges::new(self.module, callee, None, self.dims);
        inner.left = Rc::clone(&self.left);
        inner.given = arguments.iter().map(|a| self.of(*a)).collect();
        let mut returned = vec![];
        each(&callee.body, &mut |s| {
            if let Statement::Return { value } = s {
                returned.extend(*value);
            }
        });
        returned.into_iter().map(|r| inner.of(r)).reduce(either)
    }

    fn variable(&self, v: Handle<LocalVariable>) -> Range {
        let mut out: Option<Range> = None;
        let (mut grows, mut shrinks) = (false, false);
        for s in &self.stores[&v] {
            if let Expression::Binary { op, left, right } = self.function.expressions[*s]
                && local(self.function, left) == Some(v)
            {
                match op {
                    BinaryOperator::Add if self.of(right).0 >= 0 => grows = true,
                    BinaryOperator::ShiftRight | BinaryOperator::Divide => shrinks = true,
                    _ => (grows, shrinks) = (true, true),
                }
                continue;
            }
            let r = self.of(*s);
            out = Some(out.map_or(r, |o| either(o, r)));
        }
        let (low, high) = out.unwrap_or((0, 0));
        (if shrinks { ANY.0.min(low) } else { low }, if grows { ANY.1 } else { high })
    }

    fn argument(&self, i: u32) -> Range {
        if let Some(given) = self.given.get(i as usize) {
            return *given;
        }
        let (Some(entry), Some(a)) = (self.entry, self.function.arguments.get(i as usize)) else {
            return ANY;
        };
        let threads = entry.workgroup_size.iter().fold(1i64, |n, s| n.saturating_mul(i64::from(*s)));
        match a.binding {
            Some(Binding::BuiltIn(b)) => match b {
                BuiltIn::WorkGroupId => (0, i64::from(u16::MAX)),
                BuiltIn::NumWorkGroups => (1, i64::from(u16::MAX)),
                BuiltIn::GlobalInvocationId => (0, ANY.1),
                BuiltIn::NumSubgroups | BuiltIn::SubgroupSize => (1, threads.max(128)),
                _ => (0, threads - 1),
            },
            _ => ANY,
        }
    }
}

fn literal(l: Literal) -> Range {
    match l {
        Literal::I32(v) => (v.into(), v.into()),
        Literal::U32(v) => (v.into(), v.into()),
        Literal::AbstractInt(v) => (v, v),
        _ => ANY,
    }
}

fn either(a: Range, b: Range) -> Range {
    (a.0.min(b.0), a.1.max(b.1))
}

fn binary(op: BinaryOperator, a: Range, b: Range) -> Range {
    let corners = |f: &dyn Fn(i64, i64) -> i64| {
        let all = [f(a.0, b.0), f(a.0, b.1), f(a.1, b.0), f(a.1, b.1)];
        all.into_iter().map(|v| (v, v)).reduce(either).unwrap_or(ANY)
    };
    match op {
        BinaryOperator::Add => (a.0 + b.0, a.1 + b.1),
        BinaryOperator::Subtract => (a.0 - b.1, a.1 - b.0),
        BinaryOperator::Multiply => corners(&|x, y| x.saturating_mul(y)),
        BinaryOperator::Divide if b.0 >= 1 => corners(&|x, y| x / y),
        BinaryOperator::Modulo if b.0 >= 1 => {
            (if a.0 < 0 { 1 - b.1 } else { 0 }, if a.0 >= 0 { a.1.min(b.1 - 1) } else { b.1 - 1 })
        }
        BinaryOperator::And if a.0 >= 0 || b.0 >= 0 => {
            (0, [a, b].iter().filter(|r| r.0 >= 0).map(|r| r.1).min().unwrap_or(ANY.1))
        }
        BinaryOperator::ShiftRight if a.0 >= 0 && (0..64).contains(&b.0) => {
            (a.0 >> b.1.clamp(0, 63), a.1 >> b.0)
        }
        BinaryOperator::ShiftLeft if a.0 >= 0 && b.0 >= 0 && b.1 < 32 => (a.0 << b.0, a.1 << b.1),
        _ => ANY,
    }
}

/// Whether a block begins with `break`.
fn breaks(block: &Block) -> bool {
    matches!(block.first(), Some(Statement::Break))
}

/// The values that a statement stores to a variable unconditionally.
fn unconditional_stores(f: &Function, s: &Statement, v: Handle<LocalVariable>) -> Vec<Handle<Expression>> {
    match s {
        Statement::Store { pointer, value } if pointee(f, *pointer) == Some(v) => vec![*value],
        Statement::Block(b) => b.iter().flat_map(|s| unconditional_stores(f, s, v)).collect(),
        _ => vec![],
    }
}

/// Collects the values that are stored to variables anywhere in a block.
fn collect(f: &Function, block: &Block, to: &mut HashMap<Handle<LocalVariable>, Vec<Handle<Expression>>>) {
    each(block, &mut |s| {
        if let Statement::Store { pointer, value } = s
            && let Some(v) = pointee(f, *pointer)
        {
            to.entry(v).or_default().push(*value);
        }
    });
}

/// Visits every statement of a block and of its nested blocks.
fn each<'b>(block: &'b Block, see: &mut impl FnMut(&'b Statement)) {
    for s in block.iter() {
        see(s);
        match s {
            Statement::Block(b) => each(b, see),
            Statement::If { accept, reject, .. } => {
                each(accept, see);
                each(reject, see);
            }
            Statement::Switch { cases, .. } => cases.iter().for_each(|c| each(&c.body, see)),
            Statement::Loop { body, continuing, .. } => {
                each(body, see);
                each(continuing, see);
            }
            _ => {}
        }
    }
}
