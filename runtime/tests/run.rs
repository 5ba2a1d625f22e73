//! Hand-written programs on every available adapter.

use std::collections::BTreeMap;
use wgfc_program::program::{
    Access, Buffer, BufferKind, DimConstraint, Dispatch, Growth, Kernel, Port, Program, Repeat, State, Stats,
    Until,
};
use wgfc_program::{DType, Dim, Tensor};
use wgfc_runtime::kernel::Checks;
use wgfc_runtime::session::{SessionOptions, StreamOptions, Value};
use wgfc_runtime::{AdapterChoice, Estimate, Gpu, RunError, Session, measure, overhead, testing};

#[path = "run/embed.rs"]
mod embed;

fn dim(s: &str) -> Dim {
    Dim::parse(s).unwrap()
}

/// An empty program over the named symbols.
fn program(symbols: &[&str]) -> Program {
    Program {
        inputs: vec![],
        outputs: vec![],
        states: vec![],
        symbols: symbols.iter().map(|s| (*s).to_owned()).collect(),
        computed: vec![],
        constraints: vec![],
        buffers: vec![],
        kernels: vec![],
        dispatches: vec![],
        repeats: vec![],
        stats: Stats::default(),
        weights: BTreeMap::new(),
        proof: Default::default(),
    }
}

/// Adds parts to a program and returns their indices.
trait Parts {
    fn buffer(&mut self, kind: BufferKind, dtype: DType, elements: &str) -> usize;
    fn input(&mut self, name: &str, dtype: DType, shape: &[&str]) -> usize;
    fn output(&mut self, name: &str, dtype: DType, shape: &[&str]) -> usize;
    fn arena(&mut self, arena: usize, first: usize, last: usize, elements: &str) -> usize;
    fn weight(&mut self, name: &str, t: Tensor) -> usize;
    fn dispatch(&mut self, kernel: Kernel, bindings: &[usize], workgroups: &str);
}

impl Parts for Program {
    fn buffer(&mut self, kind: BufferKind, dtype: DType, elements: &str) -> usize {
        self.buffers.push(Buffer { kind, dtype, elements: dim(elements) });
        self.buffers.len() - 1
    }
    fn input(&mut self, name: &str, dtype: DType, shape: &[&str]) -> usize {
        let index = self.inputs.len();
        let b = self.buffer(BufferKind::Input { index }, dtype, &product(shape));
        self.inputs.push(port(name, dtype, shape, b));
        b
    }
    fn output(&mut self, name: &str, dtype: DType, shape: &[&str]) -> usize {
        let index = self.outputs.len();
        let b = self.buffer(BufferKind::Output { index }, dtype, &product(shape));
        self.outputs.push(port(name, dtype, shape, b));
        b
    }
    fn arena(&mut self, arena: usize, first: usize, last: usize, elements: &str) -> usize {
        self.buffer(BufferKind::Arena { arena, first, last }, DType::F32, elements)
    }
    fn weight(&mut self, name: &str, t: Tensor) -> usize {
        let n = t.numel().to_string();
        let dtype = t.dtype;
        self.weights.insert(name.to_owned(), t);
        self.buffer(BufferKind::Weight { name: name.to_owned() }, dtype, &n)
    }
    fn dispatch(&mut self, kernel: Kernel, bindings: &[usize], workgroups: &str) {
        let k = self.kernels.iter().position(|k| k.name == kernel.name).unwrap_or_else(|| {
            self.kernels.push(kernel);
            self.kernels.len() - 1
        });
        self.dispatches.push(Dispatch {
            writes: vec![],
            kernel: k,
            bindings: bindings.to_vec(),
            workgroups: [dim(workgroups), Dim::ONE, Dim::ONE],
            nodes: vec![format!("node{}", self.dispatches.len())],
            bytes: dim("12"),
            flops: dim("1"),
        });
    }
}

fn product(shape: &[&str]) -> String {
    shape.iter().fold("1".to_owned(), |p, d| format!("{p}*({d})"))
}

fn port(name: &str, dtype: DType, shape: &[&str], buffer: usize) -> Port {
    Port {
        name: name.to_owned(),
        dtype,
        shape: shape.iter().map(|d| dim(d)).collect(),
        buffer,
        broadcast: None,
    }
}

