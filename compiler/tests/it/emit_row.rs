//! Reductions and prefix scans, executed on every adapter and compared with plain loops.

use crate::gpu::*;
use std::collections::BTreeMap;
use wgfc_compiler::kernel::*;
use wgfc_ir::{BinaryOp, Class, DType, Dim, Poly, Scalar, UnaryOp, storage};

const LENGTHS: [usize; 7] = [1, 3, 7, 31, 257, 1024, 5000];
const KINDS: [ReduceKind; 4] = [ReduceKind::Sum, ReduceKind::Prod, ReduceKind::Max, ReduceKind::Min];
const ARGS: [(bool, bool); 4] = [(true, false), (true, true), (false, false), (false, true)];

/// Numbers with many duplicates, chosen so that products of any number of them stay small.
fn values(d: DType, n: usize, kind: Option<ReduceKind>) -> Vec<Scalar> {
    let noise = noise(n, n as u32 + 3);
    noise
        .iter()
        .map(|x| {
            let f = f64::from(*x);
            match (d.class(), kind) {
                (Class::Float, Some(ReduceKind::Prod)) => Scalar::from_f64(d, 1.0 + f * 1e-3),
                (Class::Float, _) => Scalar::from_f64(d, (f * 64.0).round() / 8.0),
                (Class::Bool, Some(ReduceKind::Min)) => Scalar::bool(f > -0.99),
                (Class::Bool, _) => Scalar::bool(f > 0.99),
                (Class::Int, _) => {
                    storage::from_raw(d, ((f * 100.0) as i64 * 0x1_0000_0001) as u64 & mask(d))
                }
                (Class::Uint, _) => storage::from_raw(d, (f.abs() * 200.0) as u64 & mask(d)),
            }
        })
        .map(|s| storage::from_raw(d, storage::to_raw(d, s)))
        .collect()
}

fn mask(d: DType) -> u64 {
    u64::MAX >> (64 - d.bits())
}

fn combine(kind: ReduceKind, d: DType, row: &[Scalar]) -> Scalar {
    if d.is_float() {
        let v = row.iter().map(|s| s.as_f64());
        return Scalar::from_f64(
            DType::F64,
            match kind {
                ReduceKind::Sum => v.sum(),
                ReduceKind::Prod => v.product(),
                _ if row.iter().any(|s| s.as_f64().is_nan()) => f64::NAN,
                ReduceKind::Max => v.fold(f64::NEG_INFINITY, f64::max),
                _ => v.fold(f64::INFINITY, f64::min),
            },
        );
    }
    if d == DType::Bool {
        let some = row.iter().any(|s| s.bits != 0);
        let all = row.iter().all(|s| s.bits != 0);
        return Scalar::bool(if matches!(kind, ReduceKind::Max | ReduceKind::Sum) { some } else { all });
    }
    let v = row.iter().map(|s| s.bits as i64);
    let r = match kind {
        ReduceKind::Sum => v.fold(0i64, i64::wrapping_add),
        ReduceKind::Prod => v.fold(1i64, i64::wrapping_mul),
        ReduceKind::Max => v.max().unwrap(),
        _ => v.min().unwrap(),
    };
    storage::from_raw(d, r as u64 & mask(d))
}

fn position(d: DType, row: &[Scalar], largest: bool, last: bool) -> i64 {
    let key = |s: &Scalar| if d.is_float() { s.as_f64() } else { s.as_i64() as f64 };
    let mut best = 0;
    for (i, s) in row.iter().enumerate() {
        let (x, b) = (key(s), key(&row[best]));
        let better = match (x.is_nan(), b.is_nan()) {
            (true, none) => last || !none,
            (false, true) => false,
            _ => (if largest { x > b } else { x < b }) || (last && x == b),
        };
        if better {
            best = i;
        }
    }
    best as i64
}

/// Lengths of rows that are read as vectors, each with the constant factor of the length if the rest is a
/// symbol.
const WHOLE: [(usize, Option<i64>); 8] = [
    (4, None),
    (6, None),
    (20, Some(4)),
    (36, Some(2)),
    (258, None),
    (768, None),
    (1300, Some(4)),
    (4500, None),
];

