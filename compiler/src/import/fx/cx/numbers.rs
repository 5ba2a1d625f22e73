//! Arguments that are numbers, strings, and lists of these.

use super::{Cx, OpError, Result};
use crate::import::fx::guards::Guard;
use crate::import::fx::messages::{self, Argument, SymArgument, SymBool, SymFloat, SymInt};
use crate::import::fx::{expr, promote, symbols};
use crate::lower::{self, Lowering};
use wgfc_ir::{DType, Dim, Value};

/// The value of an argument that is a number.
#[derive(Clone, Debug, PartialEq)]
pub enum Number {
    /// A bool.
    Bool(bool),
    /// An integer, or an expression of sizes.
    Int(Dim),
    /// A float.
    Float(f64),
    /// A tensor of rank 0, which a run computes from sizes.
    Computed(Value),
}

/// A tensor, or a number in its place.
#[derive(Clone, Debug, PartialEq)]
pub enum Operand {
    /// A tensor.
    Tensor(Value),
    /// A number.
    Number(Number),
}

/// Arguments that are numbers, strings, and lists of these.
impl Cx<'_, '_, '_> {
    /// The expression of a symbolic integer of the graph.
    pub fn sym_int(&self, name: &str) -> Result<Dim> {
        match self.graph.sym_int_values.get(name) {
            Some(SymInt::Int(n)) => Ok((*n).into()),
            Some(SymInt::Expr(text)) => match self.importer.rounded.get(name) {
                Some(e) => self.importer.known_size(e.size(&|s| self.importer.symbol(s))?),
                None => self.importer.size(text),
            },
            None => Err(OpError::model(format!("nothing makes the integer `{name}`"))),
        }
    }
    fn sym(&self, s: &SymArgument) -> Result<Dim> {
        match s {
            SymArgument::Int(n) => Ok((*n).into()),
            SymArgument::Name(n) => self.sym_int(n),
        }
    }
    /// The tensor whose element a symbol stands for (by `item()`), if the symbol is no size.
    fn taken(&self, text: &str) -> Option<Value> {
        let Ok(expr::Expr::Symbol(symbol)) = expr::parse(text) else { return None };
        let (depth, v) = self.importer.taken.get(&symbol)?;
        (*depth == self.importer.depth).then_some(*v)
    }
    /// [`Cx::taken`] for an argument that is a symbolic integer.
    fn taken_int(&self, a: &Argument) -> Option<Value> {
        match a {
            Argument::SymInt(SymArgument::Name(n)) => match self.graph.sym_int_values.get(n)? {
                SymInt::Expr(text) => self.taken(text),
                SymInt::Int(_) => None,
            },
            _ => None,
        }
    }
    /// A position, which may be an element of a tensor, or `None`.
    pub fn opt_place(&self, name: &str) -> Result<Option<lower::Size>> {
        match self.taken_int(&*self.argument(name)?) {
            Some(v) => Ok(Some(lower::Size::Computed(v))),
            None => Ok(self.opt_size(name)?.map(lower::Size::Known)),
        }
    }
    /// Constrains the program by the condition in an argument. Sizes that a run computes are checked after the run.
    pub fn require(&mut self, name: &str) -> Result<()> {
        let of = match &*self.argument(name)? {
            Argument::SymBool(of) => of.clone(),
            Argument::Bool(true) => return Ok(()),
            Argument::Bool(false) => return Err(OpError::model("an assertion of the program is false")),
            a => return self.wrong(name, "a condition on sizes", a),
        };
        let text = match self.graph.sym_bool_values.get(&of) {
            Some(SymBool::Expr(text)) => text,
            Some(SymBool::Bool(true)) => return Ok(()),
            Some(SymBool::Bool(false)) => {
                return Err(OpError::model("an assertion of the program is false"));
            }
            None => return Err(OpError::model(format!("nothing makes the condition `{of}`"))),
        };
        let guards = Guard::all(&expr::parse(text)?, &|s| self.importer.symbol(s));
        let guards = guards.map_err(|e| {
            OpError::unsupported(
                format!("the condition `{text}` is not understood: {e}"),
                "remove the check from the module, or fix its dimensions when exporting",
            )
        })?;
        for g in guards {
            // Elements of tensors that are no sizes cannot be checked.
            let known = |d: &Dim| d.symbols().into_iter().all(|s| self.importer.decided.contains(&s));
            if known(&g.a) && known(&g.b) {
                symbols::require(self.lowering, &g);
            } else {
                let d = format!("the assertion `{text}` is about elements of tensors; runs do not check it");
                self.lowering.warn(d);
            }
        }
        Ok(())
    }
    /// The value of an argument that is a number; `None` for other arguments.
    pub(super) fn number_of(&mut self, a: &Argument) -> Result<Option<Number>> {
        if let Some(v) = self.taken_int(a) {
            return Ok(Some(Number::Computed(v)));
        }
        Ok(Some(match a {
            Argument::Bool(b) => Number::Bool(*b),
            Argument::Int(n) => Number::Int((*n).into()),
            Argument::Float(x) => Number::Float(*x),
            Argument::SymInt(s) => Number::Int(self.sym(s)?),
            Argument::SymFloat(name) => match self.graph.sym_float_values.get(name) {
                Some(SymFloat::Float(x)) => Number::Float(*x),
                Some(SymFloat::Expr(text)) => match self.taken(text) {
                    Some(v) => Number::Computed(v),
                    None => {
                        let e = match self.importer.rounded.get(name) {
                            Some(e) => e.clone(),
                            None => expr::parse(text)?,
                        };
                        self.real(&e)?
                    }
                },
                None => return Err(OpError::model(format!("nothing makes the number `{name}`"))),
            },
            Argument::SymBool(name) => match self.graph.sym_bool_values.get(name) {
                Some(SymBool::Bool(b)) => Number::Bool(*b),
                Some(SymBool::Expr(text)) => {
                    let e = expr::parse(text)?;
                    self.truth(&e)?
                }
                None => return Err(OpError::model(format!("nothing makes the condition `{name}`"))),
            },
            _ => return Ok(None),
        }))
    }
    /// A bool that a run computes from sizes.
    fn truth(&mut self, e: &expr::Expr) -> Result<Number> {
        let truth = e.truth(&|s| self.importer.symbol(s)).map_err(|e| {
            OpError::unsupported(
                format!("a truth value of sizes: {e}"),
                "give the dimensions it depends on with --dim, or compute it with tensors",
            )
        })?;
        if let Some(known) = truth.as_const() {
            return Ok(Number::Bool(known != 0));
        }
        let v = self.lowering.dim_scalar(&truth, DType::I64)?;
        Ok(Number::Computed(self.lowering.binary_scalar(wgfc_ir::BinaryOp::Ne, v, 0.0)?))
    }
    /// A float that a run computes from sizes.
    fn real(&mut self, e: &expr::Expr) -> Result<Number> {
        use wgfc_ir::{BinaryOp, UnaryOp};
        let (head, args) = match e {
            expr::Expr::Float(x) => return Ok(Number::Float(*x)),
            expr::Expr::Call(head, args) if !args.is_empty() => (head.as_str(), args),
            _ => return Ok(Number::Int(e.size(&|s| self.importer.symbol(s))?)),
        };
        let whole = ["ToInt", "Div", "Mod", "Abs", "sign", "Shift", "Where", "Indexing"];
        if !head.ends_with("TrueDiv")
            && (whole.iter().any(|w| head.ends_with(w)) || head.starts_with("Bitwise"))
        {
            return Ok(Number::Int(e.size(&|s| self.importer.symbol(s))?));
        }
        if head == "ToFloat" {
            let d = args[0].size(&|s| self.importer.symbol(s))?;
            return Ok(match d.as_const() {
                Some(n) => Number::Float(n as f64),
                None => Number::Computed(self.lowering.dim_scalar(&d, promote::DEFAULT)?),
            });
        }
        let mut values = vec![];
        for a in args {
            let n = self.real(a)?;
            values.push(self.number_in(&n, promote::DEFAULT)?);
        }
        let to = &mut *self.lowering;
        let fold = |to: &mut Lowering, op: BinaryOp| {
            values[1..].iter().try_fold(values[0], |a, b| to.binary(op, a, *b)).map_err(OpError::from)
        };
        let v = match head {
            "Add" => fold(to, BinaryOp::Add)?,
            "Mul" => fold(to, BinaryOp::Mul)?,
            "IntTrueDiv" | "FloatTrueDiv" => fold(to, BinaryOp::Div)?,
            "FloatPow" | "Pow" => fold(to, BinaryOp::Pow)?,
            "Min" => fold(to, BinaryOp::Min)?,
            "Max" => fold(to, BinaryOp::Max)?,
            "OpaqueUnaryFn_sqrt" => to.unary(UnaryOp::Sqrt, values[0])?,
            "OpaqueUnaryFn_exp" => to.unary(UnaryOp::Exp, values[0])?,
            "OpaqueUnaryFn_log" => to.unary(UnaryOp::Log, values[0])?,
            "OpaqueUnaryFn_cos" => to.unary(UnaryOp::Cos, values[0])?,
            "OpaqueUnaryFn_sin" => to.unary(UnaryOp::Sin, values[0])?,
            _ => {
                return Err(OpError::unsupported(
                    format!("`{head}` of sizes as a number"),
                    "give the dimensions it depends on with --dim, or compute the number with tensors",
                ));
            }
        };
        Ok(Number::Computed(v))
    }
    /// The value of an argument that must be a number.
    pub fn number(&mut self, name: &str) -> Result<Number> {
        match self.opt_number(name)? {
            Some(n) => Ok(n),
            None => Err(OpError::model("must be a number").at(format!("argument `{name}`"))),
        }
    }
    /// A number, or `None`.
    pub fn opt_number(&mut self, name: &str) -> Result<Option<Number>> {
        let a = self.argument(name)?;
        match self.number_of(&a)? {
            Some(n) => Ok(Some(n)),
            None if matches!(*a, Argument::None) => Ok(None),
            None => self.wrong(name, "a number", &a),
        }
    }
    /// A size: an integer or an expression of dimensions.
    pub fn size(&self, name: &str) -> Result<Dim> {
        self.opt_size(name)?.ok_or_else(|| OpError::model("is missing").at(format!("argument `{name}`")))
    }
    /// A size, or `None`.
    pub fn opt_size(&self, name: &str) -> Result<Option<Dim>> {
        match &*self.argument(name)? {
            Argument::None => Ok(None),
            Argument::Int(n) => Ok(Some((*n).into())),
            Argument::SymInt(s) => self.sym(s).map(Some),
            a => self.wrong(name, "an integer", a),
        }
    }
    /// A list of sizes.
    pub fn sizes(&self, name: &str) -> Result<Vec<Dim>> {
        Ok(self.opt_sizes(name)?.unwrap_or_default())
    }
    /// A list of sizes, or `None`.
    pub fn opt_sizes(&self, name: &str) -> Result<Option<Vec<Dim>>> {
        match &*self.argument(name)? {
            Argument::None => Ok(None),
            Argument::Ints(v) => Ok(Some(v.iter().map(|n| (*n).into()).collect())),
            Argument::SymInts(v) => v.iter().map(|s| self.sym(s)).collect::<Result<_>>().map(Some),
            _ => Ok(self.opt_size(name)?.map(|d| vec![d])),
        }
    }
    /// An integer that must be a constant.
    pub fn int(&self, name: &str) -> Result<i64> {
        self.opt_int(name)?.ok_or_else(|| OpError::model("is missing").at(format!("argument `{name}`")))
    }
    /// An integer that must be a constant, or `None`.
    pub fn opt_int(&self, name: &str) -> Result<Option<i64>> {
        match self.opt_size(name)? {
            None => Ok(None),
            Some(d) => d.as_const().map(Some).ok_or_else(|| {
                OpError::symbolic(format!("it is `{d}`, and must be a constant"))
                    .at(format!("argument `{name}`"))
            }),
        }
    }
    /// A list of integers that must be constants.
    pub fn ints(&self, name: &str) -> Result<Vec<i64>> {
        Ok(self.opt_ints(name)?.unwrap_or_default())
    }
    /// A list of integers that must be constants, or `None`.
    pub fn opt_ints(&self, name: &str) -> Result<Option<Vec<i64>>> {
        let Some(sizes) = self.opt_sizes(name)? else { return Ok(None) };
        let known = |d: &Dim| {
            d.as_const().ok_or_else(|| {
                OpError::symbolic(format!("`{d}` must be a constant")).at(format!("argument `{name}`"))
            })
        };
        sizes.iter().map(known).collect::<Result<_>>().map(Some)
    }
    /// `n` integers, such as strides or paddings; a single integer in the program is repeated.
    pub fn ints_of(&self, name: &str, n: usize) -> Result<Vec<i64>> {
        match self.ints(name)? {
            v if v.len() == n => Ok(v),
            v if v.len() == 1 => Ok(vec![v[0]; n]),
            v => Err(OpError::model(format!("must have {n} numbers, and has {}", v.len()))
                .at(format!("argument `{name}`"))),
        }
    }
    /// A number that must be a constant.
    pub fn float(&mut self, name: &str) -> Result<f64> {
        self.opt_float(name)?.ok_or_else(|| OpError::model("is missing").at(format!("argument `{name}`")))
    }
    /// A number that must be a constant, or `None`.
    pub fn opt_float(&mut self, name: &str) -> Result<Option<f64>> {
        match self.opt_number(name)? {
            None => Ok(None),
            Some(n) => n.known().map(Some).ok_or_else(|| {
                OpError::symbolic("it depends on sizes, and must be a constant")
                    .at(format!("argument `{name}`"))
            }),
        }
    }
    /// A list of numbers that must be constants, or `None`.
    pub fn opt_floats(&self, name: &str) -> Result<Option<Vec<f64>>> {
        match &*self.argument(name)? {
            Argument::None => Ok(None),
            Argument::Floats(v) => Ok(Some(v.clone())),
            Argument::Float(x) => Ok(Some(vec![*x])),
            _ => Ok(self.opt_ints(name)?.map(|v| v.into_iter().map(|n| n as f64).collect())),
        }
    }
    /// A bool.
    pub fn flag(&self, name: &str) -> Result<bool> {
        match &*self.argument(name)? {
            Argument::Bool(b) => Ok(*b),
            Argument::Int(n) => Ok(*n != 0),
            Argument::None => Ok(false),
            a => self.wrong(name, "a truth value", a),
        }
    }
    /// A list of bools.
    pub fn flags(&self, name: &str) -> Result<Vec<bool>> {
        match &*self.argument(name)? {
            Argument::Bools(b) => Ok(b.clone()),
            Argument::Ints(v) if v.is_empty() => Ok(vec![]),
            a => self.wrong(name, "a list of truth values", a),
        }
    }
    /// A string, or `None`.
    pub fn text(&self, name: &str) -> Result<Option<String>> {
        match &*self.argument(name)? {
            Argument::None => Ok(None),
            Argument::String(t) => Ok(Some(t.clone())),
            a => self.wrong(name, "a text", a),
        }
    }
    /// An element type, or `None`.
    pub fn element_type(&self, name: &str) -> Result<Option<DType>> {
        match &*self.argument(name)? {
            Argument::None => Ok(None),
            Argument::ScalarType(code) | Argument::Int(code) => {
                messages::dtype(*code).map(Some).map_err(|e| {
                    OpError::unsupported(
                        format!("elements of type {e}"),
                        "convert to f32, f16, bf16 or an integer type",
                    )
                    .at(format!("argument `{name}`"))
                })
            }
            a => self.wrong(name, "an element type", a),
        }
    }
    /// An axis of a tensor of `rank`. A tensor of rank 0 has the axis 0, as in torch.
    pub fn axis(&self, name: &str, rank: usize) -> Result<usize> {
        let at = |e: OpError| e.at(format!("argument `{name}`"));
        lower::axis(self.int(name)?, rank.max(1)).map_err(at)
    }
    /// Axes of a tensor of `rank`, sorted; all axes if the argument is absent or empty.
    pub fn axes(&self, name: &str, rank: usize) -> Result<Vec<usize>> {
        let at = |e: OpError| e.at(format!("argument `{name}`"));
        let mut axes = match self.opt_ints(name)? {
            Some(v) if !v.is_empty() => {
                let axes = v.iter().map(|a| lower::axis(*a, rank.max(1))).collect::<Result<Vec<_>>>();
                axes.map_err(at)?
            }
            _ => (0..rank).collect(),
        };
        axes.retain(|a| *a < rank);
        axes.sort_unstable();
        Ok(axes)
    }
}

impl Number {
    /// The element type of the number as a tensor, before type promotion.
    pub fn dtype(&self, to: &Lowering) -> DType {
        match self {
            Number::Bool(_) => DType::Bool,
            Number::Int(_) => DType::I64,
            Number::Float(_) => promote::DEFAULT,
            Number::Computed(v) => to.dtype(*v),
        }
    }
    /// The number, if it is a constant.
    pub fn known(&self) -> Option<f64> {
        match self {
            Number::Bool(b) => Some(f64::from(u8::from(*b))),
            Number::Int(d) => d.as_const().map(|n| n as f64),
            Number::Float(x) => Some(*x),
            Number::Computed(_) => None,
        }
    }
    /// Whether the number is the constant `v`.
    pub fn is(&self, v: f64) -> bool {
        self.known() == Some(v)
    }
}
