//! Tests that integer operators give the same results for constant operands as for inputs of a run.

use super::messages::*;
use super::testing::*;
use std::collections::BTreeMap;
use wgfc_ir::DType::{self, I8, I32, I64, U8, U32, U64};
use wgfc_ir::eval::evaluate;
use wgfc_ir::{Scalar, Tensor};

/// Values near those at which arithmetic wraps.
fn extremes(dtype: DType) -> Vec<Scalar> {
    let bits = dtype.bits() as u32;
    let top = 1u64 << (bits - 1);
    let mut v: Vec<u64> = vec![0, 1, 2, 3, 5, 7, 10, 63, 64];
    v.extend([top, top - 1, top + 1, top >> 1, (top >> 1) + 1, u64::MAX, u64::MAX - 1, u64::MAX - 6]);
    v.extend([1 << 31, 1 << 32, (1 << 32) + 3, 1 << 53, (1 << 53) + 1]);
    let raw = |v: u64| wgfc_ir::storage::from_raw(dtype, if bits == 64 { v } else { v & ((1 << bits) - 1) });
    v.into_iter().map(raw).collect()
}

fn constant(name: &str, t: &Tensor) -> TensorProto {
    TensorProto {
        name: name.into(),
        dims: t.shape.iter().map(|d| *d as i64).collect(),
        data_type: data_type::code(t.dtype),
        raw_data: t.bytes().unwrap().to_vec().into(),
        ..Default::default()
    }
}

/// All pairs of extremes, as two tensors `[n, n]`.
fn pairs(dtype: DType) -> [Tensor; 2] {
    let v = extremes(dtype);
    let n = v.len();
    let all = |f: &dyn Fn(usize, usize) -> Scalar| {
        let s: Vec<Scalar> = (0..n * n).map(|i| f(i / n, i % n)).collect();
        Tensor::from_scalars(dtype, vec![n, n], &s)
    };
    [all(&|i, _| v[i]), all(&|_, j| v[j])]
}

/// The node's output with constant operands, and with operands that are inputs.
fn both_ways(n: &NodeProto, opset: i64, operands: &[(&str, Tensor)]) -> [Tensor; 2] {
    [true, false].map(|folded| {
        let dims = |t: &Tensor| t.shape.iter().map(usize::to_string).collect::<Vec<_>>().join(" ");
        let mut g = graph(vec![n.clone()], vec![], vec![untyped("y")]);
        let mut inputs = BTreeMap::new();
        for (name, t) in operands {
            if folded || *name == "known" {
                g.initializer.push(constant(name, t));
            } else {
                g.input.push(value(name, t.dtype, &dims(t)));
                inputs.insert(name.to_string(), t.clone());
            }
        }
        let mut m = model(g);
        m.opset_import[0].version = opset;
        let i = import_it(&m).unwrap_or_else(|e| panic!("{}: {e}", n.op_type));
        evaluate(&i.graph, &inputs).unwrap().remove(0)
    })
}

fn same(n: &NodeProto, opset: i64, operands: &[(&str, Tensor)]) -> Tensor {
    let [folded, computed] = both_ways(n, opset, operands);
    let (a, b) = (folded.scalars().unwrap(), computed.scalars().unwrap());
    for (i, (a, b)) in a.iter().zip(&b).enumerate() {
        let at: Vec<_> = operands.iter().map(|o| o.1.scalars().unwrap().get(i).copied()).collect();
        assert_eq!(a, b, "{} of {at:?}, folded and computed", n.op_type);
    }
    assert_eq!((folded.dtype, &folded.shape), (computed.dtype, &computed.shape), "{}", n.op_type);
    folded
}

#[test]
fn folding_computes_what_a_run_does() {
    for dtype in [I64, U64, I32, U32, I8, U8] {
        let [a, b] = pairs(dtype);
        let two = [("a", a.clone()), ("b", b.clone())];
        for op in [
            "Add",
            "Sub",
            "Mul",
            "Div",
            "Mod",
            "Min",
            "Max",
            "Equal",
            "Less",
            "GreaterOrEqual",
            "BitwiseAnd",
            "BitwiseOr",
            "BitwiseXor",
        ] {
            same(&node(op, &["a", "b"], &["y"]), 20, &two);
        }
        if dtype.bits() >= 32 && dtype.class() == wgfc_ir::Class::Int {
            same(&node("Pow", &["a", "b"], &["y"]), 20, &two);
            same(&node("Mod", &["a", "b"], &["y"]).int("fmod", 1), 20, &two);
        }
        if dtype.class() == wgfc_ir::Class::Uint {
            for way in ["LEFT", "RIGHT"] {
                same(&node("BitShift", &["a", "b"], &["y"]).text("direction", way), 20, &two);
            }
        }
        let one = [("a", a.clone())];
        let mut single = vec!["Abs", "BitwiseNot", "Sign", "Identity"];
        if dtype.class() == wgfc_ir::Class::Int {
            single.push("Neg");
        }
        for op in single {
            same(&node(op, &["a"], &["y"]), 20, &one);
        }
        for to in [I64, U64, I32, U32, I8, U8, DType::Bool, DType::F32] {
            let to = i64::from(data_type::code(to));
            same(&node("Cast", &["a"], &["y"]).int("to", to), 20, &one);
        }
        if dtype.bits() >= 32 {
            let mut along = vec![("a", b.clone()), ("known", Tensor::from_i64(vec![], &[1]))];
            if matches!(dtype, I64 | I32) {
                let n = node("CumSum", &["a", "known"], &["y"]);
                same(&n, 14, &along);
                same(&n.clone().int("reverse", 1).int("exclusive", 1), 14, &along);
            }
            along[1].1 = Tensor::from_i64(vec![1], &[1]);
            for op in ["ReduceSum", "ReduceProd", "ReduceMax", "ReduceMin", "ReduceL1", "ReduceSumSquare"] {
                same(&node(op, &["a", "known"], &["y"]), 20, &along);
            }
            same(&node("MatMul", &["a", "b"], &["y"]), 20, &two);
        }
    }
    let [a, b] = pairs(U8);
    same(&node("MatMulInteger", &["a", "b"], &["y"]), 20, &[("a", a), ("b", b)]);
}

