use super::*;
use crate::build::{Builder, WindowAxis};
use crate::dtype::DType;
use crate::op::{GatherAxis, NormKind, ReduceOp};
use crate::poly::Poly;
use crate::scalar::{BinaryOp, Scalar, ScalarFn, ScalarNode, UnaryOp};

fn dims(s: &str) -> Vec<Dim> {
    s.split(',').filter(|d| !d.trim().is_empty()).map(|d| Poly::parse(d.trim()).unwrap()).collect()
}

/// Builds a graph over inputs `a`, `b`, … and evaluates it.
fn run(
    inputs: &[(&str, Tensor)],
    build: impl FnOnce(&mut Builder<'_>, &[Value]) -> Result<Vec<Value>, String>,
) -> Result<Vec<Tensor>, EvalError> {
    let mut g = Graph::default();
    let mut vs = vec![];
    let mut named = BTreeMap::new();
    for (i, (shape, t)) in inputs.iter().enumerate() {
        let name = ((b'a' + i as u8) as char).to_string();
        vs.push(g.add_input(&name, TensorType::new(t.dtype, dims(shape))));
        named.insert(name, t.clone());
    }
    let outs = build(&mut Builder::new(&mut g, "test"), &vs).unwrap();
    for (i, v) in outs.into_iter().enumerate() {
        g.outputs.push(crate::graph::Border { name: format!("y{i}").into(), value: v });
    }
    evaluate(&g, &named)
}

fn ramp(shape: &[usize]) -> Tensor {
    let n: usize = shape.iter().product();
    let v: Vec<f32> = (0..n).map(|i| ((i * 37 + 11) % 101) as f32 / 7.0 - 6.5).collect();
    Tensor::from_f32(shape.to_vec(), &v)
}
fn ints(shape: &[usize], v: &[i64]) -> Tensor {
    Tensor::from_i64(shape.to_vec(), v)
}
fn typed(dtype: DType, shape: &[usize], v: &[f64]) -> Tensor {
    let v: Vec<Scalar> = v.iter().map(|x| Scalar::from_f64(dtype, *x)).collect();
    Tensor::from_scalars(dtype, shape.to_vec(), &v)
}
fn close(t: &Tensor, want: &[f32]) {
    let got = t.to_f32s().unwrap();
    assert_eq!(got.len(), want.len());
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        assert!((g - w).abs() <= 1e-4 * w.abs().max(1.0) || (g.is_nan() && w.is_nan()), "{i}: {g} for {w}");
    }
}

#[test]
fn map_broadcasts_and_knows_its_position() {
    let (a, b) = (ramp(&[5, 1, 3]), ramp(&[7, 1]));
    let y = run(&[("n,1,3", a.clone()), ("m,1", b.clone())], |g, v| {
        let s = g.binary(BinaryOp::Mul, v[0], v[1])?;
        let shape = g.shape(s);
        let i = g.iota(&shape, Poly::parse("%0*100 + %1*10 + %2 + n").unwrap(), DType::F32)?;
        Ok(vec![g.binary(BinaryOp::Add, s, i)?])
    })
    .unwrap();
    let (av, bv) = (a.to_f32s().unwrap(), b.to_f32s().unwrap());
    let mut want = vec![];
    for i in 0..5 {
        for (j, b) in bv.iter().enumerate() {
            for k in 0..3 {
                want.push(av[i * 3 + k] * b + (i * 100 + j * 10 + k + 5) as f32);
            }
        }
    }
    assert_eq!(y[0].shape, [5, 7, 3]);
    close(&y[0], &want);
}

