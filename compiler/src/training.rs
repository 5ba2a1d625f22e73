//! Training steps: which output is the loss, and which outputs are the values of inputs in the next step.

use crate::value_info::{ValueInfo, graph_values, no_such_input, program_values};
use crate::{Diagnostic, Errors};
use std::collections::BTreeSet;
use wgfc_ir::{Graph, Program};

/// The inputs and outputs of a step, apart from its states.
#[derive(Clone, Debug)]
pub struct Ports {
    /// Inputs, in the model's order.
    pub inputs: Vec<ValueInfo>,
    /// Outputs, in the model's order.
    pub outputs: Vec<ValueInfo>,
    /// The number of states that the model or program already has.
    pub states: usize,
    /// Whether inputs can become states, which compilation decides.
    pub open: bool,
}

/// The facts that a caller gives of a step.
#[derive(Clone, Debug)]
pub struct Given<'a> {
    /// The inputs of which each step gets other rows.
    pub data: Vec<&'a str>,
    /// The inputs that are the same in each step.
    pub inputs: Vec<&'a str>,
    /// Pairs of an input and the output that is its value in the next step.
    pub states: &'a [(String, String)],
    /// The output that is the loss, if it is named.
    pub loss: Option<&'a str>,
    /// The caller's words for messages.
    pub words: Words,
}

/// How a caller gives data, constant inputs and pairs, for messages: `{}` stands for an input's name.
#[derive(Clone, Copy, Debug)]
pub struct Words {
    /// Rows of each step.
    pub data: &'static str,
    /// A value that is the same in each step.
    pub same: &'static str,
    /// An output that is the value of the input in the next step.
    pub carry: &'static str,
}

/// The loss and the states of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pairs {
    /// The output that is the loss.
    pub loss: String,
    /// Pairs of an input and the output that is its value in the next step.
    pub states: Vec<(String, String)>,
    /// How many of `states`, counted from the end, were paired by their order alone.
    pub by_order: usize,
}

/// The names of ports, for messages.
fn listed<'a>(names: impl IntoIterator<Item = &'a ValueInfo>) -> String {
    let all: Vec<String> = names.into_iter().map(|p| format!("`{}`", p.name)).collect();
    if all.is_empty() { "none".to_owned() } else { all.join(", ") }
}

/// Whether a port is a single float.
fn is_loss(p: &ValueInfo) -> bool {
    p.dtype.is_float() && p.shape.iter().all(|d| d.as_const() == Some(1))
}

impl Ports {
    /// The ports of a graph, before it is compiled.
    pub fn of_graph(graph: &Graph) -> Ports {
        let ports = |b: &[wgfc_ir::Border]| graph_values(graph, b);
        let (inputs, outputs) = (ports(&graph.inputs), ports(&graph.outputs));
        Ports { inputs, outputs, states: graph.states.len(), open: true }
    }
    /// The ports of a program, whose states are decided.
    pub fn of_program(program: &Program) -> Ports {
        let (inputs, outputs) = (program_values(&program.inputs), program_values(&program.outputs));
        Ports { inputs, outputs, states: program.states.len(), open: false }
    }