#[test]
fn sums_and_products_wrap() {
    let of = |op: &str, a: i64, b: i64| {
        let [a, b] = [a, b].map(|v| Tensor::from_i64(vec![1], &[v]));
        same(&node(op, &["a", "b"], &["y"]), 20, &[("a", a), ("b", b)]).to_i64s().unwrap()[0]
    };
    assert_eq!(of("Mul", 1 << 62, 4), 0);
    assert_eq!(of("Add", i64::MAX, 1), i64::MIN);
    assert_eq!(of("Sub", i64::MIN, 1), i64::MAX);
    assert_eq!(of("Pow", 3, 41), 3i64.wrapping_pow(41));
    let neg = |op: &str| {
        let a = Tensor::from_i64(vec![1], &[i64::MIN]);
        same(&node(op, &["a"], &["y"]), 20, &[("a", a)]).to_i64s().unwrap()[0]
    };
    assert_eq!([neg("Neg"), neg("Abs")], [i64::MIN; 2]);
}

/// Constants beyond 32 bits keep their values in every operator.
#[test]
fn far_constants_stay_far() {
    let x = Tensor::from_i64(vec![3, 4], &(1..=12).collect::<Vec<_>>());
    for far in
        [1i64 << 31, 1 << 32, (1 << 32) + 1, 1 << 40, i64::MAX, -(1 << 31), -(1 << 32) - 1, i64::MIN + 1]
    {
        let k = Tensor::from_i64(vec![], &[far]);
        for upper in [0, 1] {
            let n = node("Trilu", &["x", "k"], &["y"]).int("upper", upper);
            let y = same(&n, 20, &[("x", x.clone()), ("k", k.clone())]).to_i64s().unwrap();
            let keeps = (far < 0) == (upper == 1);
            assert_eq!(y.iter().any(|v| *v != 0), keeps, "Trilu by {far}, upper {upper}");
            assert!(!keeps || Some(y) == x.to_i64s());
        }
        let y = same(&node("EyeLike", &["x"], &["y"]).int("k", far), 20, &[("x", x.clone())]);
        assert_eq!(y.to_i64s(), Some(vec![0; 12]), "EyeLike by {far}");
        let hot = [
            ("i", Tensor::from_i64(vec![1], &[far])),
            ("known", Tensor::from_i64(vec![], &[4])),
            ("v", Tensor::from_i64(vec![2], &[0, 1])),
        ];
        let y = same(&node("OneHot", &["i", "known", "v"], &["y"]), 20, &hot);
        assert_eq!(y.to_i64s(), Some(vec![0; 4]), "OneHot at {far}");
        // An index out of range is clamped in a gather, and skipped in a scatter.
        let at = Tensor::from_i64(vec![1, 1], &[far]);
        let data = [("x", x.clone()), ("i", at.clone())];
        let y = same(&node("GatherElements", &["x", "i"], &["y"]).int("axis", 1), 20, &data);
        assert_eq!(y.to_i64s(), Some(vec![if far > 0 { 4 } else { 1 }]), "GatherElements at {far}");
        let data = [("x", x.clone()), ("i", at), ("u", Tensor::from_i64(vec![1, 1], &[99]))];
        let y = same(&node("ScatterElements", &["x", "i", "u"], &["y"]).int("axis", 1), 20, &data);
        assert_eq!(y.to_i64s(), x.to_i64s(), "ScatterElements at {far}");
        let n = node("Range", &["a", "b", "c"], &["y"]);
        let from = far.clamp(i64::MIN + 100, i64::MAX - 100);
        let ends = [from, from + 5, 2].map(|v| Tensor::from_i64(vec![], &[v]));
        let mut g = graph(vec![n], vec![], vec![untyped("y")]);
        g.initializer = ["a", "b", "c"].iter().zip(&ends).map(|(n, t)| constant(n, t)).collect();
        let y = evaluate(&import_it(&model(g)).unwrap().graph, &BTreeMap::new()).unwrap().remove(0);
        assert_eq!(y.to_i64s(), Some(vec![from, from + 2, from + 4]));
    }
}
