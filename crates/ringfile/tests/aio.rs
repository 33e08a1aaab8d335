//! Linux AIO: direct I/O where io_uring can't be had, or where the route says so.

#![allow(clippy::unwrap_used, reason = "these are tests")]

mod support;

use ringfile::{File, OpenOptions, Pool, Route, block_on, thread_metrics};
use support::forms::{READING, WRITING};
use support::{Folder, all, assert_content, content};

const PAGE: usize = 4096;

#[test]
fn f45_reads_in_every_form() {
    let folder = Folder::new();
    let path = folder.file("data", &content(0, 64 * PAGE));
    let pool = Pool::new(1 << 20);
    let file = OpenOptions::new().read(true).write(true).direct(true).route(Route::Aio).open(&path).unwrap();
    for form in READING {
        let reads = (0..64).map(|page| (pool.get(PAGE).unwrap(), page * PAGE as u64)).collect();
        for (page, (buffer, error)) in form.read(&file, reads).into_iter().enumerate() {
            assert!(error.is_none(), "{form:?}: {}", error.unwrap());
            assert_eq!(buffer.len(), PAGE);
            assert_content(&buffer, (page * PAGE) as u64);
        }
    }
    println!("{:?}", ringfile::metrics());
}
