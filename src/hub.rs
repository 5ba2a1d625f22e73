//! Language models of the Hugging Face Hub, fetched into the user's cache folder.
//!
//! The list of a model's files names the commit, their sizes and, of large ones, their SHA-256. Of the files, those that
//! [`Decoder::open`](crate::Decoder::open) reads are fetched, into a folder of the commit. A download that was interrupted goes on.

use crate::{Cache, Error};
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use ureq::Agent;
use ureq::config::RedirectAuthHeaders;
use ureq::tls::{Certificate, RootCerts, TlsConfig};

/// The most bytes of a list of files.
const LIST: u64 = 16 << 20;
/// The files that are read beside a model.
const BESIDE: [&str; 5] = [
    "config.json",
    crate::generate::TOKENIZER,
    crate::generate::TOKENIZER_CONFIG,
    crate::generate::CONFIG,
    crate::generate::ADDED_TEMPLATE,
];

/// The Hub, or a server that answers as it does.
///
/// ```no_run
/// # fn main() -> Result<(), wgfc::Error> {
/// let path = wgfc::hub::Hub::of_user()?.fetch("Qwen/Qwen2.5-0.5B-Instruct", &mut |_, _, _| {})?;
/// let decoder = wgfc::Decoder::open(&path)?;
/// # Ok(()) }
/// ```
pub struct Hub {
    agent: Agent,
    endpoint: String,
    token: Option<String>,
    folder: PathBuf,
}

/// A file of a model.
#[derive(Clone, Debug, PartialEq)]
struct Listed {
    name: String,
    size: Option<u64>,
    sha256: Option<String>,
}

impl Hub {
    /// The Hub as the environment has it: `HF_ENDPOINT` is its address, `HF_TOKEN` the user's token. Files go to the folder `hub` of
    /// the user's cache folder.
    ///
    /// # Errors
    /// No cache folder.
    pub fn of_user() -> Result<Hub, Error> {
        let var = |name| std::env::var(name).ok().filter(|v: &String| !v.is_empty());
        let cache = Cache::of_user().ok_or_else(|| {
            Error::usage("there is no cache folder to fetch files into", "name one with WGFC_CACHE_DIR")
        })?;
        let endpoint = var("HF_ENDPOINT").unwrap_or_else(|| "https://huggingface.co".to_owned());
        Ok(Hub::new(&endpoint, var("HF_TOKEN"), cache.folder().join("hub")))
    }

    /// A server at this address. Certificates of `https` are those that the system trusts.
    pub fn new(endpoint: &str, token: Option<String>, folder: PathBuf) -> Hub {
        let roots = if endpoint.starts_with("https:") {
            rustls_native_certs::load_native_certs().certs
        } else {
            vec![]
        };
        let roots: Vec<Certificate<'static>> =
            roots.iter().map(|c| Certificate::from_der(c.as_ref()).to_owned()).collect();
        let tls = TlsConfig::builder()
            .unversioned_rustls_crypto_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .root_certs(RootCerts::Specific(Arc::new(roots)))
            .build();
        let agent = Agent::config_builder()
            .tls_config(tls)
            .http_status_as_error(false)
            .redirect_auth_headers(RedirectAuthHeaders::SameHost)
            .timeout_connect(Some(Duration::from_secs(30)))
            .timeout_recv_response(Some(Duration::from_secs(60)))
            .user_agent(concat!("wgfc/", env!("CARGO_PKG_VERSION")))
            .build()
            .new_agent();
        Hub { agent, endpoint: endpoint.trim_end_matches('/').to_owned(), token, folder }
    }

    /// Fetches the files of a model that are not there yet. `model` is `ORG/NAME`, with `@REVISION` for another than `main`, and
    /// with `:FILE` for one of several GGUF files. `progress` is told the name of a file, and how many of its bytes there are. Returns the
    /// path for [`Decoder::open`](crate::Decoder::open).
    ///
    /// # Errors
    /// A name that is none; a server that cannot be reached, or does not have the model; a model without files that wgfc reads, or
    /// with several; files that are not as the list says, or cannot be written.
    pub fn fetch(&self, model: &str, progress: &mut dyn FnMut(&str, u64, u64)) -> Result<PathBuf, Error> {
        let (id, revision, file) = parsed(model)?;
        let list = self.list(id, revision)?;
        let commit = list.get("sha").and_then(Value::as_str).filter(|s| is_word(s)).unwrap_or(revision);
        let files: Vec<Listed> =
            list.get("siblings").and_then(Value::as_array).into_iter().flatten().filter_map(listed).collect();
        let (wanted, gguf) = chosen(id, &files, file)?;
        let folder = self.folder.join(id).join(commit);
        for file in wanted {
            self.fetch_file(id, commit, file, &folder, progress)?;
        }
        Ok(gguf.map_or(folder.clone(), |name| folder.join(name)))
    }

