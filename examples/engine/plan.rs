//! `plan.json`, and the sizes in it.

use super::files::{Files, Recipes};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::error::Error;

/// The values of the plan's symbols.
pub type Symbols = BTreeMap<String, i64>;

#[derive(Deserialize)]
struct Version {
    version: u32,
}

/// The whole file. This example uses the first plan.
#[derive(Deserialize)]
struct Bundle {
    plans: Vec<Plan>,
    #[serde(default)]
    weights: Recipes,
}

#[derive(Deserialize)]
pub struct Plan {
    pub inputs: Vec<Port>,
    pub outputs: Vec<Port>,
    #[serde(default)]
    pub states: Vec<State>,
    /// The symbols in the order of the `Dims` uniform.
    pub symbols: Vec<String>,
    #[serde(default)]
    pub computed: Vec<serde_json::Value>,
    pub constraints: Vec<Constraint>,
    pub buffers: Vec<Buffer>,
    pub kernels: Vec<Kernel>,
    pub dispatches: Vec<Dispatch>,
    #[serde(default)]
    pub repeats: Vec<Repeat>,
}

#[derive(Deserialize)]
pub struct Port {
    pub name: String,
    pub shape: Vec<Size>,
    pub buffer: usize,
    /// Present if the input is optional. If it is omitted, its extents, which are symbols of its own, are 0.
    pub broadcast: Option<Vec<Size>>,
}

#[derive(Deserialize)]
pub struct State {
    pub name: String,
    /// The weight that holds the contents before the first run.
    #[serde(default)]
    pub initial: Option<String>,
}

#[derive(Deserialize)]
pub struct Constraint {
    pub a: Size,
    pub b: Size,
    pub node: String,
}

#[derive(Deserialize)]
pub struct Buffer {
    pub kind: Kind,
    pub dtype: String,
    pub elements: Size,
}

#[derive(Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Kind {
    Input { index: usize },
    Output {},
    Weight { name: String },
    Arena {},
    State { name: String },
}

#[derive(Deserialize)]
pub struct Kernel {
    pub name: String,
    /// The access `read` or `read_write` of each storage binding of group 0.
    pub bindings: Vec<String>,
    pub uses_dims: bool,
    /// The WGSL text, read from the kernel's file.
    #[serde(skip)]
    pub wgsl: String,
}

#[derive(Deserialize)]
pub struct Dispatch {
    pub kernel: usize,
    pub bindings: Vec<usize>,
    pub workgroups: [Size; 3],
}

#[derive(Deserialize)]
pub struct Repeat {
    pub first: usize,
    pub count: usize,
    pub times: Size,
    #[serde(default)]
    pub until: Option<serde_json::Value>,
}

/// A number, or an expression over the symbols.
#[derive(Deserialize)]
#[serde(untagged)]
pub enum Size {
    Number(i64),
    Expression(String),
}

impl Plan {
    /// Sets the symbols of omitted optional inputs to 0.
    pub fn leave_out(&self, symbols: &mut Symbols) {
        for extent in self.inputs.iter().filter(|p| p.broadcast.is_some()).flat_map(|p| &p.shape) {
            if let Size::Expression(symbol) = extent {
                symbols.insert(symbol.clone(), 0);
            }
        }
    }

    /// Reads a plan, its kernels, and the locations of its weights.
    pub fn read(files: &Files) -> Result<(Plan, Recipes), Box<dyn Error>> {
        let text = files.text("plan.json")?;
        let Version { version } = serde_json::from_str(&text)?;
        if version != 1 {
            return Err(format!("version {version} of the format is not known here").into());
        }
        let Bundle { plans, weights } = serde_json::from_str(&text)?;
        let mut plan = plans.into_iter().next().ok_or("there is no plan")?;
        if !plan.computed.is_empty() || plan.repeats.iter().any(|r| r.until.is_some()) {
            return Err("this example runs no plan whose sizes or repetitions are computed".into());
        }
        for k in &mut plan.kernels {
            k.wgsl = files.text(&format!("kernels/{}.wgsl", k.name))?;
        }
        Ok((plan, weights))
    }

    /// The number of bytes of a buffer's elements.
    pub fn bytes(&self, buffer: usize, symbols: &Symbols) -> Result<usize, Box<dyn Error>> {
        let b = &self.buffers[buffer];
        let elements = usize::try_from(b.elements.value(symbols)?)?;
        Ok((elements * bits(&b.dtype)?).div_ceil(8))
    }