fn kernel(name: &str, reads: usize, writes: usize, dims: &[&str], body: &str) -> Kernel {
    let mut wgsl = String::new();
    for i in 0..reads + writes {
        let access = if i < reads { "read" } else { "read_write" };
        wgsl += &format!("@group(0) @binding({i}) var<storage, {access}> b{i}: array<f32>;\n");
    }
    if !dims.is_empty() {
        let fields: Vec<String> = dims.iter().map(|d| format!("{d}: i32")).collect();
        wgsl += &format!("struct Dims {{ {} }}\n", fields.join(", "));
        wgsl += &format!("@group(0) @binding({}) var<uniform> dims: Dims;\n", reads + writes);
    }
    wgsl += &format!(
        "@compute @workgroup_size(64) fn main(@builtin(global_invocation_id) id: vec3<u32>) {{\n\
         let i = id.x;\n{body}\n}}\n"
    );
    let mut bindings = vec![Access::Read; reads];
    bindings.extend(vec![Access::ReadWrite; writes]);
    Kernel {
        name: name.to_owned(),
        family: "map".to_owned(),
        wgsl,
        workgroup_size: [64, 1, 1],
        bindings,
        uses_dims: !dims.is_empty(),
        workgroup_bytes: 0,
        features: vec![],
        subgroup_size: None,
    }
}

/// `y = x + w` over 7×13.
fn add() -> Program {
    let mut p = program(&[]);
    let x = p.input("x", DType::F32, &["7", "13"]);
    let w = p.weight("w", Tensor::from_f32(vec![91], &ramp(91)));
    let y = p.output("y", DType::F32, &["7", "13"]);
    let k = kernel("add", 2, 1, &[], "if (i < 91u) { b2[i] = b0[i] + b1[i]; }");
    p.dispatch(k, &[x, w, y], "2");
    p
}

/// `y[n] = Σ_m x[n, m]·2 + m`, through three arena buffers, with symbols `n` and `m`.
fn rows() -> Program {
    let mut p = program(&["m", "n"]);
    let x = p.input("x", DType::F32, &["n", "m"]);
    let double = p.arena(0, 0, 1, "n*m");
    let again = p.arena(1, 1, 2, "n*m");
    let sums = p.arena(0, 2, 3, "n");
    let y = p.output("y", DType::F32, &["n"]);
    let dims = ["m", "n"];
    let map = "if (i < u32(dims.m * dims.n)) { b1[i] = b0[i] * 2.0; }";
    p.dispatch(kernel("double", 1, 1, &dims, map), &[x, double], "(m*n + 63)/64");
    let copy = "if (i < u32(dims.m * dims.n)) { b1[i] = b0[i]; }";
    p.dispatch(kernel("copy", 1, 1, &dims, copy), &[double, again], "(m*n + 63)/64");
    let sum = "if (i < u32(dims.n)) { var s = 0.0; \
               for (var j = 0u; j < u32(dims.m); j++) { s += b0[i * u32(dims.m) + j]; } b1[i] = s; }";
    p.dispatch(kernel("sum", 1, 1, &dims, sum), &[again, sums], "(n + 63)/64");
    let plus = "if (i < u32(dims.n)) { b1[i] = b0[i] + f32(dims.m); }";
    p.dispatch(kernel("plus", 1, 1, &dims, plus), &[sums, y], "(n + 63)/64");
    p
}

fn rows_by_hand(n: usize, m: usize) -> Vec<f32> {
    let x = ramp(n * m);
    (0..n).map(|r| x[r * m..(r + 1) * m].iter().map(|v| v * 2.0).sum::<f32>() + m as f32).collect()
}

fn ramp(n: usize) -> Vec<f32> {
    (0..n).map(|i| i as f32 - 3.0).collect()
}

fn f32s(shape: &[usize]) -> Tensor {
    Tensor::from_f32(shape.to_vec(), &ramp(shape.iter().product()))
}

fn on_each(test: impl Fn(&Gpu)) {
    for gpu in testing::gpus() {
        eprintln!("on {gpu:?}");
        test(gpu);
    }
}

#[test]
fn adds_a_weight_and_repeats_itself() {
    on_each(|gpu| {
        let mut s = Session::new_blocking(gpu, &add()).unwrap();
        for _ in 0..3 {
            let out = s.run_blocking(&[("x", f32s(&[7, 13]))]).unwrap();
            assert_eq!((out.len(), out[0].0.as_str(), &out[0].1.shape), (1, "y", &vec![7, 13]));
            let want: Vec<f32> = ramp(91).iter().map(|v| v * 2.0).collect();
            assert_eq!(out[0].1.to_f32s().unwrap(), want);
        }
    });
}

