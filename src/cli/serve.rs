//! `wgfc serve`: serves the playground, and optionally a model, to this machine.

mod demos;
mod http;
mod jobs;
mod page;

use super::args::ServeArgs;
use super::is_program;
use super::terminal::Terminal;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::{Answer, Answers, Content, Limits, Request};
use jobs::Jobs;
use page::{MODELS, PAGE};
use sha2::{Digest, Sha256};
use std::collections::BTreeSet;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use wgfc::artefact::{ReadOptions, load_bundle_with};
use wgfc::{Error, ModelFile};

/// The path below which the model's files are served.
const SERVED: &str = "served/";
/// The path below which pages send models to compile.
const SENT: &str = "api/";

/// The files that are served.
struct Site {
    /// The folder of the playground; `None` for the one that is built in.
    playground: Option<PathBuf>,
    /// The playground's first page, which says that models are compiled here.
    index: String,
    /// The content security policy of the playground's pages.
    policy: Arc<str>,
    /// Models that pages have sent.
    jobs: Jobs,
    model: Option<Served>,
    /// The host names that requests may use.
    hosts: [String; 2],
}

/// The files of a model that are served from a folder. No other file of the folder is served.
#[derive(Debug, PartialEq)]
struct Served {
    folder: PathBuf,
    /// The paths, relative to the folder, of the model and the files that its tensors are in.
    files: BTreeSet<String>,
    /// The path, relative to the folder and ending in `/` unless it is empty, of a compiled program that is a folder. Its
    /// parts are recognised by their names. `None` for a single file.
    program: Option<String>,
}

/// Serves until the process is ended.
pub fn main(a: &ServeArgs, t: &Terminal) -> Result<(), Error> {
    if a.playground.is_none() && PAGE.is_empty() {
        return Err(Error::usage(
            "this wgfc was built without the playground",
            "build it with the feature `playground`, as `cargo build` does, or name the playground's folder with --playground",
        ));
    }
    if let Some(folder) = &a.playground
        && !folder.join("index.html").is_file()
    {
        let help = "web/playground/page is one";
        return Err(Error::file_help(folder, "is not a playground: it has no index.html", help));
    }
    let (model, name) = match &a.model {
        None => (None, None),
        Some(model) => served(model).map(|(served, name)| (Some(served), Some(name)))?,
    };
    let page = match &a.playground {
        Some(folder) => std::fs::read_to_string(folder.join("index.html")).unwrap_or_default(),
        None => {
            let page = PAGE.iter().find(|f| f.0 == "index.html").map_or(&[][..], |f| f.1);
            String::from_utf8_lossy(page).into_owned()
        }
    };
    let taken = |e: std::io::Error| {
        let help = "leave --port out for one that is free, or name another";
        Error::usage(format!("port {} cannot be listened to: {e}", a.port), help)
    };
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, a.port)).map_err(taken)?;
    let port = listener.local_addr().map_err(taken)?.port();
    let site = Arc::new(Site {
        playground: a.playground.clone(),
        policy: policy(&page).into(),
        index: page.replacen(
            "<head>",
            &format!("<head><meta name=\"wgfc-compiler\" content=\"./{SENT}\" />"),
            1,
        ),
        jobs: Jobs::default(),
        model,
        hosts: [format!("127.0.0.1:{port}"), format!("localhost:{port}")],
    });
    let address = |name: String| {
        let parts: Vec<String> = name.split('/').map(wgfc::urls::escaped).collect();
        format!("#model=./{SERVED}{}", parts.join("/"))
    };
    let view = name.map(address).unwrap_or_default();
    let address = format!("http://127.0.0.1:{port}/{view}");
    match t.json {
        true => t.print_json(&serde_json::json!({ "address": address })),
        false => t.print(&address),
    }
    t.note("only programs on this machine reach it; Ctrl-C ends it");
    if !a.no_open && open::that_detached(&address).is_err() {
        t.note("no browser could be started: open the address above");
    }
    http::serve(listener, Limits::default(), site).map_err(taken)
}

