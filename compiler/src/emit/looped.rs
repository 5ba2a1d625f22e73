//! The `Loop` family: every lane repeats its steps, what it carries in registers.

use super::handle::Handle;
use super::lanes::Lanes;
use super::map::store_group;
use super::wgsl::{Module, Scope, reg_type};
use super::{EmitContext, EmittedKernel, fold_workgroups, template_error};
use crate::Diagnostic;
use crate::kernel::dependence::{Deps, var_bit};
use crate::kernel::{Kernel, Loop, Store};
use crate::schedule::loops;
use crate::schedule::maps::{declare, written};
use wgfc_codegen_templates as templates;

pub(super) fn emit(
    kernel: &Kernel,
    k: &Loop,
    schedule: &loops::Loop,
    cx: &EmitContext,
) -> Result<EmittedKernel, Diagnostic> {
    let Loop { lanes, steps, part, carries, alive, step_stores } = k;
    let threads = schedule.threads;
    let mut m = Module::new(kernel, cx, false)?;
    m.vectorise(&kernel.roots());
    let wide = wide(kernel, &mut m, cx);
    let mut outer = Scope::new(4);
    let head = Lanes::begin(&mut m, &mut outer, lanes, steps)?;
    let fixed: Deps = (0..lanes.len()).map(var_bit).fold(0, |a, b| a | b);
    m.hoist(&mut outer, &kernel.roots(), fixed)?;
    for (i, c) in carries.iter().enumerate() {
        let ty = reg_type(kernel.body.dtype(c.init).reg());
        let first = m.value(&mut outer, c.init)?;
        outer.line(&format!("var acc{i}: {ty} = {first};"));
    }

    let (first_step, end) = Lanes::ends(&mut m, &mut outer, part.as_ref())?;

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
    match wide {
        Some(n) => kernel.stores.chunks(n).try_for_each(|v| store_group(&mut m, &mut last, v))?,
        None => kernel.stores.iter().try_for_each(|s| m.store(&mut last, s))?,
    }
    let steps = templates::looped::Steps {
        preamble: m.preamble(),
        extents: head.extents,
        threads,
        lanes: head.lanes,
        steps: head.steps,
        step_var: format!("v{}", lanes.len()),
        first_step,
        end,
        setup: outer.text,
        body: step.text,
        last: last.text,
    };
    let wgsl = templates::render(&templates::looped::Loop { steps }).map_err(template_error)?;
    let groups = head.count.ceil_div(i64::from(threads));
    Ok(m.finish("loop", wgsl, [threads, 1, 1], 0, fold_workgroups(&groups, cx.target.max_workgroups)))
}

/// The elements of the vectors as which everything that is stored after the last step is declared, if that is possible: where a
/// lane has neighbours.
fn wide(kernel: &Kernel, m: &mut Module, cx: &EmitContext) -> Option<usize> {
    const WIDTH: u32 = 4;
    if kernel.stores.is_empty() || !kernel.stores.len().is_multiple_of(WIDTH as usize) {
        return None;
    }
    let vectors = written(&kernel.stores, &kernel.reads(), WIDTH, cx.graph, &m.bindings)?;
    let mut bindings = m.bindings.clone();
    let declared = vectors.iter().all(|(t, n)| declare(&mut bindings, cx.graph, *t, *n));
    declared.then(|| m.bindings = bindings)?;
    Some(WIDTH as usize)
}

/// The expressions that stores read.
fn needs(stores: &[Store]) -> impl Iterator<Item = u32> + '_ {
    stores.iter().flat_map(|s| s.offset.data().into_iter().chain(s.guard).chain([s.value]))
}
