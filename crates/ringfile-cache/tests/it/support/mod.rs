//! Pages that say what they should hold, and random numbers.

#[path = "../../../../ringfile/tests/it/support/filters.rs"]
#[allow(dead_code, reason = "shared with the tests of the library")]
pub mod filters;
#[path = "../../../../ringfile/tests/it/support/forks.rs"]
#[allow(dead_code, reason = "as above")]
mod forks;
#[path = "../../../../ringfile/tests/it/support/hugetlb.rs"]
pub mod hugetlb;
#[path = "../../../../ringfile/tests/it/support/patience.rs"]
mod patience;
#[path = "../../../../ringfile/tests/it/support/process.rs"]
#[allow(dead_code, reason = "as above")]
mod process;
#[path = "../../../../ringfile/tests/it/support/random.rs"]
#[allow(dead_code, reason = "as above")]
mod random;
#[cfg(feature = "sim")]
#[path = "../../../../ringfile/tests/it/support/seeds.rs"]
pub mod seeds;
#[path = "../../../../ringfile/tests/it/support/skip.rs"]
mod skip;
#[path = "../../../../ringfile/tests/it/support/threads.rs"]
#[allow(dead_code, reason = "as above")]
pub mod threads;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

pub use forks::{assert_passed, fork};
pub use patience::patience;
pub use process::in_child;
pub use random::Random;
pub use skip::skip;

pub const PAGE: usize = 4096;

/// What is known of one page, which only one thread writes: each write puts a higher version into all of the page.
#[derive(Default)]
pub struct Known {
    /// The last version whose write has returned without an error.
    returned: AtomicU64,
    /// The last version whose write was begun.
    begun: AtomicU64,
    /// The last write failed, so parts of it may be in the file.
    is_torn: AtomicBool,
}

impl Known {
    /// Returns the next version, and what to write.
    pub fn begin(&self, page: u64) -> (u64, Vec<u8>) {
        let version = self.begun.load(Ordering::Relaxed) + 1;
        self.is_torn.store(true, Ordering::SeqCst);
        self.begun.store(version, Ordering::SeqCst);
        (version, bytes(page, version))
    }

    pub fn end(&self, version: u64, is_written: bool) {
        if is_written {
            self.returned.store(version, Ordering::SeqCst);
            self.is_torn.store(false, Ordering::SeqCst);
        }
    }

    /// Returns what a read that begins now must not be older than.
    pub fn at_least(&self) -> u64 {
        self.returned.load(Ordering::SeqCst)
    }

    /// Checks what a read has returned that began when `at_least` was known. A page whose last write has failed may be a mix;
    /// while a write is in flight, it may not.
    pub fn check(&self, page: u64, at_least: u64, found: &[u8], may_be_torn: bool) {
        assert_eq!(found.len(), PAGE, "page {page}");
        let words: Vec<u64> =
            found.chunks(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect();
        let most = self.begun.load(Ordering::SeqCst);
        for &word in &words {
            assert_eq!(word >> 40, page, "the bytes of another page");
            let version = word & ((1 << 40) - 1);
            assert!(
                (at_least..=most).contains(&version),
                "page {page}: {version} is not in {at_least}..={most}"
            );
        }
        assert!(may_be_torn || words.iter().all(|word| *word == words[0]), "page {page} is a mix");
    }

    #[cfg(feature = "sim")]
    pub fn is_torn(&self) -> bool {
        self.is_torn.load(Ordering::SeqCst)
    }
}

/// Returns the content of a page.
pub fn bytes(page: u64, version: u64) -> Vec<u8> {
    (page << 40 | version).to_le_bytes().repeat(PAGE / 8)
}