#[test]
fn one_session_serves_many_shapes_even_empty_ones() {
    on_each(|gpu| {
        let mut s = Session::new_blocking(gpu, &rows()).unwrap();
        for (n, m) in [(3, 5), (7, 13), (1, 1), (130, 67), (3, 5), (0, 4), (4, 0), (0, 0), (7, 13)] {
            let out = s.run_blocking(&[("x", f32s(&[n, m]))]).unwrap();
            assert_eq!(out[0].1.shape, [n]);
            assert_eq!(out[0].1.to_f32s().unwrap(), rows_by_hand(n, m), "{n} {m}");
        }
        s.trim();
        let out = s.run_blocking(&[("x", f32s(&[3, 5]))]).unwrap();
        assert_eq!(out[0].1.to_f32s().unwrap(), rows_by_hand(3, 5));
    });
}

#[test]
fn canaries_tell_of_kernels_that_leave_their_tensors() {
    on_each(|gpu| {
        let options = SessionOptions { checks: Checks::Trusted, canaries: true, ..Default::default() };
        let run = |p: &Program| {
            let mut s = Session::with_options_blocking(gpu, p, options)?;
            s.run_blocking(&[("x", f32s(&[7, 13]))])?;
            Ok(s.run_blocking(&[("x", f32s(&[7, 13]))])?[0].1.to_f32s().unwrap())
        };
        assert_eq!(run(&add()), Ok(ramp(91).iter().map(|v| v * 2.0).collect()));
        assert_eq!(run(&rows()), Ok(rows_by_hand(7, 13)));
        let with = |body: &str| {
            let mut p = add();
            p.kernels[0] = kernel("add", 2, 1, &[], body);
            run(&p)
        };
        for (place, writes) in [("91u", "output \"y\""), ("153u", "output \"y\"")] {
            let error = with(&format!("if (i < 91u) {{ b2[i] = b0[i] + b1[i]; b2[{place}] = 1.0; }}"));
            let error = error.unwrap_err();
            let past = 4 * (place[..place.len() - 1].parse::<u64>().unwrap() - 91);
            assert!(matches!(error, RunError::OutOfBounds { past: p, .. } if p == past), "{error}");
            assert!(error.to_string().contains(writes) && error.to_string().contains("node0"), "{error}");
        }
        // Reads past the end of a tensor, or before anything was written there, give NaN.
        let read = with("if (i < 91u) { b2[i] = b0[i + 1u] + b1[i]; }").unwrap();
        assert!(read[90].is_nan() && read[..90].iter().all(|v| !v.is_nan()));
        let read = with("if (i < 90u) { b2[i] = b0[i] + b1[i + 1u]; }").unwrap();
        assert!(read[90].is_nan() && read[..90].iter().all(|v| !v.is_nan()));
        // Intermediate tensors are checked too.
        let mut p = rows();
        p.kernels[1].wgsl = p.kernels[1].wgsl.replace("b1[i] = b0[i];", "b1[i] = b0[i]; b1[i + 1u] = 0.0;");
        let error = run(&p).unwrap_err();
        assert!(matches!(error, RunError::OutOfBounds { past: 0, .. }), "{error}");
    });
}

/// In each of three outer iterations, rounds of adding `x` to `y` n times run until the sum is a multiple of 10
/// (at most 12 rounds), and then 1 is added.
fn sums() -> Program {
    let mut p = program(&["n"]);
    let x = p.input("x", DType::I32, &["n"]);
    let y = p.output("y", DType::I32, &["n"]);
    let word = p.arena(0, 0, 3, "1");
    let kernel = |name: &str, line: &str, bindings: Vec<Access>| {
        let access = |a: &Access| if *a == Access::Read { "read" } else { "read_write" };
        let bound: String = (bindings.iter().enumerate())
            .map(|(i, a)| format!("@group(0) @binding({i}) var<storage, {}> b{i}: array<i32>;\n", access(a)))
            .collect();
        let head = "@compute @workgroup_size(1)\nfn main() {\n";
        Kernel {
            name: name.to_owned(),
            family: "test".to_owned(),
            wgsl: format!("{bound}{head}    {line}\n}}\n"),
            workgroup_size: [1, 1, 1],
            bindings,
            uses_dims: false,
            workgroup_bytes: 0,
            features: vec![],
            subgroup_size: None,
        }
    };
    let (r, w) = (Access::Read, Access::ReadWrite);
    p.dispatch(kernel("clear", "b0[0] = 0;", vec![w]), &[y], "1");
    p.dispatch(kernel("add", "b1[0] += b0[0];", vec![r, w]), &[x, y], "1");
    p.dispatch(kernel("test", "b1[0] = i32(b0[0] % 10 != 0);", vec![r, w]), &[y, word], "1");
    p.dispatch(kernel("more", "b0[0] += 1;", vec![w]), &[y], "1");
    let repeat = |first, count, times, until| Repeat {
        first,
        count,
        times: dim(times),
        why: "a test".to_owned(),
        until,
    };
    p.repeats = vec![
        repeat(1, 3, "3", None),
        repeat(1, 2, "1", Some(Until { buffer: word, rounds: 12 })),
        repeat(1, 1, "n", None),
    ];
    p
}