#[test]
fn scalar_corner_cases() {
    let x = ints(&[4], &[7, -7, i64::MIN, 5]);
    let d = ints(&[4], &[-2, 0, -1, 64]);
    let op = |o: BinaryOp| {
        let y =
            run(&[("4", x.clone()), ("4", d.clone())], |g, v| Ok(vec![g.binary(o, v[0], v[1])?])).unwrap();
        y[0].to_i64s().unwrap()
    };
    assert_eq!(op(BinaryOp::Div), [-3, 0, i64::MIN, 0]);
    assert_eq!(op(BinaryOp::Rem), [1, 0, 0, 5]);
    assert_eq!(op(BinaryOp::Mod), [-1, 0, 0, 5]);
    assert_eq!(op(BinaryOp::Shl), [0, -7, 0, 0]);
    assert_eq!(op(BinaryOp::Pow)[..2], [0, 1]);
    let u8s = typed(DType::U8, &[3], &[200., 3., 255.]);
    let y = run(&[("3", u8s)], |g, v| {
        let s = g.binary(BinaryOp::Add, v[0], v[0])?;
        Ok(vec![s, g.cast(v[0], DType::I8)?, g.unary(UnaryOp::Not, v[0])?])
    })
    .unwrap();
    assert_eq!(y[0].to_i64s().unwrap(), [144, 6, 254]);
    assert_eq!(y[1].to_i64s().unwrap(), [-56, 3, -1]);
    assert_eq!(y[2].to_i64s().unwrap(), [55, 252, 0]);
    let f = Tensor::from_f32(vec![3], &[f32::NAN, 2.5, -3.5]);
    let y = run(&[("3", f)], |g, v| {
        let m = g.binary_scalar(BinaryOp::Max, v[0], 0.0)?;
        let e = g.unary(UnaryOp::Erf, v[0])?;
        let r = g.unary(UnaryOp::Round, v[0])?;
        Ok(vec![m, g.reduce(ReduceOp::Min, v[0], &[0], false)?, e, r, g.unary(UnaryOp::IsNan, v[0])?])
    })
    .unwrap();
    close(&y[0], &[f32::NAN, 2.5, 0.0]);
    close(&y[1], &[f32::NAN]);
    close(&y[2], &[f32::NAN, 0.999_593, -0.999_999_3]);
    close(&y[3], &[f32::NAN, 2.0, -4.0]);
    assert_eq!(y[4].to_i64s().unwrap(), [1, 0, 0]);
}

#[test]
fn half_precision_rounds_once_per_node() {
    let x = typed(DType::F16, &[2], &[2048.0, 1.0]);
    let y = run(&[("2", x)], |g, v| {
        let one = g.scalar(DType::F16, 1.0);
        let a = g.binary(BinaryOp::Add, v[0], one)?;
        let stepwise = g.binary(BinaryOp::Add, a, one)?;
        let mut body = ScalarFn::default();
        let (x, one) =
            (body.push(ScalarNode::Arg(0)), body.push(ScalarNode::Const(Scalar::from_f64(DType::F16, 1.0))));
        let s = body.push(ScalarNode::Binary(BinaryOp::Add, x, one));
        body.push(ScalarNode::Binary(BinaryOp::Add, s, one));
        Ok(vec![stepwise, g.map(body, &[v[0]])?])
    })
    .unwrap();
    close(&y[0], &[2048.0, 3.0]);
    close(&y[1], &[2050.0, 3.0]);
}

#[test]
fn views_move_pad_and_split() {
    let x = ramp(&[2, 3, 5]);
    let xv = x.to_f32s().unwrap();
    let y = run(&[("n,3,5", x)], |g, v| {
        let t = g.transpose(v[0], &[2, 0, 1])?;
        let flat = g.reshape(t, dims("5*n, 3"))?;
        let p = g.pad(v[0], &dims("0,1,2"), &dims("0,0,-1"), Scalar::from_f64(DType::F32, 9.0))?;
        let r = g.reshape(v[0], dims("n,15"))?;
        Ok(vec![flat, p, g.slice(r, 1, &Poly::constant(14), -3, &Poly::constant(5))?])
    })
    .unwrap();
    let at = |i: usize, j: usize, k: usize| xv[i * 15 + j * 5 + k];
    let mut want = vec![];
    for k in 0..5 {
        for i in 0..2 {
            for j in 0..3 {
                want.push(at(i, j, k));
            }
        }
    }
    assert_eq!(y[0].shape, [10, 3]);
    close(&y[0], &want);
    let mut want = vec![];
    for i in 0..2 {
        for j in 0..4 {
            for k in 0..6 {
                want.push(if j < 1 || k < 2 { 9.0 } else { at(i, j - 1, k - 2) });
            }
        }
    }
    close(&y[1], &want);
    close(&y[2], &[xv[14], xv[11], xv[8], xv[5], xv[2], xv[29], xv[26], xv[23], xv[20], xv[17]]);
}

