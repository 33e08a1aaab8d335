//! Atomic writes: on XFS, which supports them from one block on any device, and refused everywhere else.
//! `kernels/power-cuts` shows that a power cut leaves all or nothing.

use crate::support::handles::Handles as _;
use std::future::IntoFuture;
use std::io::ErrorKind;
use std::path::Path;

use crate::support::forms::routes;
use crate::support::mounts::Mount;
use crate::support::{Folder, assert_content, content, skip};
use ringfile::fs::AtomicLimits;
use ringfile::{Batch, Buffer, Error, File, OpenOptions, Pool, Queue, Route, block_on};

const KIB: usize = 1 << 10;
const MIB: u64 = 1 << 20;

/// The ways to make an atomic write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Form {
    Loop,
    Executor,
    Blocking,
    Awaited,
    Queue,
}

const FORMS: [Form; 5] = [Form::Loop, Form::Executor, Form::Blocking, Form::Awaited, Form::Queue];

impl Form {
    fn write(self, file: &File, buffer: Buffer, offset: u64) -> Result<(), Error> {
        let batch = |buffer| {
            let mut batch = Batch::new();
            batch.add(file.write_atomic_at(buffer, offset));
            batch
        };
        let done = match self {
            Self::Loop => return Ok(block_on(file.write_atomic_at(buffer, offset)).map(drop)?),
            Self::Executor => {
                return Ok(futures::executor::block_on(file.write_atomic_at(buffer, offset)).map(drop)?);
            }
            Self::Blocking => batch(buffer).run().pop().unwrap(),
            Self::Awaited => futures::executor::block_on(batch(buffer).into_future()).pop().unwrap(),
            Self::Queue => {
                let mut queue = Queue::new();
                queue.add(file.write_atomic_at(buffer, offset), 0);
                queue.end()
            }
        };
        done.result.map(drop)
    }
}

fn open(path: &Path, route: Route) -> File {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).direct(true).route(route).open_blocking(path).unwrap()
}

fn buffer(pool: &Pool, offset: u64, len: usize) -> Buffer {
    let mut buffer = pool.get(len).unwrap();
    buffer.extend_from_slice(&content(offset, len));
    buffer
}

/// Mounts an XFS whose files support atomic writes of 4 to 64 KiB; returns the limits too.
fn xfs(test: &str) -> Option<(Mount, AtomicLimits)> {
    let mount = Mount::on_loop(test, "xfs", 320 * MIB)?;
    let Some(limits) = open(&mount.path().join("probe"), Route::Auto).alignment().atomic else {
        skip(test, "this kernel's XFS takes no atomic writes (Linux 6.16 does)");
        return None;
    };
    if limits.min > 4 * KIB || limits.max < 64 * KIB {
        skip(test, format!("XFS takes {limits:?} only"));
        return None;
    }
    Some((mount, limits))
}

#[test]
fn atomic_writes_work_in_every_form_on_every_route() {
    let test = "atomic_writes_work_in_every_form_on_every_route";
    let Some((mount, limits)) = xfs(test) else { return };
    assert!(limits.segments >= 1 && limits.min.is_power_of_two() && limits.max.is_power_of_two());
    let pool = Pool::new(1 << 20);
    for route in routes() {
        let file = open(&mount.path().join(format!("{route:?}")), route);
        let mut offset = 0;
        for form in FORMS {
            for len in [4 * KIB, 16 * KIB, 64 * KIB, 4 * KIB] {
                offset = u64::next_multiple_of(offset, len as u64);
                let how = format!("{len} bytes at {offset}, {form:?}, {route:?}");
                // Twice: into a hole, and over existing data.
                for _ in 0..2 {
                    let buffer = buffer(&pool, offset, len);
                    form.write(&file, buffer, offset).unwrap_or_else(|error| panic!("{how}: {error}"));
                }
                assert_content(&block_on(file.read_at(pool.get(len).unwrap(), offset)).unwrap(), offset);
                offset += len as u64;
            }
        }
    }
}