#[test]
fn rounds_go_on_until_a_word_is_zero() {
    on_each(|gpu| {
        let mut s = Session::new_blocking(gpu, &sums()).unwrap();
        for n in [1, 3, 2] {
            let x = Tensor::new(DType::I32, vec![n], [3u8, 0, 0, 0].repeat(n)).unwrap();
            let run = s.run_blocking(&[("x", x.clone())]);
            if n == 2 {
                // The sum reaches 30 and becomes 31; from then on it is odd, so the loop does not end.
                let e = run.unwrap_err().to_string();
                assert!(e.contains("has not ended after 12 rounds of 3 dispatches: a test"), "{e}");
                continue;
            }
            let mut want = 0;
            for _ in 0..3 {
                want += 3 * n as i32;
                while want % 10 != 0 {
                    want += 3 * n as i32;
                }
                want += 1;
            }
            assert_eq!(run.unwrap()[0].1.to_i64s().unwrap()[0], i64::from(want), "{n}");
            let on_device = s.run_on_device_blocking(&[("x", x.into())]).unwrap();
            assert_eq!(on_device[0].1.read_blocking().unwrap().to_i64s().unwrap()[0], i64::from(want));
        }
    });
    type Edit = fn(&mut Program);
    let edits: &[(Edit, &str)] = &[
        (|p| p.repeats[1].until.as_mut().unwrap().rounds = 0, "may run no round"),
        (|p| p.repeats[1].until.as_mut().unwrap().buffer = 0, "writes buffer 0, which ends it"),
    ];
    assert_eq!(wgfc_runtime::check::check(&sums()), Vec::<String>::new());
    for (edit, want) in edits {
        let mut p = sums();
        edit(&mut p);
        let problems = wgfc_runtime::check::check(&p).join("\n");
        assert!(problems.contains(want), "{want} in {problems:?}");
    }
}

#[test]
fn outputs_stay_on_the_device_and_feed_the_next_run() {
    on_each(|gpu| {
        let mut s = Session::new_blocking(gpu, &add()).unwrap();
        let mut x: Value = gpu.upload_blocking(&f32s(&[7, 13])).unwrap().into();
        let mut kept = Vec::new();
        for _ in 0..6 {
            let out = s.run_on_device_blocking(&[("x", x)]).unwrap().swap_remove(0).1;
            kept.push(out.clone());
            x = out.into();
        }
        for (i, t) in kept.iter().enumerate() {
            let want: Vec<f32> = ramp(91).iter().map(|v| v * (i + 2) as f32).collect();
            assert_eq!(t.read_blocking().unwrap().to_f32s().unwrap(), want, "run {i}");
        }
        let one_by_one: Vec<Tensor> = kept.iter().map(|t| t.read_blocking().unwrap()).collect();
        assert_eq!(gpu.read_blocking(&kept).unwrap(), one_by_one);
        if let Some(other) = wgfc_runtime::testing::gpus().iter().find(|g| !g.is(gpu)) {
            let e = other.read_blocking(&kept).unwrap_err().to_string();
            assert!(e.contains("on another device"), "{e}");
        }
    });
}

/// `count += n` for `n` from an input's shape; `out = count`.
fn counter() -> Program {
    let mut p = program(&["n", "pos"]);
    let _x = p.input("x", DType::F32, &["n"]);
    let state = p.buffer(BufferKind::State { name: "count".to_owned() }, DType::F32, "2");
    let out = p.output("out", DType::F32, &["2"]);
    let step = "if (i == 0u) { b0[0] += f32(dims.n); b0[1] = f32(dims.pos); }";
    p.dispatch(kernel("step", 0, 1, &["n", "pos"], step), &[state], "1");
    p.dispatch(kernel("show", 1, 1, &[], "if (i < 2u) { b1[i] = b0[i]; }"), &[state, out], "1");
    p
}

