//! Decides where an appender's file is filled with zeros ahead, with numbers only: no memory and no I/O.
//!
//! Durable writes into space that has been written before change no metadata, so their syncs need not wait for the file
//! system's journal. Space is filled in runs: one allocation, then writes of at most a piece. Invariants: a piece begins
//! behind all that is appended when it starts, and no write of the log may begin in it or behind it until it has ended; at
//! most the budget is filled behind what is appended.

use super::filler::{FillPiece, PIECE};

/// The first run begins once this much was appended, so that a small file stays small.
const FIRST: u64 = 64 << 10;
/// Syncs that make more than this durable, on average, cost little for a byte, and filling would write everything twice.
const MANY: u64 = 64 << 10;
/// Runs and pieces begin and end at multiples of this, and of the file's block.
const UNIT: u64 = 4096;

#[derive(Clone, Debug, Default)]
pub(super) struct FillAhead {
    /// The maximum number of bytes to fill behind what is appended; 0 fills nothing.
    budget: u64,
    unit: u64,
    /// Where the file ended when it was opened or last cut. A recycled file has space up to there, and needs zeros behind.
    end: u64,
    /// Where the zeros end, also those that are being written: a multiple of the unit. Less than what was appended if
    /// there are none; 0 if none were written.
    filled: u64,
    /// The end of the run that is being filled.
    run: Option<u64>,
    /// Whether the run's space has yet to be allocated.
    fresh: bool,
    /// Where the piece begins that is being written.
    piece: Option<u64>,
    /// How many bytes a sync makes durable: a moving average.
    for_a_sync: u64,
}

impl FillAhead {
    /// `end`: where the file ends.
    pub fn new(budget: u64, block: u64, end: u64) -> Self {
        let unit = UNIT.next_multiple_of(block);
        // A piece consists of whole units.
        let budget = if (PIECE as u64).is_multiple_of(unit) { budget } else { 0 };
        // Several small syncs come before the first run.
        Self { budget, unit, end, for_a_sync: 2 * MANY, ..Self::default() }
    }

    /// Records how many bytes a sync has made durable.
    pub fn synced(&mut self, bytes: u64) {
        if bytes > 0 {
            self.for_a_sync = (7 * self.for_a_sync + bytes) / 8;
        }
    }

    /// Returns the end of a run that would begin now: at most as much is filled as was appended behind the file's end.
    fn target(&self, appended: u64) -> u64 {
        let ahead = self.budget.min(appended.saturating_sub(self.end));
        let end = appended.saturating_add(if ahead < FIRST { 0 } else { ahead });
        end - end % self.unit
    }

    /// Returns whether a run should begin: if less than half of what is wanted is filled.
    pub fn wants_run(&self, appended: u64) -> bool {
        if self.budget == 0 || self.run.is_some() || self.for_a_sync > MANY {
            return false;
        }
        let target = self.target(appended);
        target > appended && self.filled < appended + (target - appended) / 2
    }

    pub fn begin_run(&mut self, appended: u64) {
        (self.run, self.fresh) = (Some(self.target(appended)), true);
    }

    /// Starts the next piece of the run; `None` ends the run. The file is complete up to `written`.
    pub fn next(&mut self, written: u64, appended: u64) -> Option<FillPiece> {
        let start = self.filled.max(appended.next_multiple_of(self.unit));
        let run = self.run.filter(|&end| start < end && self.piece.is_none());
        let Some(end) = run else { return self.end_run() };
        let zeros = start..end.min(start + PIECE as u64);
        let allocate = std::mem::take(&mut self.fresh).then_some(written..end);
        (self.piece, self.filled) = (Some(start), zeros.end);
        Some(FillPiece { allocate, zeros })
    }

    /// Records the end of a piece. After a failure nothing more is filled. Returns whether the run goes on.
    pub fn ended(&mut self, succeeded: bool) -> bool {
        self.piece = None;
        if !succeeded {
            self.stop();
        }
        self.run.is_some()
    }

    /// Ends the run after the piece that is being written: there is no next one.
    pub fn end_run(&mut self) -> Option<FillPiece> {
        self.run = None;
        None
    }

    /// Fills nothing more.
    pub fn stop(&mut self) {
        (self.budget, self.run) = (0, None);
    }

    /// Returns whether a piece is being written.
    pub fn is_filling(&self) -> bool {
        self.piece.is_some()
    }

    /// Returns whether a write that ends at `end` would not touch the piece that is being written.
    pub fn is_clear(&self, end: u64) -> bool {
        self.piece.is_none_or(|start| end <= start)
    }

    /// Returns whether the file may be longer than what was appended.
    pub fn is_extended(&self) -> bool {
        self.filled > 0
    }

    /// Records that the file was cut at `len`, while no piece was being written.
    pub fn was_cut(&mut self, len: u64) {
        (self.filled, self.run, self.end) = (0, None, len);
    }