#[test]
fn an_invalid_atomic_write_is_an_error_with_the_limits_and_writes_nothing() {
    let test = "an_invalid_atomic_write_is_an_error_with_the_limits_and_writes_nothing";
    let Some((mount, limits)) = xfs(test) else { return };
    let pool = Pool::new(64 << 20);
    for route in routes() {
        let path = mount.path().join(format!("{route:?}"));
        std::fs::write(&path, vec![0; 256 * KIB]).unwrap();
        let mut options = OpenOptions::new();
        options.read(true).write(true).direct(true).buffered_fallback(true).route(route);
        let file = options.open_blocking(&path).unwrap();
        let too_long = (2 * limits.max <= 16 << 20).then_some((2 * limits.max, 0));
        // Lengths that are not a power of two, an offset that is not a multiple, less than a block, less than a sector.
        let wrong = [(12 * KIB, 0), (24 * KIB, 0), (16 * KIB, 4 * KIB as u64), (512, 0), (100, 0)];
        for (len, offset) in wrong.into_iter().chain(too_long) {
            for form in FORMS {
                let how = format!("{len} bytes at {offset}, {form:?}, {route:?}");
                let failed = form.write(&file, buffer(&pool, 1, len), offset).expect_err(&how);
                assert_eq!(failed.kind(), ErrorKind::InvalidInput, "{how}: {failed}");
                let text = failed.to_string();
                for part in ["atomic write", "power of two", &limits.min.to_string(), &limits.max.to_string()]
                {
                    assert!(text.contains(part), "{how}: {text}");
                }
            }
        }
        assert!(file.is_direct(), "{route:?}: a refused atomic write must not make the file buffered");
        assert!(std::fs::read(&path).unwrap() == vec![0; 256 * KIB], "{route:?}: something was written");
    }
}

#[test]
fn without_atomic_writes_the_error_says_what_to_do() {
    let test = "without_atomic_writes_the_error_says_what_to_do";
    let pool = Pool::new(1 << 20);
    let refuses = |file: &File, part: &str| {
        assert_eq!(file.alignment().atomic, None);
        for form in FORMS {
            let failed = form.write(file, buffer(&pool, 0, 4 * KIB), 0).expect_err("it can't be atomic");
            assert_eq!(failed.kind(), ErrorKind::Unsupported, "{form:?}: {failed}");
            assert!(failed.to_string().contains(part), "{form:?}: {failed}");
            assert_eq!(file.size().unwrap(), 0, "{form:?}: something was written");
        }
    };
    let folder = Folder::new();
    for route in routes() {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(true).route(route);
        let file = options.open_blocking(folder.path().join("buffered")).unwrap();
        refuses(&file, "open with direct(true)");
        block_on(file.write_at(buffer(&pool, 0, 4 * KIB), 0)).unwrap();
        let uncached = options.dont_cache(true).open_blocking(folder.path().join("uncached")).unwrap();
        let was_uncached = uncached.is_uncached();
        refuses(&uncached, "open with direct(true)");
        assert_eq!(uncached.is_uncached(), was_uncached, "{route:?}: a flag of another operation is kept");
    }
    // A loop device over a file supports no atomic writes, so ext4 on it does not either.
    let Some(mount) = Mount::ext4(test, 32 * MIB) else { return };
    for route in routes() {
        let file = open(&mount.path().join(format!("{route:?}")), route);
        refuses(&file, "write a copy");
    }
}

#[test]
fn empty_atomic_writes_and_those_beyond_the_largest_offset_need_no_kernel() {
    let folder = Folder::new();
    let mut options = OpenOptions::new();
    let file = options.write(true).create(true).open_blocking(folder.path().join("file")).unwrap();
    assert!(block_on(file.write_atomic_at(Vec::new(), 0)).unwrap().is_empty());
    let failed = block_on(file.write_atomic_at(vec![0; 4096], u64::MAX - 4095)).unwrap_err();
    assert_eq!(failed.kind(), ErrorKind::InvalidInput);
}

#[test]
fn metadata_has_the_limits_of_atomic_writes() {
    let Some((mount, limits)) = xfs("metadata_has_the_limits_of_atomic_writes") else { return };
    let metadata = block_on(ringfile::fs::metadata(mount.path().join("probe"))).unwrap();
    assert_eq!(metadata.direct.unwrap().atomic, Some(limits));
}
