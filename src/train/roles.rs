//! The roles of the inputs and outputs of a step.

use super::{Ports, Training, counted, is_loss};
use crate::value_info::{ValueInfo, bind, check_types, no_such_input};
use crate::{Error, Problem};
use std::collections::{BTreeMap, BTreeSet};

/// The roles of the inputs and outputs of a step, and the numbers of rows. See the example of [`Ports`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Roles {
    /// The output that is the loss.
    pub loss: String,
    /// Pairs of an input and the output that is its value in the next step.
    pub states: Vec<(String, String)>,
    /// How many of `states`, counted from the end, were paired by their order alone.
    pub by_order: usize,
    /// Rows of a step.
    pub batch: usize,
    /// Rows of the data.
    pub rows: usize,
    /// The values of symbols that follow from the batch and the data.
    pub dims: BTreeMap<String, i64>,
}

fn listed<'a>(names: impl IntoIterator<Item = &'a ValueInfo>) -> String {
    let all: Vec<String> = names.into_iter().map(|p| format!("`{}`", p.name)).collect();
    if all.is_empty() { "none".to_owned() } else { all.join(", ") }
}

impl Ports {
    /// Finds the roles. An input that is neither data nor constant must be continued by an output, its value in the next
    /// step: the one that [`Training::states`] names, else the one of the same name. If no names match, and the remaining
    /// inputs have the same types in the same order as the remaining outputs without the loss, they are paired in order.
    /// Inputs of a compiled program cannot be continued.
    ///
    /// # Errors
    /// Every mismatch: names, types, shapes, numbers of rows, an output that is no loss, an input without a value.
    pub fn roles(&self, training: &Training) -> Result<Roles, Error> {
        let Ports { inputs, outputs, states: own, open: may_continue } = self;
        let may_continue = *may_continue;
        let mut problems = vec![];
        let given = |n: &str| training.data.contains_key(n) || training.inputs.contains_key(n);
        for name in training.data.keys().chain(training.inputs.keys()) {
            if !inputs.iter().any(|p| p.name == *name) {
                problems.push(no_such_input(name, inputs));
            }
        }
        for name in training.data.keys().filter(|n| training.inputs.contains_key(*n)) {
            problems.push(Problem::with_help(
                format!("input `{name}` is given twice: as data, and as the same in each step"),
                "give it once",
            ));
        }
        let mut states = named(inputs, outputs, training, &mut problems);
        let continued = |states: &[(String, String)], n: &str| states.iter().any(|(i, _)| i == n);
        let taken = |states: &[(String, String)], n: &str| states.iter().any(|(_, o)| o == n);
        if may_continue {
            for p in inputs.iter().filter(|p| !given(&p.name)) {
                let same =
                    outputs.iter().find(|o| o.name == p.name && o.dtype == p.dtype && o.shape == p.shape);
                if same.is_some() && !continued(&states, &p.name) && !taken(&states, &p.name) {
                    states.push((p.name.clone(), p.name.clone()));
                }
            }
        }
        let loss = loss(outputs, &states, training, &mut problems);
        let left: Vec<&ValueInfo> = inputs
            .iter()
            .filter(|p| p.broadcast.is_none() && !given(&p.name) && !continued(&states, &p.name))
            .collect();
        let free: Vec<&ValueInfo> =
            outputs.iter().filter(|o| Some(&o.name) != loss.as_ref() && !taken(&states, &o.name)).collect();
        let alike = |(a, b): (&&ValueInfo, &&ValueInfo)| a.dtype == b.dtype && a.shape == b.shape;
        // Pairing by order requires that no names match, so that a forgotten input, such as a learning rate, is not paired
        // with an unrelated scalar.
        let unnamed = states.len() == training.states.len();
        let in_order =
            may_continue && unnamed && left.len() == free.len() && left.iter().zip(&free).all(alike);
        let mut by_order = 0;
        if in_order {
            by_order = left.len();
            states.extend(left.iter().zip(&free).map(|(i, o)| (i.name.clone(), o.name.clone())));
        } else {
            let help = |p: &ValueInfo| match may_continue {
                true => format!(
                    "--data {0}=FILE.npy for rows of each step, --input {0}=SOURCE for the same in each, or --carry {0}=OUTPUT for an output that is the input of the next",
                    p.name
                ),
                false => format!(
                    "--data {0}=FILE.npy, or --input {0}=SOURCE; an input becomes a state only when the model is compiled: give the model itself",
                    p.name
                ),
            };
            problems.extend(left.iter().map(|p| {
                let message = format!("input `{}` is {} and was not given", p.name, p.type_text());
                Problem::with_help(message, help(p))
            }));
        }
        if *own == 0 && states.is_empty() && problems.is_empty() {
            problems.push(Problem::with_help(
                "the program has no states, so a step cannot change the next one",
                "export the step with its optimizer, as fixtures/torch/train_step.py does, or name the values to carry over with --carry INPUT=OUTPUT",
            ));
        }
        let sizes = sizes(inputs, training, &mut problems);
        match (loss, sizes) {
            (Some(loss), Some((batch, rows, dims))) if problems.is_empty() => {
                Ok(Roles { loss, states, by_order, batch, rows, dims })
            }
            _ => Err(Error::Usage(problems)),
        }
    }

