//! Sessions on a device that the host program created: shared buffers, and runs recorded into the host's
//! encoders.

use super::*;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use wgfc_program::program::Computed;
use wgfc_runtime::{DeviceTensor, Plans, Requirements, wgpu};

const STORAGE: wgpu::BufferUsages =
    wgpu::BufferUsages::STORAGE.union(wgpu::BufferUsages::COPY_SRC).union(wgpu::BufferUsages::COPY_DST);

/// The adapters of the tests, found without wgfc.
fn adapters() -> Vec<wgpu::Adapter> {
    static INSTANCE: OnceLock<wgpu::Instance> = OnceLock::new();
    let new = || {
        let d = wgpu::InstanceDescriptor::new_without_display_handle();
        wgpu::Instance::new(d.with_env())
    };
    let all = pollster::block_on(INSTANCE.get_or_init(new).enumerate_adapters(wgpu::Backends::PRIMARY));
    let tested = |a: &wgpu::Adapter| {
        let (info, gpus) = (a.get_info(), testing::gpus());
        gpus.iter().any(|g| {
            (g.summary().name.as_str(), g.summary().backend.as_str()) == (&info.name, info.backend.to_str())
        })
    };
    all.into_iter().filter(tested).collect()
}

/// A device of the host program, with these limits.
fn device(adapter: &wgpu::Adapter, limits: wgpu::Limits) -> (wgpu::Device, wgpu::Queue) {
    let d = wgpu::DeviceDescriptor { required_limits: limits, ..Default::default() };
    pollster::block_on(adapter.request_device(&d)).unwrap()
}

fn on_own(test: impl Fn(&Gpu, &wgpu::Device, &wgpu::Queue)) {
    let all = adapters();
    assert_eq!(all.is_empty(), testing::gpus().is_empty());
    for adapter in all {
        eprintln!("on {}", adapter.get_info().name);
        let (device, queue) = device(&adapter, wgpu::Limits::downlevel_defaults());
        test(&Gpu::from_wgpu(&adapter, device.clone(), queue.clone()), &device, &queue);
    }
}

fn buffer(device: &wgpu::Device, bytes: u64, usage: wgpu::BufferUsages) -> wgpu::Buffer {
    let d = wgpu::BufferDescriptor { label: None, size: bytes, usage, mapped_at_creation: false };
    device.create_buffer(&d)
}

fn read(t: &DeviceTensor) -> Vec<f32> {
    t.read_blocking().unwrap().to_f32s().unwrap()
}

#[test]
fn a_run_reads_and_writes_buffers_of_the_caller_in_one_submission_and_no_poll() {
    on_own(|gpu, device, queue| {
        let mut s = Session::new_blocking(gpu, &add()).unwrap();
        let want = s.run_blocking(&[("x", f32s(&[7, 13]))]).unwrap()[0].1.clone();

        let (x, y) =
            (buffer(device, 91 * 4, STORAGE), buffer(device, 400, STORAGE | wgpu::BufferUsages::VERTEX));
        let bytes: Vec<u8> = ramp(91).iter().flat_map(|v| v.to_le_bytes()).collect();
        queue.write_buffer(&x, 0, &bytes);
        let x = gpu.adopt(x.slice(..), DType::F32, vec![7, 13]).unwrap();
        let out = gpu.adopt(y.slice(..), DType::F32, vec![7, 13]).unwrap();

        let copy = buffer(device, 91 * 4, STORAGE);
        let record = |s: &mut Session| {
            let mut encoder = device.create_command_encoder(&Default::default());
            let (x, out) = (Value::from(x.clone()), out.clone());
            let encoded = s.encode_blocking(&mut encoder, &[("x", x)], &[("y", out)]).unwrap();
            assert!(encoded.is_settled());
            assert_eq!(encoded.output("y").unwrap().buffer(), &y);
            encoder.copy_buffer_to_buffer(&y, 0, &copy, 0, 91 * 4);
            encoder.finish()
        };
        // wgpu numbers its submissions.
        let number = |i: &wgpu::SubmissionIndex| -> u64 {
            format!("{i:?}").chars().filter(char::is_ascii_digit).collect::<String>().parse().unwrap()
        };
        let before = queue.submit([]);
        let commands = record(&mut s);
        let after = queue.submit([commands]);
        assert_eq!(number(&after), number(&before) + 1, "recording submitted commands");

        // The callback is called by the first submission or poll after the work is done.
        let called = std::sync::Arc::new(AtomicBool::new(false));
        let on_call = called.clone();
        queue.on_submitted_work_done(move || on_call.store(true, Ordering::SeqCst));
        std::thread::sleep(Duration::from_millis(50));
        let commands = record(&mut s);
        assert!(!called.load(Ordering::SeqCst), "recording polled the device");
        device.poll(wgpu::PollType::wait_indefinitely()).unwrap();
        assert!(called.load(Ordering::SeqCst), "polling calls back");
        queue.submit([commands]);

        let copy = gpu.adopt(copy.slice(..), DType::F32, vec![7, 13]).unwrap();
        assert_eq!(copy.read_blocking().unwrap(), want);
    });
}

