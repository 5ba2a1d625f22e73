//! The `StagedLoop` family: every workgroup repeats the steps of a lane, what it carries in workgroup memory.

use super::accumulator::Accumulator;
use super::blocks::Block;
use super::lanes::Lanes;
use super::wgsl::{Module, Scope, Text, stored_type};
use super::{EmitContext, EmittedKernel, fold_workgroups, template_error};
use crate::Diagnostic;
use crate::kernel::bindings::component;
use crate::kernel::dependence::{Deps, var_bit};
use crate::kernel::{Array, Expr, ExprId, Kernel, Stage, StagedLoop};
use crate::schedule::loops::{Blocked, array_bytes};
use rustc_hash::FxHashMap;
use std::fmt::Write;
use wgfc_codegen_templates as templates;
use wgfc_ir::{DType, Poly};

pub(super) fn emit(
    kernel: &Kernel,
    k: &StagedLoop,
    threads: u32,
    blocked: Option<&Blocked>,
    cx: &EmitContext,
) -> Result<EmittedKernel, Diagnostic> {
    let StagedLoop { lanes, steps, part, arrays, first, each, last, alive, why, .. } = k;
    let mut m = Module::new(kernel, cx)?;
    m.vectors = vectors(kernel, arrays);
    let step = lanes.len();
    let w = Writer { threads, step, element: step + 1, term: step + 2 };

    let mut outer = Scope::new(4);
    let head = Lanes::begin(&mut m, &mut outer, lanes, steps)?;
    outer.line(&format!("let v{} = i32(local);", w.element));
    for stage in first {
        let mut scope = outer.inner(4);
        w.stage(&mut m, &mut scope, stage)?;
        outer.text.push_str(&scope.text);
    }

    let fixed: Deps = (0..step).map(var_bit).fold(0, |a, b| a | b);
    let mut scopes = vec![];
    for stage in each {
        let mut scope = outer.inner(4);
        let mut ready = fixed;
        if stage.elements <= threads {
            ready |= var_bit(w.element);
            // Values computed in advance are of an element that exists.
            let own = format!("own{}", scopes.len());
            scope.line(&format!("let {own} = min(v{}, {});", w.element, stage.elements.saturating_sub(1)));
            scope.bind_var(w.element, &own);
        }
        let mut block = None;
        if let Some(schedule) = blocked {
            block = Block::prepare(&mut m, &mut outer, &w, (scopes.len(), stage), schedule, fixed)?;
            scope.number_after(&outer);
        }
        let roots = block.as_ref().map_or_else(|| stage.roots(), |b| b.others(stage));
        m.hoist(&mut scope, &roots, ready)?;
        outer.follow(&scope);
        scopes.push((scope, ready, block, roots));
    }

    let (first_step, end) = Lanes::ends(&mut m, &mut outer, part.as_ref())?;

    let mut body = outer.inner(8);
    leave_unless(&mut body, *alive);
    // Memory is read long before the stage that needs it.
    let mut ready_scopes = vec![];
    for (scope, ready, _, roots) in &scopes {
        let mut scope = scope.inner(8);
        scope.number_after(&body);
        m.hoist(&mut scope, roots, ready | var_bit(w.step))?;
        body.follow(&scope);
        ready_scopes.push(scope);
    }
    for ((stage, (_, _, block, _)), scope) in each.iter().zip(&scopes).zip(&ready_scopes) {
        if let Some(block) = block {
            block.sum(&mut m, &mut body, &w)?;
        }
        let mut scope = scope.inner(8);
        scope.number_after(&body);
        w.write(&mut m, &mut scope, stage, block.is_none())?;
        body.text.push_str(&scope.text);
    }
    let mut end_scope = outer.inner(4);
    for stage in last {
        let mut scope = outer.inner(4);
        w.stage(&mut m, &mut scope, stage)?;
        end_scope.text.push_str(&scope.text);
    }
    let declared = declared(arrays, &m.vectors);
    let steps = templates::staged_loop::Steps {
        preamble: m.preamble(),
        extents: head.extents,
        threads,
        lanes: head.lanes,
        steps: head.steps,
        step_var: format!("v{step}"),
        first_step,
        end,
        setup: outer.text,
        body: body.text,
        last: end_scope.text,
    };
    let local = templates::Local::new(m.subgroup.unwrap_or(1));
    let text = templates::staged_loop::StagedLoop { why: why.clone(), local, arrays: declared, steps };
    let wgsl = templates::render(&text).map_err(template_error)?;
    let workgroups = fold_workgroups(&head.count, cx.target.max_workgroups);
    let bytes = arrays.iter().map(array_bytes).sum();
    Ok(m.finish("staged_loop", wgsl, [threads, 1, 1], bytes, workgroups))
}

/// Ends the loop where the array that says whether another step is needed holds 0.
pub(super) fn leave_unless(body: &mut Scope, alive: Option<u32>) {
    if let Some(alive) = alive {
        body.line(&format!("if (workgroupUniformLoad(&s{alive}[0]) == 0u) {{"));
        body.line("    break;");
        body.line("}");
    }
}