#[test]
fn states_persist_until_they_are_reset() {
    on_each(|gpu| {
        let mut s = Session::new_blocking(gpu, &counter()).unwrap();
        let e = s.run_blocking(&[("x", f32s(&[3]))]).unwrap_err().to_string();
        assert!(e.contains("\"pos\"") && e.contains("set its value"), "{e}");
        assert!(matches!(s.set_symbol("nope", 1), Err(RunError::Unknown { .. })));
        let run = |s: &mut Session, n: usize, pos: i64| {
            s.set_symbol("pos", pos).unwrap();
            s.run_blocking(&[("x", f32s(&[n]))]).unwrap()[0].1.to_f32s().unwrap()
        };
        assert_eq!(run(&mut s, 3, 10), [3.0, 10.0]);
        assert_eq!(run(&mut s, 4, 11), [7.0, 11.0]);
        pollster::block_on(s.reset()).unwrap();
        assert_eq!(run(&mut s, 5, 12), [5.0, 12.0]);
        pollster::block_on(s.reset_state("count")).unwrap();
        assert_eq!(run(&mut s, 1, 0), [1.0, 0.0]);
        assert!(pollster::block_on(s.reset_state("other")).is_err());
    });
}

#[test]
fn streams_run_in_order_with_a_bounded_number_under_way() {
    on_each(|gpu| {
        for in_flight in [0, 1, 2, 3, 7] {
            let mut s = Session::new_blocking(gpu, &counter()).unwrap();
            s.set_symbol("pos", 0).unwrap();
            let options = StreamOptions { in_flight, first: 10, ..StreamOptions::default() };
            let mut stream = s.stream(options).unwrap();
            let mut seen: Vec<(u64, f32)> = vec![];
            for n in 1..=20usize {
                assert_eq!(stream.next_step(), 9 + n as u64);
                let x = stream.upload_blocking("x", vec![n], |to| (0..n).for_each(|_| to.put(&[0; 4])));
                stream.push_blocking(&[("x", x.unwrap().into())]).unwrap();
                while let Some(run) = stream.ended() {
                    seen.push((run.step, run.outputs[0].1.to_f32s().unwrap()[0]));
                }
                assert_eq!(seen.len(), n.saturating_sub(in_flight.max(1)), "of {n}, {in_flight} under way");
            }
            while let Some(run) = stream.next_blocking().unwrap() {
                seen.push((run.step, run.outputs[0].1.to_f32s().unwrap()[0]));
            }
            let sums = (1..=20u64).map(|n| (9 + n, (n * (n + 1) / 2) as f32));
            assert_eq!(seen, sums.collect::<Vec<_>>());
        }
    });
}

#[test]
fn streams_say_which_run_failed_and_keep_the_others() {
    on_each(|gpu| {
        let mut s = Session::new_blocking(gpu, &rows()).unwrap();
        let unknown = StreamOptions { outputs: Some(vec!["z".to_owned()]), ..StreamOptions::default() };
        assert!(matches!(s.stream(unknown), Err(RunError::Unknown { what: "output", .. })));
        let mut stream = s.stream(StreamOptions { in_flight: 4, ..StreamOptions::default() }).unwrap();
        for n in 1..4 {
            stream.push_blocking(&[("x", f32s(&[n, 13]).into())]).unwrap();
        }
        let e = stream.push_blocking(&[("x", Tensor::from_i64(vec![1, 13], &[0; 13]).into())]).unwrap_err();
        assert!(
            matches!(&e, RunError::Step { step: 3, error } if matches!(**error, RunError::Inputs(_))),
            "{e}"
        );
        assert!(e.to_string().starts_with("step 3: the inputs do not fit"), "{e}");
        for bytes in [0, 51, 56] {
            let e = stream.upload_blocking("x", vec![1, 13], |to| to.put(&vec![0; bytes])).unwrap_err();
            assert!(e.to_string().contains(&format!("{bytes} bytes were given")), "{e}");
        }
        let e = stream.upload_blocking("y", vec![1], |to| to.put(&[0; 4])).unwrap_err();
        assert!(
            matches!(&e, RunError::Step { error, .. } if matches!(**error, RunError::Unknown { .. })),
            "{e}"
        );
        stream.push_blocking(&[("x", f32s(&[4, 13]).into())]).unwrap();
        for n in 1..=4usize {
            let run = stream.next_blocking().unwrap().unwrap();
            assert_eq!((run.step, &run.outputs[0].1.shape), (n as u64 - 1, &vec![n]));
            assert_eq!(run.outputs[0].1.to_f32s().unwrap(), rows_by_hand(n, 13));
        }
        assert!(stream.next_blocking().unwrap().is_none());
    });
}

/// The program [`counter`] with a count that begins at 40, 2.
fn counter_from() -> Program {
    let mut p = counter();
    p.weights.insert("start".to_owned(), Tensor::from_f32(vec![2], &[40.0, 2.0]));
    let (name, initial) = ("count".to_owned(), Some("start".to_owned()));
    let buffer = p.buffers.iter().position(|b| matches!(b.kind, BufferKind::State { .. })).unwrap();
    p.states.push(State { name, dtype: DType::F32, shape: vec![dim("2")], buffer, growth: None, initial });
    p
}

