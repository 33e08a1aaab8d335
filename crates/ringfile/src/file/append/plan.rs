//! Decides what an appender writes and syncs next, with numbers only: no memory and no I/O.
//!
//! Appended bytes become pieces, each of which is one write. A piece begins at a block boundary; if the piece before it
//! ended inside a block, it repeats that block's first bytes. Invariants: writes of one block never overlap in time;
//! `durable <= written <= sealed <= appended`; a sync covers only bytes whose writes had ended when it started; the file is
//! cut only while nothing else is in flight.

use std::collections::VecDeque;
use std::time::Duration;

use super::ahead::FillAhead;
use super::filler::FillPiece;

/// The bytes of one write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Piece {
    /// Where the write begins: a multiple of the block.
    pub start: u64,
    /// The first byte that no earlier piece has.
    pub from: u64,
    /// Where its bytes end. The write ends at the next multiple of the block.
    pub end: u64,
}

/// One operation on the file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum AppendStep {
    /// Writes the first piece that was sealed full, or seals the bytes appended since the last piece, and writes them.
    /// `durable`: the write itself makes them durable.
    Write { piece: Piece, durable: bool },
    /// Syncs what is written.
    Sync,
    /// Sets the file's length.
    Cut(u64),
    /// Removes everything from `len` on, durably: overwrites it with zeros up to this offset, or else cuts the file.
    Truncate { len: u64, zeros_to: Option<u64> },
    /// Syncs data and metadata, as the last step, if not everything is durable before.
    SyncAll,
}

impl AppendStep {
    pub fn is_sync(self) -> bool {
        match self {
            Self::Sync | Self::SyncAll | Self::Truncate { .. } => true,
            Self::Write { durable, .. } => durable,
            Self::Cut(_) => false,
        }
    }
}

/// Whether a group commit may start, if syncs have a least time between them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Pace {
    #[default]
    Open,
    /// A sync has started.
    Held,
    /// The pause has begun.
    Pausing,
}

/// An offset in the log, preceded by the number of truncations before: what has been written or made durable since stays
/// reached when the log is cut.
pub(super) type Point = (u64, u64);

/// The event that a task waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Goal {
    /// The task waits for its turn to append, and for room. Tasks are served in order of arrival.
    Turn,
    /// The file has everything up to this point.
    Written(Point),
    /// Everything up to this point is durable.
    Durable(Point),
    /// The appender is closed.
    Closed,
    /// A reader of the log's tail waits until everything up to this point was appended, or nothing more will be.
    Appended(Point),
}

#[derive(Clone, Debug, Default)]
pub(super) struct Plan {
    block: u64,
    /// The maximum number of bytes that are appended but not yet written.
    limit: u64,
    appended: u64,
    /// Where the last record ends that is complete.
    complete: u64,
    sealed: u64,
    durable: u64,
    cuts: bool,
    /// Whether the file was not synced when it was opened, or since it was cut at the end. A durable write is then not
    /// enough. Of a recycled file of which nothing is valid, the first sync syncs what it had before.
    pub owes_sync: bool,
    /// The least time between the starts of two syncs: a group commit waits for a [pause](Self::wants_pause).
    pub sync_interval: Duration,
    pub pace: Pace,
    /// Whether the last write ended with zeros up to a block.
    padded: bool,
    full: VecDeque<Piece>,
    in_flight: Vec<Piece>,
    wanted_written: u64,
    wanted_durable: u64,
    /// What the current group commit must cover. Fixed when the group starts, so that later appends cannot delay it.
    group: Option<u64>,
    /// If a sync, a durable write, a truncation or a step of closing is in flight, the offset up to which it covers the
    /// file.
    covers: Option<u64>,
    /// Whether closing was requested: everything is to be written and durable, and the length exact.
    closing: bool,
    /// The length to which the log will be cut. Nothing is appended meanwhile.
    truncating: Option<u64>,
    /// How often it was cut.
    truncations: u64,
    /// Where the file is filled with zeros ahead.
    pub ahead: FillAhead,
}

