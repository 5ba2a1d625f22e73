//! The language of the e-graph: core operators as terms.
//!
//! Attributes (index maps, axes, contraction labels, element types) are leaves interned in a [`Table`], so that
//! patterns bind them like operands. A [`Map`](Op::Map) with one scalar operator is a term of that operator; its shape
//! is the one to which its operands broadcast:
//!
//! ```text
//! (mul ?a ?b)   (select ?c ?a ?b)   (cast ?type ?a)   (map ?body ?a ...)
//! (view ?map ?a)   (reduce.sum ?axes ?a)   (contract ?labels ?a ?b)
//! (join ?axis ?a ...)   (softmax ?axis ?a)   (norm.rms ?axes ?epsilon ?a)   (norm.layer ?axes ?epsilon ?a)
//! ```
//!
//! Any other operator with one result is opaque: rules only see its existence and its operands.

use super::number::{Exponents, Number};
use super::views::{ViewMap, broadcast};
use crate::cost::Expected;
use egg::{Analysis, DidMerge, EGraph, FromOp, FromOpError, Id, Language};
use indexmap::IndexSet;
use rustc_hash::FxBuildHasher;
use std::fmt;
use std::sync::Arc;
use wgfc_ir::{
    BinaryOp, Contract, DType, Dim, Node, NormKind, Op, ReduceOp, Scalar, ScalarFn, ScalarNode, TensorType,
    UnaryOp,
};

/// A term without its children.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Head {
    /// A value from outside the region, by its number in [`Table::leaves`].
    Leaf(u32),
    /// A rank-0 constant, an [`Attr::Number`].
    Lit(u32),
    /// An attribute, by its number in the [`Table`].
    Attr(u32),
    /// `(neg ?a)`.
    Unary(UnaryOp),
    /// `(add ?a ?b)`.
    Binary(BinaryOp),
    /// `(select ?c ?a ?b)`.
    Select,
    /// `(cast ?type ?a)`.
    Cast,
    /// `(map ?body ?a ...)`.
    Map,
    /// `(view ?map ?a)`.
    View,
    /// `(reduce.sum ?axes ?a)`.
    Reduce(ReduceOp),
    /// `(contract ?labels ?a ?b)`.
    Contract,
    /// `(join ?axis ?a ...)`: the concatenation of the operands along an axis.
    Join,
    /// `(softmax ?axis ?a)`.
    Softmax,
    /// `(norm.rms ?axes ?epsilon ?a)`.
    Norm(NormKind),
    /// Another operator, by its number in [`Table::opaque`].
    Opaque(u32),
}

/// A term: a head and its children.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Term {
    /// The operator, leaf or attribute.
    pub head: Head,
    /// The e-classes of the attributes, then of the operands.
    pub args: Vec<Id>,
}

impl Term {
    /// A term from its parts.
    pub fn new(head: Head, args: impl Into<Vec<Id>>) -> Term {
        Term { head, args: args.into() }
    }
}

impl Language for Term {
    type Discriminant = Head;
    fn discriminant(&self) -> Head {
        self.head
    }
    fn matches(&self, other: &Term) -> bool {
        self.head == other.head && self.args.len() == other.args.len()
    }
    fn children(&self) -> &[Id] {
        &self.args
    }
    fn children_mut(&mut self) -> &mut [Id] {
        &mut self.args
    }
}

impl fmt::Display for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.head {
            Head::Leaf(i) => write!(f, "leaf{i}"),
            Head::Lit(i) => write!(f, "lit{i}"),
            Head::Attr(i) => write!(f, "attr{i}"),
            Head::Opaque(i) => write!(f, "op{i}"),
            Head::Unary(op) => f.write_str(op.name()),
            Head::Binary(op) => f.write_str(op.name()),
            Head::Select => f.write_str("select"),
            Head::Cast => f.write_str("cast"),
            Head::Map => f.write_str("map"),
            Head::View => f.write_str("view"),
            Head::Reduce(op) => write!(f, "reduce.{}", op.name()),
            Head::Contract => f.write_str("contract"),
            Head::Join => f.write_str("join"),
            Head::Softmax => f.write_str("softmax"),
            Head::Norm(NormKind::Rms) => f.write_str("norm.rms"),
            Head::Norm(NormKind::Layer) => f.write_str("norm.layer"),
        }
    }
}