#[test]
fn a_convolution_is_a_contract_of_an_unfolding() {
    let (x, w) = (ramp(&[2, 3, 7, 5]), ramp(&[4, 3, 3, 2]));
    let y = run(&[("b,3,7,5", x.clone()), ("4,3,3,2", w.clone())], |g, v| {
        let axis = |k: i64, stride, pad: i64, out: i64| WindowAxis {
            kernel: k.into(),
            stride,
            dilation: 1,
            pad: pad.into(),
            out: out.into(),
        };
        let u = g.unfold(v[0], &[axis(3, 2, 1, 4), axis(2, 1, 1, 6)], Scalar::from_f64(DType::F32, 0.0))?;
        // u: n c oh ow kh kw
        let c = crate::op::Contract { a: vec![1, 2, 3, 4], b: vec![0, 2, 5, 6, 3, 4], out: vec![0, 1, 5, 6] };
        Ok(vec![g.push(Op::Contract(c), &[v[1], u])?])
    })
    .unwrap();
    let (xv, wv) = (x.to_f32s().unwrap(), w.to_f32s().unwrap());
    let mut want = vec![];
    for n in 0..2 {
        for o in 0..4 {
            for i in 0..4i64 {
                for j in 0..6i64 {
                    let mut s = 0.0;
                    for c in 0..3 {
                        for p in 0..3i64 {
                            for q in 0..2i64 {
                                let (r, l) = (i * 2 + p - 1, j + q - 1);
                                if (0..7).contains(&r) && (0..5).contains(&l) {
                                    s += xv[((n * 3 + c) * 7 + r as usize) * 5 + l as usize]
                                        * wv[((o * 3 + c) * 3 + p as usize) * 2 + q as usize];
                                }
                            }
                        }
                    }
                    want.push(s);
                }
            }
        }
    }
    assert_eq!(y[0].shape, [2, 4, 4, 6]);
    close(&y[0], &want);
}

#[test]
fn contracts_agree_with_sums_of_products() {
    let (a, b) = (ramp(&[3, 5, 2, 7]), ramp(&[7, 2, 4, 3]));
    let c = crate::op::Contract { a: vec![0, 1, 2, 3], b: vec![3, 2, 4, 0], out: vec![4, 0, 1] };
    let y = run(&[("3,5,2,7", a.clone()), ("7,2,4,3", b.clone())], |g, v| {
        let f = g.push(Op::Contract(c.clone()), v)?;
        let (ia, ib) = (g.cast(v[0], DType::I32)?, g.cast(v[1], DType::I32)?);
        let (da, db) = (g.cast(v[0], DType::F64)?, g.cast(v[1], DType::F64)?);
        Ok(vec![f, g.push(Op::Contract(c.clone()), &[ia, ib])?, g.push(Op::Contract(c.clone()), &[da, db])?])
    })
    .unwrap();
    let (av, bv) = (a.to_f32s().unwrap(), b.to_f32s().unwrap());
    let (mut want, mut want_int) = (vec![], vec![]);
    for n in 0..4 {
        for h in 0..3 {
            for m in 0..5 {
                let (mut s, mut t) = (0.0, 0.0);
                for k in 0..2 {
                    for l in 0..7 {
                        let (x, y) = (av[((h * 5 + m) * 2 + k) * 7 + l], bv[((l * 2 + k) * 4 + n) * 3 + h]);
                        s += x * y;
                        t += x.trunc() * y.trunc();
                    }
                }
                want.push(s);
                want_int.push(t);
            }
        }
    }
    close(&y[0], &want);
    close(&y[1], &want_int);
    close(&y[2], &want);
}