impl Plan {
    /// Creates the plan of a file whose first `len` bytes are durable. With `cuts`, closing makes its length exact.
    pub fn new(block: u64, limit: u64, depth: usize, len: u64, cuts: bool) -> Self {
        Self {
            block,
            limit,
            appended: len,
            complete: len,
            sealed: len,
            durable: len,
            cuts,
            in_flight: Vec::with_capacity(depth),
            ..Self::default()
        }
    }

    pub fn appended(&self) -> u64 {
        self.appended
    }

    /// Returns where the last record ends that was appended completely.
    pub fn complete(&self) -> u64 {
        self.complete
    }

    /// Records that everything appended so far is complete records.
    pub fn completed_record(&mut self) {
        self.complete = self.appended;
    }

    /// Returns how often the log has been cut.
    pub fn truncations(&self) -> u64 {
        self.truncations
    }

    /// Returns the length to which the log is being cut.
    pub fn truncating(&self) -> Option<u64> {
        self.truncating
    }

    /// Returns the end of the bytes that are all in the file.
    pub fn written(&self) -> u64 {
        let unfinished = self.in_flight.iter().chain(self.full.front()).map(|piece| piece.from);
        unfinished.min().unwrap_or(self.sealed)
    }

    pub fn durable(&self) -> u64 {
        self.durable
    }

    /// Returns whether the event has come at some time; for [`Turn`](Goal::Turn), whether the first task may try.
    pub fn has_reached(&self, goal: Goal) -> bool {
        match goal {
            Goal::Turn => self.has_room(1) || self.closing,
            Goal::Written(point) => (self.truncations, self.written()) >= point,
            // A reader may wait for more than there ever is.
            Goal::Durable(point) => (self.truncations, self.durable) >= point || self.is_closed(),
            Goal::Closed => self.is_closed(),
            Goal::Appended(point) => (self.truncations, self.complete) >= point || self.closing,
        }
    }

    pub fn is_closing(&self) -> bool {
        self.closing
    }

    /// Returns whether closing was requested and nothing is left to do for it.
    pub fn is_closed(&self) -> bool {
        let is_durable = self.durable == self.appended && !self.owes_sync && self.covers.is_none();
        let is_still = self.truncating.is_none() && !self.ahead.is_filling();
        self.closing && is_durable && is_still && !self.is_too_long()
    }

    /// Returns whether the log is neither being closed nor being cut.
    fn is_open(&self) -> bool {
        !self.closing && self.truncating.is_none()
    }

    /// Returns whether `bytes` more may be appended now.
    pub fn has_room(&self, bytes: usize) -> bool {
        self.truncating.is_none() && self.appended - self.written() + bytes as u64 <= self.limit
    }

    pub fn append(&mut self, bytes: usize) {
        self.appended += bytes as u64;
    }

    /// Makes the bytes appended since the last piece, which fill their memory, a full piece.
    pub fn seal_full(&mut self) {
        let piece = self.rest();
        self.full.push_back(piece);
        self.sealed = piece.end;
    }

    /// Asks for everything appended so far to be written.
    pub fn want_written(&mut self) -> Goal {
        self.wanted_written = self.appended;
        Goal::Written((self.truncations, self.appended))
    }

    /// Asks for everything appended so far to be durable.
    pub fn want_durable(&mut self) -> Goal {
        self.wanted_durable = self.appended;
        Goal::Durable((self.truncations, self.appended))
    }

    /// Asks for the log to be cut at `len`, once all that was asked for before is done. Nothing is being truncated or
    /// closed, and `len` is not more than was appended.
    pub fn truncate(&mut self, len: u64) -> Goal {
        self.truncating = Some(len);
        Goal::Written((self.truncations + 1, 0))
    }

    /// Asks for everything to be written and durable, and the file's length to be exact. Nothing is appended after.
    pub fn close(&mut self) -> Goal {
        self.closing = true;
        Goal::Closed
    }

