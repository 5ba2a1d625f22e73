//! As much of HTTP/1.1 as files take: GET and HEAD, parts by range, one request a connection.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use wgfc::Error;

/// Bytes that a request's head may have, and headers.
const HEAD: usize = 16 << 10;
const HEADERS: usize = 64;
/// Connections at the same time.
const MOST: usize = 64;
/// A side that is silent for so long is gone.
const SILENT: Duration = Duration::from_secs(20);

/// What is asked for.
pub struct Request {
    pub head_only: bool,
    /// Unescaped, without what follows `?`.
    pub path: String,
    pub host: String,
    /// As the header `Range` has it.
    pub range: Option<String>,
}

/// Where the bytes of an answer are.
pub enum Content {
    Bytes(&'static [u8]),
    File(PathBuf),
}

/// An answer.
pub struct Response {
    status: u16,
    headers: Vec<(&'static str, String)>,
    body: Body,
}

enum Body {
    Text(String),
    Bytes(&'static [u8]),
    Part(File, u64),
    None,
}

impl Response {
    /// That something is not given.
    pub fn refused(status: u16, why: &str) -> Response {
        let headers = vec![
            ("content-type", "text/plain; charset=utf-8".to_owned()),
            ("content-length", (why.len() + 1).to_string()),
        ];
        Response { status, headers, body: Body::Text(format!("{why}\n")) }
    }

    /// All of it, or the part that is asked for.
    pub fn of(content: Content, kind: &str, request: &Request) -> Response {
        let opened = match content {
            Content::Bytes(bytes) => Ok((bytes.len() as u64, None, bytes)),
            Content::File(path) => {
                File::open(path).and_then(|f| Ok((f.metadata()?.len(), Some(f), [].as_slice())))
            }
        };
        let Ok((size, file, bytes)) = opened else { return Response::refused(404, "it cannot be read") };
        let (status, part) = match request.range.as_deref().map(|r| range(r, size)) {
            None | Some(Asked::All) => (200, 0..size),
            Some(Asked::Part(part)) => (206, part),
            Some(Asked::Nothing) => {
                let mut refused = Response::refused(416, "there is no such part");
                refused.headers.push(("content-range", format!("bytes */{size}")));
                return refused;
            }
        };
        let mut headers = vec![
            ("content-type", kind.to_owned()),
            ("content-length", (part.end - part.start).to_string()),
            ("accept-ranges", "bytes".to_owned()),
            ("cache-control", "no-cache".to_owned()),
            ("x-content-type-options", "nosniff".to_owned()),
        ];
        if status == 206 {
            headers.push((
                "content-range",
                format!("bytes {}-{}/{size}", part.start, part.end.saturating_sub(1)),
            ));
        }
        let body = match file {
            _ if request.head_only => Body::None,
            Some(mut f) => match f.seek(SeekFrom::Start(part.start)) {
                Ok(_) => Body::Part(f, part.end - part.start),
                Err(_) => return Response::refused(404, "it cannot be read"),
            },
            None => Body::Bytes(bytes.get(part.start as usize..part.end as usize).unwrap_or_default()),
        };
        Response { status, headers, body }
    }

