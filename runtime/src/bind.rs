//! Binding of a program's symbols to the shapes of the inputs, and evaluation of sizes and workgroup counts.

use crate::error::{BadInput, RunError};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use wgfc_program::memory::{self, MemoryPlan};
use wgfc_program::program::{Port, Proof};
use wgfc_program::{DType, DeviceLimits, Dim, Program, optional, suggest, symbols};

/// The sizes and the order of dispatches of a program for one binding of its symbols.
#[derive(Clone, Debug)]
pub struct Bound {
    /// The values of the symbols, in the order of [`Program::symbols`].
    pub values: Vec<i64>,
    /// The sizes of the buffers and their offsets in the arenas.
    pub memory: MemoryPlan,
    /// The workgroup counts of each dispatch, which is skipped if one of them is 0.
    pub workgroups: Vec<[u32; 3]>,
    /// Dispatches in the order of execution. Dispatches of counted loops are listed once per iteration, those of loops that run
    /// in rounds for one round.
    pub order: Vec<usize>,
    /// Ranges of `order` that run in rounds; inner loops come before the loops around them.
    pub rounds: Vec<Rounds>,
    /// The shapes of the outputs. If the run computes a size of an output, this is one axis with the largest possible number of
    /// elements.
    pub outputs: Vec<Vec<usize>>,
}

/// Dispatches that are repeated until a word on the device is 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rounds {
    /// The range in [`Bound::order`].
    pub range: Range<usize>,
    /// Index into [`Program::repeats`].
    pub repeat: usize,
}

/// A symbol in these sizes that the run computes; `None` if there is none.
pub fn computed<'p>(program: &'p Program, sizes: &[&Dim]) -> Option<&'p str> {
    if program.computed.is_empty() {
        return None;
    }
    let used: BTreeSet<_> = sizes.iter().flat_map(|d| d.symbols()).collect();
    program.computed.iter().map(|c| c.symbol.as_str()).find(|s| used.contains(*s))
}

/// The inclusive ranges of the symbols' values in a run. Computed symbols range from 0 to their bound, other ranges hold one
/// value.
pub fn ranges(program: &Program, values: &[i64]) -> Vec<(i64, i64)> {
    let most = |s: &String| {
        let c = program.computed.iter().find(|c| c.symbol == *s)?;
        Some((0, evaluate(program, values, &c.bound).unwrap_or(i64::from(i32::MAX))))
    };
    program.symbols.iter().zip(values).map(|(s, v)| most(s).unwrap_or((*v, *v))).collect()
}

/// The value of a size for these values of the program's symbols.
fn evaluate(program: &Program, values: &[i64], d: &Dim) -> Option<i64> {
    d.eval_syms(&|s| values.get(program.symbols.iter().position(|n| n == s)?).copied())
}

fn shape(program: &Program, values: &[i64], port: &Port) -> Result<Vec<usize>, RunError> {
    let size = |d| evaluate(program, values, d).and_then(|v| usize::try_from(v).ok());
    let shape: Option<Vec<usize>> = port.shape.iter().map(size).collect();
    shape.ok_or_else(|| {
        RunError::Plan(vec![format!(
            "output \"{}\": its shape {} has no value",
            port.name,
            show(&port.shape)
        )])
    })
}

fn number(v: Option<i64>) -> String {
    v.map_or_else(|| "no number".to_owned(), |v| v.to_string())
}

/// The shapes of all outputs after a run, where `values` includes computed symbols. Checks the bounds of computed symbols and the
/// constraints that use them.
pub fn settle(program: &Program, values: &[i64]) -> Result<Vec<Vec<usize>>, RunError> {
    for c in &program.computed {
        let (value, most) =
            (evaluate(program, values, &Dim::sym(&c.symbol)), evaluate(program, values, &c.bound));
        if value.is_none_or(|v| v < 0 || most.is_none_or(|m| v > m)) {
            let message = format!(
                "the run computes it to be {}, and it must be at least 0 and at most {}",
                number(value),
                number(most)
            );
            return Err(RunError::Inputs(vec![BadInput { name: c.symbol.clone(), message }]));
        }
    }
    constraints(program, values, true)?;
    program.outputs.iter().map(|p| shape(program, values, p)).collect()
}