    /// Returns whether a run of filling ahead should begin, and begins it.
    pub fn begins_to_fill(&mut self) -> bool {
        let begins = self.is_open() && self.ahead.wants_run(self.appended);
        if begins {
            self.ahead.begin_run(self.appended);
        }
        begins
    }

    /// Returns the next piece of the run to fill. The caller reports to [`ahead`](Self::ahead) when it has ended.
    pub fn next_fill(&mut self) -> Option<FillPiece> {
        if self.is_open() { self.ahead.next(self.written(), self.appended) } else { self.ahead.end_run() }
    }

    /// Returns whether the file is to be cut, since it may be longer than the log.
    fn is_too_long(&self) -> bool {
        self.cuts && (self.padded || self.ahead.is_extended())
    }

    /// Returns the step that can start now. The caller starts it, and reports when it has [ended](Self::ended).
    pub fn next(&mut self) -> Option<AppendStep> {
        let step = self.peek()?;
        // A group consists of the requests that have arrived when its first step starts.
        self.group = self.group();
        match step {
            AppendStep::Write { piece, durable } => {
                if self.full.pop_front().is_none() {
                    self.sealed = piece.end;
                }
                self.in_flight.push(piece);
                if durable {
                    self.starts_sync(piece.end);
                }
            }
            AppendStep::Sync | AppendStep::SyncAll => self.starts_sync(self.written()),
            AppendStep::Cut(len) | AppendStep::Truncate { len, .. } => self.covers = Some(len),
        }
        Some(step)
    }

    fn starts_sync(&mut self, covers: u64) {
        self.covers = Some(covers);
        if !self.sync_interval.is_zero() {
            self.pace = Pace::Held;
        }
    }

    /// Returns whether a group commit waits for a pause that has not begun.
    pub fn wants_pause(&self) -> bool {
        // A sync that is in flight comes first: it often takes longer than the pause.
        self.pace == Pace::Held && self.covers.is_none() && self.wants_durable() && self.is_open()
    }

    /// Returns the step that [`next`](Self::next) would return.
    pub fn peek(&self) -> Option<AppendStep> {
        // Syncs are checked before pieces: if appending keeps up with writing, there is another piece whenever a lane is
        // free, so a sync would never start.
        self.next_sync().or_else(|| self.next_write())
    }

    fn next_write(&self) -> Option<AppendStep> {
        if let Some(&piece) = self.full.front() {
            return self.is_free(piece).then_some(AppendStep::Write { piece, durable: false });
        }
        let all = !self.is_open();
        let wanted = if all { self.appended } else { self.wanted_written.max(self.group().unwrap_or(0)) };
        if wanted <= self.sealed {
            return None;
        }
        let piece = self.rest();
        let is_all_that_is_not_durable =
            self.group().is_some() && self.in_flight.is_empty() && self.durable == piece.from;
        let durable = is_all_that_is_not_durable && self.covers.is_none() && !all && !self.owes_sync;
        self.is_free(piece).then_some(AppendStep::Write { piece, durable })
    }

    fn next_sync(&self) -> Option<AppendStep> {
        if self.covers.is_some() {
            return None;
        }
        if self.is_open() {
            return self.group().filter(|&group| group <= self.written()).map(|_| AppendStep::Sync);
        }
        if self.written() != self.appended || self.ahead.is_filling() || self.is_closed() {
            return None;
        }
        Some(match self.truncating {
            // Tasks that wait for what will be cut get it first, and don't wait for a pause.
            Some(_) if self.wants_durable() => AppendStep::Sync,
            Some(len) => AppendStep::Truncate { len, zeros_to: (!self.cuts).then_some(self.appended) },
            None if self.is_too_long() => AppendStep::Cut(self.appended),
            None => AppendStep::SyncAll,
        })
    }