    fn list(&self, id: &str, revision: &str) -> Result<Value, Error> {
        let url = format!("{}/api/models/{id}/revision/{revision}?blobs=true", self.endpoint);
        let mut answer = self.get(&url, None)?;
        match answer.status().as_u16() {
            200 => {}
            401 | 403 | 404 => {
                return Err(Error::usage(
                    format!("{} has no model {id} at {revision} that may be read", self.endpoint),
                    "check the name; models that need an agreement or are private need a token in HF_TOKEN",
                ));
            }
            status => return Err(wrong(&url, format!("the server answers {status}"))),
        }
        let text = answer.body_mut().with_config().limit(LIST).read_to_vec();
        let text = text.map_err(|e| wrong(&url, e.to_string()))?;
        serde_json::from_slice(&text).map_err(|e| wrong(&url, format!("the answer is not JSON: {e}")))
    }

    fn get(&self, url: &str, from: Option<u64>) -> Result<ureq::http::Response<ureq::Body>, Error> {
        let mut request = self.agent.get(url);
        if let Some(token) = &self.token {
            // It is not sent to other hosts that the server redirects to.
            request = request.header("authorization", format!("Bearer {token}"));
        }
        if let Some(from) = from {
            request = request.header("range", format!("bytes={from}-"));
        }
        request.call().map_err(|e| wrong(url, e.to_string()))
    }

    fn fetch_file(
        &self,
        id: &str,
        commit: &str,
        file: &Listed,
        folder: &Path,
        progress: &mut dyn FnMut(&str, u64, u64),
    ) -> Result<(), Error> {
        let place = folder.join(&file.name);
        if place.is_file() {
            return Ok(());
        }
        let unwritten = |e: std::io::Error| {
            Error::file_help(&place, format!("cannot be written: {e}"), "make room for it")
        };
        if let Some(parent) = place.parent() {
            std::fs::create_dir_all(parent).map_err(unwritten)?;
        }
        let part = folder.join(format!("{}.part", file.name));
        let mut there = std::fs::metadata(&part).map_or(0, |m| m.len());
        if file.size.is_none_or(|size| there < size) || there == 0 {
            let url = format!("{}/{id}/resolve/{commit}/{}", self.endpoint, file.name);
            let mut answer = self.get(&url, (there > 0).then_some(there))?;
            match answer.status().as_u16() {
                206 if there > 0 => {}
                200 => there = 0,
                status => return Err(wrong(&url, format!("the server answers {status}"))),
            }
            let size = file.size.or_else(|| answer.body().content_length().map(|n| n + there)).unwrap_or(0);
            let mut to = std::fs::OpenOptions::new();
            let to = if there > 0 { to.append(true) } else { to.write(true).create(true).truncate(true) };
            let mut to = to.open(&part).map_err(unwritten)?;
            // One byte more than the list says is noticed, and no more is written.
            let limit = file.size.map_or(u64::MAX, |s| s.saturating_sub(there).saturating_add(1));
            let mut from = answer.body_mut().as_reader().take(limit);
            let mut buffer = vec![0; 1 << 18];
            loop {
                let n = from.read(&mut buffer).map_err(|e| wrong(&url, e.to_string()))?;
                if n == 0 {
                    break;
                }
                to.write_all(&buffer[..n]).map_err(unwritten)?;
                there += n as u64;
                progress(&file.name, there, size);
            }
        }
        let bad = match &file.sha256 {
            _ if file.size.is_some_and(|size| size != there) => {
                Some(format!("has {there} bytes, not the {} of the list", file.size.unwrap_or(0)))
            }
            Some(want) if hash(&part).map_err(unwritten)? != want.to_lowercase() => {
                Some("has not the SHA-256 of the list".to_owned())
            }
            _ => None,
        };
        if let Some(bad) = bad {
            // A file that is too short may go on.
            if file.size.is_none_or(|size| there >= size) {
                let _ = std::fs::remove_file(&part);
            }
            return Err(Error::file_help(&place, bad, "fetch it again"));
        }
        std::fs::rename(&part, &place).map_err(unwritten)
    }
}

fn hash(path: &Path) -> std::io::Result<String> {
    let (mut file, mut sha, mut buffer) = (std::fs::File::open(path)?, Sha256::new(), vec![0; 1 << 18]);
    loop {
        let n = file.read(&mut buffer)?;
        if n == 0 {
            return Ok(sha.finalize().iter().map(|b| format!("{b:02x}")).collect());
        }
        sha.update(&buffer[..n]);
    }
}

fn wrong(url: &str, what: String) -> Error {
    Error::usage(
        format!("{url} cannot be fetched: {what}"),
        "check the connection, or fetch the files by other means",
    )
}

/// Whether a text is a part of a path that stays in its folder.
fn is_word(s: &str) -> bool {
    let known = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    !s.is_empty() && s.len() <= 200 && s.chars().all(known) && !s.starts_with('.')
}

/// The model, the revision and the file of `ORG/NAME@REVISION:FILE`.
fn parsed(model: &str) -> Result<(&str, &str, Option<&str>), Error> {
    let (rest, file) = model.split_once(':').map_or((model, None), |(a, b)| (a, Some(b)));
    let (id, revision) = rest.split_once('@').unwrap_or((rest, "main"));
    let is_id = id.split_once('/').is_some_and(|(a, b)| is_word(a) && is_word(b));
    if is_id && is_word(revision) {
        return Ok((id, revision, file));
    }
    let help = "write ORG/NAME, ORG/NAME@REVISION or ORG/NAME:FILE.gguf";
    Err(Error::usage(format!("`{model}` is no name of a model of the Hub"), help))
}