struct Test {
    case: Case,
    body: Body,
    load: ExprId,
    rows: Dim,
    len: Dim,
    data: BTreeMap<TensorId, Vec<u8>>,
}

/// A tensor `[rows, len]`, or `[len, rows]` if `across`, when consecutive elements of a row are not adjacent.
fn setup(rows: usize, len: usize, symbolic: bool, across: bool, d: DType, values: &[Scalar]) -> Test {
    setup_by(rows, len, symbolic.then_some(1), across, d, values)
}

/// [`setup`] with symbolic extents if `by` is given; the extent of the row is a symbol times `by`.
fn setup_by(rows: usize, len: usize, by: Option<i64>, across: bool, d: DType, values: &[Scalar]) -> Test {
    let mut case = Case::new(&[("rows", rows as i64), ("len", len as i64 / by.unwrap_or(1))]);
    let (r, l) = match by {
        Some(by) => (Poly::sym("rows"), &Poly::sym("len") * by),
        None => (c(rows as i64), c(len as i64)),
    };
    let x = case.typed(d, &[r.clone(), l.clone()], TensorKind::Input(0));
    let offset = if across { &(&v(1) * &r) + &v(0) } else { &(&v(0) * &l) + &v(1) };
    let mut body = Body::default();
    let load = body.push(Expr::Load { tensor: x, offset, guard: None }, d);
    let mut bytes = values.to_vec();
    if across {
        bytes = (0..rows * len).map(|i| values[i % rows * len + i / rows]).collect();
    }
    let data = [(x, storage::encode(d, bytes.into_iter()))].into();
    Test { case, body, load, rows: r, len: l, data }
}

/// All lengths, each with the constant factor of symbolic ones.
fn all_lengths() -> impl Iterator<Item = (usize, Option<i64>)> {
    let odd = LENGTHS.into_iter().enumerate().map(|(n, l)| (l, (n % 2 == 1).then_some(1)));
    odd.chain(WHOLE)
}

/// Replaces elements of most rows by NaN: the first, the last, one in between, or several.
fn spoil(d: DType, values: &mut [Scalar], len: usize) {
    for (i, row) in values.chunks_mut(len).enumerate() {
        let nan = Scalar::from_f64(d, if i % 2 == 0 { f64::NAN } else { -f64::NAN });
        match i % 7 {
            0 => row[0] = nan,
            1 => row[len - 1] = nan,
            2 => row[i * 13 % len] = nan,
            3 => (row[len / 3], row[2 * len / 3]) = (nan, Scalar::from_f64(d, f64::INFINITY)),
            4 => row.fill(nan),
            5 => (row[0], row[len / 2]) = (Scalar::from_f64(d, f64::NEG_INFINITY), nan),
            _ => {}
        }
    }
}

fn compare(what: &str, d: DType, got: &[Scalar], want: &[Scalar], scale: f64) {
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        let (a, b) = (g.as_f64(), w.as_f64());
        let ok = if d.is_float() {
            let rel = if d == DType::F16 { 1e-3 } else { 1e-5 };
            (a - b).abs() <= rel * (b.abs() + scale) || a == b || (a.is_nan() && b.is_nan())
        } else {
            g.bits == w.bits
        };
        assert!(ok, "{what}: element {i} is {g}, not {w}");
    }
}

#[test]
fn every_kind_of_every_type() {
    let gpus = gpus();
    for d in [DType::F32, DType::F16, DType::I32, DType::I64, DType::U64, DType::U8, DType::I8, DType::Bool] {
        for (n, len) in LENGTHS.into_iter().enumerate() {
            // Loads and stores of narrow types do not depend on the length, so a few lengths are enough.
            if !matches!(d, DType::F32 | DType::I64) && ![3, 31, 257].contains(&len) {
                continue;
            }
            let rows = [37, 5, 130][n % 3];
            for kind in KINDS {
                let values = values(d, rows * len, Some(kind));
                let t = setup(rows, len, n % 2 == 0, n % 3 == 1, d, &values);
                reduces(&gpus, t, kind, d, &values, rows);
            }
        }
    }
}