impl FromOp for Term {
    type Error = FromOpError;
    fn from_op(op: &str, args: Vec<Id>) -> Result<Term, FromOpError> {
        let reduce = |name: &str| ReduceOp::ALL.into_iter().find(|r| r.name() == name);
        let head = match op {
            "select" => Some(Head::Select),
            "cast" => Some(Head::Cast),
            "view" => Some(Head::View),
            "contract" => Some(Head::Contract),
            "join" => Some(Head::Join),
            "softmax" => Some(Head::Softmax),
            "norm.rms" => Some(Head::Norm(NormKind::Rms)),
            "norm.layer" => Some(Head::Norm(NormKind::Layer)),
            _ => match op.strip_prefix("reduce.") {
                Some(name) => reduce(name).map(Head::Reduce),
                None => UnaryOp::from_name(op)
                    .map(Head::Unary)
                    .or_else(|| BinaryOp::from_name(op).map(Head::Binary)),
            },
        };
        match head {
            Some(head) => Ok(Term { head, args }),
            None => Err(FromOpError::new(op, args)),
        }
    }
}

/// An attribute of an operator.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Attr {
    /// The value of a [`Head::Lit`].
    Number(Number),
    /// The target type of a cast.
    Type(DType),
    /// The body and shape of a map.
    Body(ScalarFn, Vec<Dim>),
    /// The attributes of a view.
    View(ViewMap),
    /// The axes of a reduction or normalisation, or the axis of a concatenation.
    Axes(Vec<usize>),
    /// The epsilon of a normalisation, as the bits of an `f32`.
    Epsilon(u32),
    /// The labels of a contraction.
    Labels(Contract),
    /// The axis of a softmax, and whether the result is its logarithm.
    Softmax(usize, bool),
}

/// The known facts about a value from outside the region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leaf {
    /// The element type and the shape.
    pub ty: TensorType,
    /// Whether it is a constant.
    pub konst: bool,
    /// The value of its element, if it is a constant with one element.
    pub scalar: Option<Scalar>,
    /// The magnitudes of its elements, if rules may compute with it.
    pub magnitudes: Option<Exponents>,
    /// Whether it is read by exactly one operand of one node.
    pub alone: bool,
}

/// Products that were [merged](super::products).
#[derive(Clone, Debug)]
pub struct Joined {
    /// The merged product.
    pub product: Id,
    /// Everything that was added for it except the slices: weights, the product, its bias.
    pub made: Vec<Id>,
    /// The merged products, and their sums with a bias.
    pub members: Vec<(Id, Option<Id>)>,
}

/// The facts that hold for all terms of an e-class.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// The type; `None` for attributes and for ill-typed terms.
    pub ty: Option<Arc<TensorType>>,
    /// The attribute, if the class is one.
    pub attr: Option<u32>,
    /// Whether it depends only on constants.
    pub konst: bool,
    /// The value of its elements, if all are the same known constant.
    pub value: Option<Number>,
    /// The magnitudes of its elements, if it is a constant with which rules may compute.
    pub magnitudes: Option<Exponents>,
    /// Whether it is a matrix product, possibly times a constant or moved by a view: a sum of rounded terms into which
    /// a factor can be folded.
    pub product: bool,
}

impl Facts {
    /// Whether its type can represent the constant, as far as is known.
    pub fn representable(&self) -> bool {
        let Some(ty) = self.ty.as_ref().filter(|_| self.konst) else { return true };
        match &self.value {
            Some(v) => v.rounded().is_some(),
            None => self.magnitudes.is_none_or(|m| m.fit(ty.dtype)),
        }
    }
}

