//! Dimensions of the model's inputs: constants, symbols, expressions of symbols, unknown dimensions.

use super::messages::{DimensionValue, GraphProto, TensorTypeProto, TypeValue};
use super::op::OpError;
use crate::Diagnostic;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use wgfc_ir::{Atom, Dim, Poly};

/// Translates each declared dimension to a [`Dim`].
pub struct DimNames {
    /// Symbols that the shapes of inputs determine.
    bound: BTreeSet<String>,
    /// The symbols for texts that are no expressions.
    renamed: HashMap<String, String>,
    fixed: BTreeMap<String, i64>,
    /// The symbols so far.
    seen: BTreeSet<String>,
}

impl DimNames {
    /// Scans all inputs. An expression like `past + seq` is kept if other dimensions determine all of its symbols except one, which
    /// occurs linearly with factor 1; otherwise the expression becomes a symbol of its own.
    pub fn new(graph: &GraphProto, fixed: &BTreeMap<String, i64>) -> DimNames {
        let texts: Vec<&str> = graph
            .input
            .iter()
            .filter(|v| !graph.initializer.iter().any(|t| t.name == v.name))
            .filter_map(|v| match v.r#type.as_ref()?.value.as_ref()? {
                TypeValue::Tensor(t) => t.shape.as_ref(),
                _ => None,
            })
            .flat_map(|s| &s.dim)
            .filter_map(|d| match &d.value {
                Some(DimensionValue::Param(p)) => Some(p.as_str()),
                _ => None,
            })
            .collect();
        let polys: Vec<Poly> = texts.iter().filter_map(|t| expression(t)).collect();
        let mut bound: BTreeSet<String> = fixed.keys().cloned().collect();
        loop {
            let before = bound.len();
            for p in &polys {
                let free: Vec<_> = p.symbols().into_iter().filter(|s| !bound.contains(&**s)).collect();
                if let [one] = free.as_slice()
                    && p.terms().iter().all(|(m, c)| {
                        let here = m.iter().any(|a| Poly::atom(a.clone()).symbols().contains(one));
                        !here || (m.len() == 1 && *c == 1 && matches!(&m[0], Atom::Sym(s) if s == one))
                    })
                {
                    bound.insert(one.to_string());
                }
            }
            if bound.len() == before {
                break;
            }
        }
        DimNames { bound, renamed: HashMap::new(), fixed: fixed.clone(), seen: BTreeSet::new() }
    }

    /// The shape of input `name`.
    pub fn shape(&mut self, name: &str, t: &TensorTypeProto) -> Result<Vec<Dim>, OpError> {
        let Some(shape) = &t.shape else {
            let help = "export the model with the number of its dimensions known";
            return Err(OpError::unsupported("its rank is not given", help));
        };
        let mut out = vec![];
        for (axis, d) in shape.dim.iter().enumerate() {
            let dim = match &d.value {
                Some(DimensionValue::Value(n)) if *n >= 0 => Poly::constant(*n),
                Some(DimensionValue::Value(-1)) | None => self.symbol(&format!("{name}_{axis}")),
                Some(DimensionValue::Value(n)) => {
                    return Err(OpError::model(format!("dimension {n} along axis {axis} is negative")));
                }
                Some(DimensionValue::Param(p)) => match expression(p) {
                    Some(e)
                        if e.as_const().is_some()
                            || e.symbols().iter().all(|s| self.bound.contains(&**s)) =>
                    {
                        e
                    }
                    _ if p.trim().is_empty() || p == "?" || p == "-1" => {
                        self.symbol(&format!("{name}_{axis}"))
                    }
                    _ => self.symbol(p),
                },
            };
            self.seen.extend(dim.symbols().iter().map(|s| s.to_string()));
            let fixed = &self.fixed;
            let dim = dim.subst(
                &|a| match a {
                    Atom::Sym(s) => fixed.get(&**s).map(|v| Poly::constant(*v)),
                    _ => None,
                },
                &[],
            );
            out.push(dim);
        }
        Ok(out)
    }

    /// A symbol for any text; different texts get different symbols.
    fn symbol(&mut self, text: &str) -> Poly {
        if let Some(name) = self.renamed.get(text) {
            return Poly::sym(name);
        }
        let mut name: String = text
            .chars()
            .take(64)
            .map(|c| if c.is_ascii_alphanumeric() || c == '_' { c } else { '_' })
            .collect();
        if !name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_') {
            name.insert(0, '_');
        }
        while self.renamed.values().any(|n| *n == name) || (name != text && self.bound.contains(&name)) {
            name.push('_');
        }
        self.renamed.insert(text.to_owned(), name.clone());
        Poly::sym(&name)
    }

    /// Errors for dimensions of the options that do not exist or have impossible values.
    pub fn unused(&self, fixed: &BTreeMap<String, i64>) -> Vec<Diagnostic> {
        let names = || self.seen.iter().cloned().collect::<Vec<_>>().join(", ");
        fixed
            .iter()
            .filter_map(|(name, v)| {
                if *v < 0 {
                    Some(
                        Diagnostic::model(format!("dimension {name} cannot be {v}"))
                            .help("give a size that is not negative"),
                    )
                } else if !self.seen.contains(name) {
                    let d =
                        Diagnostic::model(format!("the model's inputs have no symbolic dimension `{name}`"));
                    Some(if self.seen.is_empty() {
                        d.help("all of its dimensions are constants")
                    } else {
                        d.help(format!("it has: {}", names()))
                    })
                } else {
                    None
                }
            })
            .collect()
    }
}

/// The text as an expression of symbols; `None` if it is none, or is a negative constant.
fn expression(text: &str) -> Option<Poly> {
    let p = Poly::parse(text).ok()?;
    let only_symbols = p.vars().is_empty() && p.data().is_empty();
    (only_symbols && p.as_const().is_none_or(|c| c >= 0)).then_some(p)
}
