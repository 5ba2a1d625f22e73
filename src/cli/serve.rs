//! `wgfc serve`: the playground, and a model for it, on this machine.

mod http;

use super::args::ServeArgs;
use super::terminal::Terminal;
use http::{Content, Request, Response};
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use wgfc::Error;

/// The playground's files by name, where it was built before this program was.
static BUILT: &[(&str, &[u8])] = include!(concat!(env!("OUT_DIR"), "/playground.rs"));

/// Where the model's folder is found.
const SERVED: &str = "served/";

/// What is served.
struct Site {
    /// The playground, where not the one that is built in.
    playground: Option<PathBuf>,
    /// The folder of the model, with its other files beside it.
    folder: Option<PathBuf>,
    /// The hosts by which pages may ask.
    hosts: [String; 2],
}

/// Serves until it is ended.
pub fn main(a: &ServeArgs, t: &Terminal) -> Result<(), Error> {
    if a.playground.is_none() && BUILT.is_empty() {
        return Err(Error::usage(
            "this wgfc was built without the playground",
            "build it in web/ (`npm ci && npm run build && node playground/build.mjs`) and build wgfc again, or name its folder with --playground",
        ));
    }
    if let Some(folder) = &a.playground
        && !folder.join("index.html").is_file()
    {
        let help = "`node playground/build.mjs` in web/ writes web/playground/dist";
        return Err(Error::file_help(folder, "is no playground: it has no index.html", help));
    }
    let (folder, name) = match &a.model {
        None => (None, None),
        Some(model) => served(model).map(|(folder, name)| (Some(folder), Some(name)))?,
    };
    let taken = |e: std::io::Error| {
        let help = "leave --port out for one that is free, or name another";
        Error::usage(format!("port {} cannot be listened to: {e}", a.port), help)
    };
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, a.port)).map_err(taken)?;
    let port = listener.local_addr().map_err(taken)?.port();
    let site = Arc::new(Site {
        playground: a.playground.clone(),
        folder,
        hosts: [format!("127.0.0.1:{port}"), format!("localhost:{port}")],
    });
    let view = name.map(|n| format!("#model=./{SERVED}{}", wgfc::urls::escaped(&n))).unwrap_or_default();
    let address = format!("http://127.0.0.1:{port}/{view}");
    match t.json {
        true => t.print_json(&serde_json::json!({ "address": address })),
        false => t.print(&address),
    }
    t.note("only programs on this machine reach it; Ctrl-C ends it");
    if !a.no_open && open::that_detached(&address).is_err() {
        t.note("no browser could be started: open the address above");
    }
    http::serve(&listener, move |request| site.answer(request))
}

/// The folder of a model, and its address in it: a compiled folder ends in `/`.
fn served(model: &Path) -> Result<(PathBuf, String), Error> {
    let missing = |e: std::io::Error| {
        Error::file_help(model, format!("cannot be opened: {e}"), "check the path, and that it may be read")
    };
    let whole = model.canonicalize().map_err(missing)?;
    if whole.is_dir() {
        if !whole.join(wgfc::artefact::PLAN).is_file() {
            let help = "give a model (.onnx, .pt2), or what `wgfc compile` wrote";
            return Err(Error::file_help(model, "is a folder without plan.json", help));
        }
        return Ok((whole, String::new()));
    }
    let name = whole.file_name().and_then(|n| n.to_str()).map(str::to_owned);
    match (whole.parent(), name) {
        (Some(folder), Some(name)) => Ok((folder.to_owned(), name)),
        _ => {
            let help = "rename it: names of files that are served are UTF-8";
            Err(Error::file_help(model, "has a name that no address can have", help))
        }
    }
}

impl Site {
    fn answer(&self, request: &Request) -> Response {
        // Another site whose name leads to this machine must not read the model.
        if !self.hosts.iter().any(|h| request.host.eq_ignore_ascii_case(h)) {
            return Response::refused(403, "this is served to 127.0.0.1 and localhost only");
        }
        let name = match request.path.trim_start_matches('/') {
            "" => "index.html",
            name => name,
        };
        let found = match (name.strip_prefix(SERVED), &self.folder, &self.playground) {
            (Some(file), Some(folder), _) => beneath(folder, file).map(Content::File),
            (Some(_), None, _) => None,
            (None, _, Some(folder)) => beneath(folder, name).map(Content::File),
            (None, _, None) => BUILT.iter().find(|f| f.0 == name).map(|f| Content::Bytes(f.1)),
        };
        match found {
            Some(content) => Response::of(content, kind(name), request),
            None => Response::refused(404, "there is no such file"),
        }
    }
}

/// A file in a folder or below it, that no link leads out of.
fn beneath(folder: &Path, name: &str) -> Option<PathBuf> {
    let plain = Path::new(name).components().all(|c| matches!(c, Component::Normal(_)));
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
    fn files_are_found_below_a_folder_only() {
        let d = tempfile::tempdir().unwrap();
        std::fs::create_dir(d.path().join("in")).unwrap();
        std::fs::write(d.path().join("in/a"), "a").unwrap();
        std::fs::write(d.path().join("b"), "b").unwrap();
        let folder = d.path().join("in");
        assert!(beneath(&folder, "a").is_some());
        for name in ["../b", "../in/a", "/etc/passwd", "", ".", "c", "a/"] {
            assert_eq!(beneath(&folder, name).is_some(), name == "a/" && cfg!(windows), "{name}");
        }
        #[cfg(unix)]
        {
            std::os::unix::fs::symlink(d.path().join("b"), folder.join("link")).unwrap();
            assert!(beneath(&folder, "link").is_none());
        }
    }
}
