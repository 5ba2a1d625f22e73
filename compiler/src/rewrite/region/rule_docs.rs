//! `docs/rules.md`, generated from the rules and from the examples of their tests.

use super::rule_tests::{CASES, Expr, variants};
use super::*;
use crate::rewrite::{rules, views::ViewMap};
use wgfc_ir::ScalarNode;
use wgfc_ir::tensor::Tensor;

/// Rewrites that are not rules: the file, an example, and the reason.
const PASSES: &[(&str, &str, &str)] = &[
    (
        "`canonical.rs`, `fold.rs`, `empty.rs`",
        "two nodes `exp(x)` → one; `w · 2` of a constant → a constant; what has no elements → a fill",
        "Always right and never a choice. Before the rules they make an e-graph smaller, behind them they compute the constants that rules ask for.",
    ),
    (
        "`branches.rs`, `unroll.rs`",
        "`If` → both branches and a selection; a short loop → its steps",
        "A term has one result and no graphs inside.",
    ),
    (
        "`flattened.rs`",
        "`reshape(x, [b·s, k]) @ w` → `reshape(x @ w, [b·s, n])`",
        "A normal form, not a choice: a view costs as much on either side, and fusion alone sees what moving it is for.",
    ),
    (
        "`recognise/attention.rs`, `scores.rs`, `unseen.rs`",
        "`softmax(q·kᵀ·s + mask)·v` → attention",
        "One equality, but hundreds of patterns: factors, masks, guards, casts and views stand in any place. The matcher follows the flow of data.",
    ),
    (
        "`recognise/nan_guard.rs`",
        "`if is_nan(s) { 0 } else { s }` → `s`",
        "Whether a softmax can be NaN follows from where infinities come from, across the whole graph and beyond any region.",
    ),
    (
        "a rotary embedding, SwiGLU, the append to a KV cache",
        "`concat(x₁·cos − x₂·sin, x₂·cos + x₁·sin)` → the epilogue of the product that makes x",
        "No operator is raised: fusion follows points of the product's result through slices and concatenations (`fuse/points`), whatever they combine.",
    ),
    (
        "`grouped.rs`",
        "products with weights that are looked up → products of blocks of rows with one weight each",
        "Sorts rows by their weight, which takes operators that no term of the pattern has, and pays by numbers of rows that are expected.",
    ),
    (
        "`maps.rs`",
        "`exp(x + 1)` of two maps → one map",
        "Only for the CPU's evaluator, which goes through memory for each map: fusion composes them by itself.",
    ),
    (
        "`long_rows.rs`, `parts.rs`, `sorts.rs`, `long_sums.rs`, `winograd.rs`",
        "the sum of one long row → sums of parts, then their sum",
        "Equal, but chosen by the estimated time on one device, of which the cost of a term knows nothing: a model is rewritten by rules the same way for all.",
    ),
];

/// A rule in the text of `rules.rs`.
struct Source {
    name: String,
    equation: String,
    guard: String,
}

/// The comments and guards of the rules of one table.
fn sources(table: &str) -> Vec<Source> {
    let text = include_str!("../rules.rs");
    let start = text.find(&format!("pub fn {table}(")).unwrap();
    let body = &text[start..];
    let body = &body[..body.find("\n}\n").unwrap()];
    let mut out: Vec<Source> = vec![];
    let mut equation = String::new();
    let mut rest = body;
    while let Some(line) = rest.lines().next() {
        let trimmed = line.trim();
        if let Some(comment) = trimmed.strip_prefix("// ") {
            equation = comment.to_owned();
        }
        let (macro_call, plain) = (trimmed.starts_with("rewrite!("), trimmed.starts_with("Rewrite::new("));
        if !macro_call && !plain {
            rest = rest.get(line.len() + 1..).unwrap_or_default();
            continue;
        }
        let call = &rest[rest.find('(').unwrap()..];
        let call = &call[..=end(call)];
        rest = &rest[rest.find(call).unwrap() + call.len()..];
        let name = call.split('"').nth(1).unwrap().to_owned();
        // After `=>` come a pattern or code, then guards.
        let guard = if macro_call {
            let right = call.split_once("=>").unwrap().1.trim();
            let after = match right.strip_prefix('"') {
                Some(pattern) => pattern.split_once('"').unwrap().1,
                None => right.split_once('}').unwrap().1,
            };
            let after =
                after.trim().trim_end_matches(')').to_owned() + if after.contains('(') { ")" } else { "" };
            let guards: Vec<String> = after
                .split("if ")
                .map(|g| g.split_whitespace().collect::<Vec<_>>().join(" ").replace('"', ""))
                .filter(|g| g.contains('('))
                .collect();
            guards.iter().map(|g| format!("`{g}`")).collect::<Vec<_>>().join(", ")
        } else {
            "in `products.rs`".to_owned()
        };
        out.push(Source { name, equation: equation.clone(), guard });
    }
    out
}