    /// Finds the loss and the states. An input that is neither data nor constant must be continued by an output, its value
    /// in the next step: the one that [`Given::states`] names, else the one of the same name. If no names match, and the
    /// remaining inputs have the same types in the same order as the remaining outputs without the loss, they are paired in
    /// order. Inputs of a compiled program cannot be continued.
    ///
    /// # Errors
    /// Every mismatch: names, types, an output that is no loss, an input without a value.
    pub fn pairs(&self, given: &Given<'_>) -> Result<Pairs, Errors> {
        let Ports { inputs, outputs, states: own, open: may_continue } = self;
        let may_continue = *may_continue;
        let mut problems = vec![];
        let is_given = |n: &str| given.data.contains(&n) || given.inputs.contains(&n);
        for name in given.data.iter().chain(&given.inputs) {
            if !inputs.iter().any(|p| p.name == *name) {
                problems.push(no_such_input(name, inputs));
            }
        }
        for name in given.data.iter().filter(|n| given.inputs.contains(n)) {
            let message = format!("input `{name}` is given twice: as data, and as the same in each step");
            problems.push(Diagnostic::model(message).help("give it once"));
        }
        self.check_named(given, &is_given, &mut problems);
        let mut states = given.states.to_vec();
        let continued = |states: &[(String, String)], n: &str| states.iter().any(|(i, _)| i == n);
        let taken = |states: &[(String, String)], n: &str| states.iter().any(|(_, o)| o == n);
        if may_continue {
            for p in inputs.iter().filter(|p| !is_given(&p.name)) {
                let same =
                    outputs.iter().find(|o| o.name == p.name && o.dtype == p.dtype && o.shape == p.shape);
                if same.is_some() && !continued(&states, &p.name) && !taken(&states, &p.name) {
                    states.push((p.name.clone(), p.name.clone()));
                }
            }
        }
        let loss = self.loss(&states, given.loss, &mut problems);
        let left: Vec<&ValueInfo> = inputs
            .iter()
            .filter(|p| p.broadcast.is_none() && !is_given(&p.name) && !continued(&states, &p.name))
            .collect();
        let free: Vec<&ValueInfo> =
            outputs.iter().filter(|o| Some(&o.name) != loss.as_ref() && !taken(&states, &o.name)).collect();
        let alike = |(a, b): (&&ValueInfo, &&ValueInfo)| a.dtype == b.dtype && a.shape == b.shape;
        // Pairing by order requires that no names match, so that a forgotten input, such as a learning rate, is not paired
        // with an unrelated scalar.
        let unnamed = states.len() == given.states.len();
        let in_order =
            may_continue && unnamed && left.len() == free.len() && left.iter().zip(&free).all(alike);
        let mut by_order = 0;
        if in_order {
            by_order = left.len();
            states.extend(left.iter().zip(&free).map(|(i, o)| (i.name.clone(), o.name.clone())));
        } else {
            problems.extend(left.iter().map(|p| {
                let message = format!("input `{}` is {} and was not given", p.name, p.type_text());
                Diagnostic::model(message).help(given.words.for_input(&p.name, may_continue))
            }));
        }
        if *own == 0 && states.is_empty() && problems.is_empty() {
            let help = format!(
                "export the step with its optimizer, as fixtures/torch/train_step.py does, or name the values to carry over with {}",
                given.words.carry.replace("{}", "INPUT")
            );
            let message = "the program has no states, so a step cannot change the next one";
            problems.push(Diagnostic::model(message).help(help));
        }
        match loss {
            Some(loss) if problems.is_empty() => Ok(Pairs { loss, states, by_order }),
            _ => Err(Errors(problems)),
        }
    }

    /// Checks the states that [`Given::states`] names.
    fn check_named(
        &self,
        given: &Given<'_>,
        is_given: &dyn Fn(&str) -> bool,
        problems: &mut Vec<Diagnostic>,
    ) {
        let Ports { inputs, outputs, .. } = self;
        let mut seen = BTreeSet::new();
        for (i, o) in given.states {
            let input = inputs.iter().find(|p| p.name == *i);
            let output = outputs.iter().find(|p| p.name == *o);
            if !seen.insert(("in", i)) || !seen.insert(("out", o)) {
                let message = format!("the pair `{i}={o}` names an input or output of another pair");
                problems.push(Diagnostic::model(message).help("give one pair for each input"));
            }
            match (input, output) {
                (Some(input), _) if is_given(i) => {
                    let message =
                        format!("input `{}` is given, and cannot be continued by an output", input.name);
                    problems.push(Diagnostic::model(message).help("leave out one of the two"));
                }
                (Some(a), Some(b)) if a.dtype != b.dtype || a.shape != b.shape => {
                    let message = format!(
                        "input `{i}` is {}, and output `{o}`, which is to continue it, {}",
                        a.type_text(),
                        b.type_text()
                    );
                    problems.push(Diagnostic::model(message).help("name an output of the input's type"));
                }
                (Some(_), Some(_)) => {}
                (None, _) => problems.push(no_such_input(i, inputs)),
                (_, None) => problems.push(self.no_such_output(o)),
            }
        }
    }

    fn no_such_output(&self, name: &str) -> Diagnostic {
        Diagnostic::model(format!("the model has no output `{name}`"))
            .help(format!("its outputs are {}", listed(&self.outputs)))
    }