#[test]
fn reductions_over_any_axes() {
    let x = ramp(&[3, 4, 5]);
    let xv = x.to_f32s().unwrap();
    let y = run(&[("3,4,5", x)], |g, v| {
        let arg = Op::ArgReduce { op: ReduceOp::Max, axis: 1, last: false };
        let cum = Op::PrefixScan { op: ReduceOp::Sum, axis: 1, exclusive: true, reverse: true };
        let top = g.graph.push(Op::TopK { axis: 2, k: 2i64.into(), largest: false }, &[v[0]], &[])?;
        Ok(vec![
            g.reduce(ReduceOp::Sum, v[0], &[0, 2], false)?,
            g.reduce(ReduceOp::Max, v[0], &[1], true)?,
            g.push(arg, &[v[0]])?,
            g.push(cum, &[v[0]])?,
            port(top, 0),
            port(top, 1),
        ])
    })
    .unwrap();
    let at = |i: usize, j: usize, k: usize| xv[(i * 4 + j) * 5 + k];
    let sums: Vec<f32> = (0..4).map(|j| (0..15).map(|p| at(p / 5, j, p % 5)).sum()).collect();
    close(&y[0], &sums);
    let max = |i, k| (0..4).map(|j| at(i, j, k)).fold(f32::MIN, f32::max);
    close(&y[1], &(0..15).map(|p| max(p / 5, p % 5)).collect::<Vec<_>>());
    for (p, j) in y[2].to_i64s().unwrap().into_iter().enumerate() {
        assert_eq!(at(p / 5, j as usize, p % 5), max(p / 5, p % 5));
    }
    let cum: Vec<f32> = (0..60).map(|p| ((p / 5) % 4 + 1..4).map(|j| at(p / 20, j, p % 5)).sum()).collect();
    close(&y[3], &cum);
    let (v, p) = (y[4].to_f32s().unwrap(), y[5].to_i64s().unwrap());
    assert_eq!(y[5].shape, [3, 4, 2]);
    for r in 0..12 {
        assert!(v[2 * r] <= v[2 * r + 1]);
        assert_eq!(v[2 * r], xv[r * 5 + p[2 * r] as usize]);
        assert!((0..5).filter(|k| xv[r * 5 + k] < v[2 * r + 1]).count() <= 1);
    }
}

#[test]
fn gather_clamps_and_scatter_drops() {
    let (x, i) = (ramp(&[4, 3]), ints(&[5], &[0, -1, 3, 9, -9]));
    let xv = x.to_f32s().unwrap();
    let u = Tensor::from_f32(vec![5, 3], &(0..15).map(|v| v as f32).collect::<Vec<_>>());
    let y = run(&[("4,3", x), ("5", i), ("5,3", u)], |g, v| {
        let index =
            vec![GatherAxis::Data { input: 2, at: vec![Poly::var(0)] }, GatherAxis::Affine(Poly::var(1))];
        let s = |reduce| Op::Scatter { reduce, index: index.clone() };
        Ok(vec![
            g.take(v[0], v[1], 0)?,
            g.push(s(None), &[v[0], v[2], v[1]])?,
            g.push(s(Some(ReduceOp::Sum)), &[v[0], v[2], v[1]])?,
        ])
    })
    .unwrap();
    let row = |r: usize| xv[r * 3..r * 3 + 3].to_vec();
    close(&y[0], &[row(0), row(3), row(3), row(3), row(0)].concat());
    close(&y[1], &[vec![0., 1., 2.], row(1), row(2), vec![6., 7., 8.]].concat());
    let plus = |r: usize, v: [f32; 3]| row(r).iter().zip(v).map(|(a, b)| a + b).collect::<Vec<_>>();
    close(&y[2], &[plus(0, [0., 1., 2.]), row(1), row(2), plus(3, [9., 11., 13.])].concat());
}