/// The interned attributes, and the analysis of the e-graph.
#[derive(Default)]
pub struct Table {
    pub(super) attrs: IndexSet<Attr, FxBuildHasher>,
    /// The values that the region reads from outside.
    pub leaves: Vec<Leaf>,
    /// Operators that are opaque to the rules.
    pub opaque: Vec<Op>,
    /// Expected values of symbols.
    pub expect: Expected,
    /// The classes of nodes and leaves that are read by more than one operand of one node.
    pub shared: Vec<Id>,
    /// Products that were merged.
    pub joined: Vec<Joined>,
    /// Two unequal constants that the rules made equal, which means that a rule is wrong.
    pub contradiction: Option<(Number, Number)>,
}

/// The e-graph of a region.
pub type Terms = EGraph<Term, Table>;

impl Table {
    /// The number of an attribute.
    pub fn intern(&mut self, a: Attr) -> u32 {
        self.attrs.insert_full(a).0 as u32
    }
    /// The attribute with this number.
    pub fn attr(&self, i: u32) -> Option<&Attr> {
        self.attrs.get_index(i as usize)
    }
    /// The constant of a [`Head::Lit`].
    pub fn lit(&self, i: u32) -> Option<&Number> {
        match self.attr(i)? {
            Attr::Number(n) => Some(n),
            _ => None,
        }
    }
}

/// The e-class of an attribute, added if it is new.
pub fn attr(g: &mut Terms, a: Attr) -> Id {
    let i = g.analysis.intern(a);
    g.add(Term::new(Head::Attr(i), []))
}
/// Adds a rank-0 constant.
pub fn lit(g: &mut Terms, n: Number) -> Id {
    let i = g.analysis.intern(Attr::Number(n));
    g.add(Term::new(Head::Lit(i), []))
}

/// The attribute of an e-class, if it is one.
pub fn attr_of(g: &Terms, id: Id) -> Option<&Attr> {
    g.analysis.attr(g[id].data.attr?)
}

