//! Recurrent layers whose weights fit the registers of one workgroup, in every block that its invocations may
//! divide the weights into.

use crate::backend::{Backend, run_session, session};
use crate::spread::{Layer, close};
use wgfc_compiler::Options;
use wgfc_compiler::assemble::assemble;
use wgfc_compiler::lower::recurrent::Cell;
use wgfc_compiler::pipeline::{fuse_graph, schedule};
use wgfc_compiler::schedule::{Context, Schedule, candidates};
use wgfc_ir::eval::evaluate;
use wgfc_ir::program::Stats;

/// Runs a layer on each adapter with every block that is allowed there. Returns the number of blocks tried.
fn check(layer: &Layer) -> usize {
    let mut count = 0;
    let what = format!("{:?} of {} × {}", layer.cell, layer.batch, layer.hidden);
    for gpu in Backend::adapters() {
        let mut options = Options::default();
        options.profile = options.profile.with_limits(gpu.profile());
        let graph = layer.graph();
        let fused = fuse_graph(graph.clone(), Stats::default(), &options, &mut |_, _| {}).unwrap();
        let all = schedule(fused.kernels, &options).unwrap();
        let blocked = |s: &Schedule| match s {
            Schedule::BlockedLoop(s) => Some(s.block),
            _ => None,
        };
        for block in [2, 4, 8] {
            let mut all = all.clone();
            let cx = Context { graph: &all.graph, device: &options.profile, expect: &options.expect };
            let mut found = false;
            for (k, s) in all.graph.kernels.iter().zip(&mut all.schedules) {
                let of = candidates(k, &cx).unwrap().into_iter().find(|s| blocked(s) == Some(block));
                found |= of.is_some();
                if let Some(of) = of {
                    *s = of;
                }
            }
            if !found {
                continue;
            }
            count += 1;
            let program = assemble(&fused.graph, &all, &options, fused.stats.clone()).unwrap();
            let inputs = layer.inputs(layer.steps.unwrap_or(3));
            let want = evaluate(&graph, &inputs).unwrap();
            let got = run_session(&mut session(&gpu, &program).unwrap(), &inputs).unwrap();
            for (o, (got, want)) in got.iter().zip(&want).enumerate() {
                close(got, want, &format!("{what} in blocks of {block}, output {o}, {}", gpu.summary().name));
            }
        }
    }
    count
}

/// Sizes that are multiples of a block and sizes that are not, for one product per step and for two.
#[test]
fn recurrent_layers() {
    use Cell::{Gru, Lstm, Rnn};
    let both = &[false, true][..];
    let layers = [
        Layer { initial: true, ..Layer::new(Lstm, 64, 1, Some(4)) },
        Layer { backwards: both, ..Layer::new(Lstm, 50, 3, Some(2)) },
        Layer { before_reset: false, initial: true, ..Layer::new(Gru, 65, 1, Some(3)) },
        Layer { backwards: &[true], ..Layer::new(Gru, 83, 2, None) },
        Layer { backwards: both, initial: true, ..Layer::new(Rnn, 100, 1, Some(5)) },
        Layer::new(Rnn, 130, 2, Some(3)),
        Layer::new(Gru, 97, 1, Some(3)),
        Layer::new(Gru, 128, 1, Some(3)),
    ];
    let counts: Vec<usize> = layers.iter().map(check).collect();
    if Backend::adapters().iter().any(|g| g.profile().subgroup.is_some_and(|(a, b)| a == b && a >= 4)) {
        assert!(counts[..6].iter().all(|n| *n > 0), "{counts:?}");
    }
}