/// Checks the assumptions of the proofs of kernels: extents are not negative and indices fit in 32 bits.
fn sizes(program: &Program, values: &[i64]) -> Result<(), RunError> {
    let negative = |d: &&Dim| evaluate(program, values, d).is_none_or(|v| v < 0);
    // A quotient by an extent of 0 has no value; it belongs to a tensor without elements, for which no kernel runs.
    let empty = values.contains(&0);
    let beyond = |d: &&Dim| evaluate(program, values, d).map_or(!empty, |v| v > Proof::MOST);
    let written = |d: &Dim| format!("`{d}` = {}", number(evaluate(program, values, d)));
    let (d, message) = if let Some(d) = program.proof.sizes().iter().find(negative) {
        (d, format!("a tensor that is computed would have {} elements along an axis", written(d)))
    } else if let Some(d) = program.proof.counted().iter().find(beyond) {
        (d, format!("a kernel would count to {}, and counts to {} in 32 bits", written(d), Proof::MOST))
    } else {
        return Ok(());
    };
    let symbols: Vec<String> = d.symbols().iter().map(|s| s.to_string()).collect();
    Err(RunError::Inputs(vec![BadInput { name: symbols.join(", "), message }]))
}

/// Checks the constraints that use computed symbols if `late`, otherwise those that do not.
fn constraints(program: &Program, values: &[i64], late: bool) -> Result<(), RunError> {
    for c in &program.constraints {
        if computed(program, &[&c.a, &c.b]).is_some() != late {
            continue;
        }
        let (a, b) = (evaluate(program, values, &c.a), evaluate(program, values, &c.b));
        if a.is_none() || a != b {
            let all = program.constraints.iter().map(|c| (&c.a, &c.b));
            let early: Vec<_> = all.filter(|(a, b)| computed(program, &[a, b]).is_none()).collect();
            let is_computed = |s: &String| program.computed.iter().any(|c| c.symbol == *s);
            let known: Vec<(&String, i64)> =
                program.symbols.iter().zip(values.iter().copied()).filter(|s| !is_computed(s.0)).collect();
            let inputs = || program.inputs.iter().map(|p| (p.name.as_str(), &p.shape[..]));
            let called = |s: &str| suggest::axis_of(inputs(), s);
            let help = suggest::suggest(&known, if late { &[] } else { &early }, &called);
            let (relation, left, right) = suggest::relation(&c.a, &c.b);
            return Err(RunError::Constraint {
                help,
                node: c.node.clone(),
                relation,
                a: left.to_string(),
                a_value: evaluate(program, values, left).unwrap_or(-1),
                b: right.to_string(),
                b_value: evaluate(program, values, right).unwrap_or(-1),
            });
        }
    }
    Ok(())
}

/// The name, type and shape of a given input.
pub struct Given<'a> {
    /// The input's name.
    pub name: &'a str,
    /// Element type.
    pub dtype: DType,
    /// Extents, outermost first.
    pub shape: &'a [usize],
}