/// The content security policy of the playground's pages. They may run the scripts beside them and the inline scripts in
/// `page`, which are listed by hash, and fetch models from anywhere.
fn policy(page: &str) -> String {
    let inline = page.split("<script").skip(1).filter_map(|s| {
        let (attributes, rest) = s.split_once('>')?;
        let (text, _) = rest.split_once("</script>")?;
        (!attributes.contains("src=")).then(|| format!(" 'sha256-{}'", STANDARD.encode(Sha256::digest(text))))
    });
    let scripts: String = inline.collect();
    format!(
        "default-src 'self'; script-src 'self' 'wasm-unsafe-eval'{scripts}; worker-src 'self' blob:; \
         connect-src 'self' http: https: data: blob:; img-src 'self' data: blob:; style-src 'self' 'unsafe-inline'; \
         object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
}

/// The files of a model, and its address relative to their folder. The address of a compiled folder ends in `/` or is empty.
fn served(model: &Path) -> Result<(Served, String), Error> {
    let missing = |e: std::io::Error| {
        Error::file_help(model, format!("cannot be opened: {e}"), "check the path, and that it may be read")
    };
    let whole = model.canonicalize().map_err(missing)?;
    let help = "give a model (.onnx, .pt2), or what `wgfc compile` wrote";
    if whole.is_dir() && !whole.join(wgfc::artefact::PLAN).is_file() {
        return Err(Error::file_help(model, "is a folder without plan.json", help));
    }
    if is_program(&whole) {
        let folder = if whole.is_dir() { Some(whole.as_path()) } else { whole.parent() };
        // If a program cannot be read, only its own files are served, and the page shows the error. Files outside of its
        // folder are served only if they are the ones that it was compiled from; reading the program compares their hashes.
        let mut sources = wgfc::artefact::sources(&whole).unwrap_or_default();
        let outside = |p: &PathBuf| p.components().any(|c| c == Component::ParentDir);
        let read = ReadOptions { verify: false, ..ReadOptions::default() };
        if sources.iter().any(outside) && load_bundle_with(&whole, &read).is_err() {
            sources.retain(|p| !outside(p));
        }
        let at = |relative: PathBuf| folder.map(|f| f.join(relative)).and_then(|p| p.canonicalize().ok());
        let sources: Vec<PathBuf> = sources.into_iter().filter_map(at).collect();
        return of_program(&whole, &sources).ok_or_else(|| unnamed(model));
    }
    let name = whole.file_name().and_then(|n| n.to_str()).map(str::to_owned);
    let (Some(folder), Some(name)) = (whole.parent(), name) else { return Err(unnamed(model)) };
    let mut files = BTreeSet::from([name.clone()]);
    // A model that cannot be decoded is served without further files too.
    if let Some(beside) = name.ends_with(".onnx").then(|| ModelFile::open(&whole)?.locations())
        && let Ok(beside) = beside
    {
        files.extend(beside.into_keys().map(|l| l.trim_start_matches("./").to_owned()));
    }
    Ok((Served { folder: folder.to_owned(), files, program: None }, name))
}

fn unnamed(model: &Path) -> Error {
    let help = "rename it: names of files that are served are UTF-8";
    Error::file_help(model, "has a name that no address can have", help)
}

/// A compiled program with the files that hold its weights, relative to a folder that contains all of them. All paths are
/// canonical. `None` if a name is not UTF-8.
fn of_program(program: &Path, sources: &[PathBuf]) -> Option<(Served, String)> {
    let mut folder = if program.is_dir() { program } else { program.parent()? };
    while !sources.iter().all(|s| s.starts_with(folder)) {
        folder = folder.parent()?;
    }
    let name = |p: &Path| {
        let parts = p.strip_prefix(folder).ok()?.components().map(|c| c.as_os_str().to_str());
        Some(parts.collect::<Option<Vec<_>>>()?.join("/"))
    };
    let mut files = sources.iter().map(|s| name(s)).collect::<Option<BTreeSet<String>>>()?;
    let mut address = name(program)?;
    if program.is_dir() {
        address += if address.is_empty() { "" } else { "/" };
    } else {
        files.insert(address.clone());
    }
    let program = program.is_dir().then(|| address.clone());
    Some((Served { folder: folder.to_owned(), files, program }, address))
}

impl Site {
    /// Whether a request names this machine. Another site, whose name resolves to this machine, could read the model otherwise.
    fn is_for_us(&self, request: &Request) -> Result<(), (u16, &'static str)> {
        match self.hosts.iter().any(|h| request.host.eq_ignore_ascii_case(h)) {
            true => Ok(()),
            false => Err((403, "this is served to 127.0.0.1 and localhost only")),
        }
    }
}

impl Answers for Site {
    fn may_post(&self, request: &Request) -> Result<(), (u16, &'static str)> {
        if !request.path.trim_start_matches('/').starts_with(SENT) {
            return Err((405, "files can be read only"));
        }
        self.is_for_us(request)?;
        // A page of another site could make this machine work.
        let own = format!("http://{}", request.host);
        match request.origin.as_ref().is_some_and(|o| o.eq_ignore_ascii_case(&own)) {
            true => Ok(()),
            false => Err((403, "only the playground's page sends models here")),
        }
    }

    fn answer(&self, request: Request) -> Answer {
        if let Err((status, why)) = self.is_for_us(&request) {
            return Answer::Refused(status, why);
        }
        let name = match request.path.trim_start_matches('/') {
            "" => "index.html",
            name => name,
        };
        if let Some(body) = request.posted {
            return self.jobs.answer(name.strip_prefix(SENT).unwrap_or_default(), body);
        }
        let model = name.strip_prefix(SERVED);
        let found = match (model, &self.model, &self.playground) {
            (Some(file), Some(served), _) => served.file(file),
            (Some(_), None, _) => None,
            (None, _, _) if name == "index.html" => Some(Content::Made(self.index.clone().into_bytes())),
            (None, _, Some(folder)) => beneath(folder, name).map(Content::File),
            (None, _, None) => {
                let file = PAGE.iter().chain(MODELS).find(|f| f.0 == name);
                match file.map(|f| Ok(f.1)).or_else(|| demos::program(name)) {
                    Some(Err(why)) => return Answer::Refused(500, why),
                    found => found.and_then(Result::ok).map(Content::Bytes),
                }
            }
        };
        // No file of a model is served as a page, whatever its name is.
        let (kind, policy) = match (model, kind(name)) {
            (Some(_), kind) if kind.starts_with("text/") => {
                ("text/plain; charset=utf-8", http::NOTHING.into())
            }
            (Some(_), kind) => (kind, http::NOTHING.into()),
            (None, kind) => (kind, self.policy.clone()),
        };
        match found {
            Some(content) => Answer::Found { status: 200, content, kind, policy },
            None => Answer::Refused(404, "there is no such file"),
        }
    }
}

impl Served {
    fn file(&self, name: &str) -> Option<Content> {
        let program = self.program.as_deref();
        let part = program.and_then(|p| name.strip_prefix(p)).is_some_and(wgfc::artefact::is_part);
        (part || self.files.contains(name)).then(|| beneath(&self.folder, name)).flatten().map(Content::File)
    }
}

/// The path of a file in a folder or below it; `None` if a link leads out of the folder or a part of the name begins with a
/// dot.
fn beneath(folder: &Path, name: &str) -> Option<PathBuf> {
    let shown = |c: Component<'_>| match c {
        Component::Normal(part) => !part.as_encoded_bytes().starts_with(b"."),
        _ => false,
    };
    let plain = Path::new(name).components().all(shown);
    let root = folder.canonicalize().ok()?;
    let path = root.join(name).canonicalize().ok()?;
    (plain && path.starts_with(&root) && path.is_file()).then_some(path)
}

