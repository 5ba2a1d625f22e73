//! Faults of GGUF files are said, all at once.

use super::header::Entry;
use super::*;
use crate::import::NoExternalData;

/// A file with this metadata and tensors of zeros in F32, each `[rows, columns]` or `[columns]`.
fn file(items: &[(&str, Value)], tensors: &[(&str, &[u64], u32)]) -> Vec<u8> {
    fn text(to: &mut Vec<u8>, t: &str) {
        to.extend((t.len() as u64).to_le_bytes());
        to.extend(t.as_bytes());
    }
    let mut f = b"GGUF\x03\0\0\0".to_vec();
    f.extend((tensors.len() as u64).to_le_bytes());
    f.extend((items.len() as u64).to_le_bytes());
    for (key, value) in items {
        text(&mut f, key);
        match value {
            Value::Text(t) => {
                f.extend(8u32.to_le_bytes());
                text(&mut f, t);
            }
            Value::Int(n) => {
                f.extend(4u32.to_le_bytes());
                f.extend(n.to_le_bytes());
            }
        }
    }
    let mut at = 0u64;
    for (name, shape, code) in tensors {
        text(&mut f, name);
        f.extend((shape.len() as u32).to_le_bytes());
        shape.iter().rev().for_each(|d| f.extend(d.to_le_bytes()));
        f.extend(code.to_le_bytes());
        f.extend(at.to_le_bytes());
        at += (shape.iter().product::<u64>() * 4).next_multiple_of(32);
    }
    f.resize(f.len().next_multiple_of(32), 0);
    f.resize(f.len() + at as usize, 0);
    f
}