/// The operator and the operands of a term; `None` for leaves, attributes and ill-formed terms.
///
/// Rank-0 constants among the operands of a map become constants of its body.
pub fn decode<'a>(table: &'a Table, term: &Term, facts: &dyn Fn(Id) -> &'a Facts) -> Option<(Op, Vec<Id>)> {
    let a = |i: usize| table.attr(facts(*term.args.get(i)?).attr?);
    let rest = |n: usize| term.args.get(n..).map(<[Id]>::to_vec);
    Some(match term.head {
        Head::Leaf(_) | Head::Attr(_) => return None,
        Head::Lit(i) => (Op::Const(Arc::new(wgfc_ir::Tensor::scalar(table.lit(i)?.rounded()?))), vec![]),
        Head::Unary(_) | Head::Binary(_) | Head::Select | Head::Cast => {
            let operands = if term.head == Head::Cast { rest(1)? } else { rest(0)? };
            let mut body = ScalarFn::default();
            let (mut inputs, mut at, mut shapes) = (vec![], vec![], vec![]);
            for id in &operands {
                let f = facts(*id);
                let ty = f.ty.as_ref()?;
                at.push(match &f.value {
                    Some(n) if ty.rank() == 0 => body.push(ScalarNode::Const(n.rounded()?)),
                    _ => {
                        let i = inputs.iter().position(|x| x == id).unwrap_or_else(|| {
                            inputs.push(*id);
                            inputs.len() - 1
                        });
                        body.push(ScalarNode::Arg(i as u32))
                    }
                });
                shapes.push(ty.shape.as_slice());
            }
            let node = match (term.head, at.as_slice()) {
                (Head::Unary(op), [x]) => ScalarNode::Unary(op, *x),
                (Head::Binary(op), [x, y]) => ScalarNode::Binary(op, *x, *y),
                (Head::Select, [c, x, y]) => ScalarNode::Select(*c, *x, *y),
                (Head::Cast, [x]) => match a(0)? {
                    Attr::Type(t) => ScalarNode::Cast(*t, *x),
                    _ => return None,
                },
                _ => return None,
            };
            body.push(node);
            (Op::Map { body, shape: broadcast(shapes.into_iter())? }, inputs)
        }
        Head::Map => match a(0)? {
            Attr::Body(body, shape) => (Op::Map { body: body.clone(), shape: shape.clone() }, rest(1)?),
            _ => return None,
        },
        Head::View => match a(0)? {
            Attr::View(v) => (v.clone().op(), rest(1)?),
            _ => return None,
        },
        Head::Reduce(op) => match a(0)? {
            Attr::Axes(axes) => (Op::Reduce { op, axes: axes.clone() }, rest(1)?),
            _ => return None,
        },
        Head::Contract => match a(0)? {
            Attr::Labels(c) => (Op::Contract(c.clone()), rest(1)?),
            _ => return None,
        },
        Head::Join => match a(0)? {
            Attr::Axes(axes) => (Op::Concat { axis: *axes.first()? }, rest(1)?),
            _ => return None,
        },
        Head::Softmax => match a(0)? {
            Attr::Softmax(axis, log) => (Op::Softmax { axis: *axis, log: *log }, rest(1)?),
            _ => return None,
        },
        Head::Norm(kind) => match (a(0)?, a(1)?) {
            (Attr::Axes(axes), Attr::Epsilon(e)) => {
                (Op::Norm { kind, axes: axes.clone(), epsilon: *e }, rest(2)?)
            }
            _ => return None,
        },
        Head::Opaque(i) => (table.opaque.get(i as usize)?.clone(), rest(0)?),
    })
}

/// Whether a node can be a term: not an input or constant, with one result and without subgraphs.
pub fn is_term(node: &Node) -> bool {
    let outside =
        matches!(node.op, Op::Input | Op::Const(_) | Op::If { .. } | Op::While { .. } | Op::Scan { .. });
    !outside && node.outputs.len() == 1
}

/// The term of a node with one result that reads `inputs`.
pub fn encode(g: &mut Terms, op: &Op, inputs: &[Id]) -> Term {
    let (head, attrs): (Head, Vec<Attr>) = match op {
        Op::Map { body, shape } => {
            if let Some(term) = single(g, body, shape, inputs) {
                return term;
            }
            (Head::Map, vec![Attr::Body(body.clone(), shape.clone())])
        }
        Op::View { shape, index, fill } => {
            let map = ViewMap { shape: shape.clone(), index: index.clone(), fill: *fill };
            (Head::View, vec![Attr::View(map)])
        }
        Op::Reduce { op, axes } => (Head::Reduce(*op), vec![Attr::Axes(axes.clone())]),
        Op::Contract(c) => (Head::Contract, vec![Attr::Labels(c.clone())]),
        Op::Concat { axis } => (Head::Join, vec![Attr::Axes(vec![*axis])]),
        Op::Softmax { axis, log } => (Head::Softmax, vec![Attr::Softmax(*axis, *log)]),
        Op::Norm { kind, axes, epsilon } => {
            (Head::Norm(*kind), vec![Attr::Axes(axes.clone()), Attr::Epsilon(*epsilon)])
        }
        op => {
            g.analysis.opaque.push(op.clone());
            (Head::Opaque(g.analysis.opaque.len() as u32 - 1), vec![])
        }
    };
    let mut args: Vec<Id> = attrs.into_iter().map(|a| attr(g, a)).collect();
    args.extend(inputs);
    Term { head, args }
}

