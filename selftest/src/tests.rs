//! Reports of the self-test about an error injected into the evaluator's results.

use crate::{Plan, Report, Smallest, run, run_case};
use wgfc_ir::{Graph, Op, Scalar, Tensor};
use wgfc_runtime::AdapterChoice;

/// A plan for the first adapter, with a fault applied to the evaluator's results.
fn plan(fault: fn(&Graph, &mut [Tensor])) -> Option<Plan> {
    let gpu = wgfc_runtime::testing::gpus().first()?;
    let adapter = AdapterChoice::Name(gpu.summary().name.clone());
    Some(Plan { adapter, seconds: 2.0, fault: Some(fault), ..Plan::default() })
}

fn has(graph: &Graph, name: &str) -> bool {
    graph.node_ids().any(|n| match &graph.node(n).op {
        Op::While { body, .. } | Op::Scan { body, .. } => has(body, name),
        op => op.name() == name,
    })
}

fn more(want: &mut [Tensor]) {
    for t in want.iter_mut().filter(|t| t.dtype.is_float()) {
        if let Some(mut v) = t.scalars().filter(|v| !v.is_empty()) {
            v[0] = Scalar::from_f64(t.dtype, v[0].as_f64() + 1.0);
            *t = Tensor::from_scalars(t.dtype, t.shape.clone(), &v);
        }
    }
}

fn wrong_softmax(graph: &Graph, want: &mut [Tensor]) {
    if has(graph, "softmax") {
        more(want);
    }
}

fn wrong_sums(graph: &Graph, want: &mut [Tensor]) {
    if has(graph, "reduce") {
        more(want);
    }
}

#[track_caller]
fn smallest(report: &Report) -> &Smallest {
    assert!(!report.passed());
    assert_eq!(report.findings.len(), 1, "{report:?}");
    assert_eq!(report.findings[0].status, "wrong");
    report.findings[0].smallest.as_ref().unwrap_or_else(|| panic!("{report:?}"))
}

#[test]
fn a_difference_is_found_grouped_and_made_small() {
    let Some(plan) = plan(wrong_softmax) else { return };
    let report = run(&Plan { only: Some("LogSoftmax".into()), seconds: 1.0, ..plan }, &mut |_| {}).unwrap();
    assert!(!report.passed() && report.findings.len() <= 2, "{report:?}");
    for f in &report.findings {
        let m = f.smallest.as_ref().unwrap_or_else(|| panic!("{report:?}"));
        assert!(m.operators == ["LogSoftmax"] || m.operators == ["Softmax"], "{m:?}");
        assert!(m.elements <= 2 && m.setting == "fusion none", "{m:?}");
    }
    let failed: u64 = report.families.iter().map(|f| f.failed).sum();
    assert_eq!(failed, report.findings.iter().map(|f| f.cases as u64).sum::<u64>(), "{report:?}");
}

fn always_wrong(_: &Graph, want: &mut [Tensor]) {
    more(want);
}

#[test]
fn every_kind_is_told_once_and_reported_when_time_is_up() {
    let Some(plan) = plan(always_wrong) else { return };
    let mut told = vec![];
    let report = run(&plan, &mut |p| told.extend(p.found)).unwrap();
    let mut kinds: Vec<_> =
        told.iter().filter(|f| f.status == "wrong").map(|f| f.case.rsplit_once(' ').unwrap().0).collect();
    let found = kinds.len();
    kinds.sort_unstable();
    kinds.dedup();
    assert_eq!(kinds.len(), found, "{told:?}");
    assert!(found > 1 && !report.findings.is_empty(), "{report:?}");
    // No failure is lost, whether or not there was time to investigate it.
    let failed: u64 = report.families.iter().map(|f| f.failed).sum();
    assert_eq!(failed, report.findings.iter().map(|f| f.cases as u64).sum::<u64>(), "{report:?}");
    assert!(
        report.findings.iter().all(|f| f.repeats && (f.cut_short.is_some() || f.smallest.is_some())),
        "{report:?}"
    );
}

fn never_ends(_: &Graph, _: &mut [Tensor]) {
    loop {
        std::thread::park();
    }
}

#[test]
fn a_case_that_does_not_end_fails_when_time_is_up_too() {
    let Some(plan) = plan(never_ends) else { return };
    let limit = Some(std::time::Duration::from_secs(1));
    let plan = Plan { only: Some("LogSoftmax".into()), seconds: 0.1, limit, ..plan };
    let mut under_way = vec![];
    let report = run(&plan, &mut |p| under_way.extend(p.running)).unwrap();
    let failed: usize = report.findings.iter().map(|f| f.cases).sum();
    assert!(!report.passed() && report.cases > 0 && failed as u64 == report.cases, "{report:?}");
    for f in &report.findings {
        assert!(f.status == "hang" && f.message.starts_with("the evaluator has not ended"), "{f:?}");
        assert!(f.cases_named.iter().all(|c| under_way.contains(c)), "{f:?} {under_way:?}");
    }
}

#[test]
fn a_difference_in_a_graph_comes_down_to_its_node() {
    let Some(plan) = plan(wrong_sums) else { return };
    let report = (1..40)
        .map(|i| run_case(&plan, &format!("graph {i}")).unwrap())
        .find(|r| !r.passed())
        .expect("one of them has a reduction");
    let m = smallest(&report);
    assert_eq!(m.operators, ["reduce"], "{m:?}");
    assert!(m.device.as_ref().is_some_and(|d| !d.want.is_empty() && d.got.len() == d.want.len()), "{m:?}");
}
