//! `wgfc api`: a server of a decoder by OpenAI's protocol.

mod answers;
mod embeddings;
mod engine;
mod forms;
mod images;
mod likely;
mod metrics;
mod protocol;
mod routes;
mod text;

use super::args::{ApiArgs, PoolingArg};
use super::connections::{self, Limits};
use super::device_cache::DeviceCache;
use super::terminal::Terminal;
use super::{adapter, generate, shown};
use embeddings::Embeddings;
use engine::Engine;
use hyper_util::service::TowerToHyperService;
use images::Images;
use metrics::Metrics;
use routes::{Server, Work};
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use wgfc::generate::{ContinuousGenerator, Embedder};
use wgfc::runtime::Gpu;
use wgfc::{Decoder, Error, GeneratorOptions};

/// The environment variable with the key that requests must have.
const KEY: &str = "WGFC_API_KEY";
/// The sequences at a time unless an option says otherwise.
const BATCH: usize = 8;
/// The tokens of prompts that are processed at a time, and those of texts for embeddings, unless an option says otherwise.
const CHUNK: usize = 128;
/// The tokens of a prompt that are processed at a time where each prompt has runs of its own, as with caches in pages.
const CHUNK_OF_ONE: usize = 512;
const EMBEDDED: usize = 1024;
/// The most bytes of a refused request that are read, so that its client receives the answer.
const DRAIN: usize = 64 << 20;

/// Serves until the process is ended.
pub fn main(a: &ApiArgs, t: &Terminal) -> Result<(), Error> {
    a.decoder.precision.check()?;
    let keys = keys(a)?;
    if keys.is_empty() && !a.host.is_loopback() {
        t.note_always("other machines reach the server, and requests need no key (--api-key)");
    }
    let max_body = usize::try_from(a.max_body).unwrap_or(usize::MAX);
    let taken = |e: std::io::Error| {
        let help = "leave --port out for one that is free, or name another";
        Error::usage(format!("port {} of {} cannot be listened to: {e}", a.port, a.host), help)
    };
    let listener = TcpListener::bind((a.host, a.port)).map_err(taken)?;
    let address = listener.local_addr().map_err(taken)?;
    let decoder = super::generate::open(&a.model, &a.decoder, t)?;
    let decoder = generate::weighted(decoder, &a.decoder, t)?;
    let metrics = Arc::new(Metrics::default());
    let thread = |e| Error::Internal(format!("no thread for the engine: {e}"));
    let mut images = Images::none();
    let work = if a.embeddings {
        let embedder = embedder(a, &decoder, t)?;
        t.warnings(embedder.warnings());
        Work::Embed(Embeddings::start(embedder, a.queue.into()).map_err(thread)?)
    } else {
        let (generator, encoder) = generator(a, &decoder, t)?;
        images = encoder;
        t.warnings(generator.warnings());
        t.note(&format!("{} sequences at a time, {} may wait", generator.batch(), a.queue));
        Work::Generate(Engine::start(generator, a.queue.into(), metrics.clone()).map_err(thread)?)
    };
    let server = Arc::new(Server {
        decoder: Arc::new(decoder),
        forms: Arc::default(),
        images: Arc::new(images),
        work,
        metrics,
        model: name(a),
        created: routes::now(),
        keys,
        hosts: a.host.is_loopback().then(|| hosts(address)),
        max_body,
        readers: Arc::new(Semaphore::new(routes::READERS)),
    });
    let url = format!("http://{address}/v1");
    match t.json {
        true => t.print_json(&serde_json::json!({ "address": url, "model": server.model })),
        false => t.print(&url),
    }
    let router = routes::router(server);
    let limits = Limits {
        idle: None,
        total: Duration::from_secs(24 * 3600),
        most: 1024,
        keep_alive: true,
        drain: DRAIN,
        ..Limits::default()
    };
    connections::serve(listener, limits, move |_| TowerToHyperService::new(router.clone())).map_err(taken)
}