/// Slices of buffers are inputs and outputs, of sessions and of plans.
#[test]
fn a_run_reads_and_writes_slices_of_the_callers_buffers() {
    on_own(|gpu, device, queue| {
        let mut session = Session::new_blocking(gpu, &add()).unwrap();
        let want = session.run_blocking(&[("x", f32s(&[7, 13]))]).unwrap()[0].1.clone();
        let (x, y) = (buffer(device, 2048, STORAGE), buffer(device, 4096, STORAGE));
        let bytes: Vec<u8> = ramp(91).iter().flat_map(|v| v.to_le_bytes()).collect();
        queue.write_buffer(&x, 512, &bytes);
        let given = gpu.adopt(x.slice(512..512 + 364), DType::F32, vec![7, 13]).unwrap();
        assert_eq!(given.offset(), 512);
        assert_eq!(given.read_blocking().unwrap(), f32s(&[7, 13]));
        let mut plans = Plans::of(session);
        for offset in [0, 1024] {
            let out = gpu.adopt(y.slice(offset..), DType::F32, vec![7, 13]).unwrap();
            let mut encoder = device.create_command_encoder(&Default::default());
            let inputs = [("x", Value::from(given.clone()))];
            plans.encode_blocking(&mut encoder, &inputs, &[("y", out.clone())]).unwrap();
            queue.submit([encoder.finish()]);
            assert_eq!(out.read_blocking().unwrap(), want, "{offset}");
        }
        let (_, after) = &plans.run_on_device_blocking(&[("x", given.clone().into())]).unwrap()[0];
        assert_eq!(after.read_blocking().unwrap(), want);
        // Bytes around the outputs are as they were.
        let whole = gpu.adopt(y.slice(..), DType::F32, vec![1024]).unwrap();
        let all = read(&whole);
        let written = |i: &usize| *i < 91 || (256..256 + 91).contains(i);
        assert!((0..1024).filter(|i| !written(i)).all(|i| all[i] == 0.0));
        // Canaries are laid behind buffers of the session, not behind slices.
        let canaries = SessionOptions { canaries: true, ..SessionOptions::default() };
        let mut session = Session::with_options_blocking(gpu, &add(), canaries).unwrap();
        let before = read(&gpu.adopt(x.slice(..), DType::F32, vec![512]).unwrap());
        session.run_on_device_blocking(&[("x", given.into())]).unwrap();
        let given = gpu.adopt(x.slice(512..), DType::F32, vec![7, 13]).unwrap();
        session.run_on_device_blocking(&[("x", given.into())]).unwrap();
        assert_eq!(read(&gpu.adopt(x.slice(..), DType::F32, vec![512]).unwrap()), before);
    });
}

#[test]
fn one_encoder_takes_runs_of_many_sizes_and_their_order_is_that_of_submission() {
    on_own(|gpu, device, queue| {
        let mut s = Session::new_blocking(gpu, &rows()).unwrap();
        // The arenas grow between the runs, while commands not submitted yet use the old ones.
        let sizes = [(3, 5), (130, 67), (7, 13), (300, 200), (3, 5)];
        let mut encoder = device.create_command_encoder(&Default::default());
        let mut all = vec![];
        for (n, m) in sizes {
            let given: Value = if n == 7 {
                gpu.upload_blocking(&f32s(&[n, m])).unwrap().into()
            } else {
                f32s(&[n, m]).into()
            };
            all.push(s.encode_blocking(&mut encoder, &[("x", given)], &[]).unwrap());
        }
        // A run that is submitted directly has its own dimensions, even if earlier recorded runs had the same
        // sizes.
        let run = |s: &mut Session| s.run_blocking(&[("x", f32s(&[2, 9]))]).unwrap()[0].1.to_f32s().unwrap();
        assert_eq!(run(&mut s), rows_by_hand(2, 9));
        queue.submit([encoder.finish()]);
        assert_eq!(run(&mut s), rows_by_hand(2, 9));
        for ((n, m), run) in sizes.into_iter().zip(&all) {
            let (name, y) = &run.outputs()[0];
            assert_eq!((name.as_str(), y.shape()), ("y", &[n][..]));
            assert_eq!(read(y), rows_by_hand(n, m), "{n} {m}");
        }
    });
}

