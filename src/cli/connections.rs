//! The connections of an HTTP/1.1 server with hyper, on one thread: a bound on their number, and time limits for each phase.

use hyper::body::{Body, Incoming};
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};

/// The most bytes of a request's head, and the most headers.
const HEAD: usize = 16 << 10;
const HEADERS: usize = 64;

/// Limits on the duration and number of connections.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The time until the head of the request is complete, and between two requests.
    pub head: Duration,
    /// The time between two pieces of the answer, after which a client that reads nothing is disconnected; `None` if pieces
    /// may take any time to make.
    pub idle: Option<Duration>,
    /// The time of the whole connection.
    pub total: Duration,
    /// The most connections at the same time. A further one ends the one that has waited longest for its request.
    pub most: usize,
    /// Whether a connection may bring several requests, one after the other.
    pub keep_alive: bool,
    /// The most bytes of a request that are read after the connection's last answer, so that the client receives it.
    pub drain: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            head: Duration::from_secs(10),
            idle: Some(Duration::from_secs(20)),
            total: Duration::from_secs(3600),
            most: 256,
            keep_alive: false,
            drain: 4 * HEAD,
        }
    }
}

/// The connections that have not sent a request yet, in order of arrival, and the number of all connections.
#[derive(Default)]
struct Connections {
    waiting: Mutex<BTreeMap<u64, AbortHandle>>,
    all: AtomicU64,
}

impl Connections {
    fn asked(&self, id: u64) {
        if let Ok(mut waiting) = self.waiting.lock() {
            waiting.remove(&id);
        }
    }
}

/// A connection that is counted until it is dropped.
struct Counted(Arc<Connections>, u64);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.asked(self.1);
        self.0.all.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Answers requests until the process ends. `service` makes the service of a connection. It is given a counter, to which the
/// bodies of answers add the pieces that have been requested, so that idle connections are detected.
///
/// # Errors
/// The listener cannot be used.
pub fn serve<S, B>(
    listener: std::net::TcpListener,
    limits: Limits,
    service: impl Fn(Arc<AtomicU64>) -> S + 'static,
) -> std::io::Result<()>
where
    S: Service<hyper::Request<Incoming>, Response = hyper::Response<B>, Error = Infallible>,
    S: Send + Sync + 'static,
    S::Future: Send,
    B: Body<Data: Send, Error: std::error::Error + Send + Sync> + Send + 'static,
{
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
    listener.set_nonblocking(true)?;
    let connections = Arc::new(Connections::default());
    runtime.block_on(async move {
        let listener = TcpListener::from_std(listener)?;
        for id in 0.. {
            let stream = loop {
                match listener.accept().await {
                    Ok((stream, _)) => break stream,
                    // Too many files are open, or the client has left.
                    Err(_) => sleep(Duration::from_millis(20)).await,
                }
            };
            let Ok(mut waiting) = connections.waiting.lock() else { return Ok(()) };
            if connections.all.load(Ordering::Relaxed) >= limits.most as u64 {
                let Some((_, longest)) = waiting.pop_first() else { continue };
                longest.abort();
            }
            connections.all.fetch_add(1, Ordering::Relaxed);
            let counted = Counted(connections.clone(), id);
            let sent = Arc::new(AtomicU64::new(0));
            let task = tokio::spawn(connection(stream, service(sent.clone()), sent, counted, limits));
            waiting.insert(id, task.abort_handle());
        }
        Ok(())
    })
}

async fn connection<S, B>(stream: TcpStream, inner: S, sent: Arc<AtomicU64>, counted: Counted, limits: Limits)
where
    S: Service<hyper::Request<Incoming>, Response = hyper::Response<B>, Error = Infallible>,
    B: Body<Data: Send, Error: std::error::Error + Send + Sync> + Send + 'static,
{
    let idle = async {
        let Some(idle) = limits.idle else { return std::future::pending().await };
        // During this time, the time limit of the head applies.
        sleep(limits.head).await;
        loop {
            let before = sent.load(Ordering::Relaxed);
            sleep(idle).await;
            if sent.load(Ordering::Relaxed) == before {
                return;
            }
        }
    };
    let Ok(stream) = stream.into_std() else { return };
    let (Ok(other), Ok(stream)) = (stream.try_clone(), TcpStream::from_std(stream)) else { return };
    let service = service_fn(|request: hyper::Request<Incoming>| {
        counted.0.asked(counted.1);
        inner.call(request)
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.head)
        .keep_alive(limits.keep_alive)
        .max_headers(HEADERS)
        .max_buf_size(HEAD)
        .serve_connection(TokioIo::new(stream), service);
    // Errors of writing to the client are ignored, as the client is gone.
    if let Ok(true) = timeout(limits.total, first(served, idle)).await {
        // The rest of the request must be read, as closing the connection earlier would discard the answer.
        let _ = other.shutdown(std::net::Shutdown::Write);
        if let Ok(other) = TcpStream::from_std(other) {
            let _ = timeout(Duration::from_secs(1), drained(&other, limits.drain)).await;
        }
    }
}

/// Whether the first future completes before the second.
async fn first(a: impl Future, b: impl Future) -> bool {
    let (mut a, mut b) = (pin!(a), pin!(b));
    poll_fn(|cx| {
        if a.as_mut().poll(cx).is_ready() {
            return Poll::Ready(true);
        }
        b.as_mut().poll(cx).map(|_| false)
    })
    .await
}

/// Reads the rest of a request, up to a limit.
async fn drained(stream: &TcpStream, limit: usize) {
    let (mut left, mut some) = (limit, [0; 2048]);
    while left > 0 && stream.readable().await.is_ok() {
        match stream.try_read(&mut some) {
            Ok(0) => return,
            Ok(n) => left = left.saturating_sub(n),
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(_) => return,
        }
    }
}
