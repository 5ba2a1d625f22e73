//! The `StagedLoop` family where several workgroups share a lane, as [`schedule::spread`](crate::schedule::spread) says.

use super::accumulator::Accumulator;
use super::lanes::Lanes;
use super::staged_loop::{Writer, declared, leave_unless, vectors};
use super::wgsl::{Module, Scope, reg_type};
use super::{EmitContext, EmittedKernel, fold_workgroups, template_error};
use crate::Diagnostic;
use crate::kernel::dependence::{Deps, var_bit};
use crate::kernel::{Array, Combined, ExprId, Kernel, Stage, StagedLoop, Store};
use crate::schedule::loops::{self, Spread};
use crate::schedule::spread::{self, Plan, Share};
use std::fmt::Write;
use wgfc_codegen_templates as templates;
use wgfc_ir::{DType, Reg};

pub(super) fn emit(
    kernel: &Kernel,
    k: &StagedLoop,
    schedule: &Spread,
    cx: &EmitContext,
) -> Result<EmittedKernel, Diagnostic> {
    let StagedLoop { lanes, steps, part, arrays, first, each, last, alive, meet, why } = k;
    let refused = || Diagnostic::internal(format!("workgroups cannot share {}", kernel.family));
    let plan = spread::plan(kernel, cx.graph, schedule.groups).ok_or_else(refused)?;
    let meet = meet.as_ref().filter(|_| last.is_empty()).ok_or_else(refused)?;
    let mut m = Module::new(kernel, cx)?;
    m.vectors = vectors(kernel, arrays);
    let words = m.names[m.binding(meet.tensor)?.0].clone();
    let step = lanes.len();
    let w = Shared {
        plain: Writer { threads: schedule.threads, step, element: step + 1, term: step + 2 },
        plan: &plan,
        schedule,
        arrays,
        words: &words,
    };

    let mut outer = Scope::new(4);
    let head = Lanes::begin(&mut m, &mut outer, lanes, steps)?;
    outer.line(&format!("let v{} = i32(local);", step + 1));
    for stage in first {
        let mut scope = outer.inner(4);
        w.plain.stage(&mut m, &mut scope, stage)?;
        outer.text.push_str(&scope.text);
    }
    let base = m.index(&mut outer, &meet.offset)?;
    outer.line(&format!("let base = {base};"));
    let mut all = vec![];
    for (i, (stage, share)) in each.iter().zip(&plan.each).enumerate() {
        all.push(w.prepare(&mut m, &mut outer, i, stage, *share)?);
    }
    let (first_step, end) = Lanes::ends(&mut m, &mut outer, part.as_ref())?;

    let mut body = outer.inner(8);
    leave_unless(&mut body, *alive);
    body.line(&format!("let tag = 0x8000u | (u32(v{step}) & 0x7fffu);"));
    body.line(&format!("let place = base + (v{step} & 1) * {};", plan.place));
    // Memory is read long before the stage that needs it.
    for part in &mut all {
        let mut scope = part.scope.inner(8);
        scope.number_after(&body);
        m.hoist(&mut scope, &part.roots, part.ready | var_bit(step))?;
        body.follow(&scope);
        part.scope = scope;
    }
    for part in &all {
        w.stage(&mut m, &mut body, part)?;
    }
    let mut end_text = Scope::new(4);
    for (c, (word, share, len)) in plan.left.iter().enumerate() {
        w.leave(&m, &mut end_text, c as u32, (*word, *share, *len));
    }
    let mut declared = declared(arrays, &m.vectors);
    for part in all.iter().filter(|p| p.lanes > 1) {
        if let Some(c) = &part.stage.combined {
            let (t, n) = (reg_type(c.reduction.dtype.reg()), part.own * part.lanes);
            let _ = writeln!(declared, "var<workgroup> partial{}: array<{t}, {n}>;", c.acc);
        }
    }
    let steps = templates::staged_loop::Steps {
        preamble: m.preamble(),
        extents: head.extents,
        threads: schedule.threads,
        lanes: head.lanes,
        steps: head.steps,
        step_var: format!("v{step}"),
        first_step,
        end,
        setup: outer.text,
        body: body.text,
        last: end_text.text,
    };
    let text = templates::spread_loop::SpreadLoop {
        why: why.clone(),
        arrays: declared,
        words: words.clone(),
        groups: schedule.groups,
        polls: schedule.polls,
        steps,
    };
    let wgsl = templates::render(&text).map_err(template_error)?;
    let count = &head.count * i64::from(schedule.groups);
    let workgroups = fold_workgroups(&count, cx.target.max_workgroups);
    let bytes = loops::bytes(k, &plan, schedule);
    Ok(m.finish("spread_loop", wgsl, [schedule.threads, 1, 1], bytes, workgroups))
}

