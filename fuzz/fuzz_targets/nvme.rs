//! What an NVMe drive says: pages of Identify, and answers to commands.

#![no_main]

use libfuzzer_sys::fuzz_target;
use ringfile::fuzzing;

fuzz_target!(|input: (i32, &[u8])| {
    let (answer, bytes) = input;
    let mut page = [0; 4096];
    // Changes to few bytes reach all fields: the first half of a page is full of them, and the rest is the same again.
    let known = bytes.len().min(page.len());
    page[..known].copy_from_slice(&bytes[..known]);
    if let Ok((blocks, shift)) = fuzzing::namespace(&page) {
        assert!(blocks > 0 && (9..=16).contains(&shift));
        assert!(blocks.checked_mul(1 << shift).is_some(), "{blocks} blocks of 2^{shift} bytes");
    }
    assert!(fuzzing::most_in_a_command(&page) >= 4096);
    let (errno, text) = fuzzing::status(answer);
    assert!((1..4096).contains(&errno), "{errno}");
    assert!(!text.is_empty());
});
