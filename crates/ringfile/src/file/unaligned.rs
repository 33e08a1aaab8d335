//! Direct reads that do not fit: exactly the bytes asked for, through aligned memory.
//!
//! What always holds: the blocks read are those that the range touches, each once; the memory they pass through is
//! the library's own small reserve, never the user's pool, which may be full.

use std::ops::Deref;

use super::io::Operation;
use super::{Alignment, File};
use crate::driver::{Ended, Kind, Multiples, Request};
use crate::error::Error;
use crate::memory::{Buffer, Held, reserve};

/// What one read into the reserve covers at most.
const CHUNK: usize = 256 << 10;

/// Whether offset, length and memory of an operation are the multiples that direct I/O needs.
#[inline]
pub(super) fn fits(request: &Request, held: &Held, direct: Multiples) -> bool {
    let is_read = request.kind.is_read();
    let (mask, memory_mask) = (direct.block as usize - 1, direct.memory as usize - 1);
    let fits = |ptr: *mut u8, len: usize| (ptr.addr() & memory_mask) | (len & mask) == 0;
    if request.offset as usize & mask != 0 {
        return false;
    }
    if held.count() == 1 {
        // What the request covers, which may be the aligned part of a buffer that is not.
        return held.part(0).is_some_and(|part| fits(part.ptr.wrapping_add(request.start), request.want));
    }
    held.parts().all(|part| fits(part.ptr, if is_read { part.capacity } else { part.len }))
}

/// Reads as `request` says, whatever its alignment.
pub(super) async fn read(
    file: impl Deref<Target = File>,
    request: Request,
    mut held: Held,
) -> (Held, Result<Ended, Error>) {
    let Alignment { bytes: block, memory } = file.alignment();
    let mut done = 0;
    while done < request.want {
        let at = request.offset + done as u64;
        let left = request.want - done;
        let body = match held.part(0) {
            Some(part)
                if held.count() == 1
                    && (part.ptr.addr() + done) % memory == 0
                    && at.is_multiple_of(block as u64) =>
            {
                left - left % block
            }
            _ => 0,
        };
        let (moved, asked, errno) = if body > 0 {
            let part = Request { kind: Kind::Read, offset: at, start: done, want: body, ..request };
            let mut read = Operation::new(&*file, part, held);
            let result = (&mut read).await;
            held = read.take_held();
            match result {
                Ok(ended) => (ended.done, body, ended.errno),
                Err(error) => {
                    held.copy_in(done, &[]);
                    return (held, Err(error.after(done)));
                }
            }
        } else {
            match through_the_reserve(&file, at, left, block).await {
                Ok((bounced, skipped, asked, errno)) => {
                    let got = &bounced[skipped.min(bounced.len())..];
                    let moved = got.len().min(asked);
                    held.copy_in(done, &got[..moved]);
                    (moved, asked, errno)
                }
                Err(error) => {
                    held.copy_in(done, &[]);
                    return (held, Err(error.after(done)));
                }
            }
        };
        done += moved;
        if errno != 0 || moved < asked {
            held.copy_in(done, &[]);
            return (held, Ok(Ended { done, errno }));
        }
    }
    (held, Ok(Ended { done, errno: 0 }))
}

/// Reads the blocks that the range begins with, or all of them. Gives them, where the range begins in them, how many
/// bytes of it they may hold, and the errno.
async fn through_the_reserve(
    file: &File,
    at: u64,
    left: usize,
    block: usize,
) -> Result<(Buffer, usize, usize, i32), Error> {
    let skipped = (at % block as u64) as usize;
    let most = CHUNK.max(block);
    let len = (skipped + left).next_multiple_of(block).min(most);
    let bounce = reserve().get_async(len).await?;
    let first = at - skipped as u64;
    let request =
        Request { kind: Kind::Read, op_flags: 0, offset: first, start: 0, want: len, linked: false };
    let mut read = Operation::new(file, request, Held::Pooled(bounce));
    let ended = (&mut read).await?;
    match read.take_held() {
        Held::Pooled(bounce) => Ok((bounce, skipped, left.min(len - skipped), ended.errno)),
        _ => Err(Error::new(std::io::ErrorKind::Other, "unaligned direct read")),
    }
}
