//! Ends a panic of user code on a thread that goes on, and reports it.

use ringfile_buffer::internal::{event, panics};

/// Runs user code. If it panics, `what` is the message of an event, and the result is `None`. The caller must hold no
/// lock and no borrow.
pub(crate) fn caught<T>(what: &'static str, act: impl FnOnce() -> T) -> Option<T> {
    let result = panics::catch(act).ok();
    if result.is_none() {
        event::emit(|| tracing::error!("{what}"));
    }
    result
}
