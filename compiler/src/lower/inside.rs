//! Tensors of a model that a run returns, replaces or adds to ([`Options::taps`], [`Options::replaced`],
//! [`Options::added`]).
//!
//! A format's importer declares the name of each tensor of the model's own graph ([`Lowering::named`]) and from then
//! on uses the returned value for that tensor; outputs and subgraphs read it, too. Two names of one value, such as the
//! operand and the result of an `Identity`, are kept separate. At the end [`Lowering::finish_inside`] adds the taps
//! and reports the names that no tensor has.
//!
//! ```text
//! x' = where.NAME ? NAME.replace : x      NAME.replace, NAME.where: inputs that a run may leave out
//! x" = x' + NAME.add                      NAME.add: likewise
//! ```
//!
//! The inputs are [`optional`](wgfc_ir::optional): an input that is left out has no elements, and a view of it reads
//! `fill` everywhere, which leaves the tensor unchanged.

use super::{Lowering, OpError, Place, Result};
use crate::error::close_names;
use crate::{Diagnostic, Options};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use wgfc_ir::{BinaryOp, Border, DType, Dim, Op, Poly, Scalar, ScalarFn, ScalarNode, Value};

/// The name of the input whose value is added to a tensor.
pub fn add_input(tensor: &str) -> String {
    format!("{tensor}.add")
}
/// The name of the input that replaces a tensor.
pub fn replace_input(tensor: &str) -> String {
    format!("{tensor}.replace")
}
/// The name of the bool input that selects the elements of a tensor to replace; left out, all elements are replaced.
pub fn where_input(tensor: &str) -> String {
    format!("{tensor}.where")
}

/// The names of a model's tensors.
pub struct Names<'n> {
    /// The word for a named thing: `tensor`.
    pub kind: &'static str,
    /// All names in the model's own graph.
    pub names: Vec<&'n str>,
    /// Whether the named value could not be computed, which has already been reported.
    pub failed: &'n dyn Fn(&str) -> bool,
    /// Whether a tensor of a branch, a loop body or a function has this name.
    pub inner: &'n dyn Fn(&str) -> bool,
    /// A hint that says where a user finds the names.
    pub help: &'static str,
}

/// The requested tensors, and the values found for them.
#[derive(Clone, Debug, Default)]
pub(super) struct Inside {
    taps: Vec<Arc<str>>,
    wanted: BTreeMap<Arc<str>, Wanted>,
    errors: Vec<Diagnostic>,
}

#[derive(Clone, Debug, Default)]
struct Wanted {
    replace: bool,
    add: bool,
    /// The value with this name, once it is known.
    value: Option<Value>,
}

impl Wanted {
    /// The command-line flags with which a user requests it.
    fn flags(&self, name: &str) -> String {
        let flags = [(self.add, "--add"), (self.replace, "--replace"), (!self.add && !self.replace, "--tap")];
        let flags: Vec<String> = flags.iter().filter(|f| f.0).map(|f| format!("{} {name}", f.1)).collect();
        flags.join(" ")
    }
}