/// A map whose body is one scalar operator on operands and constants, as a term of that operator.
fn single(g: &mut Terms, body: &ScalarFn, shape: &[Dim], inputs: &[Id]) -> Option<Term> {
    let (last, leaves) = body.nodes.split_last()?;
    if !leaves.iter().all(|n| matches!(n, ScalarNode::Arg(_) | ScalarNode::Const(_))) {
        return None;
    }
    let (head, ops): (Head, Vec<u32>) = match last {
        ScalarNode::Unary(op, a) => (Head::Unary(*op), vec![*a]),
        ScalarNode::Binary(op, a, b) => (Head::Binary(*op), vec![*a, *b]),
        ScalarNode::Select(c, a, b) => (Head::Select, vec![*c, *a, *b]),
        ScalarNode::Cast(_, a) => (Head::Cast, vec![*a]),
        _ => return None,
    };
    let mut args = vec![];
    let mut shapes = vec![];
    for i in ops {
        let id = match leaves.get(i as usize)? {
            ScalarNode::Arg(a) => *inputs.get(*a as usize)?,
            ScalarNode::Const(s) => lit(g, (*s).into()),
            _ => return None,
        };
        shapes.push(g[id].data.ty.clone()?);
        args.push(id);
    }
    if broadcast(shapes.iter().map(|t| t.shape.as_slice()))? != shape {
        return None;
    }
    if let ScalarNode::Cast(t, _) = last {
        args.insert(0, attr(g, Attr::Type(*t)));
    }
    Some(Term { head, args })
}

impl Analysis<Term> for Table {
    type Data = Facts;

    fn make(g: &mut Terms, term: &Term, _id: Id) -> Facts {
        match term.head {
            Head::Attr(i) => return Facts { attr: Some(i), ..Facts::default() },
            Head::Leaf(i) => {
                let Some(l) = g.analysis.leaves.get(i as usize) else { return Facts::default() };
                return Facts {
                    ty: Some(Arc::new(l.ty.clone())),
                    konst: l.konst,
                    value: l.scalar.map(Number::from),
                    magnitudes: l.magnitudes,
                    ..Facts::default()
                };
            }
            Head::Lit(i) => {
                let Some(n) = g.analysis.lit(i).cloned() else { return Facts::default() };
                return Facts {
                    ty: Some(Arc::new(TensorType::new(n.dtype(), []))),
                    konst: true,
                    magnitudes: n.exponents(),
                    value: Some(n),
                    ..Facts::default()
                };
            }
            _ => {}
        }
        let Some((op, inputs)) = decode(&g.analysis, term, &|id| &g[id].data) else {
            return Facts::default();
        };
        let Some(types) = inputs.iter().map(|i| g[*i].data.ty.as_deref()).collect::<Option<Vec<_>>>() else {
            return Facts::default();
        };
        let Ok(outputs) = op.infer(&types) else { return Facts::default() };
        let operands: Vec<&Facts> =
            term.args.iter().map(|a| &g[*a].data).filter(|f| f.attr.is_none()).collect();
        let konst = operands.iter().all(|f| f.konst) && !matches!(term.head, Head::Map | Head::Opaque(_));
        let to = outputs.first().map(|t| t.dtype);
        Facts {
            value: to.and_then(|to| value(term.head, &op, to, &operands)),
            magnitudes: if konst { magnitudes(term.head, &op, &operands) } else { None },
            product: match (term.head, operands.as_slice()) {
                (Head::Contract, _) => true,
                (Head::View | Head::Unary(UnaryOp::Neg), [x]) => x.product,
                (Head::Binary(BinaryOp::Mul), [x, y]) => (x.product && y.konst) || (x.konst && y.product),
                _ => false,
            },
            ty: outputs.into_iter().next().map(Arc::new),
            attr: None,
            konst,
        }
    }

