//! Writes of a part of a buffer, and reads into one; the whole buffer comes back.

use std::io::ErrorKind;
use std::ops::Bound;

use crate::support;
use crate::support::forms::routes;
use crate::support::fuse::{Act, Op, Server};
use crate::support::{Folder, assert_content, content, must_end, needs_registered_buffers, skip};
use bytes::Bytes;
use ringfile::buf::Slice;
use ringfile::{
    AnyBuffer, Batch, BufError, Buffer, Durability, File, IoBuf, OpenOptions, Pool, Queue, block_on,
    thread_metrics,
};

const PAGE: usize = 4096;
const LEN: usize = 3 * PAGE;

#[derive(Clone, Copy, Debug)]
enum Way {
    Future,
    Elsewhere,
    Batch,
    Queue,
}

const WAYS: [Way; 4] = [Way::Future, Way::Elsewhere, Way::Batch, Way::Queue];

/// Returns the result and the buffer.
fn write(
    way: Way,
    file: &File,
    durable: bool,
    buffer: AnyBuffer,
    (start, end): (usize, usize),
    offset: u64,
) -> (ringfile::Result<usize>, AnyBuffer) {
    fn awaited<B: ringfile::IoBuf + Into<AnyBuffer>>(
        way: Way,
        file: &File,
        durable: bool,
        buffer: B,
        (start, end): (usize, usize),
        offset: u64,
    ) -> (ringfile::Result<usize>, AnyBuffer) {
        let written = async {
            match durable {
                true => file.write_durable_at(buffer.slice(start..end), offset).await,
                false => file.write_at(buffer.slice(start..end), offset).await,
            }
        };
        let written = match way {
            Way::Elsewhere => futures::executor::block_on(written),
            _ => block_on(written),
        };
        match written {
            Ok(part) => (Ok(part.len()), part.into_inner().into()),
            Err(failed) => {
                let (error, part) = failed.into_parts();
                (Err(error), part.into_inner().into())
            }
        }
    }
    match (way, buffer) {
        (Way::Future | Way::Elsewhere, AnyBuffer::Pooled(buffer)) => {
            awaited(way, file, durable, buffer, (start, end), offset)
        }
        (Way::Future | Way::Elsewhere, AnyBuffer::Vec(buffer)) => {
            awaited(way, file, durable, buffer, (start, end), offset)
        }
        (Way::Future | Way::Elsewhere, AnyBuffer::Bytes(buffer)) => {
            awaited(way, file, durable, buffer, (start, end), offset)
        }
        (Way::Batch, buffer) => {
            let mut batch = Batch::new();
            match durable {
                true => batch.add(file.write_durable_at(buffer.slice(start..end), offset)),
                false => batch.add(file.write_at(buffer.slice(start..end), offset)),
            };
            let done = batch.run().remove(0);
            (done.result, done.buffer.unwrap())
        }
        (Way::Queue, buffer) => {
            let mut queue = Queue::new();
            let token = match durable {
                true => queue.add(file.write_durable_at(buffer.slice(start..end), offset), 0),
                false => queue.add(file.write_at(buffer.slice(start..end), offset), 0),
            };
            let done = queue.wait_for(token).unwrap();
            (done.result, done.buffer.unwrap())
        }
        (_, other) => panic!("{other:?}"),
    }
}

fn pooled(pool: &Pool) -> Buffer {
    let mut buffer = pool.get(LEN).unwrap();
    buffer.extend_from_slice(&content(0, LEN));
    buffer
}

