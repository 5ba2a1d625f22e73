//! Serves files over HTTP/1.1 with hyper: GET and HEAD, ranges, one request per connection.

use super::super::connections;
pub use connections::Limits;
use hyper::body::{Bytes, Frame, Incoming, SizeHint};
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use hyper::service::service_fn;
use hyper::{Method, StatusCode};
use std::convert::Infallible;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use tokio::task::JoinHandle;

/// The bytes of an answer that are sent at a time.
const PIECE: usize = 256 << 10;

/// The parts of a request that determine the answer.
pub struct Request {
    /// The decoded path without the query.
    pub path: String,
    pub host: String,
}

/// The source of an answer's bytes.
pub enum Content {
    Bytes(&'static [u8]),
    File(PathBuf),
}

/// The answer to a request.
pub enum Answer {
    /// A file of this media type, with the content security policy for it.
    Found { content: Content, kind: &'static str, policy: Arc<str> },
    /// A refusal with this status and reason.
    Refused(u16, &'static str),
}

type Response = hyper::Response<Body>;

/// The body of an answer, which is read as it is sent.
pub struct Body {
    from: From,
    left: u64,
    /// Counts the pieces that have been requested, so that idle connections are detected.
    sent: Arc<AtomicU64>,
}

enum From {
    Text(Bytes),
    File(Option<File>),
    Reading(JoinHandle<std::io::Result<(File, Vec<u8>)>>),
}

impl hyper::body::Body for Body {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, std::io::Error>>> {
        let body = self.get_mut();
        body.sent.fetch_add(1, Ordering::Relaxed);
        let size = body.left.min(PIECE as u64) as usize;
        if size == 0 {
            return Poll::Ready(None);
        }
        if let From::File(file) = &mut body.from {
            let Some(mut file) = file.take() else { return Poll::Ready(None) };
            body.from = From::Reading(tokio::task::spawn_blocking(move || {
                let mut piece = vec![0; size];
                file.read_exact(&mut piece)?;
                Ok((file, piece))
            }));
        }
        let piece = match &mut body.from {
            From::Text(bytes) => bytes.split_to(size.min(bytes.len())),
            From::File(_) => return Poll::Ready(None),
            From::Reading(reading) => {
                let read = ready!(Pin::new(reading).poll(cx));
                match read.unwrap_or_else(|e| Err(std::io::Error::other(e))) {
                    Err(e) => return Poll::Ready(Some(Err(e))),
                    Ok((file, piece)) => {
                        body.from = From::File(Some(file));
                        piece.into()
                    }
                }
            }
        };
        body.left -= piece.len() as u64;
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}

/// An answer with the headers that all answers share: no other site may embed it, and its type may not be guessed.
fn response(status: u16, kind: &str, policy: &str, body: Body) -> Response {
    let mut response = hyper::Response::new(body);
    *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::SERVICE_UNAVAILABLE);
    let all = [
        (header::CONTENT_TYPE, kind),
        (header::CACHE_CONTROL, "no-cache"),
        (header::CONTENT_SECURITY_POLICY, policy),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::X_FRAME_OPTIONS, "DENY"),
        (header::REFERRER_POLICY, "no-referrer"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
        (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    ];
    for (name, value) in all {
        if let Ok(value) = HeaderValue::from_str(value) {
            response.headers_mut().insert(name, value);
        }
    }
    response
}

/// A refusal with this status and reason.
fn refused(status: u16, why: &str, sent: &Arc<AtomicU64>) -> Response {
    let text = Bytes::from(format!("{why}\n"));
    let body = Body { left: text.len() as u64, from: From::Text(text), sent: sent.clone() };
    response(status, "text/plain; charset=utf-8", NOTHING, body)
}

/// The content security policy of answers that are no pages.
pub const NOTHING: &str = "default-src 'none'; frame-ancestors 'none'; sandbox";

/// The whole of a file, or the requested range.
fn file(
    content: Content,
    kind: &str,
    policy: &str,
    asked: Option<&str>,
    sent: &Arc<AtomicU64>,
) -> std::io::Result<Response> {
    let (size, opened, bytes) = match content {
        Content::Bytes(bytes) => (bytes.len() as u64, None, bytes),
        Content::File(path) => {
            let file = File::open(path)?;
            (file.metadata()?.len(), Some(file), [].as_slice())
        }
    };
    let (status, part) = match asked.map(|r| range(r, size)) {
        None | Some(Asked::All) => (200, 0..size),
        Some(Asked::Part(part)) => (206, part),
        Some(Asked::Nothing) => {
            let mut refused = refused(416, "there is no such part", sent);
            insert(refused.headers_mut(), header::CONTENT_RANGE, &format!("bytes */{size}"));
            return Ok(refused);
        }
    };
    let from = match opened {
        Some(mut file) => {
            file.seek(SeekFrom::Start(part.start))?;
            From::File(Some(file))
        }
        None => {
            let part = bytes.get(part.start as usize..part.end as usize);
            From::Text(Bytes::from_static(part.unwrap_or_default()))
        }
    };
    let body = Body { from, left: part.end - part.start, sent: sent.clone() };
    let mut response = response(status, kind, policy, body);
    let headers = response.headers_mut();
    insert(headers, header::ACCEPT_RANGES, "bytes");
    insert(headers, header::CONTENT_LENGTH, &(part.end - part.start).to_string());
    if status == 206 {
        let range = format!("bytes {}-{}/{size}", part.start, part.end.saturating_sub(1));
        insert(headers, header::CONTENT_RANGE, &range);
    }
    Ok(response)
}

fn insert(headers: &mut HeaderMap, name: HeaderName, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        headers.insert(name, value);
    }
}

/// The meaning of a `Range` header.
#[derive(Debug, PartialEq)]
enum Asked {
    /// The whole file, also for several ranges or an unknown unit.
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

/// The answer to a request. A request that could be understood in two ways is refused.
fn answered(
    request: &hyper::Request<Incoming>,
    answer: &dyn Fn(&Request) -> Answer,
    sent: &Arc<AtomicU64>,
) -> Response {
    let refuse = |status, why| refused(status, why, sent);
    let headers = request.headers();
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        return refuse(405, "files can be read only");
    }
    if headers.keys().any(|name| headers.get_all(name).iter().nth(1).is_some()) {
        return refuse(400, "a header is given twice");
    }
    let empty = headers.get(header::CONTENT_LENGTH).is_none_or(|n| n == "0");
    if !empty || headers.contains_key(header::TRANSFER_ENCODING) {
        return refuse(400, "a request for a file has no body");
    }
    if request.uri().authority().is_some() {
        return refuse(400, "the path cannot be understood");
    }
    let path = wgfc::urls::unescaped(request.uri().path()).filter(|p| !p.contains('\0'));
    let Some(path) = path else { return refuse(400, "the path cannot be understood") };
    let value = |name| headers.get(name).and_then(|v| v.to_str().ok());
    let host = value(header::HOST).unwrap_or_default().to_owned();
    match answer(&Request { path, host }) {
        Answer::Refused(status, why) => refuse(status, why),
        Answer::Found { content, kind, policy } => {
            let made = file(content, kind, &policy, value(header::RANGE), sent);
            made.unwrap_or_else(|_| refuse(404, "it cannot be read"))
        }
    }
}

/// Answers requests until the process ends.
pub fn serve(
    listener: std::net::TcpListener,
    limits: Limits,
    answer: impl Fn(&Request) -> Answer + Send + Sync + 'static,
) -> std::io::Result<()> {
    let answer: Arc<dyn Fn(&Request) -> Answer + Send + Sync> = Arc::new(answer);
    connections::serve(listener, limits, move |sent| {
        let answer = answer.clone();
        service_fn(move |request: hyper::Request<Incoming>| {
            std::future::ready(Ok::<_, Infallible>(answered(&request, &*answer, &sent)))
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::time::{Duration, Instant};

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

    /// The address of a server with these limits, whose answers are 32 MiB long.
    fn started(limits: Limits) -> std::net::SocketAddr {
        static MANY: [u8; 32 << 20] = [7; 32 << 20];
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let found = |_: &Request| Answer::Found {
            content: Content::Bytes(&MANY),
            kind: "application/octet-stream",
            policy: NOTHING.into(),
        };
        std::thread::spawn(move || serve(listener, limits, found));
        address
    }

    fn connected(to: std::net::SocketAddr) -> std::net::TcpStream {
        let stream = std::net::TcpStream::connect(to).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream
    }

    /// Whether the server ends the connection; earlier bytes are ignored.
    fn ends(mut stream: std::net::TcpStream) -> bool {
        let mut some = vec![0; 1 << 16];
        loop {
            match stream.read(&mut some) {
                Ok(0) => return true,
                Ok(_) => {}
                Err(e) => return e.kind() == std::io::ErrorKind::ConnectionReset,
            }
        }
    }

    const ASK: &[u8] = b"GET / HTTP/1.1\r\nHost: here\r\n\r\n";

    #[test]
    fn slow_connections_end_and_do_not_keep_others_out() {
        let short = Duration::from_millis(400);
        let to = started(Limits {
            head: short,
            idle: Some(short),
            total: Duration::from_secs(60),
            most: 8,
            ..Limits::default()
        });
        // More connections than allowed, each with a part of a head.
        let mut slow: Vec<_> = (0..20).map(|_| connected(to)).collect();
        slow.iter_mut().for_each(|s| _ = s.write_all(b"GET / HTTP/1.1\r\nHost: h"));
        let start = Instant::now();
        let mut asks = connected(to);
        asks.write_all(ASK).unwrap();
        let mut all = vec![];
        asks.read_to_end(&mut all).unwrap();
        assert!(all.starts_with(b"HTTP/1.1 200 ") && all.len() > 32 << 20);
        assert!(start.elapsed() < Duration::from_secs(10));
        assert!(slow.into_iter().all(ends));
        // A client that reads nothing of the answer.
        let mut silent = connected(to);
        silent.write_all(ASK).unwrap();
        std::thread::sleep(Duration::from_secs(2));
        let mut all = vec![];
        let read = silent.read_to_end(&mut all);
        assert!(read.is_err() || all.len() < 32 << 20, "{} bytes", all.len());
    }

    #[test]
    fn all_of_an_answer_has_a_deadline() {
        let (long, total) = (Duration::from_secs(60), Duration::from_millis(800));
        let to = started(Limits { head: long, idle: Some(long), total, most: 8, ..Limits::default() });
        assert!(ends(connected(to)));
        let mut slow = connected(to);
        slow.write_all(ASK).unwrap();
        let mut some = vec![0; 1 << 16];
        let mut read = 0;
        for _ in 0..60 {
            match slow.read(&mut some) {
                Ok(0) | Err(_) => break,
                Ok(n) => read += n,
            }
            std::thread::sleep(Duration::from_millis(30));
        }
        assert!(read < 32 << 20, "{read} bytes");
    }
}
