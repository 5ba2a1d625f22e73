//! The `Sort` family: parts of rows in order, in workgroup memory or by merging runs.

use super::wgsl::{Module, Scope};
use super::{EmitContext, EmittedKernel, fold_workgroups, template_error};
use crate::Diagnostic;
use crate::kernel::{Kernel, Sort};
use crate::schedule::sorts::{self, Block, Merge};
use wgfc_codegen_templates as templates;
use wgfc_codegen_templates::sort::{Keys, SortBlock, SortMerge, SortPath, SortSelect};

pub(super) fn emit(
    kernel: &Kernel,
    k: &Sort,
    schedule: &sorts::Sort,
    cx: &EmitContext,
) -> Result<EmittedKernel, Diagnostic> {
    match *schedule {
        sorts::Sort::Block(s) => block(kernel, k, s, cx),
        sorts::Sort::Select(s) => select(kernel, k, s, cx),
        sorts::Sort::Path(s) => path(kernel, k, s, cx),
        sorts::Sort::Merge(s) => merge(kernel, k, s, cx),
    }
}

/// The parameters that all of the templates take, with the statements that store a key indented by `indent`.
fn keys(m: &mut Module, k: &Sort, threads: u32, indent: usize) -> Result<Keys, Diagnostic> {
    let number = |n: i64| i32::try_from(n).unwrap_or(i32::MAX);
    let key = m.function("key", &[0, 1], k.key)?;
    m.lib("lt_u64")?;
    let mut outer = Scope::new(4);
    let rows = m.extent(&mut outer, &k.rows)?;
    let len = m.extent(&mut outer, &k.len)?;
    let places = m.extent(&mut outer, &k.places)?;
    let parts = m.extent(&mut outer, &k.len.ceil_div(k.part))?;
    let extents = std::mem::take(&mut outer.text);
    let mut body = outer.inner(indent);
    m.stores(&mut body, &m.kernel.stores)?;
    let apart = if k.keep < k.part { k.keep } else { k.part };
    let [part, keep, apart] = [k.part, k.keep, apart].map(number);
    let preamble = format!("{}\n{key}", m.preamble());
    Ok(Keys { preamble, extents, threads, rows, len, places, parts, part, keep, apart, body: body.text })
}

fn block(kernel: &Kernel, k: &Sort, s: Block, cx: &EmitContext) -> Result<EmittedKernel, Diagnostic> {
    let Block { threads, each } = s;
    let (count, span) = (threads * each, sorts::span(k));
    if !count.is_power_of_two() || !each.is_power_of_two() || !(each..=count).contains(&span) {
        return Err(Diagnostic::internal(format!(
            "parts of {span} keys in workgroups of {threads} × {each}"
        )));
    }
    let mut m = Module::new(kernel, cx)?;
    let keys = keys(&mut m, k, threads, 12)?;
    let wgsl = templates::render(&SortBlock {
        keys,
        each,
        count,
        span_bits: span.ilog2(),
        bits: each.ilog2(),
        first: network(each),
    })
    .map_err(template_error)?;
    let units = &k.rows * &k.len.ceil_div(k.part);
    let groups = fold_workgroups(&units.ceil_div(i64::from(count / span)), cx.target.max_workgroups);
    Ok(m.finish("sort", wgsl, [threads, 1, 1], count * 8, groups))
}

fn select(kernel: &Kernel, k: &Sort, s: Block, cx: &EmitContext) -> Result<EmittedKernel, Diagnostic> {
    let Block { threads, each } = s;
    let count = threads * each;
    if !count.is_power_of_two() || !each.is_power_of_two() || each < 2 || k.keep * 2 > i64::from(count) {
        return Err(Diagnostic::internal(format!("{} keys kept by {threads} × {each}", k.keep)));
    }
    let mut m = Module::new(kernel, cx)?;
    let keys = keys(&mut m, k, threads, 12)?;
    let (bits, count_bits) = (each.ilog2(), count.ilog2());
    let first = network(each);
    let text = SortSelect { keys, each, count, bits, count_bits, first };
    let wgsl = templates::render(&text).map_err(template_error)?;
    let units = &k.rows * &k.len.ceil_div(k.part);
    let groups = fold_workgroups(&units, cx.target.max_workgroups);
    Ok(m.finish("sort", wgsl, [threads, 1, 1], count * 8 + 8, groups))
}

fn path(kernel: &Kernel, k: &Sort, s: Block, cx: &EmitContext) -> Result<EmittedKernel, Diagnostic> {
    let Block { threads, each } = s;
    let count = threads * each;
    let sorted = i32::try_from(k.sorted).unwrap_or(i32::MAX);
    if threads < 2 || k.sorted % i64::from(count) != 0 || k.part != 2 * k.sorted {
        return Err(Diagnostic::internal(format!("runs of {sorted} by {threads} × {each}")));
    }
    let mut m = Module::new(kernel, cx)?;
    let keys = keys(&mut m, k, threads, 12)?;
    let rounds = sorts::search_rounds(k.sorted, threads);
    let text = SortPath { keys, sorted, each, count, rounds, steps: count.ilog2() + 1 };
    let wgsl = templates::render(&text).map_err(template_error)?;
    let tiles = &k.rows * &k.len.ceil_div(i64::from(count));
    let groups = fold_workgroups(&tiles, cx.target.max_workgroups);
    Ok(m.finish("sort", wgsl, [threads, 1, 1], count * 8 + 16 + threads * 4, groups))
}

/// Batcher's network: pairs whose lesser key goes to the first, one after another, until `n` keys are in order.
fn network(n: u32) -> Vec<[u32; 2]> {
    let mut out = vec![];
    let mut run = 1;
    while run < n {
        let mut by = run;
        while by >= 1 {
            for first in (by % run..n - by).step_by(2 * by as usize) {
                for i in first..first + by.min(n - first - by) {
                    if i / (2 * run) == (i + by) / (2 * run) {
                        out.push([i, i + by]);
                    }
                }
            }
            by /= 2;
        }
        run *= 2;
    }
    out
}

fn merge(kernel: &Kernel, k: &Sort, s: Merge, cx: &EmitContext) -> Result<EmittedKernel, Diagnostic> {
    let mut m = Module::new(kernel, cx)?;
    let keys = keys(&mut m, k, s.threads, 4)?;
    let sorted = i32::try_from(k.sorted).unwrap_or(i32::MAX);
    // A search in so many is over after so many steps.
    let steps = i32::BITS - sorted.leading_zeros();
    let wgsl = templates::render(&SortMerge { keys, sorted, steps }).map_err(template_error)?;
    let groups = (&k.rows * &k.len).ceil_div(i64::from(s.threads));
    Ok(m.finish("sort", wgsl, [s.threads, 1, 1], 0, fold_workgroups(&groups, cx.target.max_workgroups)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_sort() {
        // A network that sorts zeros and ones sorts everything.
        for n in [1, 2, 4, 8, 16] {
            let pairs = network(n);
            for bits in 0..1u32 << n {
                let mut keys: Vec<u32> = (0..n).map(|i| bits >> i & 1).collect();
                for [i, j] in &pairs {
                    if keys[*j as usize] < keys[*i as usize] {
                        keys.swap(*i as usize, *j as usize);
                    }
                }
                assert!(keys.is_sorted(), "{n} {bits:b}");
            }
        }
    }
}
