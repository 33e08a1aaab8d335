//! Stands in for the simulated disk where the feature `sim` is off: no thread runs a simulation, and no file is of one.

use std::future::Future;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::task::Waker;
use std::time::Instant;

use crate::driver::mail::shared::RemoteRequest;
use crate::driver::{Request, Target};
use crate::memory::IoMemory;

pub(crate) use std::convert::Infallible as OpenNumber;
pub(crate) use std::convert::Infallible as OpenRef;

pub(crate) fn number_of(file: &OpenRef) -> OpenNumber {
    *file
}

pub(crate) const fn is_here() -> bool {
    false
}

pub(crate) const fn is_in_another_runtime() -> bool {
    false
}

pub(crate) const fn open_path() -> Option<OpenRef> {
    None
}

#[allow(clippy::type_complexity, reason = "its caller takes it apart at once")]
pub(crate) const fn open_at_once(
    _: &[u8],
    _: i32,
    _: u32,
    _: bool,
) -> Option<Result<(OwnedFd, OpenRef), (i32, &'static str)>> {
    None
}

pub(crate) fn size(file: OpenNumber) -> Result<u64, i32> {
    match file {}
}

pub(crate) fn call(file: OpenNumber, _: &Request, _: &mut IoMemory, _: usize) -> Result<usize, i32> {
    match file {}
}

pub(crate) fn transfer(
    _: &Target,
    file: OpenNumber,
    _: &Request,
    _: usize,
    _: &[libc::iovec],
) -> Result<usize, i32> {
    match file {}
}

#[inline(always)]
pub(crate) fn take(remote: RemoteRequest) -> Result<(), RemoteRequest> {
    Err(remote)
}

pub(crate) fn spawn(_: Pin<Box<dyn Future<Output = ()>>>) {}

pub(crate) const fn now() -> Option<Instant> {
    None
}

pub(crate) fn wake_at(_: Instant, waker: Waker) -> Result<u64, Waker> {
    Err(waker)
}

pub(crate) const fn forget_timer(_: &(Instant, u64)) -> bool {
    false
}
