//! The first lines of both kinds of loops: how many lanes and steps there are, and which lane this is.

use super::wgsl::{Module, Scope};
use crate::Diagnostic;
use crate::kernel::Part;
use wgfc_ir::Dim;

/// The extents of a loop.
pub(super) struct Lanes {
    /// How many lanes there are.
    pub count: Dim,
    /// Statements that the extents need.
    pub extents: String,
    /// The number of lanes.
    pub lanes: String,
    /// The number of steps.
    pub steps: String,
}

impl Lanes {
    /// Writes into the scope which position lane `lane` has.
    pub fn begin(
        m: &mut Module,
        outer: &mut Scope,
        extents: &[Dim],
        steps: &Dim,
    ) -> Result<Lanes, Diagnostic> {
        let count: Dim = extents.iter().product();
        let lanes = m.extent(outer, &count)?;
        let steps = m.extent(outer, steps)?;
        let names = extents.iter().map(|d| m.extent(outer, d)).collect::<Result<Vec<_>, _>>()?;
        let extents = std::mem::take(&mut outer.text);
        match &names[..] {
            [] => {}
            [_] => outer.line("let v0 = lane;"),
            [_, others @ ..] => {
                outer.line("var rest = lane;");
                for (i, extent) in others.iter().enumerate().rev() {
                    outer.line(&format!("let v{} = rest % {extent};", i + 1));
                    outer.line(&format!("rest = rest / {extent};"));
                }
                outer.line("let v0 = rest;");
            }
        }
        Ok(Lanes { count, extents, lanes, steps })
    }

    /// The number of the first step of a dispatch, and that behind its last.
    pub fn ends(
        m: &mut Module,
        outer: &mut Scope,
        part: Option<&Part>,
    ) -> Result<(String, String), Diagnostic> {
        let Some(part) = part else { return Ok(("0".to_owned(), "steps".to_owned())) };
        let first = m.value(outer, part.first)?.to_string();
        let end = format!("min(steps, {first} + {})", part.most);
        Ok((first, end))
    }
}