#[test]
fn every_kind_by_vectors() {
    let gpus = gpus();
    for d in [DType::F32, DType::F16, DType::I32, DType::U8, DType::I8] {
        for (n, (len, by)) in WHOLE.into_iter().enumerate() {
            let (rows, kind) = ([37, 5][n % 2], KINDS[n % 4]);
            let values = values(d, rows * len, Some(kind));
            reduces(&gpus, setup_by(rows, len, by, false, d, &values), kind, d, &values, rows);
        }
    }
}

#[test]
fn extremes_among_nan() {
    let gpus = gpus();
    for d in [DType::F32, DType::F16] {
        for (n, (len, by)) in all_lengths().enumerate() {
            if d == DType::F16 && n % 3 != 0 {
                continue;
            }
            let (rows, kind) = ([37, 5][n % 2], [ReduceKind::Max, ReduceKind::Min][n / 2 % 2]);
            let mut values = values(d, rows * len, Some(kind));
            spoil(d, &mut values, len);
            reduces(&gpus, setup_by(rows, len, by, n % 3 == 1, d, &values), kind, d, &values, rows);
        }
    }
}

/// Executes a reduction of every row and checks the results.
fn reduces(gpus: &[Gpu], mut t: Test, kind: ReduceKind, d: DType, values: &[Scalar], rows: usize) {
    let len = values.len() / rows;
    let acc = t.body.push(Expr::Acc(0), d);
    let out = t.case.typed(d, std::slice::from_ref(&t.rows), TensorKind::Output(0));
    let family = Family::Row(Row {
        rows: t.rows.clone(),
        len: t.len.clone(),
        reductions: vec![Reduction { kind, value: t.load, dtype: d }],
        row_stores: vec![Store { tensor: out, offset: v(0), value: acc, guard: None, combine: None }],
    });
    let kernel = Kernel { family, body: t.body, stores: vec![], nodes: vec![] };
    let want: Vec<Scalar> = values.chunks(len).map(|r| combine(kind, d, r)).collect();
    for (g, e) in &variants(gpus, &mut t.case, |cx| emit(&kernel, cx).unwrap()) {
        let bytes = execute(g, &prepare_bytes(g, &t.case, e, &t.data), out);
        let what = format!("{kind:?} of {rows} rows of {len} {d} on {}", g.name);
        compare(&what, d, &storage::decode(d, &bytes, rows), &want, len as f64);
    }
}

#[test]
fn positions_of_extremes() {
    let gpus = gpus();
    for d in [DType::F32, DType::I32, DType::I64, DType::U8] {
        let odd = LENGTHS.into_iter().enumerate().map(|(n, l)| (l, (n % 2 == 1).then_some(1), n % 3 == 2));
        let vectors = matches!(d, DType::F32 | DType::U8);
        let whole = WHOLE.into_iter().step_by(3).filter(|_| vectors).map(|(l, by)| (l, by, false));
        for (n, (len, by, across)) in odd.chain(whole).enumerate() {
            let rows = [37, 5, 130][n % 3];
            let mut values = values(d, rows * len, None);
            if d.is_float() && n % 2 == 1 {
                spoil(d, &mut values, len);
            }
            let mut t = setup_by(rows, len, by, across, d, &values);
            let (mut reductions, mut row_stores) = (vec![], vec![]);
            for (i, (largest, last)) in ARGS.into_iter().enumerate() {
                let kind = ReduceKind::Arg { largest, last };
                reductions.push(Reduction { kind, value: t.load, dtype: DType::I64 });
                let acc = t.body.push(Expr::Acc(i as u32), DType::I64);
                let out = t.case.typed(DType::I64, std::slice::from_ref(&t.rows), TensorKind::Output(i));
                row_stores.push(Store { tensor: out, offset: v(0), value: acc, guard: None, combine: None });
            }
            let outs: Vec<TensorId> = row_stores.iter().map(|s: &Store| s.tensor).collect();
            let family =
                Family::Row(Row { rows: t.rows.clone(), len: t.len.clone(), reductions, row_stores });
            let kernel = Kernel { family, body: t.body, stores: vec![], nodes: vec![] };
            let all = variants(&gpus, &mut t.case, |cx| emit(&kernel, cx).unwrap());
            for (g, e) in all.iter().filter(|(g, _)| g.takes_case()) {
                for ((largest, last), out) in ARGS.into_iter().zip(&outs) {
                    let bytes = execute(g, &prepare_bytes(g, &t.case, e, &t.data), *out);
                    let got = storage::decode(DType::I64, &bytes, rows);
                    let want = values.chunks(len).map(|r| position(d, r, largest, last));
                    let want: Vec<Scalar> = want.map(|p| Scalar::from_i64(DType::I64, p)).collect();
                    let what =
                        format!("position ({largest}, {last}) in {rows} rows of {len} {d} on {}", g.name);
                    compare(&what, DType::I64, &got, &want, 0.0);
                }
            }
        }
    }
}