impl Lowering<'_> {
    /// Records which tensors are requested by the options.
    pub fn look_inside(&mut self, options: &Options) {
        let inside = &mut self.inside;
        for t in &options.taps {
            let name: Arc<str> = t.as_str().into();
            inside.wanted.entry(name.clone()).or_default();
            if !inside.taps.contains(&name) {
                inside.taps.push(name);
            }
        }
        for t in &options.replaced {
            inside.wanted.entry(t.as_str().into()).or_default().replace = true;
        }
        for t in &options.added {
            inside.wanted.entry(t.as_str().into()).or_default().add = true;
        }
    }

    /// Whether a tensor of this name is requested.
    pub fn is_wanted(&self, name: &str) -> bool {
        self.inside.wanted.contains_key(name)
    }

    /// Declares the name of a tensor of the model's own graph. Returns the value to read under that name.
    pub fn named(&mut self, name: &str, v: Value) -> Value {
        self.named_all(&[name], v)
    }

    /// [`Lowering::named`] for a tensor with several names.
    pub fn named_all(&mut self, names: &[&str], v: Value) -> Value {
        let mut value = v;
        for (i, name) in names.iter().enumerate() {
            if !names[..i].contains(name) {
                value = self.named_once(name, value);
            }
        }
        for name in names {
            if let Some(w) = self.inside.wanted.get_mut(*name) {
                w.value = Some(value);
            }
        }
        value
    }

    fn named_once(&mut self, name: &str, v: Value) -> Value {
        let Some((name, wanted)) = self.inside.wanted.get_key_value(name) else { return v };
        let (name, wanted) = (name.clone(), wanted.clone());
        let place = self.at(Place::default());
        let changed = self.changed(&name, &wanted, v);
        self.at(place);
        let changed = changed.unwrap_or_else(|e| {
            let d = Diagnostic::unsupported(format!("tensor \"{name}\", {}: {}", self.ty(v), e.message));
            self.inside.errors.push(Diagnostic { help: e.help, ..d });
            v
        });
        if changed != v {
            self.graph.node_mut(changed.node).names = vec![Some(name.clone())];
            let old = self.graph.node_mut(v.node).names.get_mut(v.port as usize);
            if let Some(old) = old.filter(|n| n.as_ref() == Some(&name)) {
                *old = None;
            }
        }
        changed
    }

    /// Declares a tensor that can be tapped but not changed.
    pub fn named_to_tap(&mut self, name: &str, v: Value) {
        if let Some(w) = self.inside.wanted.get_mut(name).filter(|w| !w.add && !w.replace) {
            w.value.get_or_insert(v);
        }
    }

    fn changed(&mut self, name: &str, wanted: &Wanted, v: Value) -> Result {
        let mut v = v;
        if wanted.replace {
            self.at(Place::new(&replace_input(name), name));
            v = self.replaced(name, v)?;
        }
        if wanted.add {
            self.at(Place::new(&add_input(name), name));
            let dtype = self.dtype(v);
            // Adding -0 leaves both zeros of floats unchanged; adding +0 would turn -0 into +0.
            let zeros = [-0.0, 0.0].map(|z| Scalar::from_f64(dtype, z));
            let zero = zeros.into_iter().find(|z| dtype != DType::Bool && z.as_f64() == 0.0);
            let zero = zero.ok_or_else(|| {
                let what = format!("nothing can be added to elements of type {dtype}");
                OpError::unsupported(what, format!("replace it instead: --replace {name}"))
            })?;
            let (d, _) = self.optional_input(&add_input(name), dtype, v, zero)?;
            v = self.binary(BinaryOp::Add, v, d)?;
        }
        Ok(v)
    }

    fn replaced(&mut self, name: &str, v: Value) -> Result {
        let dtype = self.dtype(v);
        let nothing = Scalar::from_i64(dtype, 0);
        let (new, extents) = self.optional_input(&replace_input(name), dtype, v, nothing)?;
        let (places, _) = self.optional_input(&where_input(name), DType::Bool, v, Scalar::bool(true))?;
        let mut f = ScalarFn::default();
        let [old, new_, mut cond] = [0, 1, 2].map(|i| f.push(ScalarNode::Arg(i)));
        let zero = f.push(ScalarNode::Const(Scalar::from_i64(DType::I32, 0)));
        for e in extents {
            let extent = f.push(ScalarNode::Index(e));
            let given = f.push(ScalarNode::Binary(BinaryOp::Lt, zero, extent));
            cond = f.push(ScalarNode::Binary(BinaryOp::And, cond, given));
        }
        f.push(ScalarNode::Select(cond, new_, old));
        Ok(self.map(f, &[v, new, places])?)
    }

    /// An optional input broadcast to `like`, with `fill` everywhere if it is left out, and its own extents. Along an
    /// axis whose extent is computed at run time, the input must have extent 1.
    fn optional_input(
        &mut self,
        name: &str,
        dtype: DType,
        like: Value,
        fill: Scalar,
    ) -> Result<(Value, Vec<Dim>)> {
        let shape = self.shape(like);
        let of_inputs = self.graph.inputs.iter().flat_map(|b| &self.graph.ty(b.value).shape);
        let known: BTreeSet<Arc<str>> = of_inputs.flat_map(Dim::symbols).collect();
        let mut full: Vec<Dim> =
            shape.iter().map(|d| if d.symbols().is_subset(&known) { d.clone() } else { Dim::ONE }).collect();
        if full.is_empty() {
            full.push(Dim::ONE);
        }
        let input = self.graph.add_optional_input(name, dtype, &full);
        let extents = self.shape(input);
        let place = |(i, (whole, own)): (usize, (&Dim, &Dim))| match whole.is(1) {
            true => Poly::ZERO,
            false => Poly::var(i).min_of(&(own - &Dim::ONE), &shape),
        };
        let index = full.iter().zip(&extents).enumerate().map(place).collect();
        let spread = self.push(Op::View { shape, index, fill: Some(fill) }, &[input])?;
        Ok((spread, extents))
    }

    /// Adds the taps to the outputs. Returns errors for the names that cannot be resolved.
    pub fn finish_inside(&mut self, all: &Names<'_>) -> Vec<Diagnostic> {
        let inside = std::mem::take(&mut self.inside);
        let mut errors = inside.errors;
        for t in inside.taps {
            let value = inside.wanted.get(&t).and_then(|w| w.value);
            if let Some(value) = value.filter(|_| !self.graph.outputs.iter().any(|o| o.name == t)) {
                self.graph.outputs.push(Border { name: t, value });
            }
        }
        for (name, w) in inside.wanted.iter().filter(|(n, w)| w.value.is_none() && !(all.failed)(n)) {
            let (flags, kind) = (w.flags(name), all.kind);
            if all.names.contains(&&**name) {
                let message = format!("{kind} \"{name}\" stays from run to run and is written ({flags})");
                let help = "it can be tapped; name what is written there, or what reads it";
                errors.push(Diagnostic::unsupported(message).help(help));
            } else if (all.inner)(name) {
                let message = format!(
                    "{kind} \"{name}\" is inside of a branch, the body of a loop, or a function ({flags})"
                );
                let help = "only tensors of the model's own graph can be looked into: name what goes in or comes out";
                errors.push(Diagnostic::unsupported(message).help(help));
            } else {
                let close = close_names(name, all.names.iter().copied());
                let d = Diagnostic::model(format!("the model has no {kind} \"{name}\" ({flags})"));
                errors.push(d.help(match close.is_empty() {
                    false => format!("close names: {}", close.join(", ")),
                    true => all.help.into(),
                }));
            }
        }
        self.check_input_names(&mut errors);
        self.graph.order_inputs();
        errors
    }

    /// Reports inputs of the model that have the same name as an added input.
    fn check_input_names(&self, errors: &mut Vec<Diagnostic>) {
        for name in self.graph.optional.keys() {
            if self.graph.inputs.iter().filter(|b| b.name == *name).count() > 1 {
                let d = Diagnostic::unsupported(format!("the model has an input \"{name}\" already"));
                errors.push(d.help("rename that input of the model"));
            }
        }
    }
}
