//! Appenders: no task sleeps on because something happened just before it registered its waker.

#![allow(unsafe_code, reason = "only a waker of our own shows when it is cloned")]

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, RawWaker, RawWakerVTable, Waker};
use std::time::{Duration, Instant};

use crate::support::patience;
use futures::executor::block_on;
use ringfile::{Appender, File, OpenOptions, Pool, Route};

/// How long to wait for a wake-up that does not come.
const MOMENT: Duration = Duration::from_millis(30);

type Hook = Box<dyn FnOnce()>;

thread_local! {
    /// What happens when this thread's waker is cloned next: just before its task is registered.
    static HOOK: Cell<Option<Hook>> = const { Cell::new(None) };
}

static TABLE: RawWakerVTable = RawWakerVTable::new(
    |count| {
        if let Some(hook) = HOOK.take() {
            hook();
        }
        RawWaker::new(count, &TABLE)
    },
    wake,
    wake,
    |_| {},
);

fn wake(count: *const ()) {
    // SAFETY: the wakers of `counting` point to a static number.
    unsafe { &*count.cast::<AtomicUsize>() }.fetch_add(1, Ordering::SeqCst);
}

/// Returns a waker that counts here.
fn counting(count: &'static AtomicUsize) -> Waker {
    // SAFETY: the functions of the table need only the count, which is never freed.
    unsafe { Waker::from_raw(RawWaker::new(std::ptr::from_ref(count).cast(), &TABLE)) }
}

fn new_file(folder: &tempfile::TempDir) -> File {
    let mut options = OpenOptions::new();
    // A worker ends an operation without this thread.
    options.read(true).write(true).create(true).route(Route::Workers);
    options.open_blocking(folder.path().join("log")).unwrap()
}

#[test]
fn a_reader_that_waited_for_a_truncation_sees_the_next_record_though_it_ended_before_it_registered() {
    static WAKES: AtomicUsize = AtomicUsize::new(0);
    for hooked in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let (file, pool) = (new_file(&folder), Pool::new(1 << 20));
        let log = block_on(async { Appender::open(&file, &pool, 0).block(4096).keep_tail(4096).await });
        let log = Rc::new(log.unwrap());
        block_on(log.append(&vec![1; 40 * 4096])).unwrap();
        block_on(log.flush()).unwrap();
        let mut tail = log.tail().from(8192);
        let cut_of = Rc::clone(&log);
        let mut cut: Pin<Box<dyn Future<Output = _>>> = Box::pin(async move { cut_of.truncate(8192).await });
        assert!(cut.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        let mut end = Some(move || block_on(cut).unwrap());
        let waker = counting(&WAKES);
        let context = &mut Context::from_waker(&waker);
        if hooked && let Some(end) = end.take() {
            HOOK.set(Some(Box::new(end)));
        }
        let mut next = pin!(tail.next());
        assert!(next.as_mut().poll(context).is_pending());
        if let Some(end) = end {
            end();
            assert!(next.as_mut().poll(context).is_pending());
        }
        WAKES.store(0, Ordering::SeqCst);
        block_on(log.append(b"new")).unwrap();
        let began = Instant::now();
        while WAKES.load(Ordering::SeqCst) == 0 {
            assert!(
                began.elapsed() < patience(),
                "the reader sleeps though there is a record; hooked: {hooked}"
            );
            std::thread::yield_now();
        }
        assert!(matches!(next.as_mut().poll(context), Poll::Ready(Some(Ok(piece))) if piece == "new"));
    }
}

#[test]
fn a_truncation_that_has_ended_is_told_though_an_append_registered_first() {
    let lost = (0..40).filter(|_| is_truncation_lost()).count();
    assert_eq!(lost, 0, "of 40");
}

/// Truncates while an append registers in between and is not polled again, and another task drives. Returns whether the
/// truncation is not told of its end.
fn is_truncation_lost() -> bool {
    let folder = tempfile::tempdir().unwrap();
    let (file, pool) = (new_file(&folder), Pool::new(1 << 20));
    let log = block_on(async { Appender::open(&file, &pool, 0).block(4096).await });
    let log = Rc::new(log.unwrap());
    block_on(log.append(&[1; 10 * 4096])).unwrap();
    block_on(log.flush()).unwrap();
    let appends_to = Rc::clone(&log);
    let append: Pin<Box<dyn Future<Output = _>>> = Box::pin(async move { appends_to.append(b"later").await });
    let append = Rc::new(RefCell::new(append));
    let polled = Rc::clone(&append);
    HOOK.set(Some(Box::new(move || {
        let context = &mut Context::from_waker(Waker::noop());
        assert!(polled.borrow_mut().as_mut().poll(context).is_pending());
    })));
    static WAKES: AtomicUsize = AtomicUsize::new(0);
    WAKES.store(0, Ordering::SeqCst);
    let waker = counting(&WAKES);
    let context = &mut Context::from_waker(&waker);
    let mut cut = pin!(log.truncate(4096));
    if cut.as_mut().poll(context).is_ready() {
        return false;
    }
    let mut other = pin!(log.sync());
    while log.len() != 4096 {
        if WAKES.swap(0, Ordering::SeqCst) > 0 && cut.as_mut().poll(context).is_ready() {
            return false;
        }
        if other.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready() {
            other.set(log.sync());
        }
    }
    let began = Instant::now();
    while WAKES.load(Ordering::SeqCst) == 0 {
        if began.elapsed() > MOMENT {
            return true;
        }
        std::thread::yield_now();
    }
    false
}
