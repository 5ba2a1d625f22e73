//! Copies in workgroup memory whose loads are under way while the point before is computed.

use super::double::{copies, where_any};
use super::nests::{assign, own};
use super::{domain, find, replace, variable};
use crate::{Expr, For, Kernel, Space, Stmt, Store, TensorId};
use wgfc_ir::{BinaryOp, Dim, Poly};

pub(super) fn pipeline(k: &mut Kernel, name: &str) -> Result<(), String> {
    let var = variable(k, name)?;
    let l = find(&k.body, var).ok_or("no such loop")?.clone();
    let parts = copies(k, &l)?;
    let mut registers = vec![];
    add_registers(k, parts.copies, &mut vec![], &mut registers)?;
    let point = Poly::var(var);
    let next = &point + &Poly::ONE;
    let loads = halves(parts.copies, &mut vec![], &mut registers.iter().copied(), Half::Loads);
    let stores = halves(parts.copies, &mut vec![], &mut registers.iter().copied(), Half::Stores);
    let first = own(k, &assign(&loads, var, &Poly::ZERO, &domain(k)));
    let following = own(k, &assign(&loads, var, &next, &domain(k)));
    let meet = Stmt::Barrier { storage: false };
    let condition = Expr::compare(BinaryOp::Lt, next, l.extent.clone());
    let mut body = vec![meet.clone()];
    body.extend(stores);
    body.extend([meet, Stmt::If { condition, then: following, otherwise: vec![] }]);
    body.extend(parts.rest.iter().cloned());
    let mut out = where_any(&l.extent, first);
    out.push(Stmt::For(For { body, ..l.clone() }));
    k.body = replace(std::mem::take(&mut k.body), var, &mut |_| Ok(std::mem::take(&mut out)))?;
    Ok(())
}

/// Adds a register for each store of copies, with an element for each point of the loops around it, in the order of the text.
fn add_registers(
    k: &mut Kernel,
    body: &[Stmt],
    around: &mut Vec<Dim>,
    out: &mut Vec<TensorId>,
) -> Result<(), String> {
    for s in body {
        match s {
            Stmt::For(l) => {
                if l.extent.as_const().is_none() {
                    return Err(format!("`{}` has no constant number of points", k.vars[l.var]));
                }
                around.push(l.extent.clone());
                add_registers(k, &l.body, around, out)?;
                around.pop();
            }
            Stmt::If { then, otherwise, .. } => {
                add_registers(k, then, around, out)?;
                add_registers(k, otherwise, around, out)?;
            }
            Stmt::Store(s) => {
                let label = format!("{}.next", k.tensors[s.tensor].name);
                let of = match loaded(&s.value) {
                    Some(Expr::Load { tensor, .. }) => *tensor,
                    _ => s.tensor,
                };
                let dtype = k.tensors[of].dtype;
                out.push(k.add_tensor(&label, dtype, around.clone(), Space::Register));
            }
            _ => {}
        }
    }
    Ok(())
}

/// The only load of what a copy stores: all else is computed where it is stored, so that nothing waits for the load before.
fn loaded(value: &Expr) -> Option<&Expr> {
    let mut all = vec![];
    value.visit(&mut |e| all.extend(matches!(e, Expr::Load { .. }).then_some(e)));
    match all[..] {
        [load] => Some(load),
        _ => None,
    }
}

/// A half of a copy.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Half {
    /// From the buffer to a register.
    Loads,
    /// From the register to workgroup memory.
    Stores,
}

/// One half of copies through registers, under the conditions of the copies. `around` are the variables of the loops around.
fn halves(
    body: &[Stmt],
    around: &mut Vec<usize>,
    registers: &mut dyn Iterator<Item = TensorId>,
    half: Half,
) -> Vec<Stmt> {
    let mut out = vec![];
    for s in body {
        out.push(match s {
            Stmt::For(l) => {
                around.push(l.var);
                let body = halves(&l.body, around, registers, half);
                around.pop();
                Stmt::For(For { body, ..l.clone() })
            }
            Stmt::If { condition, then, otherwise } => {
                let then = halves(then, around, registers, half);
                let otherwise = halves(otherwise, around, registers, half);
                Stmt::If { condition: condition.clone(), then, otherwise }
            }
            Stmt::Store(s) => {
                let Some(register) = registers.next() else { continue };
                let at: Vec<Poly> = around.iter().map(|v| Poly::var(*v)).collect();
                let load = loaded(&s.value);
                Stmt::Store(match half {
                    Half::Loads => {
                        Store { tensor: register, at, value: load.unwrap_or(&s.value).clone(), ..s.clone() }
                    }
                    Half::Stores => {
                        let kept = Expr::load(register, at);
                        let rest = |e: Expr| if Some(&e) == load { kept.clone() } else { e };
                        let value =
                            if load.is_some() { s.value.map(&Poly::clone, &rest) } else { kept.clone() };
                        Store { value, ..s.clone() }
                    }
                })
            }
            s => s.clone(),
        });
    }
    out
}
