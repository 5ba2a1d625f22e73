//! Tests of the rewrites on real models.

use std::time::Instant;
use wgfc_compiler::import::{NoExternalData, import};
use wgfc_compiler::lower::Lowering;
use wgfc_compiler::lower::dequantize::{Zero, dequantized, per_element};
use wgfc_compiler::passes::rewrite;
use wgfc_compiler::rewrite::RewriteReport;
use wgfc_compiler::{Options, Technique};
use wgfc_ir::{BinaryOp, Border, Builder, DType, Graph, NormKind, Op, Tensor, TensorType};

fn imported(model: &str, options: &Options) -> Graph {
    let path = format!("{}/../fixtures/{model}.onnx", env!("CARGO_MANIFEST_DIR"));
    let bytes = std::fs::read(&path).unwrap_or_else(|e| panic!("{path}: {e}"));
    import(&bytes, &NoExternalData, options).unwrap_or_else(|e| panic!("{e}")).graph
}

fn rewritten(model: &str, options: Options) -> (Graph, RewriteReport) {
    let options = Options { graph_only: true, ..options };
    let mut graph = imported(model, &options);
    let start = Instant::now();
    let report = rewrite(&mut graph, &options).unwrap_or_else(|e| panic!("{e}"));
    eprintln!("{model}: {:?} {report:?}", start.elapsed());
    wgfc_ir::verify::verify(&graph).unwrap_or_else(|e| panic!("{}", e.join("\n")));
    (graph, report)
}

fn count(graph: &Graph, which: impl Fn(&Op) -> bool) -> usize {
    graph.node_ids().filter(|n| which(&graph.node(*n).op)).count()
}
fn attentions(graph: &Graph) -> usize {
    count(graph, |op| matches!(op, Op::Attention { .. }))
}
fn norms(graph: &Graph, kind: NormKind) -> usize {
    count(graph, |op| matches!(op, Op::Norm { kind: k, .. } if *k == kind))
}

#[test]
fn bert_base() {
    let (g, r) = rewritten("bert-base", Options::default());
    assert_eq!(attentions(&g), 12);
    assert_eq!(norms(&g, NormKind::Layer), 25);
    assert_eq!(r.merged, [3; 12], "Q, K and V of each layer");
    assert_eq!(count(&g, |op| matches!(op, Op::Contract(_))), 12 * 4);
}

#[test]
fn qwen2_2l() {
    let (g, r) = rewritten("qwen2-2l", Options::default());
    assert_eq!(attentions(&g), 2);
    assert_eq!(norms(&g, NormKind::Rms), 5);
    assert_eq!(r.merged, [3, 2, 3, 2], "QKV, gate and up of each layer");
}

#[test]
fn qwen_of_24_layers_is_solved_a_layer_at_a_time() {
    for model in ["qwen2.5-0.5b", "qwen2.5-0.5b-f16"] {
        let (g, r) = rewritten(model, Options::default());
        assert_eq!(attentions(&g), 24, "{model}");
        assert_eq!(norms(&g, NormKind::Rms), 49, "{model}");
        assert!(r.rules.distinct * 2 <= r.rules.regions, "{model}: {:?}", r.rules);
        assert_eq!(r.rules.limited, 0, "{model}");
    }
}

#[test]
fn what_is_switched_off_does_not_happen() {
    let without = [Technique::Approximate, Technique::Merge].into();
    let (g, r) = rewritten("bert-base", Options { without, ..Options::default() });
    assert_eq!(attentions(&g), 0);
    assert!(r.merged.is_empty());
}

#[test]
fn the_same_graph_gives_the_same_text() {
    let text = || wgfc_ir::text::print(&rewritten("qwen2-2l", Options::default()).0);
    assert_eq!(text(), text());
}

#[test]
fn convolutions_survive() {
    for model in ["resnet50", "mobilenetv2"] {
        let (g, r) = rewritten(model, Options::default());
        assert!(count(&g, |op| matches!(op, Op::Contract(_))) >= 50, "{r:?}");
    }
}

/// Weights of 4 bits whose elements are too many together to be folded, and few enough alone.
#[test]
fn products_with_large_weights_are_merged() {
    const ROWS: usize = 10_240;
    const COLUMNS: usize = 4096;
    let mut g = Graph::new();
    let x = g.add_input("x", TensorType::new(DType::F32, [1, COLUMNS].map(Into::into)));
    let mut cx = Lowering::new(&mut g);
    let products = [0, 1].map(|_| {
        let elements = cx.constant(Tensor::absent(DType::U4, vec![ROWS, COLUMNS]));
        let scales = cx.constant(Tensor::absent(DType::F16, vec![ROWS, COLUMNS / 32]));
        let shape = [ROWS, COLUMNS].map(Into::into);
        let scale = per_element(&mut cx, scales, 1, 32, &shape).unwrap();
        let w = dequantized(&mut cx, elements, scale, &Zero::Is(8), DType::F32).unwrap();
        let w = Builder::transpose(&mut cx, w, &[1, 0]).unwrap();
        cx.matmul(x, w).unwrap()
    });
    let y = cx.binary(BinaryOp::Mul, products[0], products[1]).unwrap();
    g.outputs.push(Border { name: "y".into(), value: y });
    let report = rewrite(&mut g, &Options { graph_only: true, ..Options::default() }).unwrap();
    assert_eq!((report.merged, count(&g, |op| matches!(op, Op::Contract(_)))), (vec![2], 1));
}
