//! How much memory a cache may have: what the program has set, or less while the kernel reports that memory is short.
//!
//! Pure arithmetic. Invariant: what is in force is never above what the program has set, and never below one page.

use crate::memory::SMALLEST_PAGE;

/// See the top of this file.
#[derive(Clone, Copy)]
pub(crate) struct Budget {
    /// What the program has set.
    most: usize,
    /// What is left under pressure; `usize::MAX` without.
    left: usize,
}

impl Budget {
    pub(crate) fn new(most: usize) -> Self {
        Self { most, left: usize::MAX }
    }

    /// Returns the lower one, but under pressure not less than an eighth of what was set.
    pub(crate) fn in_force(self) -> usize {
        self.left.clamp((self.most / 8).max(SMALLEST_PAGE), self.most)
    }

    /// Sets what the program wants: one page or more.
    pub(crate) fn set(&mut self, most: usize) {
        self.most = most;
    }

    /// Lowers the budget by an eighth, since memory is short.
    pub(crate) fn lower(&mut self) {
        let now = self.in_force();
        self.left = now - now / 8;
    }

    /// Raises the budget by a sixteenth of what was set, since memory was not short for a while.
    pub(crate) fn raise(&mut self) {
        let next = self.in_force() + self.most / 16;
        self.left = if next < self.most { next } else { usize::MAX };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_budget_falls_to_an_eighth_and_rises_to_what_was_set() {
        let mut budget = Budget::new(160 << 20);
        let falls = std::iter::repeat_with(|| {
            let before = budget.in_force();
            budget.lower();
            budget.in_force() < before
        });
        assert_eq!(falls.take_while(|&falls| falls).count(), 16);
        assert_eq!(budget.in_force(), 20 << 20, "not below an eighth");
        budget.raise();
        assert_eq!(budget.in_force(), 30 << 20);
        (0..20).for_each(|_| budget.raise());
        assert_eq!(budget.in_force(), 160 << 20, "not above what was set");
    }

    #[test]
    fn the_lower_of_what_was_set_and_what_pressure_leaves_is_in_force() {
        let mut budget = Budget::new(64 << 20);
        budget.lower();
        budget.set(16 << 20);
        assert_eq!(budget.in_force(), 16 << 20);
        budget.set(1 << 30);
        assert_eq!(budget.in_force(), 128 << 20, "an eighth, since 56 MiB are less");
        budget.set(64 << 20);
        assert_eq!(budget.in_force(), 56 << 20);
    }

    #[test]
    fn a_small_budget_stays_at_least_one_page() {
        for most in [SMALLEST_PAGE, 2 * SMALLEST_PAGE, 5 * SMALLEST_PAGE, 32 << 10] {
            let mut budget = Budget::new(most);
            (0..100).for_each(|_| budget.lower());
            assert_eq!(budget.in_force(), SMALLEST_PAGE, "of {most}");
        }
    }
}
