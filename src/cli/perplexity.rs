//! `wgfc bench perplexity`.

use super::args::BenchPerplexityArgs;
use super::device_cache::DeviceCache;
use super::terminal::Terminal;
use super::{adapter, generate, load, shown};
use std::time::Instant;
use wgfc::generate::{Scorer, Windows};
use wgfc::inspect::{bytes_text, known_bytes_text};
use wgfc::{Error, GeneratorOptions};

/// Measures how well a decoder predicts a text.
pub fn main(a: &BenchPerplexityArgs, t: &Terminal) -> Result<(), Error> {
    a.decoder.precision.check()?;
    let windows =
        Windows { length: a.window as usize, stride: a.stride.map_or(a.window as usize / 2, |s| s as usize) };
    if windows.stride > windows.length {
        return Err(Error::usage(
            format!("--stride {} leaves tokens out between windows of {}", windows.stride, windows.length),
            "give a stride that is not larger than --window",
        ));
    }
    let decoder = generate::open(&a.model, &a.decoder, t)?;
    let tokens = {
        let _progress = t.spinner(format!("reading {}", shown(&a.text)));
        let mut tokens = decoder.encode(&text(a)?)?;
        tokens.truncate(a.limit.map_or(usize::MAX, |n| n as usize));
        tokens
    };
    let decoder = generate::weighted(decoder, &a.decoder, t)?;
    let gpu = adapter::open(&a.decoder.adapter, t)?;
    let mut cache = DeviceCache::open(&a.decoder.cache, &gpu, t);
    let options = GeneratorOptions {
        prompt_chunk: Some(a.prompt_chunk as usize),
        ..generate::options(&a.decoder, &mut cache, windows.length)
    };
    let mut scorer = {
        let what = format!("compiling {} and loading its weights", shown(&a.model));
        let _progress = load::compiling_as(&gpu, what, t);
        let made = Scorer::on_device(gpu.clone(), &decoder, &options);
        made.map_err(|e| load::without_weights(e, decoder.model()))?
    };
    t.warnings(scorer.warnings());
    let start = Instant::now();
    let found = {
        let bar = t.bar(format!("measuring {}", shown(&a.model)), tokens.len() as u64, false);
        scorer.perplexity(&tokens, windows, &mut |done| bar.at(done as u64))?
    };
    let seconds = start.elapsed().as_secs_f64();
    cache.save(t);
    let (name, memory) = (&gpu.summary().name, scorer.device_memory());
    if t.json {
        t.print_json(&serde_json::json!({
            "ran_on": name,
            "random_weights": a.decoder.random_weights,
            "perplexity": found.perplexity(),
            "mean_negative_log_likelihood": found.mean_nll,
            "tokens": found.tokens,
            "windows": found.windows,
            "window": windows.length,
            "stride": windows.stride,
            "seconds": seconds,
            "device_memory_bytes": memory.total(),
            "weights_bytes": memory.weights,
            "peak_host_memory_bytes": wgfc::memory::peak(),
        }));
        return Ok(());
    }
    t.print(&format!(
        "{} on {name}: perplexity {:.4}\n  mean negative log-likelihood {:.5} of {} tokens, in {} windows of {} with a stride of {}\n  \
         {seconds:.1} s; {} on the device, {} of them weights; at most {} on the host\n",
        shown(&a.model),
        found.perplexity(),
        found.mean_nll,
        found.tokens,
        found.windows,
        windows.length,
        windows.stride,
        bytes_text(memory.total()),
        bytes_text(memory.weights),
        known_bytes_text(wgfc::memory::peak()),
    ));
    Ok(())
}

/// The text of the file.
fn text(a: &BenchPerplexityArgs) -> Result<String, Error> {
    let bytes = wgfc::files::read(&a.text).map_err(|m| wgfc::files::unreadable(&a.text, m))?;
    String::from_utf8(bytes)
        .map_err(|_| Error::file_help(&a.text, "is not text in UTF-8", "convert it, for example with iconv"))
}
