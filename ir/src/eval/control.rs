//! If, While and Scan: subgraphs are evaluated in an environment derived from the outer one.

use super::array::{Array, Buf, around, each};
use super::{Env, EvalError, evaluate_arrays};
use crate::dtype::DType;
use crate::graph::{Graph, TensorType};
use crate::scalar::Scalar;

pub(super) fn branch(
    inputs: &[&Array],
    then_branch: &Graph,
    else_branch: &Graph,
    env: &Env,
) -> Result<Vec<Array>, EvalError> {
    let [condition, rest @ ..] = inputs else { return Err(EvalError::at("no condition".into())) };
    let taken = if condition.truth()? { then_branch } else { else_branch };
    evaluate_arrays(taken, rest.iter().map(|a| (*a).clone()).collect(), env)
}

pub(super) fn repeat(
    inputs: &[&Array],
    body: &Graph,
    carried: usize,
    env: &Env,
) -> Result<Vec<Array>, EvalError> {
    let [trips, condition, rest @ ..] = inputs else {
        return Err(EvalError::at("needs a trip count and a condition".into()));
    };
    if rest.len() < carried || body.outputs.len() < carried + 1 {
        return Err(EvalError::at(format!("{carried} carried values, but fewer operands or outputs")));
    }
    let trips = match trips.ints().as_deref() {
        Some([n]) => *n,
        _ => return Err(EvalError::at("the trip count must be one integer".into())),
    };
    let mut go = condition.truth()?;
    let (start, captured) = rest.split_at(carried);
    let mut state: Vec<Array> = start.iter().map(|a| (*a).clone()).collect();
    let mut stacks: Vec<Vec<Array>> = vec![vec![]; body.outputs.len() - 1 - carried];
    let mut stacked = 0;
    let mut i = 0i64;
    let env = &env.of_loop(None)?;
    while go && i < trips {
        env.iteration(i as usize)?;
        let mut args = vec![
            Array::new(DType::I64, vec![], Buf::I64(vec![i])),
            Array::new(DType::Bool, vec![], Buf::Bool(vec![go])),
        ];
        args.append(&mut state);
        args.extend(captured.iter().map(|a| (*a).clone()));
        let mut out = evaluate_arrays(body, args, env)?;
        let scans = out.split_off(carried + 1);
        stacked += scans.iter().map(slice_room).sum::<usize>();
        env.room(stacked)?;
        stacks.iter_mut().zip(scans).for_each(|(s, a)| s.push(a));
        go = out[0].truth()?;
        state = out.split_off(1);
        i += 1;
    }
    for (slices, o) in stacks.iter().zip(&body.outputs[carried + 1..]) {
        state.push(stack(slices, body.ty(o.value), env)?);
    }
    Ok(state)
}

pub(super) fn scan(
    inputs: &[&Array],
    body: &Graph,
    (carried, scanned): (usize, usize),
    reverse_inputs: &[bool],
    reverse_outputs: &[bool],
    env: &Env,
) -> Result<Vec<Array>, EvalError> {
    if inputs.len() < carried + scanned || body.outputs.len() < carried {
        return Err(EvalError::at(format!(
            "{carried} carried and {scanned} scanned values, but fewer operands"
        )));
    }
    let mut state: Vec<Array> = inputs[..carried].iter().map(|a| (*a).clone()).collect();
    let sequences = &inputs[carried..carried + scanned];
    let length = sequences.first().and_then(|x| x.shape.first()).copied();
    let length = length.ok_or_else(|| EvalError::at("nothing to scan".into()))?;
    if let Some(x) = sequences.iter().find(|x| x.shape.first() != Some(&length)) {
        return Err(EvalError::at(format!("scanned values of lengths {length} and {:?}", x.shape.first())));
    }
    let mut stacks: Vec<Vec<Array>> = vec![vec![]; body.outputs.len() - carried];
    let mut stacked = 0;
    let env = &env.of_loop(Some(length))?;
    let before = env.looped();
    for i in 0..length {
        if i == 1 {
            env.foresee(env.looped() - before)?;
        }
        env.iteration(i)?;
        let mut args = std::mem::take(&mut state);
        for (j, x) in sequences.iter().enumerate() {
            let backwards = reverse_inputs.get(j).copied().unwrap_or(false);
            args.push(slice(x, if backwards { length - 1 - i } else { i }));
        }
        args.extend(inputs[carried + scanned..].iter().map(|a| (*a).clone()));
        let mut out = evaluate_arrays(body, args, env)?;
        let scans = out.split_off(carried);
        stacked += scans.iter().map(slice_room).sum::<usize>();
        env.room(stacked)?;
        stacks.iter_mut().zip(scans).for_each(|(s, a)| s.push(a));
        state = out;
    }
    for (j, (mut slices, o)) in stacks.into_iter().zip(&body.outputs[carried..]).enumerate() {
        if reverse_outputs.get(j).copied().unwrap_or(false) {
            slices.reverse();
        }
        state.push(stack(&slices, body.ty(o.value), env)?);
    }
    Ok(state)
}

/// The memory of a slice that is kept until it is stacked, in elements of 8 bytes.
fn slice_room(a: &Array) -> usize {
    a.numel() + 16
}

/// Element `i` along axis 0.
fn slice(x: &Array, i: usize) -> Array {
    let (_, _, n) = around(&x.shape, 0);
    let data = each!(&*x.data, v => super::array::Elem::wrap(v[i * n..(i + 1) * n].to_vec()));
    Array::new(x.dtype, x.shape[1..].to_vec(), data)
}

/// Stacks slices along a new axis 0; `ty` is the type of one slice.
fn stack(slices: &[Array], ty: &TensorType, env: &Env) -> Result<Array, EvalError> {
    let one = match slices.first() {
        Some(s) => s.shape.clone(),
        None => ty.shape.iter().map(|d| env.dim(d).unwrap_or(0)).collect(),
    };
    if let Some(s) = slices.iter().find(|s| s.shape != one) {
        return Err(EvalError::at(format!("iterations yield slices of shapes {one:?} and {:?}", s.shape)));
    }
    let shape = [vec![slices.len()], one].concat();
    let n = env.numel(&shape)?;
    let mut out = Buf::full(Scalar::from_i64(ty.dtype, 0), n);
    each!(&mut out, out => {
        let size = n / slices.len().max(1);
        for (s, to) in slices.iter().zip(out.chunks_mut(size.max(1))) {
            if let Some(v) = super::array::Elem::slice(&s.data) {
                to.copy_from_slice(v);
            }
        }
    });
    Ok(Array::new(ty.dtype, shape, out))
}
