//! Uses the interface as a C program does, from Rust, and checks bytes, counts and errors. Programs in C are in
//! `examples/`.

#![allow(clippy::unwrap_used, reason = "a test panics on anything unexpected")]

mod allocations;
mod appends;
mod caches;
mod cancelled;
mod ending;
mod forks;
mod header;
#[path = "../../ringfile/tests/it/support/hugetlb.rs"]
mod hugetlb;
mod kinds;
mod logs;
mod misuse;
mod operations;
mod ops;
mod paths;
mod queues;
mod started;

use std::ffi::{CStr, CString, c_void};
use std::path::Path;
use std::ptr;

use crate::error::ringfile_last_error;
use crate::file::{self, ringfile_file, ringfile_open, ringfile_open_options};
use crate::pool::{ringfile_pool, ringfile_pool_create, ringfile_pool_options};

const PAGE: usize = 4096;

fn said() -> String {
    // SAFETY: a NUL-terminated string, of this thread.
    unsafe { CStr::from_ptr(ringfile_last_error()) }.to_str().unwrap().to_owned()
}

fn well(result: impl Into<i64>) -> i64 {
    let result = result.into();
    assert!(result >= 0, "{result}: {}", said());
    result
}

fn fails(result: impl Into<i64>, errno: i32, text: &str) {
    let result = result.into();
    assert_eq!(result, -i64::from(errno), "{}", said());
    assert!(said().contains(text), "{:?} in {:?}", text, said());
}

/// Returns pages in which each byte is the page's number.
fn content(pages: usize) -> Vec<u8> {
    (0..pages * PAGE).map(|at| (at / PAGE) as u8).collect()
}

fn is_page(data: &[u8], page: usize) -> bool {
    data.len() == PAGE && data.iter().all(|&byte| byte == page as u8)
}

fn options(flags: u32, route: u32) -> ringfile_open_options {
    ringfile_open_options {
        size: size_of::<ringfile_open_options>(),
        flags,
        mode: 0,
        custom_flags: 0,
        route,
        durability: 0,
        reserved: 0,
    }
}

/// Returns the ring, or the default route if the environment switches the ring off.
fn ring() -> u32 {
    match std::env::var_os("RINGFILE_DISABLE") {
        None => file::RINGFILE_ROUTE_RING,
        Some(_) => file::RINGFILE_ROUTE_AUTO,
    }
}

fn open(path: &Path, flags: u32, route: u32) -> *mut ringfile_file {
    let path = CString::new(path.to_str().unwrap()).unwrap();
    let mut file = ptr::null_mut();
    // SAFETY: the pointers are to local values.
    well(unsafe { ringfile_open(path.as_ptr(), &options(flags, route), &mut file) });
    file
}

fn pool(capacity: usize) -> *mut ringfile_pool {
    let options = ringfile_pool_options { capacity, ..pool_options() };
    let mut pool = ptr::null_mut();
    // SAFETY: the pointers are to local values.
    well(unsafe { ringfile_pool_create(&options, &mut pool) });
    pool
}

fn pool_options() -> ringfile_pool_options {
    ringfile_pool_options {
        size: size_of::<ringfile_pool_options>(),
        capacity: 1 << 20,
        alignment: 0,
        huge_pages: 0,
        when_full: 0,
        outside_limit: 0,
        unregistered: 0,
        dont_fork: 0,
    }
}

/// Runs a test again in its own process, with this environment. Returns true there, and false here once it has passed.
fn apart(name: &str, environment: &[(&str, &str)]) -> bool {
    const APART: &str = "RINGFILE_TEST_APART";
    if std::env::var_os(APART).is_some_and(|apart| apart == name) {
        return true;
    }
    let mut again = std::process::Command::new(std::env::current_exe().unwrap());
    again.args([name, "--exact", "--nocapture"]).env(APART, name).envs(environment.iter().copied());
    let output = again.output().unwrap();
    let told = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && told.contains("1 passed"), "{told}");
    false
}

fn place(memory: &mut [u8], offset: usize) -> *mut c_void {
    memory[offset..].as_mut_ptr().cast()
}