#[test]
fn states_have_initial_contents() {
    on_each(|gpu| {
        let mut s = Session::new_blocking(gpu, &counter_from()).unwrap();
        s.set_symbol("pos", 7).unwrap();
        let run = |s: &mut Session| s.run_blocking(&[("x", f32s(&[3]))]).unwrap()[0].1.to_f32s().unwrap();
        assert_eq!(s.states_blocking().unwrap()["count"].to_f32s().unwrap(), [40.0, 2.0]);
        assert_eq!(run(&mut s), [43.0, 7.0]);
        assert_eq!(run(&mut s), [46.0, 7.0]);
        pollster::block_on(s.reset_state("count")).unwrap();
        assert_eq!(run(&mut s), [43.0, 7.0]);
        s.reset_blocking().unwrap();
        assert_eq!(s.states_blocking().unwrap()["count"].to_f32s().unwrap(), [40.0, 2.0]);
    });
    type Edit = fn(&mut Program);
    let growth = Growth { axis: 0, length: "pos".to_owned(), by: dim("1") };
    let edits: &[(Edit, &str)] = &[
        (|p| p.weights.clear(), "the weight \"start\" of its initial contents is missing"),
        (
            |p| _ = p.weights.insert("start".to_owned(), f32s(&[3])),
            "is f32[2], its initial contents \"start\" are f32[3]",
        ),
        (
            |p| _ = p.weights.insert("start".to_owned(), Tensor::from_i64(vec![2], &[0, 0])),
            "its initial contents \"start\" are i64[2]",
        ),
        (|p| p.states[0].shape = vec![dim("n")], "which is no size"),
    ];
    assert_eq!(wgfc_runtime::check::check(&counter_from()), Vec::<String>::new());
    for (edit, want) in edits {
        let mut p = counter_from();
        edit(&mut p);
        let problems = wgfc_runtime::check::check(&p).join("\n");
        assert!(problems.contains(want), "{want} in {problems:?}");
    }
    let mut p = counter_from();
    p.states[0].growth = Some(growth);
    let problems = wgfc_runtime::check::check(&p).join("\n");
    assert!(problems.contains("grows and has initial contents"), "{problems}");
}

#[test]
fn bytes_that_fill_no_whole_word_survive() {
    on_each(|gpu| {
        let mut p = program(&["n"]);
        let x = p.input("x", DType::U8, &["n"]);
        let y = p.output("y", DType::U8, &["n"]);
        let mut k = kernel("copy", 1, 1, &[], "if (i < arrayLength(&b1)) { b1[i] = b0[i]; }");
        k.wgsl = k.wgsl.replace("array<f32>", "array<u32>");
        p.dispatch(k, &[x, y], "(n + 255)/256");
        let mut s = Session::new_blocking(gpu, &p).unwrap();
        for n in [0usize, 1, 2, 3, 5, 16, 17, 301] {
            let bytes: Vec<u8> = (0..n).map(|i| (i * 7 + 1) as u8).collect();
            let t = Tensor::new(DType::U8, vec![n], bytes.clone()).unwrap();
            let out = s.run_blocking(&[("x", t)]).unwrap();
            assert_eq!(out[0].1.bytes().unwrap(), bytes, "{n}");
        }
    });
}

#[test]
fn wrong_inputs_are_all_named() {
    on_each(|gpu| {
        let mut p = rows();
        p.constraints = vec![DimConstraint { a: dim("m"), b: dim("2*n"), node: "enc/Add".to_owned() }];
        let mut s = Session::new_blocking(gpu, &p).unwrap();
        let e = s.run_blocking(&[("z", f32s(&[2])), ("z", f32s(&[2]))]).unwrap_err().to_string();
        for part in
            ["\"z\": the model has no such input", "given twice", "\"x\": it is missing; it is f32[n, m]"]
        {
            assert!(e.contains(part), "{part} in {e}");
        }
        let e = s.run_blocking(&[("x", Tensor::from_i64(vec![2], &[1, 2]))]).unwrap_err().to_string();
        assert!(e.contains("must be f32, not i64") && e.contains("must have shape [n, m], not [2]"), "{e}");
        let e = s.run_blocking(&[("x", f32s(&[2, 5]))]).unwrap_err();
        assert_eq!(e.to_string(), "node \"enc/Add\" needs m (here 5) and 2*n (here 4) to be equal");
        assert!(s.run_blocking(&[("x", Tensor::absent(DType::F32, vec![2, 4]))]).is_err());
        let out = s.run_blocking(&[("x", f32s(&[2, 4]))]).unwrap();
        assert_eq!(out[0].1.to_f32s().unwrap(), rows_by_hand(2, 4));
    });
}

