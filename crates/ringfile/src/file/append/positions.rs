//! Where the readers of a log are, so that a truncation reaches those that are behind its end.

#[derive(Default)]
pub(super) struct Positions(Vec<Option<ReaderPosition>>);

#[derive(Clone, Copy)]
struct ReaderPosition {
    at: u64,
    /// The length at which the log was cut, if that was before the position.
    cut: Option<u64>,
}

impl Positions {
    /// Adds a reader; returns its index.
    pub fn add(&mut self, position: u64) -> usize {
        let free = self.0.iter().position(Option::is_none).unwrap_or(self.0.len());
        self.0.resize(self.0.len().max(free + 1), None);
        self.set(free, Some(position));
        free
    }

    /// Sets the position of a reader; `None` removes the reader.
    pub fn set(&mut self, index: usize, position: Option<u64>) {
        self.0[index] = position.map(|at| ReaderPosition { at, cut: None });
    }

    pub fn cut(&mut self, len: u64) {
        for behind in self.0.iter_mut().flatten().filter(|position| position.at > len) {
            behind.cut.get_or_insert(len);
        }
    }

    /// Returns the length at which the log was cut, if that was before this reader's position.
    pub fn was_cut(&self, index: usize) -> Option<u64> {
        self.0[index]?.cut
    }
}
