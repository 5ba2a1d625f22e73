//! Sums of a stage of which neighbouring invocations share blocks, as [`loops::Blocked`] says.

use super::staged_loop::Writer;
use super::wgsl::{Module, Scope};
use crate::Diagnostic;
use crate::kernel::dependence::{Deps, var_bit};
use crate::kernel::{Body, Combined, Expr, ExprId, Stage};
use crate::schedule::loops::{self, Blocked};
use wgfc_ir::BinaryOp;

/// A sum of a stage, with what is known of it before the loop.
pub(super) struct Block<'k> {
    number: usize,
    combined: &'k Combined,
    /// Invocations that share a block, and its elements.
    block: u32,
    /// The facts known of each term of an invocation, and of each of the block's elements with it.
    terms: Vec<(Scope, Vec<Scope>)>,
}

impl<'k> Block<'k> {
    /// The sum of a stage, if the schedule has it in blocks: what no step changes is written.
    pub(super) fn prepare(
        m: &mut Module,
        outer: &mut Scope,
        w: &Writer,
        (number, stage): (usize, &'k Stage),
        schedule: &Blocked,
        fixed: Deps,
    ) -> Result<Option<Block<'k>>, Diagnostic> {
        let in_block = loops::is_in_blocks(stage, schedule);
        let Some(combined) = stage.combined.as_ref().filter(|_| in_block) else { return Ok(None) };
        let (block, all) = (schedule.block, combined.terms);
        let each = all.div_ceil(block);
        let mut base = outer.inner(outer.indent());
        base.line(&format!("let part{number} = v{} & {};", w.element, block - 1));
        for r in 0..block {
            let last = stage.elements.saturating_sub(1);
            base.line(&format!("let row{number}_{r} = min(v{} - part{number} + {r}, {last});", w.element));
        }
        let root = [combined.reduction.value];
        let mut terms = vec![];
        for j in 0..each {
            let mut term = base.inner(base.indent());
            let (name, mut at) = (format!("t{number}_{j}"), format!("part{number} + {}", j * block));
            // Beyond the last term nothing is added.
            if (j + 1) * block > all {
                at = format!("min({at}, {})", all - 1);
            }
            term.line(&format!("let {name} = {at};"));
            term.bind_var(w.term, &name);
            m.hoist(&mut term, &root, fixed | var_bit(w.term))?;
            base.follow(&term);
            let mut rows = vec![];
            for r in 0..block {
                let mut row = term.inner(base.indent());
                row.number_after(&base);
                row.bind_var(w.element, &format!("row{number}_{r}"));
                m.hoist(&mut row, &root, fixed | var_bit(w.term) | var_bit(w.element))?;
                base.follow(&row);
                rows.push(row);
            }
            terms.push((term, rows));
        }
        outer.follow(&base);
        m.subgroup = Some(schedule.subgroup);
        Ok(Some(Block { number, combined, block, terms }))
    }

    /// The expressions that a stage needs beside the terms of its sum.
    pub(super) fn others(&self, stage: &Stage) -> Vec<ExprId> {
        let summed = self.combined.reduction.roots();
        stage.roots().into_iter().filter(|r| !summed.contains(r)).collect()
    }

    /// The sum of each invocation's own element, as `acc…`. All invocations of the workgroup take part.
    pub(super) fn sum(&self, m: &mut Module, s: &mut Scope, w: &Writer) -> Result<(), Diagnostic> {
        let Block { number, combined, block, terms } = self;
        let (i, value) = (combined.acc, combined.reduction.value);
        let parts = addends(&m.kernel.body, value);
        for r in 0..*block {
            s.line(&format!("var sum{i}_{r} = 0.0f;"));
        }
        for (j, (term, rows)) in terms.iter().enumerate() {
            let mut common = term.inner(s.indent());
            common.number_after(s);
            m.hoist(&mut common, &[value], !var_bit(w.element))?;
            s.follow(&common);
            let left = combined.terms - j as u32 * block;
            let ragged = left < *block;
            if ragged {
                s.line(&format!("if (part{number} < {left}) {{"));
            }
            for (r, row) in rows.iter().enumerate() {
                let mut row = row.inner(s.indent() + if ragged { 4 } else { 0 });
                row.number_after(s);
                row.learn(&common);
                for p in &parts {
                    let v = m.value(&mut row, *p)?;
                    row.line(&format!("sum{i}_{r} = sum{i}_{r} + {v};"));
                }
                s.follow(&row);
            }
            if ragged {
                s.line("}");
            }
        }
        // Each turn halves the elements that an invocation has parts of, until its own is left.
        let mut names: Vec<String> = (0..*block).map(|r| format!("sum{i}_{r}")).collect();
        let mut mask = 1;
        while let [_, _, ..] = &names[..] {
            let mut kept = vec![];
            for (n, pair) in names.chunks(2).enumerate() {
                let [low, high] = pair else { continue };
                let (name, is_high) =
                    (format!("joined{i}_{mask}_{n}"), format!("(v{} & {mask}) != 0", w.element));
                s.line(&format!(
                    "let {name} = select({low}, {high}, {is_high}) + subgroupShuffleXor(select({high}, {low}, {is_high}), {mask}u);"
                ));
                kept.push(name);
            }
            names = kept;
            mask *= 2;
        }
        s.line(&format!("let acc{i} = {};", names.concat()));
        Ok(())
    }
}

/// The terms that are added up to a value.
fn addends(body: &Body, value: ExprId) -> Vec<ExprId> {
    let (mut out, mut stack) = (vec![], vec![value]);
    while let Some(e) = stack.pop() {
        match body.expr(e) {
            Expr::Binary(BinaryOp::Add, a, b) => stack.extend([*b, *a]),
            _ => out.push(e),
        }
    }
    out
}
