//! What the library makes of a drive's answers, for the fuzzer alone.

use super::identify::{Controller, Format, Page};
use super::status::Status;

/// Returns a namespace's blocks, and the size of one as a power of two.
///
/// # Errors
/// Why the format is not supported.
pub fn namespace(page: &Page) -> Result<(u64, u32), String> {
    Format::read(page).map(|Format { blocks, shift }| (blocks, shift))
}

/// Returns the most bytes that one command moves.
#[must_use]
pub fn most_in_a_command(page: &Page) -> usize {
    Controller::read(page).most
}

/// Returns what a drive's answer to a command means, as an errno and in words.
#[must_use]
pub fn status(answer: i32) -> (i32, String) {
    let status = Status::of_errno(Status::to_errno(answer));
    status.map_or((0, String::new()), |status| (status.errno(), status.to_string()))
}