    /// Records that a recycled file has zeros up to `end`, where its log ended before, and is as long as it was. No piece
    /// was being written.
    pub fn was_zeroed(&mut self, end: u64) {
        // Direct I/O takes whole units only. The last one, of which a part is zeros, is filled again.
        (self.filled, self.run) = (self.filled.max(end - end % self.unit), None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUDGET: u64 = 1 << 20;

    /// Returns one that has seen many syncs of `bytes`.
    fn after_syncs_of(bytes: u64) -> FillAhead {
        let mut ahead = FillAhead::new(BUDGET, 512, 0);
        (0..100).for_each(|_| ahead.synced(bytes));
        ahead
    }

    fn fill(ahead: &mut FillAhead, appended: u64) -> Vec<FillPiece> {
        ahead.begin_run(appended);
        let mut all = Vec::new();
        while let Some(fill) = ahead.next(appended, appended) {
            all.push(fill);
            ahead.ended(true);
        }
        all
    }

    #[test]
    fn a_run_is_allocated_once_and_has_at_most_what_was_appended_and_the_budget() {
        let mut ahead = after_syncs_of(1000);
        assert!(!ahead.wants_run(FIRST - 1), "a small file is not filled");
        for (appended, end) in [(100_000, 196_608), (1_000_001, 1_998_848), (9_999_999, 11_046_912)] {
            assert!(ahead.wants_run(appended));
            let all = fill(&mut ahead, appended);
            assert_eq!(all[0].allocate, Some(appended..end));
            assert!(all[1..].iter().all(|fill| fill.allocate.is_none()));
            assert_eq!(all[0].zeros.start, appended.next_multiple_of(UNIT));
            assert!(all.windows(2).all(|pair| pair[0].zeros.end == pair[1].zeros.start));
            assert_eq!(all[all.len() - 1].zeros.end, end);
            assert!(!ahead.wants_run(appended));
        }
        // Half of it is used.
        assert!(!ahead.wants_run(9_999_999 + BUDGET / 2 - 8192));
        assert!(ahead.wants_run(9_999_999 + BUDGET / 2));
    }

    #[test]
    fn large_syncs_and_logs_that_are_not_synced_are_not_filled() {
        assert!(!after_syncs_of(2 * MANY).wants_run(10 << 20));
        assert!(!FillAhead::new(BUDGET, 512, 0).wants_run(10 << 20));
        assert!(!FillAhead::new(0, 512, 0).wants_run(10 << 20));
        assert!(after_syncs_of(1000).wants_run(10 << 20));
    }

    #[test]
    fn appends_that_overtake_the_zeros_are_never_filled_over() {
        let mut ahead = after_syncs_of(1000);
        ahead.begin_run(BUDGET);
        let first = ahead.next(0, BUDGET).unwrap();
        assert_eq!(first.allocate, Some(0..2 * BUDGET), "what is not written yet is allocated first");
        assert!(ahead.is_clear(BUDGET) && !ahead.is_clear(BUDGET + 1));
        ahead.ended(true);
        let appended = BUDGET + 2 * PIECE as u64 + 1;
        assert_eq!(ahead.next(0, appended).unwrap().zeros.start, appended.next_multiple_of(UNIT));
        ahead.ended(true);
        assert_eq!(ahead.next(0, 2 * BUDGET), None);
        assert!(ahead.wants_run(2 * BUDGET));
    }

    #[test]
    fn a_failure_ends_filling_for_good() {
        let mut ahead = after_syncs_of(1000);
        ahead.begin_run(BUDGET);
        assert!(ahead.next(BUDGET, BUDGET).is_some());
        assert!(!ahead.ended(false));
        assert!(!ahead.wants_run(BUDGET) && ahead.next(BUDGET, BUDGET).is_none());
        assert!(ahead.is_extended(), "a part may have been filled");
    }

    #[test]
    fn a_log_that_is_shorter_than_when_it_was_opened_is_not_filled() {
        // Before a truncation that has failed is recorded as a cut.
        let mut ahead = FillAhead::new(BUDGET, 512, BUDGET);
        (0..100).for_each(|_| ahead.synced(1000));
        assert!(!ahead.wants_run(100));
    }

    #[test]
    fn a_recycled_file_is_filled_only_behind_its_end() {
        let mut ahead = FillAhead::new(BUDGET, 512, 10_000_001);
        (0..100).for_each(|_| ahead.synced(1000));
        for appended in [0, FIRST, 9_000_000, 10_000_001, 10_000_000 + FIRST] {
            assert!(!ahead.wants_run(appended), "{appended}");
        }
        let appended = 10_000_001 + FIRST;
        assert!(ahead.wants_run(appended));
        let all = fill(&mut ahead, appended);
        assert_eq!(all[0].zeros.start, appended.next_multiple_of(UNIT));
        // Cutting the log back leaves the file as long as it is, and what was filled is not filled again.
        ahead.was_zeroed(appended);
        assert!(!ahead.wants_run(FIRST) && !ahead.wants_run(appended));
        ahead.was_zeroed(30_000_000);
        assert!(!ahead.wants_run(29_000_000));
        assert!(ahead.wants_run(30_000_000));
        // The unit in which the zeros ended is filled again, since a piece consists of whole ones.
        assert_eq!(fill(&mut ahead, 29_000_000)[0].zeros.start, 30_000_000 / UNIT * UNIT);
    }

    #[test]
    fn a_log_that_is_often_cut_is_not_filled_again_and_again() {
        let mut ahead = after_syncs_of(1000);
        let filled: u64 = fill(&mut ahead, BUDGET).iter().map(|fill| fill.zeros.end - fill.zeros.start).sum();
        assert_eq!(filled, BUDGET);
        for _ in 0..3 {
            ahead.was_cut(BUDGET / 2);
            assert!(!ahead.wants_run(BUDGET / 2 + FIRST - 1), "little was appended since");
        }
        assert!(ahead.wants_run(BUDGET / 2 + FIRST));
    }
}