    /// Records that a step has succeeded.
    pub fn ended(&mut self, step: AppendStep) {
        match step {
            AppendStep::Write { piece, durable } => {
                self.in_flight.retain(|other| *other != piece);
                if piece.end == self.sealed {
                    self.padded = !piece.end.is_multiple_of(self.block);
                }
                if durable {
                    self.synced();
                }
            }
            AppendStep::Sync | AppendStep::SyncAll => self.synced(),
            AppendStep::Cut(len) => {
                (self.padded, self.covers, self.owes_sync) = (false, None, true);
                self.ahead.was_cut(len);
            }
            AppendStep::Truncate { len, zeros_to } => {
                (self.appended, self.complete, self.sealed, self.durable) = (len, len, len, len);
                self.wanted_written = self.wanted_written.min(len);
                self.wanted_durable = self.wanted_durable.min(len);
                (self.truncating, self.covers, self.group, self.padded) = (None, None, None, false);
                self.truncations += 1;
                self.owes_sync = false;
                match zeros_to {
                    Some(end) => self.ahead.was_zeroed(end),
                    None => self.ahead.was_cut(len),
                }
            }
        }
    }

    /// Records that a truncation has failed: nothing behind `len` is sure to be in the file.
    pub fn was_not_truncated(&mut self, len: u64) {
        (self.appended, self.complete, self.sealed, self.durable) = (len, len, len, self.durable.min(len));
    }

    fn synced(&mut self) {
        let before = self.durable;
        self.durable = before.max(self.covers.take().unwrap_or(0));
        self.ahead.synced(self.durable - before);
        (self.group, self.owes_sync) = (None, false);
    }

    /// Returns the end of the current group commit, or of the one that would start now.
    fn group(&self) -> Option<u64> {
        let may_start = self.pace == Pace::Open && self.wants_durable();
        self.group.or_else(|| may_start.then_some(self.wanted_durable))
    }

    fn wants_durable(&self) -> bool {
        self.wanted_durable > self.durable
    }

    /// Returns the bytes appended since the last piece.
    fn rest(&self) -> Piece {
        let start = self.sealed - self.sealed % self.block;
        Piece { start, from: self.sealed, end: self.appended }
    }