#[test]
fn the_last_that_holds() {
    let gpus = gpus();
    for (len, by) in all_lengths() {
        let (rows, d) = (19, DType::F32);
        let values = values(d, rows * len, None);
        let mut t = setup_by(rows, len, by, false, d, &values);
        let limit = t.body.push(Expr::Const(Scalar::from_f64(d, 7.0)), d);
        let when = t.body.push(Expr::Binary(BinaryOp::Gt, t.load, limit), DType::Bool);
        let row = t.body.push(Expr::Index(v(0)), DType::I32);
        let init = t.body.push(Expr::Cast(d, row), d);
        let acc = t.body.push(Expr::Acc(0), d);
        let out = t.case.typed(d, std::slice::from_ref(&t.rows), TensorKind::Output(0));
        let family = Family::Row(Row {
            rows: t.rows.clone(),
            len: t.len.clone(),
            reductions: vec![Reduction { kind: ReduceKind::Last { when, init }, value: t.load, dtype: d }],
            row_stores: vec![Store { tensor: out, offset: v(0), value: acc, guard: None, combine: None }],
        });
        let kernel = Kernel { family, body: t.body, stores: vec![], nodes: vec![] };
        let last = |(i, r): (usize, &[Scalar])| {
            let hit = r.iter().rev().find(|s| s.as_f64() > 7.0);
            hit.copied().unwrap_or(Scalar::from_f64(d, i as f64))
        };
        let want: Vec<Scalar> = values.chunks(len).enumerate().map(last).collect();
        for (g, e) in &variants(&gpus, &mut t.case, |cx| emit(&kernel, cx).unwrap()) {
            let bytes = execute(g, &prepare_bytes(g, &t.case, e, &t.data), out);
            compare(
                &format!("last of {len} on {}", g.name),
                d,
                &storage::decode(d, &bytes, rows),
                &want,
                0.0,
            );
        }
    }
}

/// Softmax of `x`, stored as `to`, in three loops over the row; only the first one reads the tensor.
fn softmax(t: &mut Test, to: DType, out: TensorId) -> Kernel {
    let d = DType::F32;
    let b = &mut t.body;
    let x = b.push(Expr::Cast(d, t.load), d);
    let (most, sum) = (b.push(Expr::Acc(0), d), b.push(Expr::Acc(1), d));
    let shifted = b.push(Expr::Binary(BinaryOp::Sub, x, most), d);
    let e = b.push(Expr::Unary(UnaryOp::Exp, shifted), d);
    let share = b.push(Expr::Binary(BinaryOp::Div, e, sum), d);
    let value = b.push(Expr::Cast(to, share), to);
    let offset = &(&v(0) * &t.len) + &v(1);
    Kernel {
        family: Family::Row(Row {
            rows: t.rows.clone(),
            len: t.len.clone(),
            reductions: vec![
                Reduction { kind: ReduceKind::Max, value: x, dtype: d },
                Reduction { kind: ReduceKind::Sum, value: e, dtype: d },
            ],
            row_stores: vec![],
        }),
        body: b.clone(),
        stores: vec![Store { tensor: out, offset, value, guard: None, combine: None }],
        nodes: vec![],
    }
}

