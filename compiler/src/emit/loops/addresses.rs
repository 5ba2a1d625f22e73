//! The places in memory that statements access.

use super::listing::Item;
use super::roots;
use crate::Diagnostic;
use crate::emit::index::constant;
use crate::emit::wgsl::Module;
use crate::kernel::bindings::component;
use crate::kernel::{self, ExprId};
use std::collections::{BTreeMap, BTreeSet};
use wgfc_ir::Poly;

/// The index expressions of the memory that statements access, with those under conditions if `conditional` is set.
pub(super) fn addresses(
    m: &Module,
    widths: &[u32],
    items: &[Item],
    conditional: bool,
) -> Result<Vec<Poly>, Diagnostic> {
    let vector = |p: &Poly, width: u32| component(p, width).map_or_else(|| p.clone(), |c| c.0);
    let roots: Vec<ExprId> = roots(items, conditional).into_iter().collect();
    let mut out = vec![];
    for id in m.kernel.body.reachable(&roots) {
        match m.kernel.body.expr(id) {
            kernel::Expr::Load { tensor, offset, .. } => out.push(m.address(*tensor, offset)?),
            kernel::Expr::Shared { array, at, .. } => {
                out.push(vector(at, m.vectors.get(*array as usize).copied().unwrap_or(1)));
            }
            _ => {}
        }
    }
    stored(m, widths, items, conditional, &mut out)?;
    Ok(out)
}

/// Adds the index expressions of the memory that statements store to.
fn stored(
    m: &Module,
    widths: &[u32],
    items: &[Item],
    conditional: bool,
    out: &mut Vec<Poly>,
) -> Result<(), Diagnostic> {
    for i in items {
        match i {
            Item::Loop { body, .. } => stored(m, widths, body, conditional, out)?,
            Item::If { then, otherwise, .. } if conditional => {
                stored(m, widths, then, conditional, out)?;
                stored(m, widths, otherwise, conditional, out)?;
            }
            Item::Write { tensor, at, values } => {
                let width = widths.get(*tensor).copied().unwrap_or(1);
                let firsts = (0..values.len() as i64).step_by(width as usize);
                for at in firsts.map(|i| at + &Poly::constant(i)) {
                    out.push(component(&at, width).map_or(at, |c| c.0));
                }
            }
            Item::Store(all) => {
                let Some(first) = all.first() else { continue };
                let n = m.binding(first.tensor)?.1.vector().unwrap_or(1);
                for s in all.chunks(n as usize).filter_map(|v| v.first()) {
                    out.push(m.address(s.tensor, &s.offset)?);
                }
            }
            _ => {}
        }
    }
    Ok(())
}

/// The sums of several terms that several index expressions are, without their constants.
pub(super) fn shared_sums(all: &[Poly]) -> BTreeSet<Poly> {
    let mut constants: BTreeMap<Poly, BTreeSet<i64>> = BTreeMap::new();
    for p in all {
        let c = constant(p);
        constants.entry(p - &Poly::constant(c)).or_default().insert(c);
    }
    let several = constants.into_iter().filter(|(base, c)| c.len() > 1 && base.terms().len() > 1);
    several.map(|(base, _)| base).collect()
}
