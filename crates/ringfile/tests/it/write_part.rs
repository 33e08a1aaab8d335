//! Writes of a part of a buffer, which come back whole.

use std::io::ErrorKind;

use crate::support;
use crate::support::forms::routes;
use crate::support::fuse::{Act, Op, Server};
use crate::support::{Folder, assert_content, content, must_end, needs_registered_buffers, skip};
use bytes::Bytes;
use ringfile::{
    AnyBuffer, Batch, Buffer, Durability, File, OpenOptions, Pool, Queue, block_on, thread_metrics,
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
                true => file.write_durable_part_at(buffer, start..end, offset).await,
                false => file.write_part_at(buffer, start..end, offset).await,
            }
        };
        let written = match way {
            Way::Elsewhere => futures::executor::block_on(written),
            _ => block_on(written),
        };
        match written {
            Ok(buffer) => (Ok(end - start), buffer.into()),
            Err(failed) => {
                let (error, buffer) = failed.into_parts();
                (Err(error), buffer.into())
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
                true => batch.add(file.write_durable_part_at(buffer, start..end, offset)),
                false => batch.add(file.write_part_at(buffer, start..end, offset)),
            };
            let done = batch.run().remove(0);
            (done.result, done.buffer.unwrap())
        }
        (Way::Queue, buffer) => {
            let mut queue = Queue::new();
            let token = match durable {
                true => queue.add(file.write_durable_part_at(buffer, start..end, offset), 0),
                false => queue.add(file.write_part_at(buffer, start..end, offset), 0),
            };
            let done = queue.wait_by(token).unwrap();
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
                let file = options.durability(durability.unwrap_or_default()).open(&path);
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
    let file = OpenOptions::new().write(true).open(&path).unwrap();
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
    batch.add(file.write_part_at(vec![1, 2, 3, 4], ..2, 0));
    batch.add(file.write_part_at(vec![1, 2, 3, 4], 2.., 2));
    batch.add(file.write_part_at(vec![1, 2, 3, 4], 0..=3, 4));
    batch.add(file.write_part_at(vec![1, 2, 3, 4], .., 8));
    batch.add(file.write_part_at(vec![1, 2, 3, 4], 5.., 12));
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
            let file = OpenOptions::new().write(true).route(route).open(server.path()).unwrap();
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
    let file = support::ring_options().write(true).open(&path).unwrap();
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
    let Ok(file) = OpenOptions::new().write(true).direct(true).open(&path) else {
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