#[test]
fn a_part_is_written_and_the_whole_buffer_comes_back() {
    let folder = Folder::new();
    let pool = Pool::new(16 << 20);
    for route in routes() {
        for durability in [None, Some(Durability::Dsync), Some(Durability::Fsync)] {
            for direct in [false, true] {
                let path = folder.path().join("data");
                let mut options = OpenOptions::new();
                options.write(true).create(true).truncate(true).route(route).direct(direct);
                let file = options.durability(durability.unwrap_or_default()).open_blocking(&path);
                let Ok(file) = file else {
                    skip("a_part_is_written_and_the_whole_buffer_comes_back", "no direct I/O here");
                    continue;
                };
                for way in WAYS {
                    let frozen: Bytes = pooled(&pool).freeze();
                    let buffers = [AnyBuffer::from(pooled(&pool)), content(0, LEN).into(), frozen.into()];
                    // Memory of a vector need not be aligned.
                    let count = if direct { 1 } else { 3 };
                    for buffer in buffers.into_iter().take(count) {
                        std::fs::write(&path, vec![0xee; LEN]).unwrap();
                        let address = buffer.as_ptr();
                        let (start, end) = if direct { (PAGE, 2 * PAGE) } else { (PAGE - 7, 2 * PAGE + 100) };
                        let part = (start, end);
                        let (result, buffer) =
                            write(way, &file, durability.is_some(), buffer, part, start as u64);
                        let how = format!("{route:?}, {durability:?}, {direct}, {way:?}");
                        assert_eq!(result.unwrap(), end - start, "{how}");
                        assert_eq!(
                            (buffer.as_ptr(), buffer.len()),
                            (address, LEN),
                            "{how}: the whole buffer"
                        );
                        assert_content(&buffer, 0);
                        let written = std::fs::read(&path).unwrap();
                        assert!(
                            written[..start].iter().chain(&written[end..]).all(|&byte| byte == 0xee),
                            "{how}"
                        );
                        assert_content(&written[start..end], start as u64);
                    }
                }
            }
        }
    }
}

#[test]
fn a_part_beyond_the_buffer_is_an_error_that_names_both() {
    let folder = Folder::new();
    let path = folder.file("data", &[7; PAGE]);
    let file = OpenOptions::new().write(true).open_blocking(&path).unwrap();
    let pool = Pool::new(16 << 20);
    let parts = [
        ((PAGE, LEN + 1), "4096..12289 does not lie within the buffer's 12288 bytes"),
        ((LEN + 1, LEN + 1), "12289..12289 does not lie within the buffer's 12288 bytes"),
        ((0, usize::MAX), "does not lie within the buffer's 12288 bytes"),
        ((usize::MAX, usize::MAX), "does not lie within the buffer's 12288 bytes"),
        ((5, 4), "ends before it starts, at byte 5 of the buffer's 12288"),
    ];
    for way in WAYS {
        for (part, text) in parts {
            for durable in [false, true] {
                let (result, buffer) = write(way, &file, durable, pooled(&pool).into(), part, 0);
                let error = result.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::InvalidInput, "{way:?}, {part:?}: {error}");
                assert!(error.to_string().contains(text), "{way:?}, {part:?}: {error}");
                assert_content(&buffer, 0);
                assert_eq!(buffer.len(), LEN);
            }
        }
        // The capacity behind the length is no part of it.
        let mut short = pool.get(LEN).unwrap();
        short.extend_from_slice(&[1; 100]);
        assert!(write(way, &file, false, short.into(), (50, 101), 0).0.is_err(), "{way:?}");
        // An empty part is an empty write.
        assert_eq!(write(way, &file, false, vec![1; 100].into(), (100, 100), 0).0.unwrap(), 0, "{way:?}");
    }
    assert_eq!(std::fs::read(&path).unwrap(), [7; PAGE], "nothing was written");
    // Bounds of other forms.
    let mut batch = Batch::new();
    batch.add(file.write_at(vec![1, 2, 3, 4].slice(..2), 0));
    batch.add(file.write_at(vec![1, 2, 3, 4].slice(2..), 2));
    batch.add(file.write_at(vec![1, 2, 3, 4].slice(0..=3), 4));
    batch.add(file.write_at(vec![1, 2, 3, 4].slice(..), 8));
    batch.add(file.write_at(vec![1, 2, 3, 4].slice(5..), 12));
    let results: Vec<_> =
        batch.run().into_iter().map(|done| done.result.map_err(|error| error.kind())).collect();
    assert_eq!(results, [Ok(2), Ok(2), Ok(4), Ok(4), Err(ErrorKind::InvalidInput)]);
    assert_eq!(std::fs::read(&path).unwrap()[..13], [1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3, 4, 7]);
}