#[test]
fn two_sessions_share_an_encoder_and_states_go_on() {
    for adapter in adapters() {
        let (device, queue) = device(&adapter, wgpu::Limits::downlevel_defaults());
        // Each part of the host program may adopt the device.
        let [one, other] = [(); 2].map(|()| Gpu::from_wgpu(&adapter, device.clone(), queue.clone()));
        let mut first = Session::new_blocking(&one, &add()).unwrap();
        let mut second = Session::new_blocking(&other, &add()).unwrap();
        let mut count = Session::new_blocking(&other, &counter()).unwrap();
        let mut encoder = device.create_command_encoder(&Default::default());
        let a = first.encode_blocking(&mut encoder, &[("x", f32s(&[7, 13]).into())], &[]).unwrap();
        let x = a.output("y").unwrap().clone();
        let b = second.encode_blocking(&mut encoder, &[("x", x.into())], &[]).unwrap();
        let mut counts = vec![];
        for n in 1..4 {
            count.set_symbol("pos", n).unwrap();
            let x = f32s(&[n as usize]).into();
            counts.push(count.encode_blocking(&mut encoder, &[("x", x)], &[]).unwrap());
        }
        queue.submit([encoder.finish()]);
        let want: Vec<f32> = ramp(91).iter().map(|v| v * 3.0).collect();
        assert_eq!(read(&b.outputs()[0].1), want);
        let got: Vec<Vec<f32>> = counts.iter().map(|c| read(&c.outputs()[0].1)).collect();
        assert_eq!(got, [[1.0, 1.0], [3.0, 2.0], [6.0, 3.0]]);
    }
}

/// `y` holds the positive elements of `x`, as many as the run finds.
fn positive() -> Program {
    let mut p = program(&["k", "n"]);
    let x = p.input("x", DType::F32, &["n"]);
    let count = p.buffer(BufferKind::Arena { arena: 0, first: 0, last: 0 }, DType::I32, "1");
    let y = p.buffer(BufferKind::Output { index: 0 }, DType::F32, "n");
    p.outputs.push(port("y", DType::F32, &["k"], y));
    p.computed.push(Computed { symbol: "k".to_owned(), bound: dim("n"), buffer: count, after: 1 });
    let line = "if (i == 0u) { var k = 0u; for (var j = 0u; j < u32(dims.n); j++) { \
                if (b0[j] > 0.0) { b2[k] = b0[j]; k++; } } b1[0] = bitcast<f32>(k); }";
    p.dispatch(kernel("positive", 1, 2, &["k", "n"], line), &[x, count, y], "1");
    p
}

#[test]
fn sizes_that_runs_compute_are_read_when_the_caller_asks() {
    on_own(|gpu, device, queue| {
        let mut s = Session::new_blocking(gpu, &positive()).unwrap();
        let want: Vec<Tensor> =
            [9, 6].map(|n| s.run_blocking(&[("x", f32s(&[n]))]).unwrap().remove(0).1).into();
        assert_eq!(want[0].shape, [5]);
        let mut encoder = device.create_command_encoder(&Default::default());
        let mut runs =
            [9, 6].map(|n| s.encode_blocking(&mut encoder, &[("x", f32s(&[n]).into())], &[]).unwrap());
        assert!(!runs[0].is_settled());
        assert_eq!(runs[0].outputs()[0].1.shape(), [9]);
        queue.submit([encoder.finish()]);
        for (run, want) in runs.iter_mut().zip(&want) {
            run.settle_blocking().unwrap();
            assert!(run.is_settled());
            assert_eq!(run.outputs()[0].1.read_blocking().unwrap(), *want);
        }
    });
}