    /// The loss: the named output, else the one called `loss`, else the first one that is a single float and no state.
    fn loss(
        &self,
        states: &[(String, String)],
        named: Option<&str>,
        problems: &mut Vec<Diagnostic>,
    ) -> Option<String> {
        let outputs = &self.outputs;
        let free = || outputs.iter().filter(|o| is_loss(o) && !states.iter().any(|(_, s)| *s == o.name));
        let Some(name) = named else {
            let found = free().find(|o| o.name == "loss").or_else(|| free().next());
            if found.is_none() {
                let help = format!(
                    "export the step so that it returns its loss; its outputs are {}",
                    listed(outputs)
                );
                problems.push(Diagnostic::model("no output is a loss: one float").help(help));
            }
            return found.map(|o| o.name.clone());
        };
        match outputs.iter().find(|o| o.name == *name) {
            Some(o) if is_loss(o) && free().any(|f| f.name == o.name) => return Some(o.name.clone()),
            Some(o) => {
                let why = if is_loss(o) { "continues an input" } else { "is not one float" };
                let message =
                    format!("output `{name}` is {} and cannot be the loss: it {why}", o.type_text());
                let help = format!("name one that can: {}", listed(free()));
                problems.push(Diagnostic::model(message).help(help));
            }
            None => problems.push(self.no_such_output(name)),
        }
        None
    }
}

impl Words {
    /// Advice for an input without a value.
    fn for_input(&self, name: &str, may_continue: bool) -> String {
        let [data, same, carry] = [self.data, self.same, self.carry].map(|w| w.replace("{}", name));
        match may_continue {
            true => format!(
                "{data} for rows of each step, {same} for the same in each, or {carry} for an output that is the input of the next"
            ),
            false => format!(
                "{data}, or {same}; an input becomes a state only when the model is compiled: give the model itself"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wgfc_ir::{DType, Dim};

    const WORDS: Words = Words { data: "data {}", same: "input {}", carry: "carry {}" };

    fn port(text: &str) -> ValueInfo {
        let (name, shape) = text.split_once(':').unwrap();
        let shape = shape.split(' ').filter(|d| !d.is_empty()).map(|d| Dim::parse(d).unwrap()).collect();
        ValueInfo { name: name.to_owned(), dtype: DType::F32, shape, broadcast: None }
    }

    fn ports(inputs: &[&str], outputs: &[&str]) -> Ports {
        let all = |texts: &[&str]| texts.iter().map(|t| port(t)).collect();
        Ports { inputs: all(inputs), outputs: all(outputs), states: 0, open: true }
    }

    fn given<'a>(states: &'a [(String, String)], loss: Option<&'a str>) -> Given<'a> {
        Given { data: vec!["x"], inputs: vec![], states, loss, words: WORDS }
    }

    fn found(p: &Pairs) -> Vec<String> {
        p.states.iter().map(|(i, o)| format!("{i}={o}")).collect()
    }

    fn refused(p: &Ports, g: &Given<'_>) -> String {
        p.pairs(g).unwrap_err().to_string()
    }

    #[test]
    fn inputs_are_continued_by_name_by_request_or_in_order() {
        let by_order = ports(&["a:3 5", "b:5", "n:", "x:rows 3"], &["o.0:", "o.1:3 5", "o.2:5", "o.3:"]);
        let pairs = by_order.pairs(&given(&[], None)).unwrap();
        assert_eq!((pairs.loss.as_str(), pairs.by_order), ("o.0", 3));
        assert_eq!(found(&pairs), ["a=o.1", "b=o.2", "n=o.3"]);
        // The loss is the last scalar, so by order the count is paired with the first one.
        assert!(
            refused(&by_order, &given(&[], Some("o.3"))).contains("input `a` is f32[3, 5] and was not given")
        );
        let states = [("n".to_owned(), "o.0".to_owned())];
        let pairs = by_order.pairs(&given(&states, Some("o.3"))).unwrap();
        assert_eq!(found(&pairs), ["n=o.0", "a=o.1", "b=o.2"]);

        let by_name = ports(&["x:rows 3", "w:3", "rate:"], &["w:3", "error:", "loss:"]);
        let said = refused(&by_name, &given(&[], None));
        assert!(said.contains("input `rate`") && said.contains("carry rate"), "not by `error`: {said}");
        let rated = Given { inputs: vec!["rate"], ..given(&[], None) };
        let pairs = by_name.pairs(&rated).unwrap();
        assert_eq!((found(&pairs), pairs.by_order, pairs.loss.as_str()), (vec!["w=w".to_owned()], 0, "loss"));
        // A compiled program takes no further states.
        assert!(refused(&Ports { open: false, ..by_name }, &rated).contains("give the model itself"));
    }

    #[test]
    fn a_step_needs_states_and_a_loss() {
        assert!(refused(&ports(&["x:rows 3"], &["loss:"]), &given(&[], None)).contains("no states"));
        let with_state = Ports { states: 1, ..ports(&["x:rows 3"], &["y:3"]) };
        assert!(refused(&with_state, &given(&[], None)).contains("no output is a loss"));
    }
}
