//! The tests that run the command as a user does, one folder for each command. `support` is what they share.

mod doctor;
mod perf_batches;
mod perf_buffers;
mod perf_file;
mod perf_pool;
mod report;
mod support;
