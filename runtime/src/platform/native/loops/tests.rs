use super::*;
use crate::measure::kernel;
use crate::session::Session;
use wgfc_program::program::{Access, Buffer, BufferKind, Dispatch, Port};
use wgfc_program::{DType, Dim, Program};

const HEAD: &str = "
struct Dims { n: i32, m: i32 }
@group(0) @binding(0) var<storage, read_write> out: array<u32>;
@group(0) @binding(1) var<storage, read_write> data: array<i32>;
@group(0) @binding(2) var<uniform> dims: Dims;
fn halves(x: u32) -> u32 { var n = x; var c = 0u; while (n > 0u) { n >>= 1u; c++; } return c; }
fn floor_div(a: i32, b: i32) -> i32 { let q = a / b; return select(q, q - 1, a - q * b < 0); }
fn part(a: i32) -> i32 { if (a > 9) { return a / 2; } else { return 3; } }
@compute @workgroup_size(64)
fn main(@builtin(local_invocation_index) local: u32, @builtin(workgroup_id) group: vec3<u32>) {
    let lane = i32(local) % 4;
    var count = 0u;
";

fn text(body: &str) -> String {
    format!("{HEAD}{body}\n    out[local] = count;\n}}")
}

/// A program that dispatches one workgroup of this kernel.
fn program(wgsl: &str) -> Program {
    let buffer = |kind, dtype| Buffer { kind, dtype, elements: Dim::from(64i64) };
    let mut kernel = kernel("loops", wgsl, 64, vec![Access::ReadWrite; 2]);
    kernel.uses_dims = true;
    Program {
        outputs: vec![Port {
            name: "out".into(),
            dtype: DType::U32,
            shape: vec![Dim::from(64i64)],
            buffer: 0,
            broadcast: None,
        }],
        symbols: vec!["n".into(), "m".into()],
        buffers: vec![
            buffer(BufferKind::Output { index: 0 }, DType::U32),
            buffer(BufferKind::Arena { arena: 0, first: 0, last: 0 }, DType::I32),
        ],
        kernels: vec![kernel],
        dispatches: vec![Dispatch {
            writes: vec![],
            kernel: 0,
            bindings: vec![0, 1],
            workgroups: [Dim::ONE, Dim::ONE, Dim::ONE],
            nodes: vec!["loops".into()],
            bytes: Dim::ZERO,
            flops: Dim::ZERO,
        }],
        ..Program::default()
    }
}

/// The bound of iterations that is found for `n` = 1,000 and `m` = 20.
fn taken(body: &str) -> Result<u64, Refusal> {
    let loops = Loops::new(&text(body)).unwrap();
    let (main, functions) = loops.all(&[(1000, 1000), (20, 20)])?;
    Ok(count(&main, 1, &functions, &Factors::new(), &mut HashMap::new()))
}

#[test]
fn iterations_are_bounded_by_the_text() {
    for (body, most) in [
        ("", 0),
        ("for (var i = 0; i < 10; i++) { count++; }", 11),
        ("for (var i = 0; i < dims.n; i++) { count++; }", 1001),
        ("let n = 1 + dims.m + floor_div(-1, dims.n); for (var i = 0; i < n; i++) { count++; }", 22),
        ("let n = part(part(dims.n)); for (var i = 0; i < n; i++) { count++; }", 251),
        ("for (var i = lane; i < dims.n; i += 4) { count++; }", 251),
        (
            "let len = select(0, dims.n / 4 + 1, local < 9u); for (var i = 2; i <= len; i += 3) { count++; }",
            85,
        ),
        (
            "for (var i = 0; i < dims.n; i++) { for (var j = 0; j < dims.m; j++) { count++; } }",
            1001 + 1001 * 21,
        ),
        (
            "let per = (dims.n + 63) / 64; let first = i32(local) * per; let last = min(first + per, dims.n);
          for (var i = first; i < last; i++) { count++; }",
            17,
        ),
        ("let first = data[0]; for (var i = first; i < min(dims.n, first + 7); i++) { count++; }", 8),
        (
            "var d = lane; for (; d + 12 < dims.n; d += 16) { count++; } for (; d < dims.n; d += 4) { count++; }",
            63 + 251,
        ),
        ("for (var i = 0; i < 5 && lane + i * 8 < dims.n; i++) { count++; }", 6),
        ("for (var i = 0; i < dims.m; i++) { count += halves(local); }", 21 + 21 * 33),
        ("for (var s = 32u; s > 0u; s >>= 1u) { workgroupBarrier(); count++; }", 33),
        ("for (var s = 32u; s > 0u; s /= 2u) { workgroupBarrier(); count++; }", 33),
        ("for (var i = 0; i < dims.m; i++) { if (data[i] == 0) { break; } count++; }", 21),
    ] {
        let found = taken(body).unwrap();
        assert!(found >= most && found <= most + most / 50, "{body}: {found}, not {most}");
    }
}

#[test]
fn functions_that_call_others_twice_take_no_time() {
    let call = |i: usize| format!("fn f{i}(a: i32) -> i32 {{ return f{0}(a) + f{0}(a + 1); }}\n", i + 1);
    let functions: String = (0..60).rev().map(call).collect();
    let functions = format!("fn f60(a: i32) -> i32 {{ return a; }}\n{functions}@compute");
    let body = "let n = f0(dims.n); for (var i = 0; i < n; i++) { count++; }";
    let loops = Loops::new(&text(body).replace("@compute", &functions)).unwrap();
    assert!(loops.all(&[(1000, 1000), (20, 20)]).is_err());
}

#[test]
fn loops_without_a_bound_are_known() {
    for body in [
        "loop { count++; if (count > local) { break; } }",
        "for (var i = 0; i < data[0]; i++) { count++; }",
        "for (var i = 0; i < dims.n; i += data[0]) { count++; }",
        "for (var i = 0; i < dims.n || data[0] == i; i++) { count++; }",
        "for (var i = 0; i < dims.n; i++) { if (data[i] == 1) { i = 0; } count++; }",
        "for (var i = dims.n; i > 0; i--) { count++; }",
    ] {
        assert!(matches!(taken(body), Err(Refusal::Unknown(_))), "{body}");
    }
}

#[test]
fn what_is_short_stays_as_it_is() {
    let loops = Loops::new(&text("for (var i = 0; i < dims.n; i++) { count++; }")).unwrap();
    assert_eq!(loops.within(&[(1000, 1000), (0, 0)], 1001), Ok(None));
    assert!(loops.within(&[(1000, 1000), (0, 0)], 1000).unwrap().is_some());
    // Too long for any text.
    let most = i64::from(i32::MAX);
    assert_eq!(loops.within(&[(most, most), (0, 0)], 65_535), Err(Refusal::Needs(most as u64 + 1)));
    // A computed size has a range of values.
    assert!(loops.within(&[(0, 1000), (0, 0)], 1000).unwrap().is_some());
}

/// Every kernel gives the same results for all unroll factors, on all adapters, including those that end loops early.
#[test]
fn unrolled_loops_mean_the_same() {
    let bodies = [
        "for (var i = lane; i < dims.n; i += 1) { count++; }",
        "for (var i = lane; i < dims.n; i++) { if (i == 69000) { break; } if (i % 2 == 0) { count++; } }",
        "for (var i = 0; i < dims.n / 400; i++) { for (var j = 0; j < 200 + dims.m; j++) { count += u32(j & 1); } }",
        "var i = 0; while (i < dims.n) { let step = halves(local + 8u); count += step; i++; }",
        "for (var i = 0; i < dims.n / 300; i++) { var c = 1u; for (var j = 0; j < dims.m + 250; j++) { c += count & 1u; }
          count += c; workgroupBarrier(); }",
        "var i = 0; for (; i + 3 < dims.n; i += 1) { count += 3u; } for (; i < dims.n; i++) { count++; }",
    ];
    let want = |body: usize, local: i64| -> u32 {
        let (n, m, lane) = (70_001i64, 20i64, local % 4);
        let v = match body {
            0 => n - lane,
            1 => (lane..n).filter(|i| *i < 69_000 && i % 2 == 0).count() as i64,
            2 => n / 400 * ((200 + m) / 2),
            3 => n * i64::from(64 - (local + 8).leading_zeros()),
            4 => {
                let mut count = 0i64;
                for _ in 0..n / 300 {
                    count += 1 + (m + 250) * (count & 1);
                }
                count
            }
            _ => (n - 3) * 3 + 3,
        };
        v as u32
    };
    for gpu in crate::testing::gpus() {
        for (b, body) in bodies.iter().enumerate() {
            let mut session = Session::new_blocking(gpu, &program(&text(body))).unwrap();
            for (name, v) in [("n", 70_001), ("m", 20)] {
                session.set_symbol(name, v).unwrap();
            }
            let out = session.run_blocking(&[]).unwrap();
            let got: Vec<u32> = bytemuck::pod_collect_to_vec(out[0].1.bytes().unwrap());
            let want: Vec<u32> = (0..64).map(|l| want(b, l)).collect();
            assert_eq!(got, want, "{body} on {gpu:?}");
        }
    }
}
