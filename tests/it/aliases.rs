//! Programs that write to memory shared by several tensors, compared with torch's results
//! (`fixtures/torch/memory.py`).

use serde_json::Value;
use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;
use wgfc_compiler::Options;
use wgfc_compiler::import::{NoExternalData, import};
use wgfc_ir::eval::{StateValues, evaluate_from};
use wgfc_ir::{DType, Tensor};
use wgfc_selftest::{Tolerance, equal};

/// The programs that are refused, with the text of the error.
const REFUSED: &[(&str, &str)] = &[
    ("buffers_pair", "\"first\" and \"last\" are parts of one storage, one of them is written"),
    ("refused_bits", "view may be a view that cannot be traced"),
    ("refused_open", "reshape may be a view that cannot be traced"),
    ("refused_overlap", "of which several elements may be at one place in memory"),
];

fn tensor(v: &Value) -> Tensor {
    let shape: Vec<usize> =
        v["shape"].as_array().unwrap().iter().map(|n| n.as_u64().unwrap() as usize).collect();
    let data = v["data"].as_array().unwrap();
    let floats = || data.iter().map(|x| x.as_f64().unwrap() as f32).collect::<Vec<f32>>();
    let number = |x: &Value| x.as_i64().unwrap_or_else(|| i64::from(x.as_bool().unwrap()));
    let integers = || Tensor::from_i64(shape.clone(), &data.iter().map(number).collect::<Vec<i64>>());
    let narrow = |dtype| wgfc::npy::cast(&integers(), dtype).unwrap();
    match v["dtype"].as_str().unwrap() {
        "float32" => Tensor::from_f32(shape, &floats()),
        "int64" => integers(),
        "int32" => narrow(DType::I32),
        "bool" => narrow(DType::Bool),
        other => panic!("{other}"),
    }
}

fn tensors(v: &Value) -> BTreeMap<String, Tensor> {
    v.as_object().unwrap().iter().map(|(name, t)| (name.clone(), tensor(t))).collect()
}

/// Compares the results of a program with torch's; the error describes the difference.
fn compare(archive: &[u8], about: &Value) -> Result<(), String> {
    let graph =
        import(archive, &NoExternalData, &Options::default()).map_err(|e| format!("refused: {e}"))?.graph;
    let given = about["inputs"].as_array().unwrap().iter().map(tensor);
    let inputs: BTreeMap<String, Tensor> =
        graph.inputs.iter().map(|i| i.name.to_string()).zip(given).collect();
    let mut states = StateValues::default();
    let got = evaluate_from(&graph, &inputs, &mut states).map_err(|e| e.to_string())?;
    let close = Tolerance { rtol: 1e-5, atol: 1e-6 };
    let wanted: Vec<Tensor> = about["outputs"].as_array().unwrap().iter().map(tensor).collect();
    for (i, w) in wanted.iter().enumerate() {
        let g = got.get(i).ok_or_else(|| format!("output {i} is missing"))?;
        equal(g, w, close).map_err(|e| format!("output {i}: {e}"))?;
    }
    let mut after = tensors(&about["after"]);
    for (border, g) in graph.outputs.iter().zip(&got).skip(wanted.len()) {
        // A program may leave the value of a written input unchanged.
        let w = after.remove(&*border.name).or_else(|| inputs.get(&*border.name).cloned());
        let w = w.ok_or_else(|| format!("output \"{}\" is one too many", border.name))?;
        equal(g, &w, close).map_err(|e| format!("input \"{}\" afterwards: {e}", border.name))?;
    }
    if let Some(name) = after.keys().next() {
        return Err(format!("input \"{name}\" is not written"));
    }
    let buffers = tensors(&about["buffers"]);
    for (name, s) in &states.tensors {
        let w = buffers.get(name).ok_or_else(|| format!("state \"{name}\" is no buffer"))?;
        equal(s, w, close).map_err(|e| format!("buffer \"{name}\" afterwards: {e}"))?;
    }
    Ok(())
}

#[test]
fn programs_that_write_shared_memory_give_the_results_of_torch() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/torch/memory.zip");
    let mut zip = zip::ZipArchive::new(std::fs::File::open(file).unwrap()).unwrap();
    let mut names: Vec<String> =
        zip.file_names().filter_map(|n| Some(n.ok()?.strip_suffix(".pt2")?.to_owned())).collect();
    names.sort();
    let all = names.len();
    names.retain(|n| crate::selected(n));
    assert!(all > 110, "{all}");
    let mut read = |name: String| {
        let mut bytes = vec![];
        zip.by_name(&name).unwrap().read_to_end(&mut bytes).unwrap();
        bytes
    };
    let mut wrong = vec![];
    for name in names {
        let (archive, about) = (read(format!("{name}.pt2")), read(format!("{name}.json")));
        let refused = REFUSED.iter().find(|(n, _)| *n == name).map(|(_, why)| *why);
        match (compare(&archive, &serde_json::from_slice(&about).unwrap()), refused) {
            (Ok(()), None) => {}
            (Err(e), Some(why)) if e.starts_with("refused") && e.contains(why) => {}
            (Ok(()), Some(_)) => wrong.push(format!("{name} is no longer refused")),
            (Err(e), _) => wrong.push(format!("{name}: {e}")),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