fn listed(entry: &Value) -> Option<Listed> {
    let name = entry.get("rfilename")?.as_str()?.to_owned();
    let lfs = entry.get("lfs");
    let sha256 = lfs.and_then(|l| l.get("sha256")).and_then(Value::as_str).map(str::to_owned);
    name.split('/').all(is_word).then(|| Listed {
        name,
        size: entry.get("size").and_then(Value::as_u64),
        sha256,
    })
}

/// The files to fetch, and the GGUF file among them that is the model.
fn chosen<'f>(
    id: &str,
    files: &'f [Listed],
    file: Option<&str>,
) -> Result<(Vec<&'f Listed>, Option<&'f str>), Error> {
    let named = |name: &str| files.iter().find(|f| f.name == name);
    let beside = || BESIDE.iter().filter_map(|n| named(n));
    if let Some(file) = file {
        let one = named(file).filter(|f| f.name.ends_with(".gguf")).ok_or_else(|| {
            Error::usage(format!("{id} has no GGUF file {file}"), "name one of its files behind the colon")
        })?;
        return Ok((beside().filter(|f| f.name != "config.json").chain([one]).collect(), Some(&one.name)));
    }
    let plain = |f: &&Listed| !f.name.contains('/');
    let ends = |with: &'static str| files.iter().filter(plain).filter(move |f| f.name.ends_with(with));
    let weights = |f: &&Listed| {
        f.name.starts_with("model")
            && (f.name.ends_with(".safetensors") || f.name.ends_with(".safetensors.index.json"))
    };
    let weights: Vec<&Listed> = files.iter().filter(plain).filter(weights).collect();
    if named("config.json").is_some() && !weights.is_empty() {
        return Ok((beside().chain(weights).collect(), None));
    }
    for model in ["model.onnx", "onnx/model.onnx"] {
        let parts = files
            .iter()
            .filter(|f| f.name.strip_prefix(model).is_some_and(|s| s.is_empty() || s.starts_with("_data")));
        if named(model).is_some() {
            return Ok((beside().chain(parts).collect(), None));
        }
    }
    match ends(".gguf").collect::<Vec<_>>()[..] {
        [one] => Ok((beside().filter(|f| f.name != "config.json").chain([one]).collect(), Some(&one.name))),
        [] => Err(Error::usage(
            format!("{id} has no files that wgfc reads"),
            "a model has config.json and model.safetensors, model.onnx, or a GGUF file",
        )),
        ref several => {
            let names: Vec<&str> = several.iter().map(|f| f.name.as_str()).collect();
            let message = format!("{id} has several GGUF files: {}", names.join(", "));
            Err(Error::usage(message, format!("name one of them: {id}:{}", names[0])))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_models() {
        assert_eq!(parsed("a/b").unwrap(), ("a/b", "main", None));
        assert_eq!(parsed("a/b-1.5@v2:q4.gguf").unwrap(), ("a/b-1.5", "v2", Some("q4.gguf")));
        for bad in ["", "a", "a/b/c", "../b", "a/..", "a/b@", "a/b@../c", "a\\b/c", "http://a/b"] {
            assert!(parsed(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn files_are_chosen() {
        let all = |names: &[&str]| -> Vec<Listed> {
            let entry = |n: &&str| listed(&serde_json::json!({ "rfilename": n }));
            names.iter().filter_map(entry).collect()
        };
        let pick = |names: &[&str], file| {
            let files = all(names);
            chosen("a/b", &files, file)
                .map(|(f, g)| (f.iter().map(|f| f.name.clone()).collect::<Vec<_>>(), g.map(str::to_owned)))
        };
        let torch = ["README.md", "config.json", "tokenizer.json", "model.safetensors", "pytorch_model.bin"];
        let want = ["config.json", "tokenizer.json", "model.safetensors"];
        assert_eq!(pick(&torch, None).unwrap(), (want.map(str::to_owned).to_vec(), None));
        let onnx = ["onnx/model.onnx", "onnx/model.onnx_data", "onnx/model_q4.onnx", "../model.onnx_data"];
        assert_eq!(pick(&onnx, None).unwrap().0, ["onnx/model.onnx", "onnx/model.onnx_data"]);
        assert_eq!(pick(&["m.gguf"], None).unwrap(), (vec!["m.gguf".to_owned()], Some("m.gguf".to_owned())));
        let two = ["config.json", "a.gguf", "b.gguf"];
        assert!(pick(&two, None).unwrap_err().to_string().contains("a/b:a.gguf"));
        assert_eq!(pick(&two, Some("b.gguf")).unwrap().0, ["b.gguf"]);
        assert!(pick(&two, Some("c.gguf")).is_err() && pick(&["README.md"], None).is_err());
    }
}