/// The media type of a file.
fn kind(name: &str) -> &'static str {
    match name.rsplit('.').next() {
        Some("html") => "text/html; charset=utf-8",
        Some("css") => "text/css; charset=utf-8",
        Some("js") => "text/javascript; charset=utf-8",
        Some("json") => "application/json",
        Some("wasm") => "application/wasm",
        Some("wgsl" | "txt") => "text/plain; charset=utf-8",
        _ => "application/octet-stream",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_in_the_page_are_known_by_their_hashes() {
        let all = policy("<script type=\"importmap\">{}</script><script src=\"./main.js\"></script>");
        let hash = "'sha256-RBNvo1WzZ4oRRq0W9+hknpT7T8If536DEMBg9hyq/4o='";
        assert!(all.contains(&format!("script-src 'self' 'wasm-unsafe-eval' {hash};")), "{all}");
    }

    #[test]
    fn files_are_found_below_a_folder_only() {
        let d = tempfile::tempdir().unwrap();
        std::fs::create_dir(d.path().join("in")).unwrap();
        std::fs::write(d.path().join("in/a"), "a").unwrap();
        std::fs::write(d.path().join("b"), "b").unwrap();
        let folder = d.path().join("in");
        assert!(beneath(&folder, "a").is_some());
        std::fs::write(d.path().join("in/.hidden"), "h").unwrap();
        for name in [".hidden", "../b", "../in/a", "/etc/passwd", "", ".", "c", "a/"] {
            assert_eq!(beneath(&folder, name).is_some(), name == "a/" && cfg!(windows), "{name}");
        }
        #[cfg(unix)]
        {
            std::os::unix::fs::symlink(d.path().join("b"), folder.join("link")).unwrap();
            assert!(beneath(&folder, "link").is_none());
        }
    }
}