/// The position of the parenthesis that closes the one with which `text` starts.
fn end(text: &str) -> usize {
    let (mut depth, mut quoted) = (0, false);
    for (i, c) in text.char_indices() {
        match c {
            '"' => quoted = !quoted,
            '(' if !quoted => depth += 1,
            ')' if !quoted => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return i;
        }
    }
    panic!("a rule without an end: {text}");
}

/// The names of the values of an example.
struct Names {
    values: BTreeMap<Value, String>,
    constants: Vec<(String, Tensor)>,
}

impl Names {
    /// The name of a constant that is the concatenation of two others.
    fn joined(&self, t: &Tensor) -> Option<String> {
        let pairs = self.constants.iter().flat_map(|a| self.constants.iter().map(move |b| (a, b)));
        pairs.flat_map(|p| (0..t.shape.len()).map(move |axis| (p, axis))).find_map(|((a, b), axis)| {
            let both = Tensor::joined(&[&a.1, &b.1], axis).ok()?;
            (both == *t).then(|| format!("(join {axis} {} {})", a.0, b.0))
        })
    }
}

/// A value in the notation of [`CASES`].
fn shown(graph: &Graph, v: Value, names: &Names) -> String {
    if let Some(name) = names.values.get(&v) {
        return name.clone();
    }
    let node = graph.node(v.node);
    let axes = |axes: &[usize]| axes.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
    // Labels created by a rule are printed as letters.
    let letter = |l: &u8| if *l < b'a' { (b'a' + l) as char } else { *l as char };
    let text = |labels: &[u8]| labels.iter().map(letter).collect::<String>();
    let head = match &node.op {
        Op::Const(t) => {
            if let [one] = t.scalars().unwrap()[..] {
                return one.as_f64().to_string();
            }
            return names.joined(t).expect("a constant without a name");
        }
        Op::Map { body, .. } => {
            let (last, leaves) = body.nodes.split_last().unwrap();
            let operand = |i: &u32| match &leaves[*i as usize] {
                ScalarNode::Arg(a) => shown(graph, node.inputs[*a as usize], names),
                ScalarNode::Const(c) => (c.as_f64() as f32).to_string(),
                other => panic!("{other:?}"),
            };
            let (head, operands) = match last {
                ScalarNode::Unary(op, a) => (op.name().to_owned(), vec![operand(a)]),
                ScalarNode::Binary(op, a, b) => (op.name().to_owned(), vec![operand(a), operand(b)]),
                ScalarNode::Cast(t, a) => (format!("cast {t}"), vec![operand(a)]),
                ScalarNode::Select(c, a, b) => {
                    ("select".to_owned(), vec![operand(c), operand(a), operand(b)])
                }
                other => panic!("{other:?}"),
            };
            return format!("({head} {})", operands.join(" "));
        }
        op @ Op::View { .. } => {
            let map = ViewMap::of(op).unwrap();
            let list =
                |p: &[Dim]| p.iter().map(Dim::to_string).collect::<Vec<_>>().join(",").replace(' ', "");
            let fill = map.fill.map(|f| format!("|{}", f.as_f64())).unwrap_or_default();
            format!("view [{}|{}{fill}]", list(&map.shape), list(&map.index))
        }
        Op::Contract(c) => format!("contract {},{}->{}", text(&c.a), text(&c.b), text(&c.out)),
        Op::Reduce { op, axes: over } => format!("reduce.{} {}", op.name(), axes(over)),
        Op::Softmax { axis, log } => format!("{}softmax {axis}", if *log { "log-" } else { "" }),
        Op::Norm { kind, axes: over, epsilon } => {
            let head = Term::new(Head::Norm(*kind), []);
            format!("{head} {} {}", axes(over), f32::from_bits(*epsilon))
        }
        Op::Concat { axis } => format!("join {axis}"),
        other => panic!("{other:?}"),
    };
    let operands: Vec<String> = node.inputs.iter().map(|x| shown(graph, *x, names)).collect();
    format!("({head} {})", operands.join(" "))
}