#[test]
fn an_edited_plan_is_refused_in_words() {
    type Edit = fn(&mut Program);
    let edits: &[(Edit, &str)] = &[
        (|p| p.dispatches[0].kernel = 7, "there is no kernel 7"),
        (|p| p.dispatches[0].bindings[0] = 70, "there is no buffer 70"),
        (|p| p.dispatches[0].bindings.truncate(1), "binds 1 buffers, the kernel has 2"),
        (|p| p.inputs[0].buffer = 1, "is not the one of input 0"),
        (|p| p.inputs[0].buffer = 100, "there is no buffer 100"),
        (|p| p.outputs[0].dtype = DType::I64, "is i64, its buffer 4 is f32"),
        (|p| p.symbols[0] = "q".to_owned(), "`m`, which is not among the symbols"),
        (|p| p.kernels[0].workgroup_size = [0, 1, 1], "has a zero"),
        (|p| p.kernels[0].workgroup_size = [32, 1, 1], "says workgroup size [64, 1, 1]"),
        (|p| p.kernels[1].wgsl.clear(), "has no text"),
        (|p| p.kernels[0].wgsl = p.kernels[0].wgsl.replace("b1[i]", "b9[i]"), "its text is not WGSL"),
        (|p| p.buffers[1].kind = BufferKind::Arena { arena: 1, first: 0, last: 1 }, "share memory"),
        (|p| p.buffers[1].kind = BufferKind::Arena { arena: 0, first: 0, last: 0 }, "lives only from"),
        (
            |p| p.buffers[1].kind = BufferKind::Arena { arena: 0, first: 5, last: 90 },
            "lives from dispatch 5 to 90",
        ),
        (
            |p| p.buffers[1].kind = BufferKind::Arena { arena: usize::MAX, first: 0, last: 1 },
            "more than there are",
        ),
        (|p| p.buffers[1].kind = BufferKind::Weight { name: "w".to_owned() }, "\"w\" is missing"),
        (|p| p.buffers[1].kind = BufferKind::State { name: "s".to_owned() }, "must be a number"),
        (|p| p.buffers[1].elements = dim("%0"), "not an expression over symbols"),
        (|p| p.dispatches[0].workgroups[0] = dim("zz"), "`zz`, which is not among"),
    ];
    for (edit, want) in edits {
        let mut p = rows();
        edit(&mut p);
        let problems = wgfc_runtime::check::check(&p).join("\n");
        assert!(problems.contains(want), "{want} in {problems:?}");
    }
    assert_eq!(wgfc_runtime::check::check(&rows()), Vec::<String>::new());
    // Faults that only a device can detect.
    let edits: &[(Edit, &str)] = &[
        (|p| p.kernels[0].bindings.swap(0, 1), "writes buffer 0"),
        (|p| p.kernels[0].uses_dims = false, "kernel `double` does not compile"),
        (|p| p.kernels[0].features = vec!["telepathy".to_owned()], "feature `telepathy`"),
        (|p| p.kernels[0].workgroup_bytes = 1 << 30, "(bytes of workgroup memory) needs 1073741824"),
    ];
    on_each(|gpu| {
        for (edit, want) in edits {
            let mut p = rows();
            edit(&mut p);
            let e = Session::new_blocking(gpu, &p).map(|_| ()).unwrap_err().to_string();
            assert!(e.contains(want), "{want} in {e}");
        }
    });
}

#[test]
fn too_much_is_refused_with_numbers() {
    on_each(|gpu| {
        let mut p = rows();
        p.dispatches[0].workgroups[0] = dim("1000000*n");
        let mut s = Session::new_blocking(gpu, &p).unwrap();
        let e = s.run_blocking(&[("x", f32s(&[1, 2]))]).unwrap_err();
        assert!(matches!(e, RunError::Limits { need: 1_000_000, .. }), "{e}");
        let mut p = rows();
        p.buffers[1].elements = dim("1000000000000*n*m");
        let mut s = Session::new_blocking(gpu, &p).unwrap();
        assert!(matches!(s.run_blocking(&[("x", f32s(&[1, 2]))]), Err(RunError::Limits { .. })));
        p.buffers[1].elements = dim("n - 5");
        let mut s = Session::new_blocking(gpu, &p).unwrap();
        assert!(matches!(s.run_blocking(&[("x", f32s(&[1, 2]))]), Err(RunError::Plan(_))));
    });
}

