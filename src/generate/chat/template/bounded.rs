//! Operations that the engine does not bound, bounded.
//!
//! The engine counts steps, and each is paid for. A list that is added to itself, and a list whose elements are the same
//! list, cost one step and double what an operation on them visits; a namespace may contain itself, and then an operation on
//! it does not end. Therefore instructions that build values out of others are replaced by filters, which pay for everything
//! that is inside of a value, bound its depth, and keep namespaces out of it.

use super::failed;
use minijinja::machinery::{CodeGenerator, Instruction, Instructions, parse};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Enumerator, Object, Rest, Tuple, ValueKind, ValueOrKwargs};
use minijinja::{AutoEscape, Environment, Error, Output, State, Value};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// The deepest nesting of a value.
pub const DEPTH: usize = 200;
/// The local of a filter that the engine looks up each time.
const NO_LOCAL: u8 = !0;

/// The source of a template, with what its instructions are replaced by.
pub struct Program {
    text: String,
    syntax: SyntaxConfig,
    /// Assignments to attributes, as the variable, the attribute, and the name of their filter.
    sets: Vec<(String, String, String)>,
}

impl Program {
    /// Reads a template and adds the filters that it needs.
    pub fn new(text: String, syntax: SyntaxConfig, to: &mut Environment<'static>) -> Result<Program, Error> {
        let mut program = Program { text, syntax, sets: vec![] };
        let mut sets = vec![];
        let mut last: Option<&Instruction<'_>> = None;
        let (instructions, _) = program.compiled()?;
        for i in (0..).map_while(|i| instructions.get(i)) {
            match (last, i) {
                (Some(Instruction::Lookup(variable)), Instruction::SetAttr(attribute)) => {
                    sets.push((variable.to_string(), attribute.to_string()));
                }
                (_, Instruction::SetAttr(attribute)) => {
                    return Err(failed(format!(
                        "only an attribute of a variable can be set, not `{attribute}`"
                    )));
                }
                _ => {}
            }
            last = Some(i);
        }
        drop(instructions);
        sets.sort();
        sets.dedup();
        for (variable, attribute) in sets {
            let name = format!("set.{variable}.{attribute}");
            program.sets.push((variable.clone(), attribute.clone(), name.clone()));
            to.add_filter(name, move |state: &State, value: Value| {
                if is_namespace(&value) {
                    return Err(failed(INSIDE.into()));
                }
                let at = state.lookup(&variable).unwrap_or_default();
                let Some(namespace) = at.downcast_object_ref::<Namespace>() else {
                    return Err(failed(format!(
                        "`{variable}` is {}, and attributes are set in namespaces",
                        at.kind()
                    )));
                };
                // A part of a list refers to the list; in a loop each would refer to the one before it.
                let value = match is_list(&value) {
                    true => Value::from(listed(state, &value)?),
                    false => value,
                };
                namespace.set(&attribute, value);
                Ok(Value::from(()))
            });
        }
        for name in ["batch", "chain", "slice", "zip", "pprint"] {
            to.remove_filter(name);
        }
        to.remove_global("debug");
        to.add_filter("op.add", add);
        to.add_filter("op.multiply", multiply);
        to.add_filter("op.slice", slice);
        to.add_filter("op.list", |state: &State, items: Rest<Value>| {
            whole(state, Value::from(items.to_vec()))
        });
        to.add_filter("op.tuple", |state: &State, items: Rest<Value>| {
            whole(state, Value::from(Tuple::from(items.to_vec())))
        });
        to.add_filter("op.map", |state: &State, items: Rest<Value>| {
            let pairs = items.chunks_exact(2).map(|pair| (pair[0].clone(), pair[1].clone()));
            whole(state, Value::from_pairs(pairs))
        });
        to.add_filter("map", |state: &mut State, value: Value, how: Rest<ValueOrKwargs>| {
            let made = Value::from(minijinja::filters::map(state, value, how)?);
            whole(state, made)
        });
        to.add_function("dict", |state: &State, from: Rest<ValueOrKwargs>| {
            whole(state, Value::from_pairs(entries(from)?))
        });
        to.add_function("namespace", |state: &State, from: Rest<ValueOrKwargs>| {
            let namespace = Namespace::default();
            for (key, value) in entries(from)? {
                whole(state, value.clone())?;
                namespace.set(&key.to_string(), value);
            }
            Ok::<_, Error>(Value::from_object(namespace))
        });
        Ok(program)
    }

    fn compiled(&self) -> Result<(Instructions<'_>, BTreeMap<&str, Instructions<'_>>), Error> {
        let tree = parse(&self.text, super::NAME, self.syntax.clone())?;
        let mut made = CodeGenerator::new(super::NAME, &self.text);
        made.compile_stmt(&tree);
        Ok(made.finish())
    }