#[test]
fn concat_and_the_raised_operators() {
    let (x, z) = (ramp(&[2, 3]), ramp(&[2, 2]));
    let (xv, zv) = (x.to_f32s().unwrap(), z.to_f32s().unwrap());
    let y = run(&[("2,3", x), ("2,2", z)], |g, v| {
        Ok(vec![
            g.concat(&[v[0], v[1]], 1)?,
            g.push(Op::Softmax { axis: 0, log: false }, &[v[0]])?,
            g.push(Op::Norm { kind: NormKind::Layer, axes: vec![1], epsilon: 1e-5f32.to_bits() }, &[v[0]])?,
        ])
    })
    .unwrap();
    close(&y[0], &[&xv[..3], &zv[..2], &xv[3..], &zv[2..]].concat());
    let soft: Vec<f32> = (0..6).map(|i| 1.0 / (1.0 + (xv[(i + 3) % 6] - xv[i]).exp())).collect();
    close(&y[1], &soft);
    let mean = (xv[0] + xv[1] + xv[2]) / 3.0;
    let var = xv[..3].iter().map(|x| (x - mean).powi(2)).sum::<f32>() / 3.0;
    assert!((y[2].to_f32s().unwrap()[1] - (xv[1] - mean) / (var + 1e-5).sqrt()).abs() < 1e-4);
}

#[test]
fn a_fully_masked_row_of_attention_gives_the_mean_or_0() {
    let (q, k, v) = (ramp(&[1, 2, 3]), ramp(&[1, 4, 3]), ramp(&[1, 4, 2]));
    let mask = Tensor::from_f32(vec![2, 4], &[&[0.0; 4][..], &[f32::NEG_INFINITY; 4]].concat());
    let vv = v.to_f32s().unwrap();
    let y = run(&[("b,s,3", q), ("b,t,3", k), ("b,t,2", v), ("s,t", mask)], |g, v| {
        let of = |empty_is_zero| Op::Attention { scale: 0.5f32.to_bits(), empty_is_zero };
        Ok(vec![g.push(of(false), v)?, g.push(of(true), v)?])
    })
    .unwrap();
    let mean: Vec<f32> = (0..2).map(|e| (0..4).map(|t| vv[t * 2 + e]).sum::<f32>() / 4.0).collect();
    let row = |y: &Tensor, i: usize| Tensor::from_f32(vec![2], &y.to_f32s().unwrap()[2 * i..2 * i + 2]);
    close(&row(&y[0], 1), &mean);
    close(&row(&y[1], 1), &[0.0; 2]);
    close(&row(&y[1], 0), &row(&y[0], 0).to_f32s().unwrap());
}

fn body(build: impl FnOnce(&mut Graph) -> Vec<Value>) -> Box<Graph> {
    let mut g = Graph::default();
    let outs = build(&mut g);
    for (i, value) in outs.into_iter().enumerate() {
        g.outputs.push(crate::graph::Border { name: format!("o{i}").into(), value });
    }
    Box::new(g)
}

#[test]
fn control_flow() {
    let scalar = |d| TensorType::new(d, vec![]);
    let vec3 = || TensorType::new(DType::F32, dims("3"));
    let looped = body(|g| {
        let (_, _, x, step) = (
            g.add_input("i", scalar(DType::I64)),
            g.add_input("c", scalar(DType::Bool)),
            g.add_input("x", vec3()),
            g.add_input("step", scalar(DType::F32)),
        );
        let mut b = Builder::new(g, "body");
        let y = b.binary(BinaryOp::Add, x, step).unwrap();
        let top = b.reduce(ReduceOp::Max, y, &[0], false).unwrap();
        let go = b.binary_scalar(BinaryOp::Lt, top, 4.0).unwrap();
        vec![go, y, top]
    });
    let scanned = body(|g| {
        let (acc, x) = (g.add_input("acc", scalar(DType::F32)), g.add_input("x", scalar(DType::F32)));
        let s = Builder::new(g, "body").binary(BinaryOp::Add, acc, x).unwrap();
        vec![s, s]
    });
    let x = Tensor::from_f32(vec![3], &[0.0, 1.0, 2.0]);
    let one = Tensor::from_f32(vec![], &[1.0]);
    let y = run(&[("3", x), ("", one)], |g, v| {
        let (trips, go) = (g.int(DType::I64, 10), g.constant(Tensor::scalar(Scalar::bool(true))));
        let l = g.graph.push(Op::While { body: looped, carried: 1 }, &[trips, go, v[0], v[1]], &[])?;
        let scan = Op::Scan {
            body: scanned,
            carried: 1,
            scanned: 1,
            reverse_inputs: vec![true],
            reverse_outputs: vec![true],
        };
        let s = g.graph.push(scan, &[v[1], v[0]], &[])?;
        Ok(vec![port(l, 0), port(l, 1), port(s, 0), port(s, 1)])
    })
    .unwrap();
    close(&y[0], &[2.0, 3.0, 4.0]);
    close(&y[1], &[3.0, 4.0]);
    close(&y[2], &[4.0]);
    close(&y[3], &[4.0, 4.0, 3.0]);
}

