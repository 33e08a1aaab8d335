//! A process in which membarrier(2) is refused, as by a strict seccomp filter: pages are counted instead of held.

use std::io;

use ringfile::block_on;
use ringfile_cache::{Cache, Page};

use crate::support::{filters, in_child};

const PAGE: usize = 4096;

#[test]
fn pages_are_counted_where_no_barrier_may_be_used() -> io::Result<()> {
    // Threads of other tests hold pages.
    if !in_child("pages_are_counted_where_no_barrier_may_be_used") {
        return Ok(());
    }
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("file");
    std::fs::write(&path, (0..64).flat_map(|page| [page; PAGE]).collect::<Vec<u8>>())?;
    let pages = Cache::new(8 * PAGE)?.open(ringfile::File::open_blocking(path)?, PAGE)?;
    let run = || -> io::Result<()> {
        filters::deny(libc::SYS_membarrier, libc::EPERM);
        for round in 0..20_u64 {
            let kept: Vec<Page> = (0..3)
                .map(|at| {
                    let number = (round * 3 + at) % 64;
                    // It stays in memory while it is in use.
                    let _read = block_on(pages.read(number))?;
                    Ok(pages.get(number).expect("in memory"))
                })
                .collect::<io::Result<_>>()?;
            for number in 0..64 {
                assert_eq!(block_on(pages.read(number))?[PAGE - 1], number as u8);
            }
            for (page, at) in kept.iter().zip(0..) {
                assert!(page.iter().all(|&byte| u64::from(byte) == (round * 3 + at) % 64));
            }
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let threads = [scope.spawn(run), scope.spawn(run)];
        threads.into_iter().try_for_each(|thread| thread.join().expect("no panic"))
    })
}