    /// The input for data that is given without a name. The candidates are the inputs that are neither given nor continued
    /// by an output of the same name. The result is the only candidate, or the only one whose number of rows is symbolic.
    pub fn data_input(&self, training: &Training) -> Option<&ValueInfo> {
        let free = |p: &&ValueInfo| {
            p.broadcast.is_none()
                && !p.shape.is_empty()
                && !training.data.contains_key(&p.name)
                && !training.inputs.contains_key(&p.name)
                && !training.states.iter().any(|(i, _)| *i == p.name)
                && !self.outputs.iter().any(|o| o.name == p.name)
        };
        let all: Vec<&ValueInfo> = self.inputs.iter().filter(free).collect();
        let is_open = |p: &&&ValueInfo| p.shape.first().is_some_and(|d| d.as_const().is_none());
        let open: Vec<&ValueInfo> = all.iter().filter(is_open).copied().collect();
        match (all.as_slice(), open.as_slice()) {
            ([one], _) | (_, [one]) => Some(one),
            _ => None,
        }
    }
}

/// The states that [`Training::states`] names; faults are added to `problems`.
fn named(
    inputs: &[ValueInfo],
    outputs: &[ValueInfo],
    training: &Training,
    problems: &mut Vec<Problem>,
) -> Vec<(String, String)> {
    let mut seen = BTreeSet::new();
    for (i, o) in &training.states {
        let (input, output) = (inputs.iter().find(|p| p.name == *i), outputs.iter().find(|p| p.name == *o));
        if !seen.insert(("in", i)) || !seen.insert(("out", o)) {
            let message = format!("`--carry {i}={o}` names an input or output of another --carry");
            problems.push(Problem::with_help(message, "give one for each input"));
        }
        match (input, output) {
            (Some(input), _) if training.data.contains_key(i) || training.inputs.contains_key(i) => {
                let message =
                    format!("input `{}` is given, and cannot be continued by an output", input.name);
                problems.push(Problem::with_help(message, "leave out one of the two"));
            }
            (Some(a), Some(b)) if a.dtype != b.dtype || a.shape != b.shape => {
                problems.push(Problem::with_help(
                    format!(
                        "input `{i}` is {}, and output `{o}`, which is to continue it, {}",
                        a.type_text(),
                        b.type_text()
                    ),
                    "name an output of the input's type",
                ));
            }
            (Some(_), Some(_)) => {}
            (None, _) => problems.push(no_such_input(i, inputs)),
            (_, None) => problems.push(no_such_output(o, outputs)),
        }
    }
    training.states.clone()
}

fn no_such_output(name: &str, outputs: &[ValueInfo]) -> Problem {
    Problem::with_help(
        format!("the model has no output `{name}`"),
        format!("its outputs are {}", listed(outputs)),
    )
}

fn loss(
    outputs: &[ValueInfo],
    states: &[(String, String)],
    training: &Training,
    problems: &mut Vec<Problem>,
) -> Option<String> {
    let free = || outputs.iter().filter(|o| is_loss(o) && !states.iter().any(|(_, s)| *s == o.name));
    let found = match &training.loss {
        None => free().find(|o| o.name == "loss").or_else(|| free().next()),
        Some(name) => match outputs.iter().find(|o| o.name == *name) {
            Some(o) if is_loss(o) && free().any(|f| f.name == o.name) => Some(o),
            Some(o) => {
                let why = if is_loss(o) { "continues an input" } else { "is not one float" };
                problems.push(Problem::with_help(
                    format!("output `{name}` is {} and cannot be the loss: it {why}", o.type_text()),
                    format!("name one that can: {}", listed(free())),
                ));
                return None;
            }
            None => {
                problems.push(no_such_output(name, outputs));
                return None;
            }
        },
    };
    if found.is_none() {
        problems.push(Problem::with_help(
            "no output is a loss: one float",
            format!("export the step so that it returns its loss; its outputs are {}", listed(outputs)),
        ));
    }
    found.map(|o| o.name.clone())
}

