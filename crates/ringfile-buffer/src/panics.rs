//! Ends a panic of user code where it would hit an operation or a task that has nothing to do with it.
//!
//! The panic hook has reported the panic. Invariant: nothing unwinds out of [`catch`], not even a panic of the payload's
//! destructor, which is user code too.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// A panic whose payload has been dropped.
pub struct Panicked;

/// Runs user code. The caller must hold no lock and no borrow.
#[inline]
pub fn catch<T>(act: impl FnOnce() -> T) -> Result<T, Panicked> {
    catch_unwind(AssertUnwindSafe(act)).map_err(drop_payload)
}

#[cold]
fn drop_payload(payload: Box<dyn Any + Send>) -> Panicked {
    if let Err(payload) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
        // Leaked: this payload might panic with another one, and so on.
        std::mem::forget(payload);
    }
    Panicked
}