    /// The text that the template writes.
    pub fn run(&self, environment: &Environment<'static>, variables: Value) -> Result<String, Error> {
        let (mut instructions, blocks) = self.compiled()?;
        let count = |n: usize| u16::try_from(n).map_err(|_| failed("a list has too many elements".into()));
        for i in 0.. {
            let filter = |name, n| Instruction::ApplyFilter(name, n, NO_LOCAL);
            let new = match instructions.get(i) {
                None => break,
                Some(Instruction::Add) => filter("op.add", Some(2)),
                Some(Instruction::Mul) => filter("op.multiply", Some(2)),
                Some(Instruction::Slice) => filter("op.slice", Some(4)),
                Some(Instruction::BuildList(Some(0)) | Instruction::BuildTuple(Some(0))) => continue,
                Some(Instruction::BuildList(n)) => filter("op.list", n.map(count).transpose()?),
                Some(Instruction::BuildTuple(n)) => filter("op.tuple", n.map(count).transpose()?),
                Some(Instruction::BuildMap(n)) if *n > 0 => filter("op.map", Some(count(2 * n)?)),
                Some(Instruction::Lookup(variable)) => match instructions.get(i + 1) {
                    Some(Instruction::SetAttr(attribute)) => {
                        let set = self.sets.iter().find(|(v, a, _)| v == variable && a == attribute);
                        let (.., name) = set.ok_or_else(|| failed("an assignment is not known".into()))?;
                        filter(name.as_str(), Some(1))
                    }
                    _ => continue,
                },
                // The filter before it has done the work and left nothing of use.
                Some(Instruction::SetAttr(_)) => Instruction::DiscardTop,
                Some(_) => continue,
            };
            if let Some(place) = instructions.get_mut(i) {
                *place = new;
            }
        }
        let mut text = String::new();
        let mut out = minijinja::machinery::make_string_output(&mut text);
        evaluated(environment, &instructions, &blocks, variables, &mut out)?;
        Ok(text)
    }
}

fn evaluated<'e>(
    environment: &'e Environment<'e>,
    instructions: &Instructions<'e>,
    blocks: &BTreeMap<&'e str, Instructions<'e>>,
    variables: Value,
    out: &mut Output<'_>,
) -> Result<(), Error> {
    minijinja::machinery::eval(environment, instructions, variables, blocks, out, AutoEscape::None).map(drop)
}

/// A value of `namespace(…)`: variables that can be set in a loop.
#[derive(Debug, Default)]
struct Namespace(Mutex<Vec<(String, Value)>>);

const INSIDE: &str = "a namespace cannot be inside of another value";

impl Namespace {
    fn set(&self, key: &str, value: Value) {
        let mut pairs = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match pairs.iter_mut().find(|(k, _)| k == key) {
            Some(pair) => pair.1 = value,
            None => pairs.push((key.to_owned(), value)),
        }
    }
}

impl Object for Namespace {
    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        let pairs = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let found = pairs.iter().find(|(k, _)| Some(k.as_str()) == key.as_str());
        found.map(|(_, v)| v.clone())
    }
    fn enumerate(self: &Arc<Self>) -> Enumerator {
        let pairs = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Enumerator::Values(pairs.iter().map(|(k, _)| Value::from(k)).collect())
    }
}

fn is_namespace(value: &Value) -> bool {
    value.downcast_object_ref::<Namespace>().is_some()
}

/// The keys and values of arguments: of dictionaries, and those with names.
fn entries(from: Rest<ValueOrKwargs>) -> Result<Vec<(Value, Value)>, Error> {
    let mut pairs = vec![];
    for map in from.iter().cloned().map(Value::from) {
        for key in map.try_iter()? {
            let value = map.get_item(&key)?;
            pairs.push((key, value));
        }
    }
    Ok(pairs)
}

/// The value, if the steps that are left pay for everything inside of it.
fn whole(state: &State, value: Value) -> Result<Value, Error> {
    weigh(state, &value, 0)?;
    Ok(value)
}

fn weigh(state: &State, value: &Value, depth: usize) -> Result<(), Error> {
    if is_namespace(value) {
        return Err(failed(INSIDE.into()));
    }
    if !matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable | ValueKind::Map) {
        return Ok(());
    }
    if depth > DEPTH {
        return Err(failed(format!("a value is nested more than {DEPTH} times")));
    }
    for (i, one) in value.try_iter()?.enumerate() {
        if i % 4 == 0 {
            state.consume_fuel(1)?;
        }
        if value.kind() == ValueKind::Map {
            weigh(state, &value.get_item(&one)?, depth + 1)?;
        }
        weigh(state, &one, depth + 1)?;
    }
    Ok(())
}

fn is_list(value: &Value) -> bool {
    matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable) && !value.is_tuple()
}

/// The elements of a list, each of which is paid for.
fn listed(state: &State, value: &Value) -> Result<Vec<Value>, Error> {
    let mut all = vec![];
    elements(state, value, &mut all)?;
    Ok(all)
}

fn elements(state: &State, value: &Value, to: &mut Vec<Value>) -> Result<(), Error> {
    for (i, one) in value.try_iter()?.enumerate() {
        if i % 2 == 0 {
            state.consume_fuel(1)?;
        }
        to.push(one);
    }
    Ok(())
}

