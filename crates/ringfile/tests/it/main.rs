//! The tests that use the library as a program does. `support` is what they share.

#![allow(clippy::unwrap_used, reason = "a test panics on anything unexpected")]

mod adaptive;
mod aio;
mod append_ahead;
mod append_in_place;
mod append_interval;
mod append_tail;
mod append_truncate;
mod append_wakeups;
mod appender;
mod async_reads;
mod atomic;
mod batch;
mod batch_ends;
mod batch_random;
mod batch_started;
#[cfg(feature = "config")]
mod config;
mod copy_random;
mod copy_range;
mod documents;
mod durability;
mod every_way;
mod faults_batch;
mod faults_callers;
mod faults_cancel;
mod faults_close;
mod faults_coherence;
mod faults_descriptors;
mod faults_direct;
mod faults_elsewhere;
mod faults_ending;
mod faults_fork;
mod faults_forms;
mod faults_freed;
mod faults_full_pool;
mod faults_limits;
mod faults_memory;
mod faults_orders;
mod faults_process;
mod faults_refused;
mod faults_rights;
mod faults_room;
mod faults_route;
mod faults_sandbox;
mod faults_short;
mod faults_sync;
mod faults_threads;
mod frozen;
mod fs;
mod fs_changes;
mod growing;
#[cfg(feature = "tokio")]
mod in_tokio;
mod late_writes;
mod latencies;
mod leaving;
mod metrics;
mod model;
mod nvme;
mod panics;
#[cfg(feature = "config")]
mod passages;
mod queue;
mod queue_tokens;
mod read_dir;
mod read_many;
mod registration;
mod routes;
mod routes_agree;
mod runtime;
mod shared_queue;
#[cfg(feature = "sim")]
mod sim;
#[cfg(feature = "sim")]
mod sim_kinds;
#[cfg(feature = "sim")]
mod sim_log;
#[cfg(feature = "sim")]
mod sim_model;
#[cfg(feature = "sim")]
mod sim_promises;
#[cfg(feature = "sim")]
mod sim_reports;
#[cfg(feature = "sim")]
mod sim_results;
#[cfg(all(feature = "config", feature = "sim"))]
mod sim_time;
#[cfg(feature = "sim")]
mod sim_traces;
mod soak;
mod stress;
mod support;
mod uncached;
mod unseekable;
mod write_part;
