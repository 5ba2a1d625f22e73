//! `Einsum`.

use crate::import::onnx::prelude::*;
use crate::lower::einsum;

fn decode(cx: &mut Cx) -> Lowered {
    let xs = cx.inputs()?;
    let equation = cx.string_req("equation")?;
    Ok(vec![einsum::einsum(cx, &xs, &equation)?])
}

/// `Einsum`.
pub const OPS: &[OpDef] = &[OpDef::new("Einsum", &[12, 28], decode).cases(&["test_einsum_"])];

#[cfg(test)]
mod tests {
    use crate::import::onnx::testing::*;
    use wgfc_ir::eval::evaluate;
    use wgfc_ir::{DType, Scalar, Tensor};

    /// ONNX Runtime's shape inference rejects ellipses that broadcast.
    #[test]
    fn ellipses_broadcast() {
        let n = node("Einsum", &["a", "b"], &["y"]).text("equation", "...ij,...jk");
        let declared = vec![value("a", DType::F32, "2 1 3 4"), value("b", DType::F32, "e 4 7")];
        let imported = import_it(&model(graph(vec![n], declared, vec![untyped("y")]))).expect("it imports");
        let tensor = |shape: &[usize]| {
            let n: usize = shape.iter().product();
            let v: Vec<Scalar> = (0..n).map(|i| Scalar::from_f64(DType::F32, (i * 7 % 11) as f64)).collect();
            Tensor::from_scalars(DType::F32, shape.to_vec(), &v)
        };
        let (a, b) = (tensor(&[2, 1, 3, 4]), tensor(&[5, 4, 7]));
        let fed = [("a".to_owned(), a.clone()), ("b".to_owned(), b.clone())].into();
        let y = evaluate(&imported.graph, &fed).expect("it runs").remove(0);
        assert_eq!(y.shape, [2, 5, 3, 7]);
        let of = |t: &Tensor| t.scalars().unwrap().iter().map(|s| s.as_f64()).collect::<Vec<_>>();
        let (a, b, y) = (of(&a), of(&b), of(&y));
        for (at, y) in y.iter().enumerate() {
            let (n, e, i, k) = (at / 105, at / 21 % 5, at / 7 % 3, at % 7);
            let sum: f64 = (0..4).map(|j| a[n * 12 + i * 4 + j] * b[e * 28 + j * 7 + k]).sum();
            assert_eq!(*y, sum, "{n} {e} {i} {k}");
        }
    }
}