enum Value {
    Text(&'static str),
    Int(u32),
}

fn parameters() -> Vec<(&'static str, Value)> {
    vec![
        ("general.architecture", Value::Text("qwen2")),
        ("qwen2.block_count", Value::Int(1)),
        ("qwen2.embedding_length", Value::Int(8)),
        ("qwen2.feed_forward_length", Value::Int(12)),
        ("qwen2.attention.head_count", Value::Int(2)),
        ("qwen2.attention.head_count_kv", Value::Int(1)),
    ]
}

const TENSORS: &[(&str, &[u64], u32)] = &[
    ("token_embd.weight", &[5, 8], 0),
    ("output_norm.weight", &[8], 0),
    ("blk.0.attn_norm.weight", &[8], 0),
    ("blk.0.attn_q.weight", &[8, 8], 0),
    ("blk.0.attn_k.weight", &[4, 8], 0),
    ("blk.0.attn_v.weight", &[4, 8], 0),
    ("blk.0.attn_output.weight", &[8, 8], 0),
    ("blk.0.ffn_norm.weight", &[8], 0),
    ("blk.0.ffn_gate.weight", &[12, 8], 0),
    ("blk.0.ffn_up.weight", &[12, 8], 0),
    ("blk.0.ffn_down.weight", &[8, 12], 0),
];

fn errors(file: &[u8], options: &Options) -> Vec<String> {
    let errors = import(file, &NoExternalData, options).err().map(|e| e.0).unwrap_or_default();
    errors.into_iter().map(|d| d.message).collect()
}

fn wrong(items: &[(&str, Value)], tensors: &[(&str, &[u64], u32)]) -> Vec<String> {
    errors(&file(items, tensors), &Options::default())
}

#[test]
fn a_decoder_is_built() {
    let bytes = file(&parameters(), TENSORS);
    for dims in [vec![], vec![("batch".to_owned(), 1)]] {
        let options = Options { dims: dims.into_iter().collect(), ..Options::default() };
        let imported = import(&bytes, &NoExternalData, &options).unwrap();
        let inputs: Vec<&str> = imported.graph.inputs.iter().map(|b| &*b.name).collect();
        let outputs: Vec<&str> = imported.graph.outputs.iter().map(|b| &*b.name).collect();
        let caches = ["past_key_values.0.key", "past_key_values.0.value"];
        let want = match options.dims.is_empty() {
            true => [&["input_ids", "position_ids", "attention_mask"][..], &caches].concat(),
            false => [&["input_ids"][..], &caches].concat(),
        };
        assert_eq!(inputs, want);
        assert_eq!(outputs, ["logits", "present.0.key", "present.0.value"]);
        assert_eq!(imported.operators["blk.0.attn_q"], "Linear");
    }
    let report = crate::import::check(&bytes, &NoExternalData, &Options::default());
    assert_eq!((report.operators["Linear"], report.operators["RMSNorm"]), (8, 3));
    assert_eq!(report.inputs[0], ("input_ids".to_owned(), "i64[batch, seq]".to_owned()));
}

#[test]
fn faults_of_parameters_are_said_together() {
    let mut items = parameters();
    items.remove(1);
    items[3] = ("qwen2.attention.head_count", Value::Text("two"));
    let said = wrong(&items, TENSORS);
    assert_eq!(
        said,
        [
            "the file's metadata has no `qwen2.block_count`",
            "`qwen2.attention.head_count` is no number between 1 and 16777216"
        ]
    );
    items[0] = ("general.architecture", Value::Text("mamba"));
    assert_eq!(wrong(&items, TENSORS), ["the architecture `mamba` is not supported"]);
    let mut many = parameters();
    many[1] = ("qwen2.block_count", Value::Int(u32::MAX));
    assert!(wrong(&many, TENSORS)[0].contains("no number between 1 and 1024"));
}

#[test]
fn faults_of_tensors_are_said_together() {
    let mut tensors = TENSORS.to_vec();
    tensors[3] = ("blk.0.attn_q.weight", &[6, 8], 0);
    tensors.remove(8);
    let said = wrong(&parameters(), &tensors);
    assert!(said[0].contains("the weight `blk.0.attn_q.weight` is [6, 8]"), "{said:?}");
    let mut tensors = TENSORS.to_vec();
    tensors[0] = ("token_embd.weight", &[5, 8], 2);
    tensors[4] = ("blk.0.attn_k.weight", &[4, 8], 19);
    let said = wrong(&parameters(), &tensors);
    assert!(said[0].contains("`blk.0.attn_k.weight` has elements of IQ1_S"), "{said:?}");
    assert!(
        said[1].contains("`token_embd.weight`: its rows have 8 elements, and blocks of Q4_0 have 32"),
        "{said:?}"
    );
    let whole = file(&parameters(), TENSORS);
    let said = errors(&whole[..whole.len() - 100], &Options::default());
    assert!(said[0].contains("the file ends before its last byte"), "{said:?}");
}

#[test]
fn options_name_what_there_is() {
    let bytes = file(&parameters(), TENSORS);
    let with = |dims: &[(&str, i64)], taps: &[&str]| {
        let options = Options {
            dims: dims.iter().map(|(k, v)| ((*k).to_owned(), *v)).collect(),
            taps: taps.iter().map(|t| (*t).to_owned()).collect(),
            ..Options::default()
        };
        errors(&bytes, &options)
    };
    assert_eq!(with(&[("seqq", 3)], &[]), ["the model has no symbolic dimension `seqq`"]);
    assert_eq!(with(&[("seq", -3)], &[]), ["the dimension `seq` cannot be -3"]);
    assert_eq!(with(&[("past", 0), ("seq", 3)], &["blk.0.ffn_up"]), [""; 0]);
    assert_eq!(with(&[], &["blk.9.ffn_up"]).len(), 1);
}

#[test]
fn sizes_of_types_are_those_of_their_planes() {
    for kind in blocks::KINDS {
        let shape = [3, kind.elements * 2];
        assert_eq!(kind.size(&shape), Ok(6 * kind.bytes), "{}", kind.name);
        assert!(kind.elements == 1 || kind.size(&[3, kind.elements + 1]).is_err(), "{}", kind.name);
        assert!(kind.size(&[usize::MAX, 2 * kind.elements]).is_err());
        let mut graph = wgfc_ir::Graph::new();
        let bytes = Tensor::zeros(DType::U8, vec![6 * kind.bytes]);
        let v = kind.values(&mut Lowering::new(&mut graph), "w", &bytes, &shape).unwrap();
        assert_eq!(graph.ty(v).to_string(), format!("f32[3, {}]", 2 * kind.elements));
    }
    let entry = Entry { shape: vec![], code: 0, offset: 0 };
    assert_eq!(Kind::find(entry.code).unwrap().size(&entry.shape), Ok(4));
}
