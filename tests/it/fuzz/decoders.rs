//! Mutated GGUF files, and mutated configurations and headers of weights of checkpoints.

use super::NUMBERS;
use super::archives::{change, change_bytes};
use super::models::fuzz;
use super::{duration, first_seed};
use crate::backend::caught;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;
use wgfc_compiler::import::{ExternalData, import};
use wgfc_compiler::{Kind, Options};
use wgfc_ir::tensor::ByteOwner;
use wgfc_ir::testing::Rng;

fn folders() -> Vec<PathBuf> {
    let all =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/decoders").read_dir().expect("the fixtures");
    let mut all: Vec<PathBuf> = all.map(|e| e.expect("a folder").path()).filter(|p| p.is_dir()).collect();
    all.sort();
    all
}

/// Changes numbers of the header, or any bytes of the file.
fn mutated(file: &[u8], rng: &mut Rng) -> Option<Vec<u8>> {
    let mut bytes = file.to_vec();
    if rng.one_in(6) {
        change_bytes(&mut bytes, b"GUF\x00\x01\x04\x08\x09\xff", rng);
        return Some(bytes);
    }
    // The header of the fixtures takes a few thousand bytes.
    let end = bytes.len().min(if rng.one_in(3) { 64 } else { 6000 });
    for _ in 0..1 + rng.below(3) {
        let (at, width) = (rng.below(end), 1 << rng.below(4));
        let value = rng.pick(&NUMBERS)?.wrapping_add(rng.below(3) as i64);
        if let Some(place) = bytes.get_mut(at..at + width) {
            place.copy_from_slice(&value.to_le_bytes()[..width]);
        }
    }
    Some(bytes)
}

#[test]
fn mutated_gguf_files_are_compiled_or_refused() {
    let small = |p: &PathBuf| !p.ends_with("llama-tied");
    let files = folders().into_iter().filter(small).map(|p| {
        let bytes = std::fs::read(p.join("model.gguf")).expect("a fixture");
        (p.display().to_string(), bytes)
    });
    fuzz("mutated_gguf_files_are_compiled_or_refused", "gguf", &files.collect::<Vec<_>>(), mutated);
}

/// The weights of a checkpoint in memory.
struct Beside(Arc<Vec<u8>>);

impl ExternalData for Beside {
    fn open(&self, location: &str) -> Result<Arc<dyn ByteOwner>, String> {
        match location {
            "model.safetensors" => Ok(self.0.clone()),
            _ => Err("no such file".into()),
        }
    }
}

#[test]
fn mutated_checkpoints_are_imported_or_refused() {
    let read = |p: &Path| std::fs::read(p).expect("a fixture");
    let all: Vec<(Value, Vec<u8>)> = folders()
        .iter()
        .map(|p| {
            let config = serde_json::from_slice(&read(&p.join("config.json"))).expect("a configuration");
            (config, read(&p.join("model.safetensors")))
        })
        .collect();
    let (end, mut tried, mut accepted) = (Instant::now() + duration() / 2, 0, 0);
    for seed in first_seed().. {
        if Instant::now() >= end {
            break;
        }
        let mut rng = Rng::new(seed);
        let Some((config, weights)) = rng.pick(&all) else { continue };
        let (mut config, mut weights) = (config.clone(), weights.clone());
        match rng.below(4) {
            0 => {
                let header = weights.len().min(4000);
                let mut first = weights[..header].to_vec();
                change_bytes(&mut first, b"{}[]\",:0 F", &mut rng);
                weights.splice(..header, first);
            }
            _ => (0..1 + rng.below(3)).for_each(|_| change(&mut config, &mut rng)),
        }
        let config = config.to_string().into_bytes();
        let beside = Beside(Arc::new(weights));
        let options = Options { graph_only: rng.one_in(2), ..Options::default() };
        let result = caught(|| Ok(import(&config, &beside, &options)));
        tried += 1;
        match result {
            Ok(Ok(_)) => accepted += 1,
            Ok(Err(e)) => assert!(e.0.iter().all(|d| d.kind != Kind::Internal), "seed {seed}: {e}"),
            Err(e) => panic!("seed {seed}: {e:?}"),
        }
    }
    crate::say(format!("mutated_checkpoints_are_imported_or_refused: {tried} tried, {accepted} imported"));
}
