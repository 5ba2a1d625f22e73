//! Programs written for `ort` run on wgfc.

use ort::session::Session;
use ort::session::builder::GraphOptimizationLevel;
use ort::value::{Tensor, TensorRef, ValueType};
use std::path::{Path, PathBuf};
use wgfc::{Model, Options, Place};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/small").join(name).join("model.onnx")
}

/// Whether there is an adapter; its name, for sessions.
fn adapter() -> Option<String> {
    wgfc_runtime::testing::gpus().first().map(|g| g.summary().name.clone())
}

fn by_wgfc(path: &Path, inputs: &[(&str, wgfc::Tensor)]) -> Vec<(String, wgfc::Tensor)> {
    let mut model = Model::load(path, &Options::default(), Place::Cpu).unwrap();
    let names: Vec<String> = model.outputs().iter().map(|p| p.name.clone()).collect();
    let inputs = inputs.iter().map(|(n, t)| ((*n).to_owned(), t.clone())).collect();
    let mut outputs = model.run(&inputs).unwrap();
    names.into_iter().map(|n| (n.clone(), outputs.remove(&n).unwrap())).collect()
}

fn close(got: &[f32], want: &[f32]) {
    assert!(
        got.len() == want.len() && got.iter().zip(want).all(|(a, b)| (a - b).abs() < 1e-4),
        "{got:?} {want:?}"
    );
}

/// `ort` has one backend a process: all of it is one test.
#[test]
fn programs_for_ort_run_on_wgfc() -> ort::Result<()> {
    assert!(ort::set_api(wgfc_ort::api()));
    let env = ort::init().build()?;
    assert!(ort::info().contains("backend=wgfc"), "{}", ort::info());
    let mut places = vec!["cpu-evaluator".to_owned()];
    places.extend(adapter());
    for place in &places {
        eprintln!("on {place}");
        let builder =
            || Session::builder(&env)?.with_config_entry("wgfc.adapter", place).map_err(ort::Error::from);
        let mlp = fixture("mlp");
        let mut session = builder()?
            .with_optimization_level(GraphOptimizationLevel::Level3)?
            .with_intra_threads(2)?
            .commit_from_file(&mlp)?;

        // Names, types, shapes.
        assert_eq!(session.inputs().iter().map(|i| i.name()).collect::<Vec<_>>(), ["x"]);
        assert_eq!(session.outputs().iter().map(|o| o.name()).collect::<Vec<_>>(), ["probabilities"]);
        let ValueType::Tensor { shape, dimension_symbols, .. } = session.inputs()[0].dtype() else {
            panic!("a tensor")
        };
        assert_eq!((&shape[..], dimension_symbols[0].as_str()), (&[-1, 13][..], "batch"));

        // Inputs borrowed and owned, of several sizes.
        for batch in [2usize, 5] {
            let x: Vec<f32> = (0..batch * 13).map(|i| (i as f32 * 0.37).sin()).collect();
            let want = by_wgfc(&mlp, &[("x", wgfc::Tensor::from_f32(vec![batch, 13], &x))]);
            let want = want[0].1.to_f32s().unwrap();
            let outputs =
                session.run(ort::inputs!["x" => TensorRef::from_array_view(([batch, 13], &*x))?])?;
            let (shape, got) = outputs["probabilities"].try_extract_tensor::<f32>()?;
            assert_eq!(&shape[..], [batch as i64, 5]);
            close(got, &want);
            drop(outputs);
            let outputs = session.run(ort::inputs![Tensor::from_array(([batch, 13], x))?])?;
            close(outputs[0].try_extract_tensor::<f32>()?.1, &want);
        }

        // Errors come back in wgfc's words.
        let e = session.run(ort::inputs![Tensor::from_array(([2usize, 12], vec![0f32; 24]))?]).unwrap_err();
        assert!(e.to_string().contains("13"), "{e}");
        let e = builder()?.commit_from_memory(b"no model").err().unwrap();
        assert!(!e.to_string().is_empty());
        let e = builder()?.commit_from_file(fixture("missing")).err().unwrap();
        assert!(e.to_string().contains("missing"), "{e}");

        // From memory, with an extent that is said beforehand, unfused.
        let bytes = std::fs::read(&mlp).unwrap();
        let mut fixed = builder()?
            .with_dimension_override("batch", 3)?
            .with_optimization_level(GraphOptimizationLevel::Disable)?
            .commit_from_memory(&bytes)?;
        let ValueType::Tensor { shape, .. } = fixed.inputs()[0].dtype() else { panic!("a tensor") };
        assert_eq!(&shape[..], [3, 13]);
        let x = vec![0.25f32; 39];
        let want = by_wgfc(&mlp, &[("x", wgfc::Tensor::from_f32(vec![3, 13], &x))]);
        let outputs = fixed.run(ort::inputs![Tensor::from_array(([3usize, 13], x))?])?;
        close(outputs[0].try_extract_tensor::<f32>()?.1, &want[0].1.to_f32s().unwrap());
        drop(outputs);

        // Several outputs, of 64-bit integers among others.
        let path = fixture("integers");
        let mut session = builder()?.commit_from_file(&path)?;
        let (a, b): (Vec<i64>, Vec<i64>) =
            ((0..15).map(|i| i * 1_000_000_007 - 7).collect(), vec![3, 5, 7, 11, 13]);
        let inputs =
            [("a", wgfc::Tensor::from_i64(vec![3, 5], &a)), ("b", wgfc::Tensor::from_i64(vec![5], &b))];
        let want = by_wgfc(&path, &inputs);
        let outputs = session.run(ort::inputs![
            "b" => Tensor::from_array(([5usize], b))?,
            "a" => Tensor::from_array(([3usize, 5], a))?,
        ])?;
        assert_eq!(outputs.len(), want.len());
        for (name, want) in &want {
            if want.dtype == wgfc::DType::I64 {
                let (shape, got) = outputs[name.as_str()].try_extract_tensor::<i64>()?;
                assert!(shape.iter().map(|e| *e as usize).eq(want.shape.iter().copied()), "{name}");
                assert_eq!(got, want.to_i64s().unwrap(), "{name}");
            }
        }
    }
    Ok(())
}