/// The index in `given` of each input of the program; `None` for an [`optional`] input that is not given.
///
/// # Errors
/// [`RunError::Inputs`] with all inputs that are missing, unknown, given twice, or of the wrong type or rank.
pub fn match_inputs(program: &Program, given: &[Given<'_>]) -> Result<Vec<Option<usize>>, RunError> {
    let mut bad = Vec::new();
    let known = || program.inputs.iter().map(|p| format!("\"{}\"", p.name)).collect::<Vec<_>>().join(", ");
    for (i, g) in given.iter().enumerate() {
        let mut fail = |message| bad.push(BadInput { name: g.name.to_owned(), message });
        if given[..i].iter().any(|o| o.name == g.name) {
            fail("it is given twice".to_owned());
        }
        let Some(p) = program.inputs.iter().find(|p| p.name == g.name) else {
            fail(format!("the model has no such input; it has {}", known()));
            continue;
        };
        misfits(p, g.dtype, g.shape).into_iter().for_each(fail);
    }
    let mut order = Vec::new();
    for p in &program.inputs {
        match given.iter().position(|g| g.name == p.name) {
            None if p.broadcast.is_none() => bad.push(missing(p)),
            i => order.push(i),
        }
    }
    if bad.is_empty() { Ok(order) } else { Err(RunError::Inputs(bad)) }
}

/// Checks the types and ranks of inputs that are given in the program's order; `None` for an [`optional`] input that is left out.
///
/// # Errors
/// [`RunError::Inputs`] with all inputs that are missing or of the wrong type or rank, or with one for a wrong number of inputs.
pub fn check_inputs(program: &Program, given: &[Option<(DType, &[usize])>]) -> Result<(), RunError> {
    let ports = &program.inputs;
    if given.len() != ports.len() {
        let name = ports.get(given.len()).map(|p| p.name.clone()).unwrap_or_default();
        let message = format!("the program has {} inputs, and {} are given", ports.len(), given.len());
        return Err(RunError::Inputs(vec![BadInput { name, message }]));
    }
    let mut bad = Vec::new();
    for (p, given) in ports.iter().zip(given) {
        match given {
            Some((dtype, shape)) => bad.extend(
                misfits(p, *dtype, shape)
                    .into_iter()
                    .map(|message| BadInput { name: p.name.clone(), message }),
            ),
            None if p.broadcast.is_none() => bad.push(missing(p)),
            None => {}
        }
    }
    if bad.is_empty() { Ok(()) } else { Err(RunError::Inputs(bad)) }
}

/// The error of an input that is required and not given.
fn missing(p: &Port) -> BadInput {
    let message = format!("it is missing; it is {}{}", p.dtype, show(&p.shape));
    BadInput { name: p.name.clone(), message }
}

/// The differences of a given type and rank from those of an input.
fn misfits(p: &Port, dtype: DType, shape: &[usize]) -> Vec<String> {
    let mut bad = Vec::new();
    if p.dtype != dtype {
        bad.push(format!("it must be {}, not {dtype}", p.dtype));
    }
    match &p.broadcast {
        Some(full) if shape.len() > full.len() => {
            bad.push(format!("it is broadcast to {}; it must not have shape {shape:?}", show(full)));
        }
        None if p.shape.len() != shape.len() => {
            bad.push(format!("it must have shape {}, not {shape:?}", show(&p.shape)));
        }
        _ => {}
    }
    bad
}

/// The shapes with which kernels read the inputs, given in the program's order. Optional inputs get leading axes of extent 1; all
/// of their extents are 0 if they are not given or have no elements.
pub fn input_shapes(program: &Program, given: &[Option<&[usize]>]) -> Vec<Vec<usize>> {
    let shape = |(p, given): (&Port, &Option<&[usize]>)| match p.broadcast {
        Some(_) => optional::shape(*given, p.shape.len()).unwrap_or_default(),
        None => given.unwrap_or_default().to_vec(),
    };
    program.inputs.iter().zip(given).map(shape).collect()
}

/// Checks that optional inputs of these [shapes](input_shapes) can be broadcast.
pub fn check_broadcasts(program: &Program, shapes: &[Vec<usize>], values: &[i64]) -> Result<(), RunError> {
    let mut bad = Vec::new();
    for (p, shape) in program.inputs.iter().zip(shapes) {
        let Some(full) = &p.broadcast else { continue };
        let extents: Vec<i64> = full.iter().map(|d| evaluate(program, values, d).unwrap_or(0)).collect();
        if let Some(axis) = optional::misfit(shape, &extents) {
            let why = format!("axis {axis} has {} elements", shape[axis]);
            let message = format!("it is broadcast to {} = {extents:?}, and {why}", show(full));
            bad.push(BadInput { name: p.name.clone(), message });
        }
    }
    if bad.is_empty() { Ok(()) } else { Err(RunError::Inputs(bad)) }
}

fn show(shape: &[Dim]) -> String {
    let dims: Vec<String> = shape.iter().map(Dim::to_string).collect();
    format!("[{}]", dims.join(", "))
}

/// The value of each symbol, from the shapes in the order of the program's inputs and from `fixed`.
///
/// An extent that is a single symbol binds it. Extents that are linear in one unbound symbol are then solved for it, and all
/// other extents are checked. Constraints are not checked. Symbols that the run computes are 0.
pub fn bind_symbols(
    program: &Program,
    shapes: &[&[usize]],
    fixed: &BTreeMap<String, i64>,
) -> Result<Vec<i64>, RunError> {
    let mut env: BTreeMap<&str, (i64, String)> = BTreeMap::new();
    for s in &program.symbols {
        if let Some(v) = fixed.get(s) {
            let length = program.states.iter().any(|t| t.growth.as_ref().is_some_and(|g| g.length == *s));
            let capacity = program.states.iter().flat_map(|t| &t.shape).any(|d| *d == Dim::sym(s));
            let from = match (length, capacity) {
                (true, _) => "the length of the states",
                (_, true) => "the capacity of the states",
                _ => "set by the caller",
            };
            env.insert(s, (*v, from.to_owned()));
        }
    }
    let mut bad = Vec::new();
    // (input, axis, expression, extent)
    let mut open: Vec<(usize, usize, &Dim, i64)> = Vec::new();
    for (i, (port, shape)) in program.inputs.iter().zip(shapes).enumerate() {
        for (axis, (dim, extent)) in port.shape.iter().zip(*shape).enumerate() {
            match i64::try_from(*extent) {
                Ok(extent) => open.push((i, axis, dim, extent)),
                Err(_) => bad.push(BadInput {
                    name: port.name.clone(),
                    message: format!("axis {axis} has {extent} elements"),
                }),
            }
        }
    }
    let extents: Vec<(&Dim, i64)> = open.iter().map(|(_, _, dim, extent)| (*dim, *extent)).collect();
    for found in symbols::bind(&extents, &|s| env.get(s).map(|v| v.0)) {
        let (i, axis, ..) = open[found.extent];
        // Names that the plan does not list as symbols are ignored.
        if let Some(symbol) = program.symbols.iter().find(|s| ***s == *found.symbol) {
            env.insert(symbol, (found.value, format!("from axis {axis} of \"{}\"", program.inputs[i].name)));
        }
    }
    for (i, axis, dim, extent) in open {
        let got = dim.eval_syms(&|s| env.get(s).map(|v| v.0));
        if got == Some(extent) {
            continue;
        }
        let why: Vec<String> = dim
            .symbols()
            .iter()
            .map(|s| match env.get(&**s) {
                Some((v, from)) => format!("{s} = {v} {from}"),
                None => format!("{s} is not determined"),
            })
            .collect();
        let message = match (dim.as_const(), got) {
            (Some(want), _) => format!("axis {axis} must have {want} elements, not {extent}"),
            (_, Some(v)) => {
                format!("axis {axis} must have {dim} = {v} elements, not {extent} ({})", why.join(", "))
            }
            (_, None) => format!("axis {axis} has {extent} elements for `{dim}` ({})", why.join(", ")),
        };
        bad.push(BadInput { name: program.inputs[i].name.clone(), message });
    }
    let mut values = Vec::new();
    for s in &program.symbols {
        match env.get(s.as_str()) {
            _ if program.computed.iter().any(|c| c.symbol == *s) => values.push(0),
            Some((v, _)) if (0..=i64::from(i32::MAX)).contains(v) => values.push(*v),
            Some((v, from)) => bad.push(BadInput {
                name: s.clone(),
                message: format!("the dimension is {v} ({from}), outside 0..={}", i32::MAX),
            }),
            None if bad.is_empty() => bad.push(BadInput {
                name: s.clone(),
                message: "the shapes of the inputs do not determine this dimension; set its value".to_owned(),
            }),
            None => {}
        }
    }
    if bad.is_empty() { Ok(values) } else { Err(RunError::Inputs(bad)) }
}

/// Checks the constraints and sizes that are known before a run.
pub fn check_sizes(program: &Program, values: &[i64]) -> Result<(), RunError> {
    constraints(program, values, false)?;
    sizes(program, values)
}

/// Evaluates a checked program for these values of its symbols: constraints, sizes, offsets and workgroup counts, which must be
/// within the device's limits.
///
/// ```
/// # fn main() -> Result<(), wgfc_runtime::RunError> {
/// # let Some(gpu) = wgfc_runtime::testing::gpus().first() else { return Ok(()) };
/// # let program = wgfc_runtime::testing::doubling();
/// use wgfc_runtime::bind::{bind, bind_symbols};
/// // The shapes of the inputs give the symbols their values, and these give sizes and workgroup counts.
/// let values = bind_symbols(&program, &[&[1000]], &Default::default())?;
/// let bound = bind(&program, values, gpu.profile())?;
/// assert_eq!((bound.values, bound.outputs), (vec![1000], vec![vec![1000]]));
/// assert_eq!(bound.workgroups, [[16, 1, 1]]);
/// # Ok(()) }
/// ```
pub fn bind(program: &Program, values: Vec<i64>, limits: &DeviceLimits) -> Result<Bound, RunError> {
    let env: BTreeMap<&str, i64> =
        program.symbols.iter().map(String::as_str).zip(values.iter().copied()).collect();
    let value = |s: &str| env.get(s).copied();
    check_sizes(program, &values)?;
    let memory = memory::plan(program, &value).map_err(|e| RunError::Plan(vec![e]))?;
    for d in &program.dispatches {
        for b in &d.bindings {
            if memory.bytes[*b] > limits.binding_bytes {
                return Err(RunError::Limits {
                    what: format!("buffer {b} of {} (one binding, bytes)", origin(&d.nodes)),
                    need: memory.bytes[*b],
                    have: limits.binding_bytes,
                });
            }
        }
    }
    let mut workgroups = Vec::with_capacity(program.dispatches.len());
    for (i, d) in program.dispatches.iter().enumerate() {
        let mut counts = [0u32; 3];
        for (count, dim) in counts.iter_mut().zip(&d.workgroups) {
            let n = dim.eval_syms(&value).and_then(|n| u64::try_from(n).ok()).ok_or_else(|| {
                RunError::Plan(vec![format!("dispatch {i}: the workgroup count `{dim}` has no value")])
            })?;
            if n > u64::from(limits.workgroups) {
                return Err(RunError::Limits {
                    what: format!("dispatch {i} of {} (workgroups `{dim}`)", origin(&d.nodes)),
                    need: n,
                    have: u64::from(limits.workgroups),
                });
            }
            *count = n as u32;
        }
        workgroups.push(counts);
    }
    let Order { all: order, rounds } = order(program, &value)?;
    let mut outputs = Vec::new();
    for p in &program.outputs {
        let sizes: Vec<&Dim> = p.shape.iter().collect();
        let room = memory.elements[p.buffer];
        outputs.push(if computed(program, &sizes).is_some() {
            vec![room]
        } else {
            shape(program, &values, p)?
        });
    }
    Ok(Bound { values, memory, workgroups, order, rounds, outputs })
}

/// The largest number of dispatches of one run.
const DISPATCHES: usize = 1 << 22;

/// The order of the dispatches.
#[derive(Clone, Default)]
struct Order {
    all: Vec<usize>,
    rounds: Vec<Rounds>,
}

impl Order {
    /// Appends another order of dispatches.
    fn append(&mut self, other: &Order) {
        let at = self.all.len();
        self.all.extend(&other.all);
        let moved = |r: &Rounds| Rounds { range: r.range.start + at..r.range.end + at, repeat: r.repeat };
        self.rounds.extend(other.rounds.iter().map(moved));
    }
}

/// The dispatches of a run in order of execution, with loops expanded.
fn order(program: &Program, value: &dyn Fn(&str) -> Option<i64>) -> Result<Order, RunError> {
    let mut order = Order::default();
    append(program, 0..program.dispatches.len(), 0, value, &mut order)?;
    Ok(order)
}

/// Appends a range of dispatches with its loops expanded. `next` is the index of the first repeat that may lie in the range.
fn append(
    program: &Program,
    range: Range<usize>,
    mut next: usize,
    value: &dyn Fn(&str) -> Option<i64>,
    order: &mut Order,
) -> Result<(), RunError> {
    let mut at = range.start;
    while let Some(r) = program.repeats.get(next).filter(|r| r.first < range.end) {
        next += 1;
        let end = r.first.saturating_add(r.count);
        if r.first < at || end > range.end {
            continue;
        }
        order.all.extend(at..r.first);
        let mut once = Order::default();
        append(program, r.first..end, next, value, &mut once)?;
        let times = r.times.eval_syms(value).ok_or_else(|| {
            RunError::Plan(vec![format!("dispatches from {}: `{}` has no value", r.first, r.times)])
        })?;
        let times = usize::try_from(times).unwrap_or(0);
        let need = times.saturating_mul(once.all.len()).saturating_add(order.all.len());
        if need > DISPATCHES {
            return Err(RunError::Limits {
                what: format!("the loop of {} (dispatches)", origin(&program.dispatches[r.first].nodes)),
                need: need as u64,
                have: DISPATCHES as u64,
            });
        }
        let from = order.all.len();
        for _ in 0..times {
            order.append(&once);
        }
        if r.until.is_some() && times > 0 {
            order.rounds.push(Rounds { range: from..order.all.len(), repeat: next - 1 });
        }
        at = end;
    }
    order.all.extend(at..range.end);
    Ok(())
}

/// A description of the model's nodes for messages.
pub fn origin(nodes: &[String]) -> String {
    match nodes {
        [] => "no node".to_owned(),
        [n] => format!("node \"{n}\""),
        [n, rest @ ..] => format!("node \"{n}\" and {} others", rest.len()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wgfc_program::program::Stats;

    fn program(symbols: &[&str], inputs: &[&[&str]]) -> Program {
        Program {
            inputs: inputs
                .iter()
                .enumerate()
                .map(|(i, s)| Port {
                    name: format!("i{i}"),
                    dtype: DType::F32,
                    shape: s.iter().map(|d| Dim::parse(d).unwrap()).collect(),
                    buffer: i,
                    broadcast: None,
                })
                .collect(),
            outputs: vec![],
            states: vec![],
            symbols: symbols.iter().map(|s| (*s).to_owned()).collect(),
            computed: vec![],
            constraints: vec![],
            buffers: vec![],
            kernels: vec![],
            dispatches: vec![],
            repeats: vec![],
            stats: Stats::default(),
            weights: BTreeMap::new(),
            proof: Default::default(),
        }
    }

    fn values(p: &Program, shapes: &[&[usize]]) -> Result<Vec<i64>, String> {
        bind_symbols(p, shapes, &BTreeMap::new()).map_err(|e| e.to_string())
    }

    #[test]
    fn symbols_come_from_lone_and_from_linear_extents() {
        let p = program(&["past", "seq", "b"], &[&["b", "past + seq"], &["seq"], &["2*b + 1"]]);
        assert_eq!(values(&p, &[&[3, 12], &[5], &[7]]), Ok(vec![7, 5, 3]));
        let e = values(&p, &[&[3, 12], &[5], &[8]]).unwrap_err();
        assert!(e.contains("2*b + 1 = 7 elements, not 8 (b = 3 from axis 0 of \"i0\")"), "{e}");
        let e = values(&p, &[&[3, 2], &[5], &[7]]).unwrap_err();
        assert!(e.contains("past is not determined"), "{e}");
    }

    #[test]
    fn products_and_divisions_are_solved_only_where_that_is_sound() {
        let p = program(&["a", "b"], &[&["a*b", "a"]]);
        assert_eq!(values(&p, &[&[12, 3]]), Ok(vec![3, 4]));
        assert!(values(&p, &[&[13, 3]]).is_err());
        assert!(values(&program(&["a"], &[&["a*a"]]), &[&[4]]).is_err());
        assert!(values(&program(&["a"], &[&["a/2"]]), &[&[4]]).is_err());
    }

    /// The suggested values of the symbols under these constraints.
    fn suggested(symbols: &[&str], constraints: &[(&str, &str)], values: &[i64]) -> Option<String> {
        let constraint = |(a, b): &(&str, &str)| wgfc_program::program::DimConstraint {
            a: Dim::parse(a).unwrap(),
            b: Dim::parse(b).unwrap(),
            node: "n".to_owned(),
        };
        let program =
            Program { constraints: constraints.iter().map(constraint).collect(), ..program(symbols, &[]) };
        match super::constraints(&program, values, false) {
            Err(RunError::Constraint { help, .. }) => help,
            r => panic!("{r:?}"),
        }
    }

    #[test]
    fn violated_constraints_come_with_extents_that_fit() {
        // A feature pyramid: sizes are halved five times, then doubled and added to the level above.
        let levels: Vec<(String, String)> = ["h", "w"]
            .iter()
            .flat_map(|s| {
                (1..5).map(move |l| {
                    let (above, below) = (1 << l, 2 << l);
                    (format!("({s} + {})/{above}", above - 1), format!("2*(({s} + {})/{below})", below - 1))
                })
            })
            .collect();
        let levels: Vec<(&str, &str)> = levels.iter().map(|(a, b)| (a.as_str(), b.as_str())).collect();
        assert_eq!(
            suggested(&["h", "w"], &levels, &[600, 800]).unwrap(),
            "h may be any multiple of 32: 576 or 608 instead of 600"
        );
        assert_eq!(
            suggested(&["h", "w"], &levels, &[30, 7]).unwrap(),
            "h may be any multiple of 32: 32 instead of 30; w may be any multiple of 32: 32 instead of 7"
        );
        let agree = suggested(&["n", "m"], &[("n", "m + 1")], &[7, 4]).unwrap();
        assert_eq!(agree, "n may be 5 instead of 7; m may be 6 instead of 4");
        assert_eq!(suggested(&["n"], &[("n", "n + 1")], &[7]), None);
    }

    #[test]
    fn a_symbol_of_no_input_must_be_set() {
        let p = program(&["pos"], &[&["4"]]);
        assert!(values(&p, &[&[4]]).unwrap_err().contains("set its value"));
        let fixed = BTreeMap::from([("pos".to_owned(), 9)]);
        assert_eq!(bind_symbols(&p, &[&[4]], &fixed), Ok(vec![9]));
        assert!(values(&p, &[&[5]]).unwrap_err().contains("must have 4 elements, not 5"));
    }
}
