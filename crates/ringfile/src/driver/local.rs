//! The completion handlers that a driver knows by number.

use std::sync::Arc;

use super::result::Handler;

/// The completion handlers that a driver knows by number. A number belongs to its handler until all operations with it
/// have ended.
#[derive(Default)]
pub(super) struct LocalHandlers(pub(super) Vec<Option<Numbered>>);

pub(super) struct Numbered {
    pub(super) handler: Arc<dyn Handler>,
    /// The number of unanswered operations of a handler that was removed; the last one frees the handler's number. 0
    /// otherwise.
    pub(super) left: usize,
}

impl LocalHandlers {
    pub(super) fn get(&self, number: u32) -> Option<&Arc<dyn Handler>> {
        self.0.get(number as usize)?.as_ref().map(|numbered| &numbered.handler)
    }

    /// Returns the handler of an operation that has just ended.
    pub(super) fn at_end(&mut self, number: u32) -> Option<Arc<dyn Handler>> {
        let place = self.0.get_mut(number as usize)?;
        let numbered = place.as_mut()?;
        if numbered.left == 1 {
            return place.take().map(|numbered| numbered.handler);
        }
        numbered.left = numbered.left.saturating_sub(1);
        Some(Arc::clone(&numbered.handler))
    }

    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        self.0.iter().flatten().count()
    }
}