/// The rows of a step, the rows of the data, and the values of symbols.
fn sizes(
    inputs: &[ValueInfo],
    training: &Training,
    problems: &mut Vec<Problem>,
) -> Option<(usize, usize, BTreeMap<String, i64>)> {
    let before = problems.len();
    let data: Vec<(&ValueInfo, &crate::Tensor)> =
        inputs.iter().filter_map(|p| Some((p, training.data.get(&p.name)?))).collect();
    if training.data.is_empty() {
        problems.push(Problem::with_help(
            "there is no data to train on",
            "--data FILE.npy, or --data NAME=FILE.npy",
        ));
    }
    let mut fixed: Option<(usize, &str)> = None;
    let mut rows: Option<(usize, &str)> = None;
    for (p, t) in &data {
        if t.shape.is_empty() || p.shape.is_empty() || t.dtype.bits() % 8 != 0 || t.bytes().is_none() {
            problems.push(Problem::with_help(
                format!("input `{}` is {}, and its data {}{:?}: there are no rows", p.name, p.type_text(), t.dtype, t.shape),
                "give an array of rows along the first axis; an input that is the same in each step is given with --input",
            ));
            continue;
        }
        match rows {
            Some((n, other)) if n != t.shape[0] => problems.push(Problem::with_help(
                format!("`{other}` has {}, and `{}` has {}", counted(n, "row"), p.name, t.shape[0]),
                "give as many rows of each: those of one number go together",
            )),
            _ => rows = Some((t.shape[0], &p.name)),
        }
        let Some(extent) = p.shape[0].as_const().and_then(|n| usize::try_from(n).ok()) else { continue };
        match fixed {
            Some((n, other)) if n != extent => problems.push(Problem::with_help(
                format!("a step takes {} of `{other}`, and {extent} of `{}`", counted(n, "row"), p.name),
                "give one of them with --input, if it is the same in each step",
            )),
            _ => fixed = Some((extent, &p.name)),
        }
    }
    let batch = match (training.batch, fixed) {
        (Some(b), Some((n, name))) if b != n => {
            problems.push(Problem::with_help(
                format!("a step takes {} of `{name}`, not {b}", counted(n, "row")),
                format!("leave --batch out, or export the step with a dynamic batch (or one of {b})"),
            ));
            return None;
        }
        (Some(b), _) | (None, Some((b, _))) => b,
        (None, None) => {
            if let (Some((p, _)), true) = (data.first(), problems.len() == before) {
                problems.push(Problem::with_help(
                    format!("input `{}` is {}: how many rows a step takes is open", p.name, p.type_text()),
                    "--batch 64",
                ));
            }
            return None;
        }
    };
    if problems.len() > before {
        return None;
    }
    // The shapes of the data in a step.
    let shapes: Vec<(&ValueInfo, Vec<usize>)> = data
        .iter()
        .map(|(p, t)| (*p, std::iter::once(batch).chain(t.shape[1..].iter().copied()).collect()))
        .collect();
    let mut types: BTreeMap<&str, _> =
        shapes.iter().map(|(p, s)| (p.name.as_str(), (training.data[&p.name].dtype, s.as_slice()))).collect();
    for (n, t) in training.inputs.iter().filter(|(n, _)| inputs.iter().any(|p| p.name == **n)) {
        types.entry(n).or_insert((t.dtype, t.shape.as_slice()));
    }
    let ports: Vec<ValueInfo> =
        inputs.iter().filter(|p| types.contains_key(p.name.as_str())).cloned().collect();
    let dims = match check_types(&ports, &types) {
        Ok(dims) => dims,
        Err(Error::Usage(more)) => {
            problems.extend(more);
            return None;
        }
        Err(_) => {
            let mut dims = BTreeMap::new();
            bind(&shapes.iter().map(|(p, s)| (*p, s.as_slice())).collect::<Vec<_>>(), &mut dims);
            dims
        }
    };
    let (n, name) = rows?;
    if n < batch.max(1) {
        problems.push(Problem::with_help(
            format!("`{name}` has {}, fewer than the {batch} of a step", counted(n, "row")),
            "give more data, or a smaller --batch",
        ));
        return None;
    }
    Some((batch, n, dims))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Tensor;
    use wgfc_ir::{DType, Dim};

    fn port(text: &str) -> ValueInfo {
        let (name, shape) = text.split_once(':').unwrap();
        let shape = shape.split(' ').filter(|d| !d.is_empty()).map(|d| Dim::parse(d).unwrap()).collect();
        ValueInfo { name: name.to_owned(), dtype: DType::F32, shape, broadcast: None }
    }

    fn ports(inputs: &[&str], outputs: &[&str], states: usize) -> Ports {
        let all = |texts: &[&str]| texts.iter().map(|t| port(t)).collect();
        Ports { inputs: all(inputs), outputs: all(outputs), states, open: states == 0 }
    }

    fn training(data: &[(&str, &[usize])]) -> Training {
        let zeros = |(n, s): &(&str, &[usize])| ((*n).to_owned(), Tensor::zeros(DType::F32, s.to_vec()));
        Training { data: data.iter().map(zeros).collect(), batch: Some(4), ..Training::default() }
    }

    fn pairs(roles: &Roles) -> Vec<String> {
        roles.states.iter().map(|(i, o)| format!("{i}={o}")).collect()
    }

    fn refused(p: &Ports, t: &Training) -> String {
        p.roles(t).unwrap_err().to_string()
    }

    #[test]
    fn inputs_are_continued_by_name_by_request_or_in_order() {
        let x: &[(&str, &[usize])] = &[("x", &[9, 3])];
        let by_order = ports(&["a:3 5", "b:5", "n:", "x:rows 3"], &["o.0:", "o.1:3 5", "o.2:5", "o.3:"], 0);
        let roles = by_order.roles(&training(x)).unwrap();
        assert_eq!((roles.loss.as_str(), roles.by_order, roles.batch, roles.rows), ("o.0", 3, 4, 9));
        assert_eq!(pairs(&roles), ["a=o.1", "b=o.2", "n=o.3"]);
        assert_eq!(roles.dims, [("rows".to_owned(), 4)].into());
        // The loss is the last scalar, so by order the count is paired with the first one.
        let t = Training { loss: Some("o.3".to_owned()), ..training(x) };
        assert!(refused(&by_order, &t).contains("input `a` is f32[3, 5] and was not given"));
        let t = Training { states: vec![("n".to_owned(), "o.0".to_owned())], ..t };
        assert_eq!(pairs(&by_order.roles(&t).unwrap()), ["n=o.0", "a=o.1", "b=o.2"]);

        let by_name = ports(&["x:rows 3", "w:3", "rate:"], &["w:3", "error:", "loss:"], 0);
        assert!(refused(&by_name, &training(x)).contains("input `rate`"), "not by `error`");
        let rate = [("rate".to_owned(), Tensor::from_f32(vec![], &[0.1]))];
        let t = Training { inputs: rate.into(), ..training(x) };
        let roles = by_name.roles(&t).unwrap();
        assert_eq!((pairs(&roles), roles.by_order, roles.loss.as_str()), (vec!["w=w".to_owned()], 0, "loss"));
        // A compiled program takes no further states.
        assert!(refused(&Ports { open: false, ..by_name }, &t).contains("give the model itself"));
    }

    #[test]
    fn data_without_a_name_is_for_the_input_with_an_open_batch() {
        let t = Training::default();
        let found = |p: &Ports| p.data_input(&t).map(|p| p.name.clone());
        assert_eq!(found(&ports(&["a:3", "x:rows 3", "n:"], &["loss:"], 0)), Some("x".to_owned()));
        assert_eq!(found(&ports(&["w:3", "x:8 3"], &["loss:", "w:3"], 0)), Some("x".to_owned()));
        assert_eq!(found(&ports(&["x:rows 3", "y:rows"], &["loss:"], 1)), None);
        assert_eq!(found(&ports(&["n:"], &["loss:"], 1)), None);
    }

    #[test]
    fn rows_must_go_together() {
        let two = ports(&["x:rows 3", "y:rows"], &["loss:"], 1);
        assert!(two.roles(&training(&[("x", &[9, 3]), ("y", &[9])])).is_ok());
        let said = refused(&two, &training(&[("x", &[9, 3]), ("y", &[8])]));
        assert!(said.contains("`x` has 9 rows, and `y` has 8"), "{said}");
        let fixed = ports(&["x:8 3"], &["loss:"], 1);
        let t = Training { batch: None, ..training(&[("x", &[9, 3])]) };
        assert_eq!(fixed.roles(&t).unwrap().batch, 8);
        assert!(refused(&fixed, &training(&[("x", &[9, 3])])).contains("a step takes 8 rows of `x`, not 4"));
        assert!(
            refused(&ports(&["x:rows 3"], &["loss:"], 0), &training(&[("x", &[9, 3])])).contains("no states")
        );
        assert!(
            refused(&ports(&["x:rows 3"], &["y:3"], 1), &training(&[("x", &[9, 3])]))
                .contains("no output is a loss")
        );
    }
}