/// Compiles the decoder. Its vision encoder, if it has one, is compiled for the first picture.
fn generator(a: &ApiArgs, decoder: &Decoder, t: &Terminal) -> Result<(ContinuousGenerator, Images), Error> {
    let one = decoder.model().format().is_built();
    compiled(a, decoder, t, if one { CHUNK_OF_ONE } else { CHUNK }, |gpu, options| {
        let make = |batch| ContinuousGenerator::on_device(gpu.clone(), decoder, batch, options);
        let made = match a.batch {
            Some(batch) => make(batch.into()),
            None => match make(BATCH) {
                // The model takes one sequence at a time, or does not tell sequences of different lengths apart.
                Err(Error::Usage(_)) => make(1),
                made => made,
            },
        };
        Ok((made?, Images::on_device(gpu, decoder, options)?))
    })
}

/// Compiles the model for embeddings.
fn embedder(a: &ApiArgs, decoder: &Decoder, t: &Terminal) -> Result<Embedder, Error> {
    let pooling = a.pooling.map(PoolingArg::of_library).or(decoder.pooling()).unwrap_or_default();
    let make = |gpu: &Gpu, options: &_| Embedder::on_device(gpu, decoder, pooling, options);
    compiled(a, decoder, t, EMBEDDED, make)
}

/// Makes what runs the model on the device, with `chunk` tokens of a prompt in a run unless the options say otherwise.
fn compiled<T>(
    a: &ApiArgs,
    decoder: &Decoder,
    t: &Terminal,
    chunk: usize,
    make: impl FnOnce(&Gpu, &GeneratorOptions) -> Result<T, Error>,
) -> Result<T, Error> {
    let gpu = adapter::open(&a.decoder.adapter, t)?;
    let mut cache = DeviceCache::open(&a.decoder.cache, &gpu, t);
    let options = GeneratorOptions {
        prompt_chunk: Some(a.prompt_chunk.unwrap_or(chunk).max(1)),
        ..generate::options(&a.decoder, &mut cache, a.capacity)
    };
    let what = format!("compiling {} and loading its weights", shown(&a.model));
    let _progress = super::load::compiling_as(&gpu, what, t);
    let made = make(&gpu, &options).map_err(|e| super::load::without_weights(e, decoder.model()))?;
    cache.save(t);
    Ok(made)
}

/// The hashes of the keys that requests may have.
fn keys(a: &ApiArgs) -> Result<Vec<[u8; 32]>, Error> {
    let Some(path) = &a.api_key else {
        let key = std::env::var_os(KEY).filter(|k| !k.is_empty());
        let Some(key) = key else { return Ok(vec![]) };
        let key = key.into_string().ok().filter(|k| is_key(k));
        let key = key.ok_or_else(|| Error::usage(format!("{KEY} is no key"), NO_KEY))?;
        return Ok(vec![routes::hash(&key)]);
    };
    let text = std::fs::read_to_string(path)
        .map_err(|e| Error::file_help(path, format!("cannot be read: {e}"), NO_KEY))?;
    let keys: Vec<&str> = text.lines().map(str::trim).filter(|k| !k.is_empty()).collect();
    match keys.iter().all(|k| is_key(k)) && !keys.is_empty() {
        true => Ok(keys.iter().map(|k| routes::hash(k)).collect()),
        false => Err(Error::file_help(path, "does not hold keys", NO_KEY)),
    }
}

const NO_KEY: &str = "give a file of keys, one a line, of letters, digits and signs without blanks";

fn is_key(key: &str) -> bool {
    !key.is_empty() && key.bytes().all(|b| b.is_ascii_graphic())
}

/// The name of the model in requests.
fn name(a: &ApiArgs) -> String {
    let path = a.model.canonicalize().unwrap_or_else(|_| a.model.clone());
    let own = if path.is_dir() { path.file_name() } else { path.file_stem() };
    let own = || own.map(|n| n.to_string_lossy().into_owned()).unwrap_or_else(|| "model".into());
    a.model_name.clone().unwrap_or_else(own)
}

/// The names by which programs on this machine may call the server.
fn hosts(address: SocketAddr) -> Vec<String> {
    let port = address.port();
    let mut hosts: Vec<String> = vec![address.to_string(), format!("localhost:{port}")];
    if port == 80 {
        hosts.extend([address.ip().to_string(), "localhost".into()]);
    }
    hosts
}