/// The expression that the rule makes of the example: the chosen one, or the shortest alternative if the example
/// itself is the cheapest.
fn after(rule: &Rule, text: &str) -> String {
    let (graph, values) = Expr::named(text);
    let constant = |(v, name): (&Value, &String)| match &graph.node(v.node).op {
        Op::Const(t) => Some((name.clone(), Tensor::clone(t))),
        _ => None,
    };
    let constants = values.iter().filter_map(constant).collect();
    let names = Names { values, constants };
    let before = shown(&graph, graph.outputs[0].value, &names);
    let rules = std::slice::from_ref(rule);
    let mut chosen = graph.clone();
    saturate(&mut chosen, rules, &Default::default()).unwrap();
    let cheapest = shown(&chosen, chosen.outputs[0].value, &names);
    if cheapest != before {
        return cheapest;
    }
    let all = variants(&graph, rules).1;
    let mut found: Vec<String> = all.iter().map(|g| shown(g, g.outputs[0].value, &names)).collect();
    found.retain(|t| *t != before);
    found.sort_by_key(|t| (t.len(), t.clone()));
    found.into_iter().next().unwrap_or_else(|| panic!("`{}` makes nothing else of {text}", rule.name))
}

fn markdown() -> String {
    let mut s = String::from(
        "# Rewrite rules\n\n\
         Generated from `compiler/src/rewrite/rules.rs` and the examples that `region/rule_tests.rs` evaluates; \
         `UPDATE_EXPECT=1 cargo test -p wgfc-compiler --lib rule_docs` rewrites it. \
         [adding-a-rule.md](adding-a-rule.md) says how to add one.\n\n\
         A rule says that two terms are equal; both stay in the e-graph until the cheapest are chosen. In the examples `x y h` are \
         inputs, `p` is positive, `w u c d n q m` are constants, `z` is a matrix that is none, and a view is `[shape|index]` or \
         `[shape|index|fill]`. Guards are functions of `rewrite/guards.rs`.\n",
    );
    let tables = [
        ("exact", "Exact", "Every bit of the result stays, but for the sign of a zero.", rules::exact()),
        (
            "share",
            "Products of one operand",
            "Every bit stays; a region for each value that several products read.",
            rules::share(1 << 20),
        ),
        (
            "approx",
            "Approximate",
            "The last bits may change; `Technique::Approximate` leaves them out, and the next ones.",
            rules::approx(),
        ),
        (
            "raise",
            "Raised operators",
            "Operators that have kernels of their own are recognised.",
            rules::raise(),
        ),
    ];
    for (table, title, says, rules) in tables {
        let _ = write!(
            s,
            "\n## {title}\n\n{says}\n\n| rule | equation | example | after | guard |\n|---|---|---|---|---|\n"
        );
        let sources = sources(table);
        let (names, built): (Vec<_>, Vec<_>) = (
            sources.iter().map(|s| s.name.clone()).collect(),
            rules.iter().map(|r| r.name.to_string()).collect(),
        );
        assert_eq!(names, built, "the rules as they are read from the source");
        for (source, rule) in sources.iter().zip(&rules) {
            let (_, fires, _) = CASES
                .iter()
                .find(|c| c.0 == source.name)
                .unwrap_or_else(|| panic!("`{}` has no example in `rule_tests.rs`", source.name));
            assert!(source.equation.contains('→'), "`{}` has no comment `before → after`", source.name);
            let cell = |t: &str| t.replace('|', "\\|");
            let (equation, after) = (cell(&source.equation), after(rule, fires));
            let _ = writeln!(
                s,
                "| `{}` | {equation} | `{}` | `{}` | {} |",
                source.name,
                cell(fires),
                cell(&after),
                source.guard
            );
        }
    }
    s.push_str("\n## Rewrites that are no rules\n\n[ARCHITECTURE.md](../ARCHITECTURE.md#rules-and-passes) has the measurements.\n\n| where | example | why it is no rule |\n|---|---|---|\n");
    for (place, example, why) in PASSES {
        let _ = writeln!(s, "| {place} | {example} | {why} |");
    }
    s
}

#[test]
fn rule_docs() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/rules.md");
    let want = markdown();
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        std::fs::write(&path, &want).unwrap();
    }
    let have = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(have == want, "docs/rules.md is stale; UPDATE_EXPECT=1 rewrites it");
}

/// Every pass of the pipeline is in the list.
#[test]
fn no_file_of_the_rewrites_is_left_out() {
    let rules =
        ["mod", "rules", "guards", "term", "number", "region", "extract", "views", "products", "quantised"];
    let named: String = PASSES.iter().map(|(place, ..)| *place).collect();
    for entry in
        std::fs::read_dir(std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/rewrite")).unwrap()
    {
        let path = entry.unwrap().path();
        let stem = path.file_stem().unwrap().to_str().unwrap().to_owned();
        let pass = path.extension().is_some_and(|e| e == "rs") && !rules.contains(&stem.as_str());
        assert!(
            !pass || named.contains(&format!("{stem}.rs")),
            "{stem}.rs is neither about rules nor in the list"
        );
    }
}