#[test]
fn a_short_write_of_a_part_continues_inside_it() {
    for route in routes() {
        for way in WAYS {
            let Some(server) = Server::blocking_or_skip("a_short_write_of_a_part", vec![0xee; LEN]) else {
                return;
            };
            let file = OpenOptions::new().write(true).route(route).open_blocking(server.path()).unwrap();
            server.rule(Op::Write, 0..u64::MAX, 2, Act::Short(1000));
            let part = (100, 2 * PAGE + 100);
            let (result, buffer) = must_end("a write of a part", move || {
                write(way, &file, false, content(0, LEN).into(), part, 100)
            });
            assert_eq!(result.unwrap(), 2 * PAGE, "{way:?}, {route:?}");
            assert_content(&buffer, 0);
            let written = server.data();
            assert_content(&written[100..2 * PAGE + 100], 100);
            assert!(written[2 * PAGE + 100..].iter().all(|&byte| byte == 0xee), "{way:?}, {route:?}");
        }
    }
}

#[test]
fn a_part_of_a_pools_buffer_is_written_in_the_fixed_form() {
    let name = "a_part_of_a_pools_buffer_is_written_in_the_fixed_form";
    if !support::needs_ring(name) || !needs_registered_buffers(name) {
        return;
    }
    let folder = Folder::new();
    let path = folder.file("data", &[0; LEN]);
    let file = support::ring_options().write(true).open_blocking(&path).unwrap();
    let pool = Pool::new(16 << 20);
    let before = thread_metrics();
    for way in [Way::Future, Way::Batch, Way::Queue] {
        write(way, &file, false, pooled(&pool).into(), (PAGE, 2 * PAGE), 0).0.unwrap();
    }
    let counts = thread_metrics() - before;
    assert_eq!((counts.ops, counts.fixed_ops), (3, 3));
}

#[test]
fn a_direct_write_names_the_multiple_at_which_a_part_must_start() {
    let folder = Folder::new();
    let path = folder.file("data", &[0; LEN]);
    let Ok(file) = OpenOptions::new().write(true).direct(true).open_blocking(&path) else {
        return skip("a_direct_write_names_the_multiple_at_which_a_part_must_start", "no direct I/O here");
    };
    let memory = file.alignment().memory;
    for way in WAYS {
        let (result, _) = write(way, &file, false, pooled(&Pool::new(16 << 20)).into(), (1, PAGE + 1), 0);
        let error = result.unwrap_err();
        let text = format!("a part must start at a multiple of {memory} bytes");
        assert!(
            error.kind() == ErrorKind::InvalidInput && error.to_string().contains(&text),
            "{way:?}: {error}"
        );
    }
}

/// Reads into a part of a buffer that has as much content as `before`. Returns the result, the whole buffer and the length of
/// the part.
fn read(
    way: Way,
    file: &File,
    before: usize,
    buffer: AnyBuffer,
    part: (Bound<usize>, Bound<usize>),
    offset: u64,
) -> (ringfile::Result<usize>, AnyBuffer) {
    let mut buffer = buffer;
    match &mut buffer {
        AnyBuffer::Pooled(buffer) => buffer.resize(before, 0xee),
        AnyBuffer::Vec(vec) => vec.resize(before, 0xee),
        other => panic!("{other:?}"),
    }
    let read = file.read_at(buffer.slice(part), offset);
    let awaited = |read: Result<Slice<AnyBuffer>, BufError<Slice<AnyBuffer>>>| match read {
        Ok(part) => (Ok(part.len()), part.into_inner()),
        Err(failed) => {
            let (error, part) = failed.into_parts();
            (Err(error), part.into_inner())
        }
    };
    let done = match way {
        Way::Future => return awaited(block_on(read)),
        Way::Elsewhere => return awaited(futures::executor::block_on(read)),
        Way::Batch => {
            let mut batch = Batch::new();
            batch.add(read);
            batch.run().remove(0)
        }
        Way::Queue => {
            let mut queue = Queue::new();
            let token = queue.add(read, 0);
            queue.wait_for(token).unwrap()
        }
    };
    (done.result, done.buffer.unwrap())
}

