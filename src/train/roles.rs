//! The roles of the inputs and outputs of a step.

use super::{Ports, Training, counted};
use crate::value_info::{ValueInfo, bind, check_types};
use crate::{Error, Problem};
use std::collections::BTreeMap;
use wgfc_compiler::training::{Given, Pairs, Words};

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

/// The options of the command line, for messages.
const WORDS: Words =
    Words { data: "--data {}=FILE.npy", same: "--input {}=SOURCE", carry: "--carry {}=OUTPUT" };

impl Ports {
    /// Finds the roles. An input that is neither data nor constant must be continued by an output, its value in the next
    /// step: the one that [`Training::states`] names, else the one of the same name. If no names match, and the remaining
    /// inputs have the same types in the same order as the remaining outputs without the loss, they are paired in order.
    /// Inputs of a compiled program cannot be continued.
    ///
    /// # Errors
    /// Every mismatch: names, types, shapes, numbers of rows, an output that is no loss, an input without a value.
    pub fn roles(&self, training: &Training) -> Result<Roles, Error> {
        let given = Given {
            data: training.data.keys().map(String::as_str).collect(),
            inputs: training.inputs.keys().map(String::as_str).collect(),
            states: &training.states,
            loss: training.loss.as_deref(),
            words: WORDS,
        };
        let found = self.0.pairs(&given);
        let mut problems =
            found.as_ref().err().map_or(vec![], |e| e.0.iter().cloned().map(Problem::from).collect());
        let sizes = sizes(self.inputs(), training, &mut problems);
        match (found, sizes) {
            (Ok(Pairs { loss, states, by_order }), Some((batch, rows, dims))) if problems.is_empty() => {
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
                && !self.outputs().iter().any(|o| o.name == p.name)
        };
        let all: Vec<&ValueInfo> = self.inputs().iter().filter(free).collect();
        let is_open = |p: &&&ValueInfo| p.shape.first().is_some_and(|d| d.as_const().is_none());
        let open: Vec<&ValueInfo> = all.iter().filter(is_open).copied().collect();
        match (all.as_slice(), open.as_slice()) {
            ([one], _) | (_, [one]) => Some(one),
            _ => None,
        }
    }
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
    use wgfc_compiler::training;
    use wgfc_ir::{DType, Dim};

    fn port(text: &str) -> ValueInfo {
        let (name, shape) = text.split_once(':').unwrap();
        let shape = shape.split(' ').filter(|d| !d.is_empty()).map(|d| Dim::parse(d).unwrap()).collect();
        ValueInfo { name: name.to_owned(), dtype: DType::F32, shape, broadcast: None }
    }

    fn ports(inputs: &[&str], outputs: &[&str], states: usize) -> Ports {
        let all = |texts: &[&str]| texts.iter().map(|t| port(t)).collect();
        Ports(training::Ports { inputs: all(inputs), outputs: all(outputs), states, open: states == 0 })
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
    fn roles_have_the_states_and_the_rows() {
        let ports = ports(&["a:3 5", "n:", "x:rows 3"], &["o.0:", "o.1:3 5", "o.2:"], 0);
        let roles = ports.roles(&training(&[("x", &[9, 3])])).unwrap();
        assert_eq!((roles.loss.as_str(), roles.by_order, roles.batch, roles.rows), ("o.0", 2, 4, 9));
        assert_eq!(pairs(&roles), ["a=o.1", "n=o.2"]);
        assert_eq!(roles.dims, [("rows".to_owned(), 4)].into());
        assert!(
            refused(&ports, &Training { batch: Some(4), ..Training::default() })
                .contains("--data a=FILE.npy")
        );
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
    }
}
