//! Futures in tests: polling once, running several side by side, and values that another thread sends.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use super::patience;

/// Polls `future` once.
pub async fn poll_once<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    std::future::poll_fn(|context| Poll::Ready(Pin::new(&mut *future).poll(context))).await
}

/// Lets other tasks and I/O have a turn.
pub async fn yield_now() {
    let mut yielded = false;
    std::future::poll_fn(|context: &mut Context<'_>| {
        if std::mem::replace(&mut yielded, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// Lets other tasks and I/O have `times` turns.
pub async fn yields(times: usize) {
    for _ in 0..times {
        yield_now().await;
    }
}

/// Waits as [`wait_for`](super::wait_for) does, while other tasks and I/O have their turns.
pub async fn yield_until(what: &str, mut done: impl FnMut() -> bool) {
    let began = Instant::now();
    while !done() {
        assert!(began.elapsed() < patience(), "waited in vain for {what}");
        yield_now().await;
    }
}

/// Awaits all futures; returns the results in order.
pub async fn all<F: Future>(futures: Vec<F>) -> Vec<F::Output> {
    let mut futures: Vec<_> = futures.into_iter().map(Box::pin).collect();
    let mut outputs: Vec<Option<F::Output>> = futures.iter().map(|_| None).collect();
    std::future::poll_fn(move |context| {
        let mut pending = false;
        for (future, output) in futures.iter_mut().zip(&mut outputs) {
            if output.is_none() {
                match future.as_mut().poll(context) {
                    Poll::Ready(value) => *output = Some(value),
                    Poll::Pending => pending = true,
                }
            }
        }
        if pending {
            return Poll::Pending;
        }
        Poll::Ready(outputs.iter_mut().map(|output| output.take().unwrap()).collect())
    })
    .await
}

/// Runs two futures side by side; returns both results.
pub async fn both<A: Future, B: Future>(a: A, b: B) -> (A::Output, B::Output) {
    let (mut a, mut b) = (pin!(a), pin!(b));
    let (mut first, mut second) = (None, None);
    std::future::poll_fn(|context| {
        if first.is_none()
            && let Poll::Ready(output) = a.as_mut().poll(context)
        {
            first = Some(output);
        }
        if second.is_none()
            && let Poll::Ready(output) = b.as_mut().poll(context)
        {
            second = Some(output);
        }
        if first.is_some() && second.is_some() { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    (first.unwrap(), second.unwrap())
}

/// A value that a thread sends to a future.
pub struct Sent<T>(Arc<Mutex<(Option<T>, Option<Waker>)>>);

pub struct Sender<T>(Arc<Mutex<(Option<T>, Option<Waker>)>>);

pub fn sent<T>() -> (Sender<T>, Sent<T>) {
    let both = Arc::new(Mutex::new((None, None)));
    (Sender(Arc::clone(&both)), Sent(both))
}

impl<T> Sender<T> {
    pub fn send(&self, value: T) {
        let waker = {
            let mut both = self.0.lock().unwrap();
            both.0 = Some(value);
            both.1.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl<T> Future for Sent<T> {
    type Output = T;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let mut both = self.0.lock().unwrap();
        match both.0.take() {
            Some(value) => Poll::Ready(value),
            None => {
                both.1 = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}