    fn merge(&mut self, a: &mut Facts, b: Facts) -> DidMerge {
        debug_assert!(a.ty.is_none() || b.ty.is_none() || a.ty == b.ty, "{:?} = {:?}", a.ty, b.ty);
        if let (Some(x), Some(y)) = (&a.value, &b.value)
            && x != y
            && self.contradiction.is_none()
        {
            self.contradiction = Some((x.clone(), y.clone()));
        }
        let konst = DidMerge(b.konst && !a.konst, a.konst && !b.konst);
        let product = DidMerge(b.product && !a.product, a.product && !b.product);
        a.konst |= b.konst;
        a.product |= b.product;
        konst
            | product
            | first(&mut a.ty, b.ty)
            | first(&mut a.value, b.value)
            | first(&mut a.magnitudes, b.magnitudes)
    }

    /// A rank-0 term with a known value becomes that constant.
    fn modify(g: &mut Terms, id: Id) {
        let f = &g[id].data;
        let rank0 = |n: &&Number| f.ty.as_ref().is_some_and(|t| t.rank() == 0 && t.dtype == n.dtype());
        if let Some(n) = f.value.as_ref().filter(rank0).cloned() {
            let c = lit(g, n);
            g.union(id, c);
            // The other terms are removed, because rules need not see how a constant was computed.
            g[id].nodes.retain(|t| matches!(t.head, Head::Lit(_)));
        }
    }
}

/// Merges a fact that is known of either of two equal terms.
fn first<T>(a: &mut Option<T>, b: Option<T>) -> DidMerge {
    let did = DidMerge(a.is_none() && b.is_some(), a.is_some() && b.is_none());
    if a.is_none() {
        *a = b;
    }
    did
}

/// The value of all elements of a term of type `to`, if those of its operands are known.
///
/// Floats are computed as rationals; results that are not rational are unknown. Integers and bools are computed like
/// the evaluator does, for terms of rank 0.
fn value(head: Head, op: &Op, to: DType, operands: &[&Facts]) -> Option<Number> {
    let values = operands.iter().map(|f| f.value.as_ref()).collect::<Option<Vec<_>>>()?;
    match (head, values.as_slice()) {
        (Head::View, [x]) => matches!(op, Op::View { fill: None, .. }).then(|| (*x).clone()),
        (Head::Unary(op), [x]) if to.is_float() => Number::unary(op, x),
        (Head::Binary(op), [x, y]) if to.is_float() => Number::binary(op, x, y),
        (Head::Cast, [x]) if x.dtype().is_float() => x.cast(to),
        _ if to.is_float() && head != Head::Cast => None,
        _ if !values.iter().all(|n| n.exact().is_some()) => None,
        _ => super::fold::scalar(op).map(Number::from),
    }
}

/// The magnitudes of the elements of a constant term, if those of its operands are known.
fn magnitudes(head: Head, op: &Op, operands: &[&Facts]) -> Option<Exponents> {
    let known = operands.iter().map(|f| f.magnitudes).collect::<Option<Vec<_>>>()?;
    match (head, known.as_slice()) {
        (Head::View, [x]) => match op {
            Op::View { fill, .. } => fill.is_none_or(|f| f.as_f64() == 0.0).then_some(*x),
            _ => None,
        },
        (Head::Cast, [x]) => operands.first()?.ty.as_ref()?.dtype.is_float().then_some(*x),
        (Head::Unary(UnaryOp::Neg | UnaryOp::Abs), [x]) => Some(*x),
        (Head::Unary(UnaryOp::Recip), [x]) => x.recip(),
        (Head::Unary(UnaryOp::Sqrt), [x]) => Some(x.sqrt()),
        (Head::Unary(UnaryOp::Rsqrt), [x]) => x.sqrt().recip(),
        (Head::Binary(BinaryOp::Mul), [x, y]) => Some(x.times(*y)),
        (Head::Binary(BinaryOp::Div), [x, y]) => Some(x.times(y.recip()?)),
        (Head::Binary(BinaryOp::Add | BinaryOp::Sub), [x, y]) => Some(x.plus(*y)),
        _ => None,
    }
}