    fn send(self, to: &mut TcpStream) -> std::io::Result<()> {
        let words = match self.status {
            200 => "OK",
            206 => "Partial Content",
            400 => "Bad Request",
            403 => "Forbidden",
            404 => "Not Found",
            405 => "Method Not Allowed",
            416 => "Range Not Satisfiable",
            _ => "Service Unavailable",
        };
        let mut head = format!("HTTP/1.1 {} {words}\r\nconnection: close\r\n", self.status);
        for (name, value) in &self.headers {
            head += &format!("{name}: {value}\r\n");
        }
        head += "\r\n";
        to.write_all(head.as_bytes())?;
        match self.body {
            Body::Text(text) => to.write_all(text.as_bytes())?,
            Body::Bytes(bytes) => to.write_all(bytes)?,
            Body::Part(file, bytes) => {
                std::io::copy(&mut file.take(bytes), to)?;
            }
            Body::None => {}
        }
        to.flush()
    }
}

/// What a header `Range` asks for.
#[derive(Debug, PartialEq)]
enum Asked {
    /// Several parts, or words that are not known, are answered with all of it.
    All,
    Part(Range<u64>),
    Nothing,
}

fn range(header: &str, size: u64) -> Asked {
    let Some((from, to)) = header.strip_prefix("bytes=").and_then(|r| r.split_once('-')) else {
        return Asked::All;
    };
    let part = match (from.parse::<u64>(), to.parse::<u64>()) {
        (Ok(from), Ok(to)) if from <= to => from..to.saturating_add(1).min(size),
        (Ok(from), Err(_)) if to.is_empty() => from..size,
        (Err(_), Ok(last)) if from.is_empty() => size.saturating_sub(last)..size,
        _ => return Asked::All,
    };
    if part.start < part.end { Asked::Part(part) } else { Asked::Nothing }
}

/// Answers requests until the process ends.
pub fn serve(
    listener: &TcpListener,
    answer: impl Fn(&Request) -> Response + Send + Sync + 'static,
) -> Result<(), Error> {
    let (answer, running) = (Arc::new(answer), Arc::new(AtomicUsize::new(0)));
    for stream in listener.incoming() {
        let Ok(mut stream) = stream else {
            // Too many files are open, or the other side has left.
            std::thread::sleep(Duration::from_millis(20));
            continue;
        };
        if running.fetch_add(1, Ordering::Relaxed) >= MOST {
            running.fetch_sub(1, Ordering::Relaxed);
            let _ = Response::refused(503, "there are too many connections").send(&mut stream);
            continue;
        }
        let (answer, counted) = (answer.clone(), running.clone());
        let thread = std::thread::Builder::new().name("request".into()).spawn(move || {
            // What the other side does not take is its own affair.
            let _ = connection(&mut stream, &*answer);
            counted.fetch_sub(1, Ordering::Relaxed);
        });
        if thread.is_err() {
            running.fetch_sub(1, Ordering::Relaxed);
        }
    }
    Ok(())
}

fn connection(stream: &mut TcpStream, answer: &dyn Fn(&Request) -> Response) -> std::io::Result<()> {
    stream.set_read_timeout(Some(SILENT))?;
    stream.set_write_timeout(Some(SILENT))?;
    let mut head = vec![];
    let response = loop {
        let mut some = [0; 2048];
        let read = stream.read(&mut some)?;
        if read == 0 {
            return Ok(());
        }
        head.extend_from_slice(&some[..read]);
        match parsed(&head) {
            Ok(Some(request)) => break answer(&request),
            Ok(None) if head.len() < HEAD => {}
            Ok(None) => break Response::refused(400, "the request is too long"),
            Err(refused) => break refused,
        }
    };
    response.send(stream)?;
    // What is still on its way must be read, or the answer is lost with it.
    stream.shutdown(Shutdown::Write)?;
    stream.set_read_timeout(Some(Duration::from_secs(1)))?;
    std::io::copy(&mut stream.take(4 * HEAD as u64), &mut std::io::sink())?;
    Ok(())
}

/// The request, once its head is complete.
fn parsed(head: &[u8]) -> Result<Option<Request>, Response> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    match request.parse(head) {
        Ok(httparse::Status::Partial) => return Ok(None),
        Ok(httparse::Status::Complete(_)) => {}
        Err(e) => return Err(Response::refused(400, &format!("the request cannot be understood: {e}"))),
    }
    let head_only = match request.method {
        Some("GET") => false,
        Some("HEAD") => true,
        _ => return Err(Response::refused(405, "files can be read only")),
    };
    let path = request.path.and_then(|p| wgfc::urls::unescaped(p.split(['?', '#']).next()?));
    let path = path.filter(|p| !p.contains('\0'));
    let Some(path) = path else { return Err(Response::refused(400, "the path cannot be understood")) };
    let header = |name: &str| {
        let found = request.headers.iter().find(|h| h.name.eq_ignore_ascii_case(name));
        found.and_then(|h| std::str::from_utf8(h.value).ok()).map(str::to_owned)
    };
    let host = header("host").unwrap_or_default();
    Ok(Some(Request { head_only, path, host, range: header("range") }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_those_that_there_are() {
        assert_eq!(range("bytes=2-4", 10), Asked::Part(2..5));
        assert_eq!(range("bytes=2-400", 10), Asked::Part(2..10));
        assert_eq!(range("bytes=2-", 10), Asked::Part(2..10));
        assert_eq!(range("bytes=-3", 10), Asked::Part(7..10));
        assert_eq!(range("bytes=-30", 10), Asked::Part(0..10));
        for nothing in ["bytes=10-", "bytes=10-12", "bytes=-0"] {
            assert_eq!(range(nothing, 10), Asked::Nothing, "{nothing}");
        }
        for all in ["bytes=5-2", "bytes=1-2,4-5", "lines=1-2", "bytes=", "bytes=-", "bytes=a-b"] {
            assert_eq!(range(all, 10), Asked::All, "{all}");
        }
    }
}
