//! Passes the library's warnings to a function of the caller.
//!
//! A subscriber of `tracing` that keeps nothing. Invariants: none is installed before a function is set; once
//! `ringfile_set_log` has returned, the function before is not running, and never called again.

use std::cell::Cell;
use std::ffi::{CString, c_char, c_int, c_void};
use std::fmt::{Debug, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{PoisonError, RwLock, TryLockError};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::Interest;
use tracing::{Event, Level, Metadata, Subscriber};

use crate::error::{Fault, done};
use crate::fork::{self, Guard, Lock};

/// The level of a message: a defect, or something was lost.
pub const RINGFILE_LOG_ERROR: c_int = 1;
/// Something does not work as it should, and the library works around it: no io_uring, memory that cannot be
/// registered.
pub const RINGFILE_LOG_WARNING: c_int = 2;
/// Something that is worth knowing.
pub const RINGFILE_LOG_INFO: c_int = 3;
/// What the library detected and decided.
pub const RINGFILE_LOG_DEBUG: c_int = 4;

/// A function that receives the library's messages: its context, a level (RINGFILE_LOG_...), and one line, which
/// belongs to the library and is valid until the function returns.
pub type ringfile_log =
    Option<unsafe extern "C" fn(context: *mut c_void, level: c_int, message: *const c_char)>;

#[derive(Clone, Copy)]
struct Log {
    callback: unsafe extern "C" fn(*mut c_void, c_int, *const c_char),
    context: *mut c_void,
}

// SAFETY: by the contract in the header, any thread may call the function.
unsafe impl Send for Log {}
// SAFETY: as above.
unsafe impl Sync for Log {}

static LOG: RwLock<Option<Log>> = RwLock::new(None);

thread_local! {
    /// Set while this thread runs the caller's function.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Locks the log while the process forks; not inside the caller's function, during which it is locked already.
fn hold() -> Option<Guard> {
    (!INSIDE.get()).then(|| Box::new(LOG.write().unwrap_or_else(PoisonError::into_inner)) as Guard)
}

/// Returns whether this thread runs the caller's function for messages.
pub(crate) fn is_inside() -> bool {
    INSIDE.try_with(Cell::get).unwrap_or(false)
}

/// The error of a call that the function for messages must not make.
pub(crate) fn inside() -> Fault {
    Fault::new(
        libc::EDEADLK,
        "the function for messages must not use the library: it runs inside another call",
    )
}

struct Teller;

impl Subscriber for Teller {
    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        // Asked for each event: the function may be set and removed at any time.
        if *metadata.level() <= Level::DEBUG { Interest::sometimes() } else { Interest::never() }
    }

    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::DEBUG && metadata.is_event() && !INSIDE.get()
    }

    fn event(&self, event: &Event<'_>) {
        // The lock is not waited for: this thread may hold a lock of the library for which a forking thread waits while
        // it holds this one.
        let log = match LOG.try_read() {
            Ok(log) => log,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        let Some(told) = *log else { return };
        let level = match *event.metadata().level() {
            Level::ERROR => RINGFILE_LOG_ERROR,
            Level::WARN => RINGFILE_LOG_WARNING,
            Level::INFO => RINGFILE_LOG_INFO,
            _ => RINGFILE_LOG_DEBUG,
        };
        let mut line = Line::default();
        event.record(&mut line);
        INSIDE.set(true);
        // SAFETY: by the contract in the header, any thread may call the function until another one is set, and setting
        // one waits for this call.
        unsafe { (told.callback)(told.context, level, line.into_text().as_ptr()) };
        INSIDE.set(false);
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// The text of an event: its message, followed by its fields.
#[derive(Default)]
struct Line {
    message: String,
    named: String,
}

impl Visit for Line {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.record_debug(field, &format_args!("{value}"));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        // Writing to a string does not fail.
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name => write!(self.named, "; {name}: {value:?}"),
        };
    }
}

impl Line {
    fn into_text(self) -> CString {
        let mut text = (self.message + &self.named).into_bytes();
        text.iter_mut().filter(|byte| **byte == b'\n').for_each(|byte| *byte = b' ');
        text.retain(|&byte| byte != 0);
        CString::new(text).unwrap_or_default()
    }
}

/// Sets the function for the library's messages: that it works without io_uring, that memory could not be registered,
/// defects. Each message is passed to `callback`, with `context`; NULL, the default, switches messages off. Applies to
/// the whole process; the last call wins. When it returns, the previous function is not running and is not called
/// again.
///
/// The function may be called by any thread, by several at once, inside any function of this header, and by threads of
/// the library. It must be quick, must return (no longjmp, no C++ exception), and must not call functions of this
/// header: ringfile_set_log returns -EDEADLK there, others may fail or deadlock. Messages that the same thread causes
/// meanwhile are lost, as are those of other threads during a fork or this call.
///
/// Any thread. Waits for the previous function. -EBUSY: something else in this program receives the messages.
#[unsafe(no_mangle)]
pub extern "C" fn ringfile_set_log(callback: ringfile_log, context: *mut c_void) -> c_int {
    static INSTALLED: AtomicBool = AtomicBool::new(false);
    done(|| {
        if is_inside() {
            return Err(Fault::new(libc::EDEADLK, "ringfile_set_log was called by the function that it set"));
        }
        fork::heed(Lock::Log, hold);
        if callback.is_some()
            && !INSTALLED.load(Ordering::Acquire)
            && tracing::subscriber::set_global_default(Teller).is_ok()
        {
            INSTALLED.store(true, Ordering::Release);
        }
        if callback.is_some() && !tracing::dispatcher::get_default(|all| all.is::<Teller>()) {
            return Err(Fault::new(
                libc::EBUSY,
                "this program already has another receiver of the library's messages",
            ));
        }
        *LOG.write().unwrap_or_else(PoisonError::into_inner) =
            callback.map(|callback| Log { callback, context });
        Ok(())
    })
}