/// Writes stages of which a workgroup computes some elements.
struct Shared<'a> {
    plain: Writer,
    plan: &'a Plan,
    schedule: &'a Spread,
    arrays: &'a [Array],
    words: &'a str,
}

/// A stage, with what is known of it before the loop.
struct Prepared<'k> {
    number: usize,
    stage: &'k Stage,
    share: Share,
    /// Elements that the workgroup goes through.
    own: u32,
    /// Invocations that share an element's terms.
    lanes: u32,
    /// The expressions needed beside the terms that are written out.
    roots: Vec<ExprId>,
    ready: Deps,
    scope: Scope,
    /// One for each term of an invocation, if they are written out.
    terms: Vec<Scope>,
}

impl Prepared<'_> {
    /// Whether an invocation has one element at most.
    fn is_single(&self, threads: u32) -> bool {
        self.own <= threads
    }
}

impl Shared<'_> {
    /// Statements that say which element number `local` of the workgroup's own is, and whether there is one.
    fn place(&self, s: &mut Scope, p: (usize, &Stage, Share), local: &str) -> (String, String) {
        let (i, stage, share) = p;
        let n = stage.elements;
        match share {
            Share::All => (format!("min({local}, {})", n.saturating_sub(1)), format!("{local} < {n}")),
            Share::Blocks { width, stride } => {
                let many = share.most(n);
                let inside = format!("in{i}");
                s.line(&format!("let {inside} = member * {width} + {local} % {width};"));
                let at = match many == width {
                    true => inside.clone(),
                    false => format!("{local} / {width} * {stride} + {inside}"),
                };
                s.line(&format!("let at{i} = {at};"));
                let there = format!("{local} < {many} && {inside} < {stride} && at{i} < {n}");
                (format!("min(at{i}, {})", n.saturating_sub(1)), there)
            }
        }
    }

    /// Computes the parts of a stage that no step changes.
    fn prepare<'k>(
        &self,
        m: &mut Module,
        outer: &mut Scope,
        number: usize,
        stage: &'k Stage,
        share: Share,
    ) -> Result<Prepared<'k>, Diagnostic> {
        let own = share.most(stage.elements);
        let lanes = spread::lanes(stage, own, self.schedule);
        let (step, element, term) = (self.plain.step, self.plain.element, self.plain.term);
        let fixed: Deps = (0..step).map(var_bit).fold(0, |a, b| a | b);
        let mut scope = outer.inner(4);
        let (mut ready, mut terms) = (fixed, vec![]);
        let single = own <= self.schedule.threads;
        let kept = stage.combined.as_ref().filter(|_| single && self.schedule.kept);
        if single {
            ready |= var_bit(element);
            let mut local = "i32(local)".to_owned();
            if lanes > 1 {
                scope.line(&format!("let part{number} = i32(local) / {own};"));
                local = format!("i32(local) % {own}");
            }
            scope.line(&format!("let l{number} = {local};"));
            let (at, there) = self.place(&mut scope, (number, stage, share), &format!("l{number}"));
            scope.line(&format!("let own{number} = {at};"));
            scope.line(&format!("let has{number} = {there};"));
            scope.bind_var(element, &format!("own{number}"));
        }
        let mut roots = stage.roots();
        if let Some(c) = kept {
            let reduced = c.reduction.roots();
            let others: Vec<ExprId> = roots.iter().copied().filter(|r| !reduced.contains(r)).collect();
            roots = others;
        }
        m.hoist(&mut scope, &roots, ready)?;
        if let Some(c) = kept {
            let each = c.terms / lanes;
            for j in 0..each {
                let mut own = scope.inner(4);
                own.number_after(&scope);
                own.bind_var(term, &format!("t{number}_{j}"));
                let from = if lanes > 1 { format!("part{number} * {each} + {j}") } else { j.to_string() };
                // Invocations beyond the last part compute nothing with it.
                let from = if lanes > 1 { format!("min({from}, {})", c.terms - 1) } else { from };
                own.line(&format!("let t{number}_{j} = {from};"));
                m.hoist(&mut own, &c.reduction.roots(), ready | var_bit(term))?;
                scope.follow(&own);
                terms.push(own);
            }
        }
        outer.follow(&scope);
        Ok(Prepared { number, stage, share, own, lanes, roots, ready, scope, terms })
    }

    /// One stage, at the end of which all wait for each other and for what other workgroups hand on.
    fn stage(&self, m: &mut Module, s: &mut Scope, p: &Prepared) -> Result<(), Diagnostic> {
        let Prepared { number, stage, share, own, lanes, scope, .. } = p;
        let threads = self.schedule.threads;
        let element = self.plain.element;
        let mut inner = scope.inner(12);
        inner.number_after(s);
        if p.is_single(threads) {
            match (&stage.combined, *lanes) {
                (Some(c), 2..) => {
                    s.line(&format!("if (has{number} && part{number} < {lanes}) {{"));
                    let acc = self.combine(m, &mut inner, c, p)?;
                    acc.settle(&mut inner);
                    inner.line(&format!("partial{}[local] = acc{};", c.acc, c.acc));
                    s.text.push_str(&inner.text);
                    s.line("}");
                    s.line("workgroupBarrier();");
                    s.line(&format!("if (has{number} && part{number} == 0) {{"));
                    inner = scope.inner(12);
                    inner.number_after(s);
                    let i = c.acc;
                    inner.line(&format!("var acc{i} = partial{i}[local];"));
                    for l in 1..*lanes {
                        let other = format!("partial{i}[local + {}u]", l * own);
                        let both = acc.combine(m, &format!("acc{i}"), &other)?;
                        inner.line(&format!("acc{i} = {both};"));
                    }
                }
                (combined, _) => {
                    s.line(&format!("if (has{number}) {{"));
                    if let Some(c) = combined {
                        let acc = self.combine(m, &mut inner, c, p)?;
                        acc.settle(&mut inner);
                        acc.finish(m, &mut inner)?;
                    }
                }
            }
            inner.bind_var(element, &format!("own{number}"));
            self.results(m, &mut inner, p)?;
            s.text.push_str(&inner.text);
            s.line("}");
        } else {
            s.line(&format!(
                "for (var l{number} = i32(local); l{number} < {own}; l{number} += {threads}) {{"
            ));
            let local = format!("l{number}");
            let (_, there) = self.place(&mut inner, (*number, stage, *share), &local);
            let at = if *share == Share::All { local } else { format!("at{number}") };
            inner.line(&format!("if ({there}) {{"));
            let mut deep = inner.inner(16);
            deep.bind_var(element, &at);
            if let Some(c) = &stage.combined {
                let acc = self.combine(m, &mut deep, c, p)?;
                acc.settle(&mut deep);
                acc.finish(m, &mut deep)?;
            }
            self.results(m, &mut deep, p)?;
            inner.text.push_str(&deep.text);
            inner.line("}");
            s.text.push_str(&inner.text);
            s.line("}");
        }
        s.line("workgroupBarrier();");
        self.collect(m, s, stage, *share);
        Ok(())
    }

    /// Combines an invocation's terms of its element.
    fn combine<'c>(
        &self,
        m: &mut Module,
        inner: &mut Scope,
        c: &'c Combined,
        p: &Prepared,
    ) -> Result<Accumulator<'c>, Diagnostic> {
        let (term, number, lanes) = (self.plain.term, p.number, p.lanes);
        let acc = Accumulator::new(c.acc as usize, &c.reduction, &[]).over(term);
        acc.declare(m, inner)?;
        if !p.terms.is_empty() {
            for (j, known) in p.terms.iter().enumerate() {
                let mut each = known.inner(inner.indent());
                each.number_after(inner);
                let one = Accumulator::new(c.acc as usize, &c.reduction, &[]);
                one.named(format!("t{number}_{j}")).update(m, &mut each)?;
                inner.follow(&each);
            }
            return Ok(acc);
        }
        m.hoist(inner, &[c.reduction.value], !var_bit(term))?;
        let (v, each) = (format!("v{term}"), c.terms / lanes);
        let (from, to) = match lanes {
            1 => ("0".to_owned(), c.terms.to_string()),
            _ => (format!("part{number} * {each}"), format!("part{number} * {each} + {each}")),
        };
        inner.line(&format!("for (var {v} = {from}; {v} < {to}; {v}++) {{"));
        let mut body = inner.inner(inner.indent() + 4);
        acc.update(m, &mut body)?;
        inner.text.push_str(&body.text);
        inner.line("}");
        Ok(acc)
    }

    /// Stores and writes of an element.
    fn results(&self, m: &mut Module, inner: &mut Scope, p: &Prepared) -> Result<(), Diagnostic> {
        let mut values = vec![];
        for w in &p.stage.writes {
            values.push(m.value(inner, w.value)?);
        }
        let mut own = inner.inner(inner.indent());
        if p.share == Share::All && !p.stage.stores.is_empty() {
            own.line("if (member == 0) {");
            let mut one = own.inner(own.indent() + 4);
            stores(m, &mut one, &p.stage.stores)?;
            own.text.push_str(&one.text);
            own.line("}");
        } else {
            stores(m, &mut own, &p.stage.stores)?;
        }
        inner.follow(&own);
        let at = inner.var(self.plain.element);
        for (w, v) in p.stage.writes.iter().zip(values) {
            let (a, dtype) = (w.array, m.kernel.body.dtype(w.value));
            let stored = if dtype == DType::Bool { format!("select(0u, 1u, {v})") } else { v.to_string() };
            inner.line(&match m.vectors.get(a as usize) {
                Some(4) => format!("s{a}[{at} >> 2u][{at} & 3] = {stored};"),
                _ => format!("s{a}[{at}] = {stored};"),
            });
            if let Some(h) = self.plan.handed.get(a as usize).copied().flatten() {
                let word = as_word(&stored, dtype);
                let (high, low) = (h.word, h.word + h.elements);
                inner.line(&format!("hand_on(place + {high} + {at}, place + {low} + {at}, tag, {word});"));
            }
        }
        Ok(())
    }

    /// Waits for what others hand on of the arrays that a stage writes.
    fn collect(&self, m: &Module, s: &mut Scope, stage: &Stage, share: Share) {
        let Share::Blocks { width, stride } = share else { return };
        let mut any = false;
        for w in &stage.writes {
            let a = w.array;
            let Some(h) = self.plan.handed.get(a as usize).copied().flatten() else { continue };
            any = true;
            let (high, low) = (h.word, h.word + h.elements);
            let threads = self.schedule.threads;
            s.line(&format!("for (var i = i32(local); i < {}; i += {threads}) {{", h.elements));
            s.line(&format!("    if (i % {stride} / {width} != member) {{"));
            s.line(&format!("        let word = awaited(place + {high} + i, place + {low} + i, tag);"));
            let value = match self.arrays[a as usize].dtype.reg() {
                Reg::F32 => "bitcast<f32>(word)",
                Reg::I32 => "bitcast<i32>(word)",
                _ => "word",
            };
            s.line(&match m.vectors.get(a as usize) {
                Some(4) => format!("        s{a}[i >> 2u][i & 3] = {value};"),
                _ => format!("        s{a}[i] = {value};"),
            });
            s.line("    }");
            s.line("}");
        }
        if any {
            s.line("workgroupBarrier();");
        }
    }

    /// Leaves the last values of what is carried where the ordinary form finds them.
    fn leave(&self, m: &Module, s: &mut Scope, array: u32, (word, share, len): (u32, Share, u32)) {
        let threads = self.schedule.threads;
        let mine = match share {
            Share::All => "member == 0".to_owned(),
            Share::Blocks { width, stride } => format!("i % {stride} / {width} == member"),
        };
        let value = match m.vectors.get(array as usize) {
            Some(4) => format!("s{array}[i >> 2u][i & 3]"),
            _ => format!("s{array}[i]"),
        };
        let value = as_word(&value, self.arrays[array as usize].dtype);
        s.line(&format!("for (var i = i32(local); i < {len}; i += {threads}) {{"));
        s.line(&format!("    if ({mine}) {{"));
        s.line(&format!("        atomicStore(&{}[base + {word} + i], {value});", self.words));
        s.line("    }");
        s.line("}");
    }
}

fn stores(m: &mut Module, s: &mut Scope, all: &[Store]) -> Result<(), Diagnostic> {
    all.iter().try_for_each(|store| m.store(s, store))
}

/// The bits of what is stored in workgroup memory.
fn as_word(stored: &str, dtype: DType) -> String {
    match dtype.reg() {
        Reg::F32 | Reg::I32 => format!("bitcast<u32>({stored})"),
        _ => stored.to_owned(),
    }
}
