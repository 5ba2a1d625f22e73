//! The cases of a run, and their order.

use super::algebra;
use super::around::surrounded;
use super::draw::Case;
use super::operators::{self, family};
use super::setting::Setting;
use super::special;
use super::subject::{Rule, Source, Subject};
use wgfc_ir::testing::{Config, Rng, random_chain, random_graph, random_loop};

/// The name of cases that are random graphs.
pub(crate) const GRAPH: &str = "graph";
/// The name of cases that are random loops.
pub(crate) const LOOP: &str = "loop";
/// The name of cases that are random chains.
pub(crate) const CHAIN: &str = "chain";

/// The prefix of the names of operators that are placed among others.
const FUSED: &str = "fused ";

/// The numbers of graphs, of loops and of chains for each case of every operator.
const GRAPHS: usize = 40;
const LOOPS: usize = 20;
const CHAINS: usize = 40;

/// The identity of a case: its name and its seed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct CaseId {
    pub name: String,
    pub seed: u64,
}

impl std::fmt::Display for CaseId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.name, self.seed)
    }
}

impl CaseId {
    /// Parses the text that [`CaseId`] prints; `None` if there is no such case.
    pub fn parse(text: &str) -> Option<CaseId> {
        let (name, seed) = text.trim().rsplit_once(' ')?;
        let id = CaseId { name: name.trim().to_owned(), seed: seed.parse().ok()? };
        names().any(|n| n == id.name).then_some(id)
    }

    /// The family under which it is counted.
    pub fn family(&self) -> &'static str {
        match self.name.as_str() {
            GRAPH => "random graphs",
            LOOP => "random loops",
            CHAIN => "random chains",
            name if name.starts_with(FUSED) => "operators among others",
            name if special::is(name) => "special functions",
            name if algebra::is(name) => "linear algebra",
            name => family(name),
        }
    }

    /// The setting with which it is compiled.
    pub fn setting(&self) -> Setting {
        Setting::draw(&self.name, self.seed)
    }

    /// The case and, if it has symbolic extents, the same case with numbers in their place.
    pub fn subjects(&self) -> Option<(Subject, Option<Subject>)> {
        let bounded = self.name == CHAIN;
        let (graph, inputs) = match self.name.as_str() {
            CHAIN => random_chain(self.seed),
            GRAPH => random_graph(self.seed, &size(self.seed)),
            LOOP => random_loop(self.seed, &loop_size(self.seed)).ok()?,
            name if algebra::is(name) => return Some((algebra::drawn(name, self.seed)?, None)),
            name if special::is(name) => return Some((special::drawn(name, self.seed)?, None)),
            name => {
                let moved = operators::all_bits(name, self.seed);
                let subject = |c: Case| Subject {
                    rule: Rule { loose: c.loose, moved, tiny: name.ends_with(":long"), ..Rule::default() },
                    inputs: c.inputs.into_iter().collect(),
                    source: Source::Model(Box::new(c.model)),
                };
                let drawn = |symbols| match name.strip_prefix(FUSED) {
                    Some(operator) => {
                        let case = operators::ordinary(operator, self.seed, symbols)?;
                        Some(surrounded(case, operator, self.seed))
                    }
                    None => operators::drawn(name, self.seed, symbols),
                };
                let case = drawn(true)?;
                let plain = case.named.then(|| drawn(false)).flatten();
                return Some((subject(case), plain.map(subject)));
            }
        };
        let rule = Rule { bounded, ..Rule::default() };
        Some((Subject { source: Source::Graph(Box::new(graph)), inputs, rule }, None))
    }

    /// Random graphs and loops with fewer operators than this case, the smallest first; none for other cases.
    pub fn shorter(&self) -> Vec<Subject> {
        let all = 1..size(self.seed).operators;
        let made = |operators: usize| {
            let (graph, inputs) = match self.name.as_str() {
                GRAPH => random_graph(self.seed, &Config { operators, ..size(self.seed) }),
                LOOP => random_loop(self.seed, &Config { operators, ..loop_size(self.seed) }).ok()?,
                _ => return None,
            };
            Some(Subject { source: Source::Graph(Box::new(graph)), inputs, rule: Rule::default() })
        };
        all.filter_map(made).collect()
    }
}