#[test]
fn errors_say_where_and_why() {
    let err = |r: Result<Vec<Tensor>, EvalError>| r.unwrap_err().to_string();
    let same = |g: &mut Builder<'_>, v: &[Value]| Ok(vec![g.unary(UnaryOp::Neg, v[0])?]);
    assert_eq!(
        err(run(&[("n, n", ramp(&[2, 3]))], same)),
        "input \"a\": expected shape [n, n], got [2, 3]: `n` is 2 and must be 3"
    );
    assert!(err(run(&[("2*n", ramp(&[3]))], same)).contains("no `n` makes `2*n` equal to 3"));
    let e = err(run(&[("n", ramp(&[3]))], |g, v| {
        Ok(vec![g.push(
            Op::View { shape: dims("n"), index: vec![Poly::parse("%0 + 1").unwrap()], fill: None },
            &[v[0]],
        )?])
    }));
    assert_eq!(
        e,
        "node \"test (view)\": element [2] of the view reads [Some(3)] of an operand of shape [3], and there is no fill"
    );
    let e = err(run(&[("n", ramp(&[3])), ("m", ramp(&[4]))], |g, v| {
        Ok(vec![g.binary(BinaryOp::Add, v[0], v[1])?])
    }));
    assert!(e.contains("needs") && e.contains("n (here 3)") && e.contains("m (here 4)"), "{e}");
    let e = err(run(&[], |g, _| Ok(vec![g.constant(Tensor::absent(DType::F32, vec![3]))])));
    assert!(e.contains("without its weights"), "{e}");
}

#[test]
fn symbols_are_solved_from_linear_dimensions() {
    let y = run(&[("past + seq", ramp(&[9])), ("2*seq", ramp(&[4]))], |g, _| {
        Ok(vec![g.dim_scalar(&Poly::parse("past*10 + seq").unwrap(), DType::I64)?])
    })
    .unwrap();
    assert_eq!(y[0].to_i64s().unwrap(), [72]);
}

#[test]
fn a_place_writes_every_element_once() {
    let text = |shape: &str| {
        format!(
            "graph (x: %0, i: %1) -> (y: %2) {{\n  %0 = input : f32[m]\n  %1 = input : i64[m]\n  \
            %2 = place [{shape}] writes [$1[%0]] (%0, %1) : f32[{shape}] @ \"place\"\n}}"
        )
    };
    let run = |shape: &str, at: &[i64]| {
        let graph = crate::text::parse(&text(shape)).unwrap();
        let x = Tensor::from_f32(vec![at.len()], &[1.0, 2.0, 3.0][..at.len()]);
        let inputs = [("x".to_owned(), x), ("i".to_owned(), Tensor::from_i64(vec![at.len()], at))].into();
        evaluate(&graph, &inputs).map(|y| y[0].to_f32s().unwrap()).map_err(|e| e.to_string())
    };
    assert_eq!(run("3", &[2, 0, -2]), Ok(vec![2.0, 3.0, 1.0]));
    assert_eq!(run("2", &[1, 7, 0]), Ok(vec![3.0, 1.0]));
    assert!(run("2", &[1, 1, 0]).unwrap_err().contains("element 1 of [2] is written twice"));
    assert!(run("3", &[1, 5, 0]).unwrap_err().contains("an element of [3] is not written"));
}
