//! Events of the library as messages of Python's `logging`, under the logger `ringfile`.
//!
//! An event may come on any thread, with or without the interpreter's lock: it is kept here, and the interpreter is asked to call
//! [`flush`] when it can.

use std::collections::VecDeque;
use std::ffi::{c_int, c_void};
use std::fmt::{Debug, Write};
use std::sync::{Mutex, PoisonError};

use pyo3::ffi;
use pyo3::prelude::*;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// The most messages that are kept; later ones are dropped.
const MOST: usize = 1000;

static MESSAGES: Mutex<VecDeque<(u8, String)>> = Mutex::new(VecDeque::new());

struct ToLogging;

/// Makes events messages, from now on.
pub fn install() {
    // Fails only if it was done before.
    let _ = tracing::subscriber::set_global_default(ToLogging);
}

impl Subscriber for ToLogging {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::INFO
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut text = Text::default();
        event.record(&mut text);
        let level = match *event.metadata().level() {
            Level::ERROR => 40,
            Level::WARN => 30,
            _ => 20,
        };
        let mut messages = MESSAGES.lock().unwrap_or_else(PoisonError::into_inner);
        if messages.len() < MOST {
            messages.push_back((level, text.message + &text.fields));
        }
        drop(messages);
        // SAFETY: any thread may call these, also without the interpreter's lock.
        unsafe {
            if ffi::Py_IsInitialized() != 0 {
                ffi::Py_AddPendingCall(Some(flush), std::ptr::null_mut());
            }
        }
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

#[derive(Default)]
struct Text {
    message: String,
    fields: String,
}

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        // Writing to a string does not fail.
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name => write!(self.fields, " {name}={value:?}"),
        };
    }
}

/// Called by the interpreter, on its main thread.
extern "C" fn flush(_: *mut c_void) -> c_int {
    Python::attach(|py| {
        let logged = (|| {
            let logger = py.import("logging")?.call_method1("getLogger", ("ringfile",))?;
            loop {
                let Some((level, text)) = MESSAGES.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
                else {
                    return PyResult::Ok(());
                };
                logger.call_method1("log", (level, "%s", text))?;
            }
        })();
        if let Err(failed) = logged {
            failed.write_unraisable(py, None);
        }
    });
    0
}
