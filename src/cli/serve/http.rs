//! Serves files over HTTP/1.1 with hyper: GET and HEAD, ranges, one request per connection. What a page posts is answered by the same
//! function.

use super::super::connections;
pub use connections::Limits;
use hyper::body::{Bytes, Frame, Incoming, SizeHint};
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use hyper::service::service_fn;
use hyper::{Method, StatusCode};
use std::convert::Infallible;
use std::fs::File;
use std::future::poll_fn;
use std::io::{Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::task::JoinHandle;

/// The bytes of an answer that are sent at a time.
const PIECE: usize = 256 << 10;

/// The most bytes that a page may post: an archive with its weights, as pages take it.
const LARGEST: u64 = (1 << 30) + (1 << 20);

/// The parts of a request that determine the answer.
pub struct Request {
    /// The decoded path without the query.
    pub path: String,
    pub host: String,
    /// The site whose page sends the request, as browsers say it.
    pub origin: Option<String>,
    /// The bytes that are posted; `None` if a file is asked for.
    pub posted: Option<Vec<u8>>,
}

/// The source of an answer's bytes.
pub enum Content {
    Bytes(&'static [u8]),
    Made(Vec<u8>),
    File(PathBuf),
}

/// The answer to a request.
pub enum Answer {
    /// A file of this media type, with the content security policy for it. Of one with the status 200 parts can be asked for.
    Found { status: u16, content: Content, kind: &'static str, policy: Arc<str> },
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
    whole: u16,
    content: Content,
    kind: &str,
    policy: &str,
    asked: Option<&str>,
    sent: &Arc<AtomicU64>,
) -> std::io::Result<Response> {
    let (size, opened, bytes) = match content {
        Content::Bytes(bytes) => (bytes.len() as u64, None, Bytes::from_static(bytes)),
        Content::Made(bytes) => (bytes.len() as u64, None, Bytes::from(bytes)),
        Content::File(path) => {
            let file = File::open(path)?;
            (file.metadata()?.len(), Some(file), Bytes::new())
        }
    };
    let (status, part) = match asked.filter(|_| whole == 200).map(|r| range(r, size)) {
        None | Some(Asked::All) => (whole, 0..size),
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
        None => From::Text(bytes.slice(part.start as usize..part.end as usize)),
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

/// A request without its body. One that could be understood in two ways is refused.
fn understood(request: &hyper::Request<Incoming>) -> Result<Request, (u16, &'static str)> {
    let headers = request.headers();
    let posts = match *request.method() {
        Method::GET | Method::HEAD => false,
        Method::POST => true,
        _ => return Err((405, "files can be read only")),
    };
    if headers.keys().any(|name| headers.get_all(name).iter().nth(1).is_some()) {
        return Err((400, "a header is given twice"));
    }
    let empty = headers.get(header::CONTENT_LENGTH).is_none_or(|n| n == "0");
    if !posts && (!empty || headers.contains_key(header::TRANSFER_ENCODING)) {
        return Err((400, "a request for a file has no body"));
    }
    if request.uri().authority().is_some() {
        return Err((400, "the path cannot be understood"));
    }
    let path = wgfc::urls::unescaped(request.uri().path()).filter(|p| !p.contains('\0'));
    let Some(path) = path else { return Err((400, "the path cannot be understood")) };
    let value = |name| headers.get(name).and_then(|v| v.to_str().ok()).map(str::to_owned);
    let host = value(header::HOST).unwrap_or_default();
    Ok(Request { path, host, origin: value(header::ORIGIN), posted: posts.then(Vec::new) })
}

/// The body of a request.
async fn received(mut body: Incoming, sent: &AtomicU64) -> Result<Vec<u8>, (u16, &'static str)> {
    use hyper::body::Body as _;
    let size = body.size_hint().exact().ok_or((411, "the length of what is sent is not given"))?;
    if size > LARGEST {
        return Err((
            413,
            "this is more than 1 GiB: compile the model with `wgfc compile`, and open what that writes",
        ));
    }
    let mut all = vec![];
    all.try_reserve_exact(size as usize)
        .map_err(|_| (413, "this machine has too little memory for the model"))?;
    while let Some(frame) = poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
        sent.fetch_add(1, Ordering::Relaxed);
        match frame {
            Ok(frame) => all.extend_from_slice(frame.data_ref().map_or(&[][..], |d| d)),
            Err(_) => return Err((400, "what is sent was cut off")),
        }
    }
    Ok(all)
}

/// The answers to requests.
pub trait Answers: Send + Sync + 'static {
    /// Whether a page may post to this address, asked before the body is read. Otherwise the status and the reason.
    fn may_post(&self, request: &Request) -> Result<(), (u16, &'static str)>;
    /// The answer to a request. It may take its time, as it is made in a thread of its own.
    fn answer(&self, request: Request) -> Answer;
}

async fn answered(
    request: hyper::Request<Incoming>,
    answers: Arc<impl Answers>,
    sent: Arc<AtomicU64>,
) -> Response {
    let asked = request.headers().get(header::RANGE).and_then(|v| v.to_str().ok()).map(str::to_owned);
    let refuse = |(status, why)| refused(status, why, &sent);
    let mut understood = match understood(&request) {
        Ok(understood) => understood,
        Err(e) => return refuse(e),
    };
    if understood.posted.is_some() {
        if let Err(e) = answers.may_post(&understood) {
            return refuse(e);
        }
        match received(request.into_body(), &sent).await {
            Ok(body) => understood.posted = Some(body),
            Err(e) => return refuse(e),
        }
    }
    let mut work = tokio::task::spawn_blocking(move || answers.answer(understood));
    let made = loop {
        // A connection for which something is computed is not idle.
        match tokio::time::timeout(Duration::from_secs(1), &mut work).await {
            Ok(made) => break made,
            Err(_) => _ = sent.fetch_add(1, Ordering::Relaxed),
        }
    };
    match made {
        Ok(Answer::Refused(status, why)) => refuse((status, why)),
        Ok(Answer::Found { status, content, kind, policy }) => {
            let made = file(status, content, kind, &policy, asked.as_deref(), &sent);
            made.unwrap_or_else(|_| refuse((404, "it cannot be read")))
        }
        Err(_) => refuse((500, "this is a bug in wgfc")),
    }
}

/// Answers requests until the process ends.
pub fn serve(
    listener: std::net::TcpListener,
    limits: Limits,
    answers: Arc<impl Answers>,
) -> std::io::Result<()> {
    connections::serve(listener, limits, move |sent| {
        let answers = answers.clone();
        service_fn(move |request: hyper::Request<Incoming>| {
            let (answers, sent) = (answers.clone(), sent.clone());
            async move { Ok::<_, Infallible>(answered(request, answers, sent).await) }
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

    /// A site whose files are 32 MiB long.
    struct Large;

    impl Answers for Large {
        fn may_post(&self, _: &Request) -> Result<(), (u16, &'static str)> {
            Err((405, "files can be read only"))
        }
        fn answer(&self, _: Request) -> Answer {
            static MANY: [u8; 32 << 20] = [7; 32 << 20];
            Answer::Found {
                status: 200,
                content: Content::Bytes(&MANY),
                kind: "application/octet-stream",
                policy: NOTHING.into(),
            }
        }
    }

    /// The address of a server with these limits.
    fn started(limits: Limits) -> std::net::SocketAddr {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || serve(listener, limits, Arc::new(Large)));
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
