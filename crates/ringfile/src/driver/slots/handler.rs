//! How an operation ended, and the receivers of results: by reference, or by a number that the driver has for them.

use std::sync::Arc;

use super::key::LocalHandler;
use crate::driver::op::OpResult;
use crate::memory::IoMemory;

/// How an operation ended, and its buffer.
pub(crate) struct Finished {
    pub memory: IoMemory,
    pub ended: OpResult,
}

impl Finished {
    pub(crate) const NOTHING: Self = Self { memory: IoMemory::None, ended: OpResult { done: 0, errno: 0 } };
}

/// The receiver of results of remote requests, which it distinguishes by an index.
pub(crate) trait Handler: Send + Sync {
    /// Takes a result.
    fn done(self: Arc<Self>, index: u32, finished: Finished);

    /// Returns whether the result is still wanted; otherwise a remote request that has not begun is not carried out.
    fn is_wanted(&self, index: u32) -> bool;

    /// Returns whether a thread may leave its loop while its ring has such remote requests: true for those of a queue,
    /// until the queue is dropped.
    fn outlives_loops(&self) -> bool {
        false
    }

    /// Returns whether the thread with this driver stays in its loop until the result arrives.
    fn guards_loop_of(&self, _driver: u64) -> bool {
        false
    }

    /// Returns the identity of the handler: one handler may wrap another.
    fn address(&self) -> *const ();
}

/// The completion handlers that a driver knows by number. A number belongs to its handler until all operations with it
/// have ended.
#[derive(Default)]
pub(crate) struct LocalHandlers(Vec<Option<Numbered>>);

struct Numbered {
    handler: Arc<dyn Handler>,
    /// The number of unanswered operations of a handler that was removed; the last one frees the handler's number. 0
    /// otherwise.
    left: usize,
}

impl LocalHandlers {
    pub(crate) fn add(&mut self, handler: Arc<dyn Handler>) -> LocalHandler {
        let Self(handlers) = self;
        let number = handlers.iter().position(Option::is_none).unwrap_or_else(|| {
            handlers.push(None);
            handlers.len() - 1
        });
        handlers[number] = Some(Numbered { handler, left: 0 });
        LocalHandler(number as u32)
    }

    /// Removes a handler with so many unanswered operations. Returns it if there are none. Does nothing if the number belongs
    /// to another handler by now.
    pub(crate) fn remove(
        &mut self,
        number: LocalHandler,
        handler: &Arc<dyn Handler>,
        left: usize,
    ) -> Option<Arc<dyn Handler>> {
        let place = self.0.get_mut(number.0 as usize)?;
        let numbered = place.as_mut().filter(|numbered| Arc::ptr_eq(&numbered.handler, handler))?;
        numbered.left = left;
        if left == 0 { place.take().map(|numbered| numbered.handler) } else { None }
    }

    pub(super) fn get(&self, number: u32) -> Option<&Arc<dyn Handler>> {
        self.0.get(number as usize)?.as_ref().map(|numbered| &numbered.handler)
    }

    /// Returns the handler of an operation that has just ended.
    pub(crate) fn at_end(&mut self, number: u32) -> Option<Arc<dyn Handler>> {
        let place = self.0.get_mut(number as usize)?;
        let numbered = place.as_mut()?;
        if numbered.left == 1 {
            return place.take().map(|numbered| numbered.handler);
        }
        numbered.left = numbered.left.saturating_sub(1);
        Some(Arc::clone(&numbered.handler))
    }

    #[cfg(test)]
    pub(crate) fn count(&self) -> usize {
        self.0.iter().flatten().count()
    }
}