    /// The order of dispatches in a run, with repeats expanded.
    pub fn order(&self, symbols: &Symbols) -> Result<Vec<usize>, Box<dyn Error>> {
        let mut order = vec![];
        self.record(0..self.dispatches.len(), 0, symbols, &mut order)?;
        Ok(order)
    }

    /// Records the dispatches of a range. An inner repeat comes after its outer one in the list; `next` is
    /// the first repeat that may begin.
    fn record(
        &self,
        range: std::ops::Range<usize>,
        mut next: usize,
        symbols: &Symbols,
        order: &mut Vec<usize>,
    ) -> Result<(), Box<dyn Error>> {
        let mut i = range.start;
        while i < range.end {
            while self.repeats.get(next).is_some_and(|r| r.first < i) {
                next += 1;
            }
            match self.repeats.get(next).filter(|r| r.first == i) {
                Some(r) => {
                    for _ in 0..r.times.value(symbols)? {
                        self.record(i..i + r.count, next + 1, symbols, order)?;
                    }
                    i += r.count;
                }
                None => {
                    order.push(i);
                    i += 1;
                }
            }
        }
        Ok(())
    }
}

/// The number of bits of an element.
fn bits(dtype: &str) -> Result<usize, Box<dyn Error>> {
    if dtype == "bool" {
        return Ok(8);
    }
    // The first number in the name: f8e4m3 has 8 bits, bf16 has 16.
    let digits = dtype.trim_start_matches(|c: char| !c.is_ascii_digit());
    let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
    Ok(digits[..end].parse().map_err(|_| format!("unknown element type {dtype}"))?)
}

impl Size {
    pub fn value(&self, symbols: &Symbols) -> Result<i64, Box<dyn Error>> {
        match self {
            Size::Number(n) => Ok(*n),
            Size::Expression(text) => {
                let mut e = Expression { rest: text, symbols };
                let value = e.sum()?;
                if e.rest.trim_start().is_empty() { Ok(value) } else { Err(e.unexpected()) }
            }
        }
    }
}

/// The remaining text of an expression during its evaluation.
struct Expression<'a> {
    rest: &'a str,
    symbols: &'a Symbols,
}

impl Expression<'_> {
    fn unexpected(&self) -> Box<dyn Error> {
        format!("unexpected `{}` in a size", self.rest).into()
    }
    fn eat(&mut self, token: char) -> bool {
        let rest = self.rest.trim_start();
        let found = rest.strip_prefix(token);
        self.rest = found.unwrap_or(rest);
        found.is_some()
    }
    fn expect(&mut self, token: char) -> Result<(), Box<dyn Error>> {
        if self.eat(token) { Ok(()) } else { Err(self.unexpected()) }
    }
    fn word(&mut self) -> String {
        let rest = self.rest.trim_start();
        let inside = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '.';
        let end = rest.find(|c| !inside(c)).unwrap_or(rest.len());
        self.rest = &rest[end..];
        rest[..end].to_owned()
    }

    fn sum(&mut self) -> Result<i64, Box<dyn Error>> {
        let mut value = if self.eat('-') { -self.product()? } else { self.product()? };
        loop {
            if self.eat('+') {
                value += self.product()?;
            } else if self.eat('-') {
                value -= self.product()?;
            } else {
                return Ok(value);
            }
        }
    }
    fn product(&mut self) -> Result<i64, Box<dyn Error>> {
        let mut value = self.factor()?;
        loop {
            if self.eat('*') {
                value *= self.factor()?;
            } else if self.eat('/') {
                value = value.checked_div_euclid(self.factor()?).ok_or("a size divides by 0")?;
            } else if self.eat('%') {
                value = value.checked_rem_euclid(self.factor()?).ok_or("a size divides by 0")?;
            } else {
                return Ok(value);
            }
        }
    }
    fn factor(&mut self) -> Result<i64, Box<dyn Error>> {
        if self.eat('(') {
            let value = self.sum()?;
            self.expect(')')?;
            return Ok(value);
        }
        let word = self.word();
        if word.starts_with(|c: char| c.is_ascii_digit()) {
            return Ok(word.parse()?);
        }
        if (word == "max" || word == "min") && self.eat('(') {
            let a = self.sum()?;
            self.expect(',')?;
            let b = self.sum()?;
            self.expect(')')?;
            return Ok(if word == "max" { a.max(b) } else { a.min(b) });
        }
        self.symbols.get(&word).copied().ok_or_else(|| format!("the symbol `{word}` has no value").into())
    }
}
