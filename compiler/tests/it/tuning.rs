//! Tables of measured choices are used where the device can run them, and ignored otherwise.

use crate::gpu::*;
use std::path::Path;
use wgfc_compiler::kernel::Kernel;
use wgfc_compiler::pipeline::{Fused, compile, fuse_amended};
use wgfc_compiler::schedule::products::Product;
use wgfc_compiler::schedule::{Context, Schedule, candidates, choose, rows, table};
use wgfc_compiler::tuning::{self, Single, Values};
use wgfc_compiler::{DeviceProfile, Options, States, Tuning};
use wgfc_ir::Dim;
use wgfc_ir::tensor::ByteOwner;

struct Folder(std::path::PathBuf);

impl wgfc_compiler::import::ExternalData for Folder {
    fn open(&self, location: &str) -> Result<std::sync::Arc<dyn ByteOwner>, String> {
        let bytes = std::fs::read(self.0.join(location)).map_err(|e| e.to_string())?;
        Ok(std::sync::Arc::new(bytes))
    }
}

fn model(name: &str) -> (Vec<u8>, Folder) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/small").join(name);
    (std::fs::read(folder.join("model.onnx")).unwrap(), Folder(folder))
}

fn fused(name: &str, options: &Options) -> Fused {
    let (bytes, folder) = model(name);
    fuse_amended(&bytes, &folder, options, &mut |_| Ok(()), &mut |_, _| {}).unwrap()
}

fn chosen(case: &Case, kernel: &Kernel, tuning: &Tuning, device: &DeviceProfile) -> Schedule {
    choose(kernel, &Context { graph: &case.graph, device, expect: &case.expect }, tuning).unwrap()
}

#[test]
fn tables_are_obeyed_within_what_the_device_can_do() {
    let profile = DeviceProfile::default();
    for dims in [[1, 65, 129, 33], [1, 1, 96, 64], [2, 7, 13, 5]] {
        let mut case = Case::new(&[]);
        let (kernel, _) = product(&mut case, dims.map(c), Layout::default());
        let own = chosen(&case, &kernel, &Tuning::default(), &profile);
        let key = table::key(&case.graph, &kernel);
        let with = |choice, profile: &DeviceProfile| {
            chosen(&case, &kernel, &Tuning { choices: [(key.clone(), choice)].into() }, profile)
        };
        let all = case.with_context(|cx| candidates(&kernel, &cx.schedule).unwrap());
        assert!(all.len() > 1);
        assert_eq!(with(all[0].clone(), &profile), own);
        assert!(all[1..].iter().any(|g| with(g.clone(), &profile) != own));
        // The table is ignored if its choice is too large, or for another product, family or key.
        let small = DeviceProfile { max_invocations: 32, ..profile.clone() };
        let own_small = chosen(&case, &kernel, &Tuning::default(), &small);
        let large =
            all.iter().find(|c| matches!(c, Schedule::Product(Product::Tiled(t)) if t.shape.threads() > 32));
        assert_eq!(with(large.unwrap().clone(), &small), own_small);
        for mut choice in all.iter().cloned() {
            if let Schedule::Product(Product::Thin(t)) = &mut choice {
                t.shape.rows = 9;
                assert_eq!(with(choice.clone(), &profile), own);
            }
            if let Schedule::Product(Product::Tiled(t)) = &mut choice {
                t.shape.split = 0;
                assert_eq!(with(choice, &profile), own);
            }
        }
        assert_eq!(
            with(
                Schedule::Row(rows::Row {
                    threads: 64,
                    lanes: 1,
                    rows_first: false,
                    width: 1,
                    steps: 0,
                    kept: false,
                    subgroup: 1
                }),
                &profile
            ),
            own
        );
        let elsewhere = Tuning { choices: all.iter().map(|c| (format!("{key}x"), c.clone())).collect() };
        assert_eq!(chosen(&case, &kernel, &elsewhere, &profile), own);
    }
}

#[test]
fn keys_tell_kernels_apart_and_nothing_else() {
    let key = |dims: [i64; 4], l: Layout| {
        let mut case = Case::new(&[]);
        // Unrelated tensors do not affect the key.
        for _ in 0..dims[1] {
            case.tensor(&[c(3)], wgfc_compiler::kernel::TensorKind::Intermediate);
        }
        let (mut kernel, _) = product(&mut case, dims.map(Dim::from), l);
        kernel.nodes = vec![format!("node {}", dims[1]).into()];
        table::key(&case.graph, &kernel)
    };
    let plain = Layout::default();
    assert_eq!(key([1, 8, 16, 32], plain), key([1, 8, 16, 32], plain));
    assert_ne!(key([1, 8, 16, 32], plain), key([1, 8, 16, 33], plain));
    assert_ne!(key([1, 8, 16, 32], plain), key([1, 8, 16, 32], Layout { b: true, ..plain }));

    let keys = |capacity| {
        let options = Options { states: States::Auto { capacity: Some(capacity) }, ..one_token() };
        let fused = fused("decoder", &options);
        let all = tuning::tunable(&fused, &options, &Values::new(), 4, 1.0).unwrap();
        assert!(all.iter().any(|t| t.family() == "product"));
        assert!(all.iter().all(|t| t.candidates.len() > 1));
        all.into_iter().map(|t| t.key).collect::<std::collections::BTreeSet<_>>()
    };
    assert_eq!(keys(32), keys(96));
}

fn one_token() -> Options {
    let dims = [("seq".to_owned(), 1)];
    Options { dims: dims.into(), ..Options::default() }
}

#[test]
fn compiling_looks_choices_up() {
    let (bytes, folder) = model("mlp");
    let own = compile(&bytes, &folder, &Options::default()).unwrap();
    let fused = fused("mlp", &Options::default());
    let all = tuning::tunable(&fused, &Options::default(), &Values::new(), 4, 1.0).unwrap();
    assert!(!all.is_empty());
    let last = |t: &tuning::Tunable| (t.key.clone(), t.candidates[t.candidates.len() - 1].choice.clone());
    let options =
        Options { tuning: Tuning { choices: all.iter().map(last).collect() }, ..Options::default() };
    let tuned = compile(&bytes, &folder, &options).unwrap();
    assert_ne!(tuned.kernels, own.kernels);
    assert_eq!(tuned.dispatches.len(), own.dispatches.len());
    for t in &all {
        let (_, choice) = last(t);
        let single = Single::new(&fused, &Options::default(), t.kernel, choice, &Values::new()).unwrap();
        let text = &single.program.kernels[0].wgsl;
        assert!(tuned.kernels.iter().any(|k| k.wgsl == *text), "{}", t.key);
        assert_eq!(single.cold.len(), single.program.inputs.len());
    }
}

#[test]
fn what_is_measured_fits_the_states() {
    let complete = |capacity, given: &[(&str, i64)]| {
        let options = Options { states: States::Auto { capacity }, ..one_token() };
        let given = given.iter().map(|(s, v)| (s.to_string(), *v)).collect();
        tuning::complete(&fused("decoder", &options), &given, &options.expect)
    };
    assert_eq!(complete(Some(32), &[]).unwrap()["past"], 16);
    assert_eq!(complete(None, &[]).unwrap()["past"], 64);
    let open = complete(None, &[("past", 5000)]).unwrap();
    assert!(open.len() == 2 && open.values().all(|v| *v >= 5000), "{open:?}");
    let e = complete(Some(32), &[("past", 32)]).unwrap_err().to_string();
    assert!(e.contains("room for 32 positions") && e.contains("past"), "{e}");
}