fn integer(value: &Value) -> Option<i128> {
    match value.kind() {
        ValueKind::Bool => Some(value.is_true().into()),
        ValueKind::Number if value.is_integer() => i128::try_from(value.clone()).ok(),
        _ => None,
    }
}

fn float(value: &Value) -> Option<f64> {
    match value.kind() {
        ValueKind::Bool => Some(value.is_true().into()),
        ValueKind::Number => f64::try_from(value.clone()).ok(),
        _ => None,
    }
}

fn number(n: i128) -> Value {
    i64::try_from(n).map_or_else(|_| Value::from(n), Value::from)
}

fn not_for(sign: char, a: &Value, b: &Value) -> Error {
    failed(format!("`{sign}` is not for {} and {}", a.kind(), b.kind()))
}

/// `a + b`.
fn add(state: &State, a: Value, b: Value) -> Result<Value, Error> {
    if let (Some(x), Some(y)) = (a.as_str(), b.as_str()) {
        state.consume_fuel((x.len() + y.len()) as u64 / 64)?;
        return Ok(Value::from([x, y].concat()));
    }
    if let (Some(x), Some(y)) = (integer(&a), integer(&b)) {
        return x.checked_add(y).map(number).ok_or_else(|| failed("a sum is too large".into()));
    }
    if let (Some(x), Some(y)) = (float(&a), float(&b)) {
        return Ok(Value::from(x + y));
    }
    if is_list(&a) && is_list(&b) || a.is_tuple() && b.is_tuple() {
        let mut all = vec![];
        elements(state, &a, &mut all)?;
        elements(state, &b, &mut all)?;
        return Ok(if a.is_tuple() { Value::from(Tuple::from(all)) } else { Value::from(all) });
    }
    Err(not_for('+', &a, &b))
}

/// `a * b`.
fn multiply(state: &State, a: Value, b: Value) -> Result<Value, Error> {
    if let (Some(x), Some(y)) = (integer(&a), integer(&b)) {
        return x.checked_mul(y).map(number).ok_or_else(|| failed("a product is too large".into()));
    }
    if let (Some(x), Some(y)) = (float(&a), float(&b)) {
        return Ok(Value::from(x * y));
    }
    let (repeated, times) = if integer(&b).is_some() { (&a, &b) } else { (&b, &a) };
    let times = integer(times).ok_or_else(|| not_for('*', &a, &b))?;
    let times = usize::try_from(times.max(0)).unwrap_or(usize::MAX);
    if let Some(text) = repeated.as_str() {
        state.consume_fuel((text.len() as u64).saturating_mul(times as u64) / 64)?;
        return Ok(Value::from(text.repeat(times)));
    }
    if !is_list(repeated) {
        return Err(not_for('*', &a, &b));
    }
    let once = listed(state, repeated)?;
    state.consume_fuel((once.len() as u64).saturating_mul(times as u64) / 2)?;
    let total = once.len().saturating_mul(times);
    whole(state, Value::from(once.into_iter().cycle().take(total).collect::<Vec<_>>()))
}

/// `value[start:stop:step]` of a list or a text.
fn slice(state: &State, value: Value, start: Value, stop: Value, step: Value) -> Result<Value, Error> {
    let place = |v: &Value| match v.is_none() {
        true => Ok(None),
        false => integer(v).map(Some).ok_or_else(|| failed(format!("{} is no place in a list", v.kind()))),
    };
    let (start, stop, step) = (place(&start)?, place(&stop)?, place(&step)?.unwrap_or(1));
    if let Some(text) = value.as_str() {
        let chars: Vec<char> = text.chars().collect();
        return Ok(Value::from(
            places(chars.len(), start, stop, step)?.map(|i| chars[i]).collect::<String>(),
        ));
    }
    if value.is_undefined() || value.is_none() {
        return Ok(Value::from(Vec::<Value>::new()));
    }
    if !is_list(&value) && !value.is_tuple() {
        return Err(failed(format!("{} has no parts", value.kind())));
    }
    let all = listed(state, &value)?;
    let part: Vec<Value> = places(all.len(), start, stop, step)?.map(|i| all[i].clone()).collect();
    Ok(if value.is_tuple() { Value::from(Tuple::from(part)) } else { Value::from(part) })
}

/// The places that a slice of `length` elements takes, as Python defines them.
fn places(
    length: usize,
    start: Option<i128>,
    stop: Option<i128>,
    step: i128,
) -> Result<impl Iterator<Item = usize>, Error> {
    if step == 0 {
        return Err(failed("the step of a slice is 0".into()));
    }
    let n = length as i128;
    let (low, high) = if step > 0 { (0, n) } else { (-1, n - 1) };
    let inside = |at: i128| if at < 0 { at.saturating_add(n).max(low) } else { at.min(high) };
    let start = start.map_or(if step > 0 { low } else { high }, inside);
    let stop = stop.map_or(if step > 0 { high } else { low }, inside);
    let next = move |at: &i128| at.checked_add(step);
    let all = std::iter::successors(Some(start), next);
    let all = all.take_while(move |at| if step > 0 { *at < stop } else { *at > stop });
    Ok(all.filter_map(|at| usize::try_from(at).ok()))
}