#[test]
fn a_part_is_read_into_behind_what_the_buffer_has() {
    let folder = Folder::new();
    let path = folder.file("data", &content(0, LEN));
    let pool = Pool::new(16 << 20);
    for route in routes() {
        for direct in [false, true] {
            let mut options = OpenOptions::new();
            let Ok(file) = options.read(true).route(route).direct(direct).open_blocking(&path) else {
                skip("a_part_is_read_into_behind_what_the_buffer_has", "no direct I/O here");
                continue;
            };
            // The start and end of the part, the offset in the file, and how many bytes are read: all, up to the end of the
            // part, up to the end of the file, with and without alignment.
            let cases = [
                (0, None, 0, LEN),
                (PAGE, None, 0, 2 * PAGE),
                (PAGE, Some(2 * PAGE), PAGE, PAGE),
                (PAGE, None, 2 * PAGE, PAGE),
                (100, Some(PAGE), 7, PAGE - 100),
                (PAGE, None, LEN, 0),
                (PAGE, Some(PAGE), 0, 0),
            ];
            for (start, end, offset, len) in cases {
                for way in WAYS {
                    for pooled in [true, false] {
                        let how =
                            format!("{route:?}, {direct}, {way:?}, {pooled}: {start}..{end:?} at {offset}");
                        let buffer = match pooled {
                            true => AnyBuffer::from(pool.get(LEN).unwrap()),
                            false => Vec::with_capacity(LEN).into(),
                        };
                        let address = buffer.as_ptr();
                        let part = (Bound::Included(start), end.map_or(Bound::Unbounded, Bound::Excluded));
                        let (result, buffer) = read(way, &file, start, buffer, part, offset as u64);
                        assert_eq!(result.unwrap(), len, "{how}");
                        assert_eq!((buffer.as_ptr(), buffer.len()), (address, start + len), "{how}");
                        assert!(buffer[..start].iter().all(|&byte| byte == 0xee), "{how}");
                        assert_content(&buffer[start..], offset as u64);
                    }
                }
            }
        }
    }
}

#[test]
fn a_part_to_read_into_begins_within_the_content_and_ends_within_the_capacity() {
    let folder = Folder::new();
    let path = folder.file("data", &content(0, LEN));
    let file = File::open_blocking(&path).unwrap();
    let pool = Pool::new(16 << 20);
    for way in WAYS {
        for (start, end, text) in [
            (PAGE + 1, LEN, "the part starts at byte 4097, behind the 4096 bytes that the buffer has"),
            (PAGE, LEN + 1, "the part 4096..12289 does not lie within the buffer's 12288 bytes"),
            (5, 4, "the part ends before it starts, at byte 5 of the buffer's 12288"),
        ] {
            let part = (Bound::Included(start), Bound::Excluded(end));
            let (result, _) = read(way, &file, PAGE, pool.get(LEN).unwrap().into(), part, 0);
            let error = result.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{way:?}: {error}");
            assert!(error.to_string().contains(text), "{way:?}: {error}");
        }
    }
}

#[test]
fn a_part_of_a_part_and_parts_of_memory_of_any_type_are_written_and_read_into() {
    let folder = Folder::new();
    let path = folder.file("data", &content(0, LEN));
    let file = OpenOptions::new().read(true).write(true).open_blocking(&path).unwrap();
    let fixed = || vec![0xee; 8].into_boxed_slice();
    block_on(async {
        let read = file.read_at(fixed().slice(2..4), 100).await.unwrap();
        assert_content(&read, 100);
        let all = read.into_inner();
        assert_eq!((all[1], all[4]), (0xee, 0xee));
        let nested = file.read_at(vec![0xee; 8].slice(2..6).slice(1..3), 100).await.unwrap();
        assert_content(&nested, 100);
        assert_eq!(nested.into_inner().into_inner(), [&[0xee; 3][..], &content(100, 2)].concat());
        assert!(file.read_at(vec![0xee; 8].slice(2..6).slice(1..5), 100).await.is_err());
        let parts = vec![vec![1, 2, 3].slice(1..), vec![4, 5, 6].slice(..2)];
        let parts = file.write_vectored_at(parts, 0).await.unwrap();
        assert_eq!((&parts[0][..], &parts[1][..]), (&[2, 3][..], &[4, 5][..]));
        assert_eq!(file.read_at(Vec::with_capacity(4), 0).await.unwrap(), [2, 3, 4, 5]);
        file.write_durable_at((&b"static"[..]).slice(..3), 0).await.unwrap();
        assert_eq!(file.read_at(Vec::with_capacity(4), 0).await.unwrap(), b"sta\x05");
    });
    // A result has the whole of it, whatever its type is.
    let mut batch = Batch::new();
    batch.add(file.read_at(fixed().slice(2..4), 100));
    let done = batch.run().remove(0).take::<Vec<u8>>().unwrap_err();
    let all = done.take::<Box<[u8]>>().unwrap();
    assert_eq!(all[2..4], content(100, 2));
}