#[test]
fn absent_weights_and_wrong_ones_are_named() {
    on_each(|gpu| {
        let mut p = add();
        p.weights.insert("w".to_owned(), Tensor::absent(DType::F32, vec![91]));
        let e = Session::new_blocking(gpu, &p).map(|_| ()).unwrap_err();
        assert_eq!(e, RunError::WeightAbsent { name: "w".to_owned() });
        p.weights.insert("w".to_owned(), f32s(&[90]));
        let e = Session::new_blocking(gpu, &p).map(|_| ()).unwrap_err().to_string();
        assert!(e.contains("the weight \"w\" is f32[90]"), "{e}");
    });
}

#[test]
fn only_the_outputs_asked_for_are_read() {
    on_each(|gpu| {
        let mut p = add();
        let (x, z) = (0, p.output("z", DType::F32, &["7", "13"]));
        p.dispatch(kernel("neg", 1, 1, &[], "if (i < 91u) { b1[i] = -b0[i]; }"), &[x, z], "2");
        let mut s = Session::new_blocking(gpu, &p).unwrap();
        let x = [("x", Value::from(f32s(&[7, 13])))];
        let out = pollster::block_on(s.run_values(&x, Some(&["z"]))).unwrap();
        assert_eq!((out.len(), out[0].0.as_str()), (1, "z"));
        assert_eq!(out[0].1.to_f32s().unwrap()[0], 3.0);
        assert_eq!(pollster::block_on(s.run_values(&x, Some(&[]))).unwrap().len(), 0);
        let e = pollster::block_on(s.run_values(&x, Some(&["q"]))).unwrap_err().to_string();
        assert_eq!(e, "there is no output \"q\"; there is: \"y\", \"z\"");
    });
}

#[test]
fn profiles_and_measures_are_complete() {
    on_each(|gpu| {
        let mut s = Session::new_blocking(gpu, &rows()).unwrap();
        let p = s.profile_blocking(&[("x", f32s(&[130, 67]))], 3).unwrap();
        assert_eq!(p.dispatches.len(), 4);
        assert_eq!((p.dispatches[2].kernel.as_str(), p.dispatches[0].workgroups), ("sum", [137, 1, 1]));
        assert_eq!(p.gpu_ns.is_some(), gpu.profile().timestamps);
        let median = |e: &Option<Estimate>| e.as_ref().unwrap().median;
        assert!(median(&p.wall_ns) >= median(&p.submit_ns) && median(&p.record_ns) > 0.0, "{p:?}");
        assert!(p.back_to_back_ns.unwrap() > 0.0);
        assert!(s.profile_blocking(&[("x", f32s(&[0, 67]))], 1).unwrap().dispatches.is_empty());
        let m = measure::measure_blocking(gpu).unwrap();
        eprintln!("{gpu:?}: {m:?}");
        let o = overhead::measure_blocking(gpu, 7).unwrap();
        eprintln!("{o:?}");
        for c in &o.modes {
            assert!(c.wall_ns.median >= c.record_ns.low + c.submit_ns.low, "{c:?}");
            assert!(c.wall_ns.low <= c.wall_ns.median && c.wall_ns.median <= c.wall_ns.high, "{c:?}");
            assert_eq!(c.gpu_ns.is_some(), gpu.profile().timestamps);
        }
        assert!(o.overstatement().unwrap() > 0.0);
        // The values depend on the machine, so only their range is checked.
        let all = [m.copy_bytes_per_second, m.dispatch_ns, m.dispatch_pass_each_ns, m.round_trip_ns];
        assert!(all.iter().all(|v| v.is_finite() && *v > 0.0) && m.copy_bytes > 0, "{m:?}");
    });
}

#[test]
fn adapters_are_chosen_by_name_index_and_kind() {
    let all = Gpu::adapters_blocking();
    let e = Gpu::request_blocking(&AdapterChoice::Index(all.len())).unwrap_err().to_string();
    assert!(e.contains(&format!("number {} is wanted", all.len())), "{e}");
    for (i, a) in all.iter().enumerate() {
        let one = Gpu::request_blocking(&AdapterChoice::Index(i)).unwrap();
        assert_eq!(one.summary().name, a.name);
        let part = a.name[..a.name.len().min(6)].to_uppercase();
        assert!(Gpu::request_blocking(&AdapterChoice::Name(part)).is_ok());
    }
    if let Some(a) = all.iter().find(|a| a.is_software) {
        assert!(Gpu::request_blocking(&"software".parse().unwrap()).unwrap().summary().is_software, "{a:?}");
    }
    assert_eq!("2".parse(), Ok(AdapterChoice::Index(2)));
    assert_eq!("NVIDIA".parse(), Ok(AdapterChoice::Name("NVIDIA".to_owned())));
}