#[test]
fn softmax_of_rows() {
    let gpus = gpus();
    for (len, by) in all_lengths() {
        for (from, to) in [(DType::F32, DType::F32), (DType::F16, DType::F16), (DType::F32, DType::BF16)] {
            let rows = 23;
            let values = values(from, rows * len, None);
            let mut t = setup_by(rows, len, by, false, from, &values);
            let out = t.case.typed(to, &[t.rows.clone(), t.len.clone()], TensorKind::Output(0));
            let kernel = softmax(&mut t, to, out);
            let mut want = vec![];
            for r in values.chunks(len) {
                let most = r.iter().map(|s| s.as_f64()).fold(f64::MIN, f64::max);
                let sum: f64 = r.iter().map(|s| (s.as_f64() - most).exp()).sum();
                want.extend(r.iter().map(|s| (s.as_f64() - most).exp() / sum));
            }
            for (g, e) in &variants(&gpus, &mut t.case, |cx| emit(&kernel, cx).unwrap()) {
                let bytes = execute(g, &prepare_bytes(g, &t.case, e, &t.data), out);
                let got = storage::decode(to, &bytes, rows * len);
                let rel = if to == DType::F32 { 2e-5 } else { 8e-3 };
                for (i, (g, w)) in got.iter().zip(&want).enumerate() {
                    let ok = (g.as_f64() - w).abs() <= rel * w + 1e-6;
                    assert!(ok, "softmax of {len} {from} as {to}: element {i} is {g}, not {w}");
                }
            }
        }
    }
}

#[test]
fn running_combinations() {
    let gpus = gpus();
    let types = [DType::F32, DType::I64, DType::I8];
    for (n, (d, len)) in types.iter().flat_map(|d| [1usize, 7, 100].map(|l| (*d, l))).enumerate() {
        for (kind, exclusive, reverse) in [
            (ReduceKind::Sum, false, false),
            (ReduceKind::Sum, true, false),
            (ReduceKind::Sum, false, true),
            (ReduceKind::Sum, true, true),
            (ReduceKind::Prod, false, false),
            (ReduceKind::Max, false, true),
        ] {
            let rows = 67;
            let mut values = values(d, rows * len, Some(kind));
            if d.is_float() && kind == ReduceKind::Max {
                spoil(d, &mut values, len);
            }
            let mut t = setup(rows, len, n % 2 == 0, false, d, &values);
            let acc = t.body.push(Expr::Acc(0), d);
            let out = t.case.typed(d, &[t.rows.clone(), t.len.clone()], TensorKind::Output(0));
            let offset = &(&v(0) * &t.len) + &v(1);
            let reduction = Reduction { kind, value: t.load, dtype: d };
            let family = Family::PrefixScan(PrefixScan {
                rows: t.rows.clone(),
                len: t.len.clone(),
                reduction,
                exclusive,
                reverse,
            });
            let stores = vec![Store { tensor: out, offset, value: acc, guard: None, combine: None }];
            let kernel = Kernel { family, body: t.body, stores, nodes: vec![] };
            let mut want = vec![];
            for r in values.chunks(len) {
                for i in 0..len {
                    let part = match (exclusive, reverse) {
                        (false, false) => &r[..=i],
                        (true, false) => &r[..i],
                        (false, true) => &r[i..],
                        (true, true) => &r[i + 1..],
                    };
                    want.push(combine(kind, d, part));
                }
            }
            let all = variants(&gpus, &mut t.case, |cx| emit(&kernel, cx).unwrap());
            for (g, e) in all.iter().filter(|(g, _)| g.takes_case()) {
                let bytes = execute(g, &prepare_bytes(g, &t.case, e, &t.data), out);
                let what = format!("{kind:?} along {len} {d} ({exclusive}, {reverse}) on {}", g.name);
                compare(&what, d, &storage::decode(d, &bytes, rows * len), &want, len as f64);
            }
        }
    }
}
