//! The `Loop` family: every lane repeats its steps, what it carries in registers.

use super::handle::Handle;
use super::wgsl::{Module, Scope, reg_type};
use super::{EmitContext, EmittedKernel, fold_workgroups, template_error};
use crate::Diagnostic;
use crate::kernel::dependence::{Deps, var_bit};
use crate::kernel::{Kernel, Loop, Store};
use crate::schedule::loops;
use wgfc_codegen_templates as templates;
use wgfc_ir::Dim;

pub(super) fn emit(
    kernel: &Kernel,
    k: &Loop,
    schedule: &loops::Loop,
    cx: &EmitContext,
) -> Result<EmittedKernel, Diagnostic> {
    let Loop { lanes, steps, part, carries, alive, step_stores } = k;
    let threads = schedule.threads;
    let mut m = Module::new(kernel, cx, false)?;
    let count: Dim = lanes.iter().product();
    let mut outer = Scope::new(4);
    let count_text = m.extent(&mut outer, &count)?;
    let steps_text = m.extent(&mut outer, steps)?;
    let mut extents = vec![];
    for d in lanes {
        extents.push(m.extent(&mut outer, d)?);
    }
    let head = std::mem::take(&mut outer.text);
    outer.line(&match lanes.len() {
        1 => "let v0 = lane;".to_owned(),
        _ => "var rest = lane;".to_owned(),
    });
    if lanes.len() != 1 {
        for (i, extent) in extents.iter().enumerate().skip(1).rev() {
            outer.line(&format!("let v{i} = rest % {extent};"));
            outer.line(&format!("rest = rest / {extent};"));
        }
        if !lanes.is_empty() {
            outer.line("let v0 = rest;");
        }
    }
    let fixed: Deps = (0..lanes.len()).map(var_bit).fold(0, |a, b| a | b);
    m.hoist(&mut outer, &kernel.roots(), fixed)?;
    for (i, c) in carries.iter().enumerate() {
        let ty = reg_type(kernel.body.dtype(c.init).reg());
        let first = m.value(&mut outer, c.init)?;
        outer.line(&format!("var acc{i}: {ty} = {first};"));
    }

    let (mut first_step, mut end) = ("0".to_owned(), "steps".to_owned());
    if let Some(part) = part {
        first_step = m.value(&mut outer, part.first)?.to_string();
        end = format!("min(steps, {first_step} + {})", part.most);
    }

    let mut step = outer.inner(8);
    if let Some(alive) = alive {
        m.hoist(&mut step, &[*alive], Deps::MAX)?;
        let alive = m.value(&mut step, *alive)?;
        step.line(&format!("if (!{alive}) {{"));
        step.line("    break;");
        step.line("}");
    }
    let mut wanted: Vec<u32> = carries.iter().map(|c| c.next).collect();
    wanted.extend(needs(step_stores));
    m.hoist(&mut step, &wanted, Deps::MAX)?;
    for store in step_stores {
        m.store(&mut step, store)?;
    }
    let mut after = vec![];
    for c in carries {
        after.push(m.value(&mut step, c.next)?);
    }
    // A value may be another's old one.
    let own = |i: usize| format!("acc{i}");
    for (i, v) in after.iter_mut().enumerate().filter(|(i, v)| v.is_var() && ***v != own(*i)) {
        step.line(&format!("let old{i} = {v};"));
        *v = Handle::named(format!("old{i}"));
    }
    for (i, v) in after.iter().enumerate().filter(|(i, v)| ***v != own(*i)) {
        step.line(&format!("acc{i} = {v};"));
    }

    let mut last = outer.inner(4);
    m.hoist(&mut last, &needs(&kernel.stores).collect::<Vec<u32>>(), Deps::MAX)?;
    for store in &kernel.stores {
        m.store(&mut last, store)?;
    }
    let wgsl = templates::render(&templates::looped::Loop {
        preamble: m.preamble(),
        extents: head,
        threads,
        lanes: count_text,
        steps: steps_text,
        step_var: format!("v{}", lanes.len()),
        first_step,
        end,
        setup: outer.text,
        body: step.text,
        last: last.text,
    })
    .map_err(template_error)?;
    let groups = count.ceil_div(i64::from(threads));
    Ok(m.finish("loop", wgsl, [threads, 1, 1], 0, fold_workgroups(&groups, cx.target.max_workgroups)))
}

/// The expressions that stores read.
fn needs(stores: &[Store]) -> impl Iterator<Item = u32> + '_ {
    stores.iter().flat_map(|s| s.offset.data().into_iter().chain(s.guard).chain([s.value]))
}