#[test]
fn what_cannot_be_recorded_or_shared_is_refused_in_words() {
    on_own(|gpu, device, queue| {
        let mut encoder = device.create_command_encoder(&Default::default());
        let mut loops = Session::new_blocking(gpu, &sums()).unwrap();
        let x = Tensor::new(DType::I32, vec![1], vec![3, 0, 0, 0]).unwrap();
        let e = loops.encode_blocking(&mut encoder, &[("x", x.into())], &[]).unwrap_err().to_string();
        assert!(e.contains("the host decides after each round of the loop of node"), "{e}");

        let plain = buffer(device, 512, wgpu::BufferUsages::COPY_SRC);
        let e = gpu.adopt(plain.slice(..), DType::F32, vec![2]).unwrap_err().to_string();
        assert!(e.contains("make it with STORAGE too"), "{e}");
        let far = buffer(device, 512, STORAGE);
        let e = gpu.adopt(far.slice(100..), DType::F32, vec![2]).unwrap_err().to_string();
        assert!(e.contains("it begins at byte 100, which is no multiple of 256"), "{e}");
        let e = gpu.adopt(far.slice(256..300), DType::F32, vec![12]).unwrap_err().to_string();
        assert!(e.contains("it has 44 bytes, and f32[12] needs 48"), "{e}");
        let small = buffer(device, 12, STORAGE);
        let e = gpu.adopt(small.slice(..), DType::F32, vec![3]).unwrap_err().to_string();
        assert!(e.contains("it has 12 bytes, and f32[3] needs 16"), "{e}");

        let mut s = Session::new_blocking(gpu, &add()).unwrap();
        let shared = buffer(device, 512, STORAGE);
        let tensor = |shape: &[usize], dtype| gpu.adopt(shared.slice(..), dtype, shape.to_vec()).unwrap();
        let good = tensor(&[7, 13], DType::F32);
        let x = || Value::from(f32s(&[7, 13]));
        type Outputs<'a> = &'a [(&'a str, DeviceTensor)];
        let cases: &[(Value, Outputs<'_>, &str)] = &[
            (x(), &[("z", good.clone())], "there is no output \"z\"; there is: \"y\""),
            (x(), &[("y", good.clone()), ("y", good.clone())], "it is given twice"),
            (x(), &[("y", tensor(&[13, 7], DType::F32))], "it is f32[13, 7], and the output is f32[7, 13]"),
            (x(), &[("y", tensor(&[7, 13], DType::I32))], "it is i32[7, 13], and the output is f32[7, 13]"),
            (good.clone().into(), &[("y", good.clone())], "it lies in the buffer of input \"x\""),
            (f32s(&[7, 12]).into(), &[], "must have 13 elements, not 12"),
        ];
        for (x, outputs, want) in cases {
            let e = s.encode_blocking(&mut encoder, &[("x", x.clone())], outputs).unwrap_err().to_string();
            assert!(e.contains(want), "{want} in {e}");
        }
        if let Some(other) = testing::gpus().first() {
            let t = other.upload_blocking(&f32s(&[7, 13])).unwrap();
            let e = s.encode_blocking(&mut encoder, &[("x", x())], &[("y", t.clone())]).unwrap_err();
            assert!(e.to_string().contains("it is on another device"), "{e}");
            let e = s.encode_blocking(&mut encoder, &[("x", t.into())], &[]).unwrap_err().to_string();
            assert!(e.contains("it is on another device"), "{e}");
        }
        let canaries = SessionOptions { canaries: true, ..SessionOptions::default() };
        let mut s = Session::with_options_blocking(gpu, &add(), canaries).unwrap();
        let e = s.encode_blocking(&mut encoder, &[("x", x())], &[]).unwrap_err();
        assert!(matches!(e, RunError::Encode { .. }), "{e}");
        // The failed call recorded nothing.
        queue.submit([encoder.finish()]);
        device.poll(wgpu::PollType::wait_indefinitely()).unwrap();
    });
}

#[test]
fn what_a_device_lacks_is_known_before_it_is_made() {
    let mut half = add();
    half.kernels[0].features = vec!["shader-f16".to_owned()];
    half.kernels[0].workgroup_size = [64, 8, 1];
    half.kernels[0].workgroup_bytes = 17_000;
    let needs = Requirements::of(&half);
    assert_eq!(needs.features, wgpu::Features::SHADER_F16);
    let base = wgpu::Limits::downlevel_defaults();
    let lacking = needs.missing(wgpu::Features::empty(), &base);
    assert_eq!(
        lacking,
        [
            "the feature `shader-f16` (wgpu::Features::SHADER_F16)",
            "the limit `max_compute_workgroup_storage_size` of 17000, which is 16352",
            "the limit `max_compute_invocations_per_workgroup` of 512, which is 256",
        ]
    );
    let e = needs.check(needs.features, &base).unwrap_err().to_string();
    assert!(e.contains("\n  the limit `max_compute_workgroup_storage_size` of 17000"), "{e}");
    needs.check(needs.features, &needs.limits(base.clone())).unwrap();
    assert_eq!(needs.limits(base.clone()).max_bind_groups, base.max_bind_groups);

    // Sizes that the inputs leave open can be given.
    let sizes = BTreeMap::from([("n".to_owned(), 1 << 12), ("m".to_owned(), 1 << 14)]);
    let known = Requirements::with_sizes(&rows(), &sizes).unwrap();
    let limits = known.limits(base.clone());
    assert_eq!((limits.max_storage_buffer_binding_size, limits.max_buffer_size), (1 << 28, 1 << 28));
    assert_eq!(limits.max_compute_workgroups_per_dimension, 1 << 20);
    let e = Requirements::with_sizes(&rows(), &BTreeMap::new()).unwrap_err().to_string();
    assert!(e.contains("\"m\": this size has no value") && e.contains("\"n\""), "{e}");

    for adapter in adapters() {
        // A session refuses a device that is too small, and accepts one created with the required limits.
        let mut many = program(&[]);
        let y = many.output("y", DType::F32, &["1"]);
        let xs: Vec<usize> = (0..5).map(|i| many.input(&format!("x{i}"), DType::F32, &["1"])).collect();
        let sum = "if (i == 0u) { b5[0] = b0[0] + b1[0] + b2[0] + b3[0] + b4[0]; }";
        let bindings: Vec<usize> = xs.into_iter().chain([y]).collect();
        many.dispatch(kernel("sum", 5, 1, &[], sum), &bindings, "1");
        let few = wgpu::Limits { max_storage_buffers_per_shader_stage: 4, ..base.clone() };
        let (small, queue) = device(&adapter, few.clone());
        let gpu = Gpu::from_wgpu(&adapter, small.clone(), queue);
        let e = Requirements::of(&many).check(small.features(), &small.limits()).unwrap_err().to_string();
        assert!(e.contains("the limit `max_storage_buffers_per_shader_stage` of 6, which is 4"), "{e}");
        let e = Session::new_blocking(&gpu, &many).unwrap_err().to_string();
        assert!(e.contains("kernel `sum` (storage buffers) needs 6, and this device has 4"), "{e}");
        let (enough, queue) = device(&adapter, Requirements::of(&many).limits(few));
        let gpu = Gpu::from_wgpu(&adapter, enough, queue);
        let mut s = Session::new_blocking(&gpu, &many).unwrap();
        let one = Tensor::from_f32(vec![1], &[2.0]);
        let names = ["x0", "x1", "x2", "x3", "x4"];
        let out = s.run_blocking(&names.map(|n| (n, one.clone()))).unwrap();
        assert_eq!(out[0].1.to_f32s().unwrap(), [10.0]);
    }
}

#[test]
fn the_loss_of_an_adopted_device_is_an_error_of_what_comes_next() {
    on_own(|gpu, device, _| {
        let mut s = Session::new_blocking(gpu, &rows()).unwrap();
        let mut encoder = device.create_command_encoder(&Default::default());
        s.encode_blocking(&mut encoder, &[("x", f32s(&[3, 5]).into())], &[]).unwrap();
        device.destroy();
        let lost = |e: RunError| assert!(matches!(e, RunError::DeviceLost(_)), "{e}");
        let x = || [("x", Value::from(f32s(&[3, 5])))];
        lost(s.encode_blocking(&mut encoder, &x(), &[]).unwrap_err());
        lost(s.run_on_device_blocking(&x()).unwrap_err());
        lost(s.run_blocking(&[("x", f32s(&[3, 5]))]).unwrap_err());
        lost(Session::new_blocking(gpu, &rows()).unwrap_err());
        assert!(gpu.is_lost());
    });
    // If the loss cannot be detected, the owner of the device reports it.
    on_own(|gpu, _, _| {
        gpu.report_lost("the window was closed");
        let e = Session::new_blocking(gpu, &add()).unwrap_err().to_string();
        assert_eq!(e, "the device was lost: the window was closed");
    });
}