    /// Returns whether no write in flight touches a block of this piece.
    fn is_free(&self, piece: Piece) -> bool {
        let block_end = |piece: &Piece| piece.end.next_multiple_of(self.block);
        let is_free = self.in_flight.iter().all(|other| block_end(other) <= piece.start);
        is_free && self.ahead.is_clear(block_end(&piece))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    /// A file that records for each byte whether it was written, and whether it is durable.
    struct Model {
        block: u64,
        written: Vec<bool>,
        durable: Vec<bool>,
        len: u64,
        /// Whether a sync may start.
        open: bool,
        pauses: bool,
        /// The zeros that are being written, and how many were.
        fills: Option<std::ops::Range<u64>>,
        filled: u64,
    }

    impl Model {
        fn set(all: &mut Vec<bool>, range: std::ops::Range<u64>, to: bool) {
            all.resize(all.len().max(range.end as usize), false);
            all[range.start as usize..range.end as usize].fill(to);
        }

        fn write(&mut self, piece: Piece, durable: bool) {
            Self::set(&mut self.written, piece.from..piece.end, true);
            if durable {
                Self::set(&mut self.durable, piece.from..piece.end, true);
            }
            self.len = self.len.max(piece.end.next_multiple_of(self.block));
        }

        fn prefix(all: &[bool]) -> u64 {
            all.iter().take_while(|&&known| known).count() as u64
        }
    }

    /// Steps in flight, and the bytes that each sync covers: those written when it started.
    type Running = Vec<(AppendStep, Vec<bool>)>;

    fn start(plan: &mut Plan, model: &mut Model, running: &mut Running, depth: usize) {
        while running.len() < depth
            && let Some(step) = plan.next()
        {
            if matches!(step, AppendStep::Sync | AppendStep::Write { durable: true, .. }) {
                assert!(
                    !plan.owes_sync || step == AppendStep::Sync,
                    "what the file had before is not synced"
                );
                assert!(model.open || plan.truncating().is_some(), "a sync without a pause");
                model.open = plan.sync_interval.is_zero();
            }
            if matches!(step, AppendStep::Cut(_) | AppendStep::Truncate { .. }) {
                assert!(running.is_empty() && model.fills.is_none(), "the file is cut while it is written");
            }
            if let AppendStep::Write { piece, .. } = step {
                assert_eq!(piece.start % model.block, 0);
                assert!(piece.start <= piece.from && piece.from - piece.start < model.block);
                assert!(piece.from < piece.end, "a write of nothing");
                let end = piece.end.next_multiple_of(model.block);
                assert!(model.fills.as_ref().is_none_or(|zeros| end <= zeros.start), "a fill overwrites it");
                for (other, _) in running.iter() {
                    if let AppendStep::Write { piece: other, .. } = other {
                        assert!(
                            other.end.next_multiple_of(model.block) <= piece.start,
                            "two writes of one block"
                        );
                    }
                }
            } else {
                let is_sync = |step: &AppendStep| step.is_sync() || matches!(step, AppendStep::Cut(_));
                assert!(!running.iter().any(|(step, _)| is_sync(step)), "two syncs at once");
            }
            running.push((step, model.written.clone()));
        }
    }

    /// Begins or ends a pause, sometimes.
    fn pause(plan: &mut Plan, model: &mut Model, random: &mut Random) {
        if plan.wants_pause() && random.below(2) == 0 {
            // One that has begun is replaced if the sync of a truncation, which waits for none, came meanwhile.
            assert!(!model.open, "a pause too many");
            plan.pace = Pace::Pausing;
            model.pauses = true;
        } else if model.pauses && random.below(2) == 0 {
            plan.pace = Pace::Open;
            (model.open, model.pauses) = (true, false);
        }
    }

    /// Begins or ends a piece of zeros, sometimes.
    fn fill(plan: &mut Plan, model: &mut Model, random: &mut Random) {
        plan.begins_to_fill();
        if let Some(zeros) = model.fills.take() {
            // Slow enough that the log reaches it.
            if random.below(40) > 0 {
                model.fills = Some(zeros);
                return;
            }
            model.len = model.len.max(zeros.end);
            model.filled += zeros.end - zeros.start;
            plan.ahead.ended(random.below(20) > 0);
        } else if let Some(fill) = plan.next_fill() {
            assert!(fill.zeros.start >= plan.appended(), "zeros over the log");
            let unit = model.block.max(4096);
            let is_whole = fill.zeros.start.is_multiple_of(unit) && fill.zeros.end.is_multiple_of(unit);
            assert!(is_whole, "{:?} is not made of whole units of {unit} bytes", fill.zeros);
            model.fills = Some(fill.zeros);
        }
    }

    fn end(plan: &mut Plan, model: &mut Model, (step, covers): (AppendStep, Vec<bool>)) {
        match step {
            AppendStep::Write { piece, durable } => model.write(piece, durable),
            AppendStep::Cut(len) => model.len = len,
            AppendStep::Truncate { len, zeros_to } => {
                let until = (!plan.cuts).then_some(plan.appended());
                assert_eq!((zeros_to, Model::prefix(&model.written)), (until, plan.appended()));
                model.len = if plan.cuts { len } else { model.len };
                model.written.truncate(len as usize);
                model.durable = vec![true; len as usize];
            }
            AppendStep::Sync | AppendStep::SyncAll => {
                model.durable.resize(model.durable.len().max(covers.len()), false);
                for (durable, covered) in model.durable.iter_mut().zip(covers) {
                    *durable |= covered;
                }
            }
        }
        plan.ended(step);
        assert_eq!(plan.written(), Model::prefix(&model.written));
        assert!(plan.durable() <= Model::prefix(&model.durable), "more is reported than is durable");
    }

    /// Runs random calls. Returns how many zeros were filled, and how often the log was truncated.
    fn run(random: &mut Random, unit: u64) -> (u64, u64) {
        let block = [1, 4, 32][random.below(3) as usize] * unit;
        let chunk = block.max(4 * unit) * (1 + random.below(4));
        let depth = 1 + random.below(4) as usize;
        let first = random.below(3 * block);
        // Or else the file is recycled, and may be longer than its log.
        let cuts = random.below(3) > 0;
        let len = first + if cuts { 0 } else { random.below(3 * block) };
        let mut plan = Plan {
            owes_sync: random.below(2) == 0,
            sync_interval: Duration::from_secs(random.below(2)),
            ahead: FillAhead::new(random.below(2) << 20, block, len),
            ..Plan::new(block, (depth as u64 + 1) * chunk, depth, first, cuts)
        };
        // As if many small syncs had come before, or else few logs would be filled again after a truncation.
        (0..30).for_each(|_| plan.ahead.synced(unit));
        let known = vec![true; first as usize];
        let mut model = Model {
            block,
            written: known.clone(),
            durable: known,
            len,
            open: true,
            pauses: false,
            fills: None,
            filled: 0,
        };
        let mut running = Running::new();
        // The memory that the rest has left, and the goals that are waited for.
        let mut room = chunk - first % block;
        let mut goals: Vec<Goal> = Vec::new();
        let is_reached = |plan: &Plan, goal| match goal {
            // Not even because the log was closed.
            Goal::Durable(point) => (plan.truncations, plan.durable) >= point,
            goal => plan.has_reached(goal),
        };
        let mut truncations = 0;
        for _ in 0..200 {
            match random.below(12) {
                0..6 => {
                    let most = (1 + random.below(8)) * unit;
                    let bytes = (1 + random.below(room)).min(most).max(random.below(2) * room);
                    if plan.has_room(bytes as usize) {
                        plan.append(bytes as usize);
                        room -= bytes;
                        if room == 0 {
                            plan.seal_full();
                            room = chunk - plan.appended() % block;
                        }
                    }
                }
                6..8 => goals.push(plan.want_durable()),
                8 => goals.push(plan.want_written()),
                9 if random.below(4) == 0 && plan.truncating().is_none() => {
                    plan.truncate(random.below(plan.appended() + 1));
                    goals.push(plan.want_durable());
                }
                _ if !running.is_empty() => {
                    let step = running.swap_remove(random.below(running.len() as u64) as usize);
                    let is_truncation = matches!(step.0, AppendStep::Truncate { .. });
                    end(&mut plan, &mut model, step);
                    if is_truncation {
                        truncations += 1;
                        assert_eq!((plan.durable(), plan.written()), (plan.appended(), plan.appended()));
                        room = chunk - plan.appended() % block;
                    }
                }
                _ => {}
            }
            fill(&mut plan, &mut model, random);
            pause(&mut plan, &mut model, random);
            start(&mut plan, &mut model, &mut running, depth);
            goals.retain(|&goal| !is_reached(&plan, goal));
        }
        let closes = random.below(2) == 0;
        if closes {
            plan.close();
        }
        loop {
            fill(&mut plan, &mut model, random);
            pause(&mut plan, &mut model, random);
            start(&mut plan, &mut model, &mut running, depth);
            assert!(!plan.is_closed() || model.fills.is_none(), "it is closed while zeros are written");
            if running.is_empty() {
                if plan.wants_pause() || model.pauses && !closes || model.fills.is_some() {
                    continue;
                }
                break;
            }
            let step = running.swap_remove(random.below(running.len() as u64) as usize);
            truncations += u64::from(matches!(step.0, AppendStep::Truncate { .. }));
            end(&mut plan, &mut model, step);
        }
        for goal in goals {
            assert!(is_reached(&plan, goal), "a goal was never reached");
        }
        assert!(plan.truncating().is_none());
        assert_eq!(plan.is_closed(), closes);
        if closes {
            assert_eq!(plan.durable(), plan.appended());
            assert!(model.len == plan.appended() || !cuts && model.len > plan.appended(), "{}", model.len);
        }
        (model.filled, truncations)
    }

    #[test]
    fn random_appends_flushes_syncs_and_truncations_reach_the_file_whole() {
        let mut random = Random::new();
        let mut all = (0, 0);
        for round in 0..2000 {
            // Some with sizes for which the file is filled ahead.
            let (filled, truncations) = run(&mut random, if round % 100 == 0 { 512 } else { 1 });
            all = (all.0 + filled, all.1 + truncations);
        }
        // By chance every one of those may have been cut too often to be filled.
        for _ in 0..200 {
            if all.0 > 0 {
                break;
            }
            all.0 += run(&mut random, 512).0;
        }
        assert!(all.0 > 0 && all.1 > 0, "{all:?}: nothing was filled, or truncated");
    }

    #[test]
    fn syncs_requested_while_one_runs_share_the_next() {
        let mut plan = Plan::new(4096, 1 << 20, 4, 0, true);
        plan.append(100);
        plan.want_durable();
        let first = plan.next();
        assert!(matches!(first, Some(AppendStep::Write { durable: true, .. })));
        for _ in 0..5 {
            plan.append(100);
            plan.want_durable();
            assert_eq!(
                plan.next(),
                None,
                "nothing starts while the group's write of the same block is in flight"
            );
        }
        plan.ended(first.unwrap_or(AppendStep::Sync));
        assert_eq!(plan.durable(), 100);
        let piece = Piece { start: 0, from: 100, end: 600 };
        assert_eq!(plan.next(), Some(AppendStep::Write { piece, durable: true }));
        assert_eq!(plan.next(), None);
    }

    #[test]
    fn syncs_that_come_within_the_interval_share_one_behind_a_pause() {
        let mut plan = Plan { sync_interval: Duration::from_secs(1), ..Plan::new(4096, 1 << 20, 4, 0, true) };
        let mut sync = |expect_pause: bool, appends: u64| {
            plan.append(100);
            plan.want_durable();
            assert_eq!(plan.wants_pause(), expect_pause);
            if expect_pause {
                plan.pace = Pace::Pausing;
            }
            for _ in 1..appends {
                assert_eq!((plan.next(), plan.wants_pause()), (None, false), "the pause runs");
                plan.append(100);
                plan.want_durable();
            }
            if expect_pause {
                plan.pace = Pace::Open;
            }
            let from = plan.durable();
            let piece = Piece { start: 0, from, end: from + 100 * appends };
            assert_eq!(plan.next(), Some(AppendStep::Write { piece, durable: true }));
            plan.ended(AppendStep::Write { piece, durable: true });
            assert_eq!((plan.durable(), plan.next(), plan.wants_pause()), (piece.end, None, false));
        };
        sync(false, 1);
        sync(true, 5);
        sync(true, 1);
        // Neither flushing nor closing waits for a pause.
        plan.append(100);
        plan.want_durable();
        assert!(plan.wants_pause());
        plan.pace = Pace::Pausing;
        plan.want_written();
        let piece = Piece { start: 0, from: 700, end: 800 };
        assert_eq!(plan.next(), Some(AppendStep::Write { piece, durable: false }));
        plan.ended(AppendStep::Write { piece, durable: false });
        assert_eq!(plan.next(), None);
        plan.close();
        assert_eq!(plan.next(), Some(AppendStep::Cut(800)));
        plan.ended(AppendStep::Cut(800));
        assert_eq!(plan.next(), Some(AppendStep::SyncAll));
        plan.ended(AppendStep::SyncAll);
        assert!(plan.is_closed());
        plan.pace = Pace::Open;
        assert!(plan.is_closed() && plan.next().is_none() && !plan.wants_pause());
    }

    #[test]
    fn what_a_recycled_file_had_before_is_synced_with_the_first_record() {
        let recycled = || Plan { owes_sync: true, ..Plan::new(4096, 1 << 20, 4, 0, false) };
        let mut plan = recycled();
        let mut steps = Vec::new();
        for _ in 0..2 {
            plan.append(4096);
            plan.want_durable();
            while let Some(step) = plan.next() {
                plan.ended(step);
                steps.push(step);
            }
        }
        let rest = |start, durable| {
            let piece = Piece { start, from: start, end: start + 4096 };
            AppendStep::Write { piece, durable }
        };
        assert_eq!(steps, [rest(0, false), AppendStep::Sync, rest(4096, true)]);
        plan.close();
        assert!(plan.is_closed() && plan.next().is_none());
        // Closing does it if nothing was appended.
        let mut plan = recycled();
        plan.close();
        assert_eq!((plan.is_closed(), plan.next()), (false, Some(AppendStep::SyncAll)));
        plan.ended(AppendStep::SyncAll);
        assert!(plan.is_closed());
    }

    #[test]
    fn closing_syncs_only_what_is_not_durable() {
        let mut plan = Plan::new(4096, 1 << 20, 4, 0, true);
        plan.append(4096);
        plan.want_durable();
        let write = plan.next();
        plan.ended(write.unwrap_or(AppendStep::Sync));
        assert_eq!((plan.durable(), plan.is_closed()), (4096, false));
        plan.close();
        assert!(plan.is_closed() && plan.next().is_none());
        // The zeros behind the last byte are cut off.
        let mut plan = Plan::new(4096, 1 << 20, 4, 0, true);
        plan.append(1);
        plan.want_durable();
        let write = plan.next();
        plan.ended(write.unwrap_or(AppendStep::Sync));
        plan.close();
        assert_eq!(plan.next(), Some(AppendStep::Cut(1)));
        plan.ended(AppendStep::Cut(1));
        assert_eq!(plan.next(), Some(AppendStep::SyncAll));
        plan.ended(AppendStep::SyncAll);
        assert!(plan.is_closed());
        // A durable write in flight ends closing too.
        let mut plan = Plan::new(1, 1 << 20, 4, 0, true);
        plan.append(100);
        plan.want_durable();
        let write = plan.next();
        plan.close();
        assert_eq!((plan.next(), plan.is_closed()), (None, false));
        plan.ended(write.unwrap_or(AppendStep::Sync));
        assert!(plan.is_closed());
    }

    #[test]
    fn a_sync_that_runs_does_not_hold_up_full_pieces() {
        let mut plan = Plan::new(4096, 1 << 20, 4, 0, true);
        plan.append(4096);
        plan.seal_full();
        plan.want_durable();
        let write = plan.next();
        let full = |from| {
            let piece = Piece { start: from, from, end: from + 4096 };
            Some(AppendStep::Write { piece, durable: false })
        };
        assert_eq!(write, full(0));
        plan.ended(write.unwrap_or(AppendStep::Sync));
        assert_eq!(plan.next(), Some(AppendStep::Sync));
        plan.append(4096);
        plan.seal_full();
        assert_eq!(plan.next(), full(4096));
        plan.append(1);
        plan.want_durable();
        assert_eq!(plan.next(), None, "the rest waits for its group");
        plan.ended(AppendStep::Sync);
        assert_eq!(plan.durable(), 4096);
    }

    #[test]
    fn a_sync_is_not_put_off_by_appends_that_keep_up_with_the_writes() {
        let mut plan = Plan::new(4096, 2 << 12, 1, 0, true);
        plan.append(4096);
        plan.seal_full();
        let group = plan.want_durable();
        let mut steps = 0;
        while !plan.has_reached(group) {
            let step = plan.next();
            // One lane, and a full piece waits for it whenever it is free.
            plan.append(4096);
            plan.seal_full();
            plan.ended(step.unwrap_or(AppendStep::Sync));
            steps += 1;
            assert!(steps <= 2, "the sync does not get its turn");
        }
    }
}
