//! Bodies of Maps as text.

use super::parser::{Parsed, Parser};
use super::print::scalar;
use crate::scalar::{BinaryOp, ScalarFn, ScalarNode, UnaryOp};
use std::collections::HashMap;

fn operands(n: &ScalarNode) -> Vec<u32> {
    match n {
        ScalarNode::Arg(_) | ScalarNode::Const(_) | ScalarNode::Index(_) => vec![],
        ScalarNode::Unary(_, a) | ScalarNode::Cast(_, a) | ScalarNode::Bitcast(_, a) => vec![*a],
        ScalarNode::Binary(_, a, b) => vec![*a, *b],
        ScalarNode::Select(c, a, b) => vec![*c, *a, *b],
    }
}

/// Prints a body: nodes with several readers are named by `let`, all others are nested.
pub(super) fn print_body(body: &ScalarFn) -> String {
    let n = body.nodes.len();
    let mut readers = vec![0usize; n];
    if let Some(r) = readers.last_mut() {
        *r = 1;
    }
    for i in (0..n).rev() {
        if readers[i] > 0 {
            for o in operands(&body.nodes[i]) {
                if let Some(r) = readers.get_mut(o as usize) {
                    *r += 1;
                }
            }
        }
    }
    let mut text: Vec<String> = vec![];
    let mut lets = String::new();
    let mut shared = 0;
    for (i, node) in body.nodes.iter().enumerate() {
        let args: Vec<&str> =
            operands(node).iter().map(|o| text.get(*o as usize).map_or("?", String::as_str)).collect();
        let args = args.join(", ");
        let t = match node {
            ScalarNode::Arg(a) => format!("a{a}"),
            ScalarNode::Const(s) => scalar(*s),
            ScalarNode::Index(p) => format!("index({p})"),
            ScalarNode::Unary(op, _) => format!("{}({args})", op.name()),
            ScalarNode::Binary(op, ..) => format!("{}({args})", op.name()),
            ScalarNode::Select(..) => format!("select({args})"),
            ScalarNode::Cast(to, _) => format!("cast({to}, {args})"),
            ScalarNode::Bitcast(to, _) => format!("bitcast({to}, {args})"),
        };
        let leaf = matches!(node, ScalarNode::Arg(_) | ScalarNode::Const(_));
        if readers[i] > 1 && !leaf {
            lets.push_str(&format!("let t{shared} = {t}; "));
            text.push(format!("t{shared}"));
            shared += 1;
        } else {
            text.push(if readers[i] > 0 { t } else { String::new() });
        }
    }
    format!("{lets}{}", text.last().map_or("", String::as_str))
}

impl Parser<'_> {
    /// Parses `{ let t0 = expr; expr }`.
    pub(super) fn body(&mut self) -> Parsed<ScalarFn> {
        self.expect("{")?;
        let mut body = ScalarFn::default();
        let mut lets: HashMap<&str, u32> = HashMap::new();
        while self.eat_word("let") {
            let name = self.word("a name")?;
            self.expect("=")?;
            let value = self.expr(&mut body, &lets)?;
            self.expect(";")?;
            lets.insert(name, value);
        }
        let root = self.expr(&mut body, &lets)?;
        self.expect("}")?;
        if root as usize + 1 != body.nodes.len() {
            // The result must be the last node; if an equal node exists earlier, it is repeated.
            let again = body.nodes[root as usize].clone();
            body.nodes.push(again);
        }
        Ok(body)
    }

    fn expr(&mut self, body: &mut ScalarFn, lets: &HashMap<&str, u32>) -> Parsed<u32> {
        self.nested(|p| p.expr_inner(body, lets))
    }

    fn expr_inner(&mut self, body: &mut ScalarFn, lets: &HashMap<&str, u32>) -> Parsed<u32> {
        self.space();
        let start = self.at;
        let w = self.peek();
        if let Some(n) = lets.get(w) {
            self.at += w.len();
            return Ok(*n);
        }
        if let Some(i) = w.strip_prefix('a').and_then(|i| i.parse().ok()) {
            self.at += w.len();
            return Ok(body.push(ScalarNode::Arg(i)));
        }
        self.at += w.len();
        if w.is_empty() || !self.eat("(") {
            self.at = start;
            return Ok(body.push(ScalarNode::Const(self.scalar()?)));
        }
        if w == "index" {
            let p = self.poly(")")?;
            self.expect(")")?;
            return Ok(body.push(ScalarNode::Index(p)));
        }
        let mut to = None;
        if matches!(w, "cast" | "bitcast") {
            to = Some(self.dtype()?);
            self.expect(",")?;
        }
        let mut args = vec![self.expr(body, lets)?];
        while self.eat(",") {
            args.push(self.expr(body, lets)?);
        }
        self.expect(")")?;
        let node = match (w, to, args.as_slice()) {
            ("cast", Some(to), [a]) => Some(ScalarNode::Cast(to, *a)),
            ("bitcast", Some(to), [a]) => Some(ScalarNode::Bitcast(to, *a)),
            ("select", None, [c, a, b]) => Some(ScalarNode::Select(*c, *a, *b)),
            (w, None, [a]) => UnaryOp::from_name(w).map(|op| ScalarNode::Unary(op, *a)),
            (w, None, [a, b]) => BinaryOp::from_name(w).map(|op| ScalarNode::Binary(op, *a, *b)),
            _ => None,
        };
        let node = node.ok_or_else(|| {
            self.at = start;
            format!("no scalar operator `{w}` of {} operands", args.len())
        })?;
        Ok(body.push(node))
    }
}