/// Declarations of the arrays.
pub(super) fn declared(arrays: &[Array], vectors: &[u32]) -> String {
    let mut declared = String::new();
    for (i, (a, vector)) in arrays.iter().zip(vectors).enumerate() {
        let (t, len) = (stored_type(a.dtype.reg()), a.len);
        let t = if *vector == 4 { format!("vec4<{t}>, {}", len / 4) } else { format!("{t}, {len}") };
        let _ = writeln!(declared, "var<workgroup> s{i}: array<{t}>;");
    }
    declared
}

/// The elements of the vectors of which arrays are: 4 where several elements of a vector are read at once, else 1.
pub(super) fn vectors(kernel: &Kernel, arrays: &[Array]) -> Vec<u32> {
    let mut read: FxHashMap<(u32, Poly), u32> = FxHashMap::default();
    for e in kernel.body.reachable(&kernel.roots()) {
        if let Expr::Shared { array, at, guard: None } = kernel.body.expr(e)
            && let Some((vector, _)) = component(at, 4)
        {
            *read.entry((*array, vector)).or_default() += 1;
        }
    }
    let several = |i: u32| read.iter().any(|((array, _), n)| *array == i && *n > 1);
    let whole = |a: &Array| a.len.is_multiple_of(4) && a.dtype.bits() <= 32 && a.dtype != DType::Bool;
    arrays.iter().zip(0..).map(|(a, i)| if whole(a) && several(i) { 4 } else { 1 }).collect()
}

impl Module<'_> {
    /// Element `at` of an array in workgroup memory.
    pub(super) fn shared(
        &mut self,
        s: &mut Scope,
        array: u32,
        at: &Poly,
        guard: Option<ExprId>,
        dtype: DType,
    ) -> Result<Text, Diagnostic> {
        let name = self.arrays.get(array as usize).cloned().unwrap_or_else(|| format!("s{array}"));
        let width = self.vectors.get(array as usize).copied().unwrap_or(1);
        if let (2.., None, Some((at, lane))) = (width, guard, component(at, width)) {
            let at = self.index(s, &at)?;
            let whole = s.once_of(array, &format!("{name}[{at}]"));
            return Ok(Text::Handle(whole.component(["x", "y", "z", "w"][lane as usize & 3])));
        }
        let mut at = self.index(s, at)?;
        if let Some(g) = guard {
            let g = self.value(s, g)?;
            at = s.let_index(&format!("select(0, {at}, {g})"));
        }
        Ok(Text::Compound(match (width, dtype) {
            (2.., _) => format!("{name}[{at} >> {}u][{at} & {}]", width.trailing_zeros(), width - 1),
            (_, DType::Bool) => format!("{name}[{at}] != 0u"),
            _ => format!("{name}[{at}]"),
        }))
    }
}

/// Writes stages.
pub(super) struct Writer {
    pub(super) threads: u32,
    /// The variables behind those of the lanes.
    pub(super) step: usize,
    pub(super) element: usize,
    pub(super) term: usize,
}

impl Writer {
    /// One stage, at the end of which all wait for each other.
    pub(super) fn stage(&self, m: &mut Module, s: &mut Scope, stage: &Stage) -> Result<(), Diagnostic> {
        self.write(m, s, stage, true)
    }

    /// Writes a stage; `combines` if the combined values are not known yet.
    fn write(&self, m: &mut Module, s: &mut Scope, stage: &Stage, combines: bool) -> Result<(), Diagnostic> {
        let Stage { elements, combined, writes, stores } = stage;
        let var = format!("v{}", self.element);
        match elements {
            n if *n == self.threads => s.line("{"),
            n if *n < self.threads => s.line(&format!("if ({var} < {n}) {{")),
            n => s.line(&format!("for (var {var} = i32(local); {var} < {n}; {var} += {}) {{", self.threads)),
        }
        let mut inner = s.inner(s.indent() + 4);
        inner.bind_var(self.element, &var);
        if let Some(c) = combined.as_ref().filter(|_| combines) {
            let acc = Accumulator::new(c.acc as usize, &c.reduction, &[]).over(self.term);
            acc.declare(m, &mut inner)?;
            m.hoist(&mut inner, &[c.reduction.value], !var_bit(self.term))?;
            let term = format!("v{}", self.term);
            inner.line(&format!("for (var {term} = 0; {term} < {}; {term}++) {{", c.terms));
            let mut each = inner.inner(inner.indent() + 4);
            acc.update(m, &mut each)?;
            inner.text.push_str(&each.text);
            inner.line("}");
            acc.settle(&mut inner);
            acc.finish(m, &mut inner)?;
        }
        let mut values = vec![];
        for w in writes {
            values.push(m.value(&mut inner, w.value)?);
        }
        m.stores(&mut inner, stores)?;
        for (w, v) in writes.iter().zip(values) {
            let bool = m.kernel.body.dtype(w.value) == DType::Bool;
            let v = if bool { format!("select(0u, 1u, {v})") } else { v.to_string() };
            let array = w.array;
            match m.vectors.get(array as usize) {
                Some(4) => inner.line(&format!("s{array}[{var} >> 2u][{var} & 3] = {v};")),
                _ => inner.line(&format!("s{array}[{var}] = {v};")),
            }
        }
        s.text.push_str(&inner.text);
        s.line("}");
        s.line("workgroupBarrier();");
        Ok(())
    }
}