fn size(seed: u64) -> Config {
    Config { operators: 2 + (seed % 19) as usize, ..Config::default() }
}

fn loop_size(seed: u64) -> Config {
    Config { max_elements: 1 << (3 + seed % 8), ..size(seed) }
}

/// The names of cases, without their seeds.
fn names() -> impl Iterator<Item = String> {
    let alone =
        operators::operators().chain(operators::hard()).chain([GRAPH, LOOP, CHAIN]).map(str::to_owned);
    alone
        .chain(operators::operators().map(|n| format!("{FUSED}{n}")))
        .chain(special::names())
        .chain(algebra::names())
}

/// The endless sequence of cases for a seed. Each round contains all names, in its own order.
pub(crate) struct Sequence {
    /// The name of each entry of a round, the number of entries with this name, and the index of this one among them.
    entries: Vec<(String, u64, u64)>,
    seed: u64,
}

impl Sequence {
    /// The sequence of the names that contain `only`.
    pub fn new(seed: u64, only: Option<&str>) -> Sequence {
        let mut entries = vec![];
        for name in names().filter(|n| only.is_none_or(|o| n.contains(o))) {
            let times = match name.as_str() {
                GRAPH => GRAPHS,
                LOOP => LOOPS,
                CHAIN => CHAINS,
                _ => 1,
            } as u64;
            entries.extend((0..times).map(|i| (name.clone(), times, i)));
        }
        Sequence { entries, seed }
    }

    /// Whether no name contains `only`.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The `i`-th case.
    pub fn case(&self, i: u64) -> CaseId {
        let (round, place) = (i / self.entries.len() as u64, (i % self.entries.len() as u64) as usize);
        let mut order: Vec<usize> = (0..self.entries.len()).collect();
        let mut rng = Rng::new(self.seed ^ round.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        for k in (1..order.len()).rev() {
            order.swap(k, rng.below(k + 1));
        }
        let (name, times, number) = &self.entries[order[place]];
        // Different seeds give different cases.
        let first = self.seed.wrapping_sub(1).wrapping_mul(1_000_000).wrapping_add(1);
        CaseId { name: name.clone(), seed: first.wrapping_add(round * times + number) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_has_every_name_and_seeds_differ() {
        let s = Sequence::new(1, None);
        let n = s.entries.len() as u64;
        let round: std::collections::BTreeSet<CaseId> = (0..n).map(|i| s.case(i)).collect();
        assert_eq!(round.len() as u64, n);
        assert!(names().all(|name| round.iter().any(|c| c.name == name)));
        assert!((n..2 * n).all(|i| !round.contains(&s.case(i))));
        assert!((0..n).all(|i| !round.contains(&Sequence::new(2, None).case(i))));
        let c = s.case(3);
        assert_eq!(CaseId::parse(&c.to_string()), Some(c));
        assert_eq!(CaseId::parse("Nonsense 3"), None);
    }

    #[test]
    fn what_is_drawn_but_not_imported_is_a_case() {
        let imported = |s: &Subject| s.graph(&wgfc_compiler::Options::default()).is_ok();
        let case = |seed| CaseId { name: format!("{FUSED}Resize"), seed }.subjects().unwrap().0;
        let refused = (4_000_000..4_000_080).filter(|seed| !imported(&case(*seed))).count();
        assert!(refused > 0);
    }

    #[test]
    fn no_case_costs_the_evaluator_much() {
        use crate::subject::WORK;
        use wgfc_ir::eval::{Limits, evaluate_within};
        for id in names().flat_map(|name| (1..=2).map(move |seed| CaseId { name: name.clone(), seed })) {
            let (subject, _) = id.subjects().unwrap_or_else(|| panic!("{id} is not drawn"));
            let Ok(graph) = subject.graph(&wgfc_compiler::Options::default()) else { continue };
            // Cases of other seeds may need more work than these.
            let limits = Limits { work: WORK / 4, ..Limits::default() };
            if let Err(e) = evaluate_within(&graph, &subject.inputs, limits) {
                assert!(!e.to_string().contains("longer than it may"), "{id}: {e}");
            }
        }
    }
}
