//! A value that a callback delivers, as a future.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

struct Shared<T> {
    value: Option<T>,
    waker: Option<Waker>,
    closed: bool,
}

/// The sending end of a channel for one value. If it is dropped without sending, the receiver gets `None`.
pub(crate) struct Sender<T>(Arc<Mutex<Shared<T>>>);
/// The receiving end of a channel for one value: a future.
pub(crate) struct Receiver<T>(Arc<Mutex<Shared<T>>>);

/// A channel for one value.
pub(crate) fn channel<T>() -> (Sender<T>, Receiver<T>) {
    let shared = Arc::new(Mutex::new(Shared { value: None, waker: None, closed: false }));
    (Sender(shared.clone()), Receiver(shared))
}

impl<T> Sender<T> {
    pub(crate) fn send(self, value: T) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).value = Some(value);
    }
}
impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        let waker = {
            let mut s = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            s.closed = true;
            s.waker.take()
        };
        if let Some(w) = waker {
            w.wake();
        }
    }
}
impl<T> Future for Receiver<T> {
    type Output = Option<T>;
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<T>> {
        let mut s = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match s.value.take() {
            Some(v) => Poll::Ready(Some(v)),
            None if s.closed => Poll::Ready(None),
            None => {
                s.waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}
