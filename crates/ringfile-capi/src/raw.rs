//! Reading and writing through pointers that come from C.
//!
//! Invariants: a null pointer is an error; for all others the header says what they must point to, and the functions
//! here access no more than that.

use std::ffi::{CStr, OsStr, c_char};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::error::{Fault, Result};

/// A struct of the header's that begins with its size, and for which all zeros is a value.
///
/// # Safety
/// `repr(C)`, of integers alone, with a `size_t` first.
pub(crate) unsafe trait Growing: Copy {}

/// The struct as this version knows it, from one that the caller's version of the header may have made shorter or longer.
/// Defaults where the pointer is null.
///
/// # Safety
/// A pointer that is not null points to a struct whose first field says how long it is.
pub(crate) unsafe fn options<T: Growing>(from: *const T, what: &str) -> Result<T> {
    // SAFETY: all zeros is a value of integers.
    let mut known: T = unsafe { std::mem::zeroed() };
    if from.is_null() {
        return Ok(known);
    }
    // SAFETY: the size is there, says the caller.
    let given = unsafe { from.cast::<usize>().read() };
    if !(size_of::<usize>()..=4096).contains(&given) {
        return Err(Fault::invalid(format!("the size of {what} is {given}: set its field `size` to sizeof")));
    }
    let own = size_of::<T>();
    // SAFETY: that many bytes are there, says the caller by their size, and fit.
    unsafe { from.cast::<u8>().copy_to_nonoverlapping((&raw mut known).cast(), given.min(own)) };
    for at in own..given {
        // SAFETY: within the caller's struct.
        if unsafe { from.cast::<u8>().add(at).read() } != 0 {
            return Err(Fault::new(
                libc::E2BIG,
                format!(
                    "{what} has fields that this version does not know: set them to 0, or use a newer library"
                ),
            ));
        }
    }
    Ok(known)
}

/// Writes as much of a struct as the caller's version of the header has room for.
///
/// # Safety
/// As [`options`]; the struct may be written.
pub(crate) unsafe fn give<T: Growing>(to: *mut T, known: &T, what: &str) -> Result<()> {
    // SAFETY: as the caller says.
    let room = unsafe { room(to, what) }?;
    let size = size_of::<usize>();
    let len = room.min(size_of::<T>()) - size;
    // SAFETY: behind the size, within both structs.
    unsafe {
        let from = std::ptr::from_ref(known).cast::<u8>().add(size);
        from.copy_to_nonoverlapping(to.cast::<u8>().add(size), len);
    }
    Ok(())
}

/// Returns the size that a struct has in the caller's version of the header, or an error if it is impossible.
///
/// # Safety
/// As [`options`].
pub(crate) unsafe fn room<T: Growing>(to: *const T, what: &str) -> Result<usize> {
    if to.is_null() {
        return Err(Fault::null(what));
    }
    // SAFETY: the size is there, says the caller.
    let room = unsafe { to.cast::<usize>().read() };
    if !(size_of::<usize>()..=4096).contains(&room) {
        return Err(Fault::invalid(format!("the size of {what} is {room}: set its field `size` to sizeof")));
    }
    Ok(room)
}

/// Puts a result where the caller wants it.
///
/// # Safety
/// A pointer that is not null may be written to.
pub(crate) unsafe fn put<T>(to: *mut T, value: T, what: &str) -> Result<()> {
    if to.is_null() {
        return Err(Fault::null(what));
    }
    // SAFETY: it may be written to, says the caller.
    unsafe { to.write(value) };
    Ok(())
}

/// Returns a path, or an error for a null pointer.
///
/// # Safety
/// A pointer that is not null points to a text that ends with 0 and stays for as long as the path is used.
pub(crate) unsafe fn path<'a>(text: *const c_char) -> Result<&'a Path> {
    if text.is_null() {
        return Err(Fault::null("the path"));
    }
    // SAFETY: a text that ends with 0, says the caller.
    let text = unsafe { CStr::from_ptr(text) };
    Ok(Path::new(OsStr::from_bytes(text.to_bytes())))
}

/// An array to read. Null is one without elements.
///
/// # Safety
/// `count` elements are there, and stay unchanged for as long as they are used.
pub(crate) unsafe fn array<'a, T>(from: *const T, count: usize, what: &str) -> Result<&'a [T]> {
    check(from, count, what)?;
    // SAFETY: as the caller says; for none, any aligned pointer will do.
    Ok(if count == 0 { &[] } else { unsafe { std::slice::from_raw_parts(from, count) } })
}

/// An array to write to. Null is one without elements.
///
/// # Safety
/// `count` elements are there, and nobody else uses them for as long.
pub(crate) unsafe fn array_mut<'a, T>(to: *mut T, count: usize, what: &str) -> Result<&'a mut [T]> {
    check(to, count, what)?;
    // SAFETY: as above.
    Ok(if count == 0 { &mut [] } else { unsafe { std::slice::from_raw_parts_mut(to, count) } })
}

fn check<T>(pointer: *const T, count: usize, what: &str) -> Result<()> {
    if pointer.is_null() && count > 0 {
        return Err(Fault::null(what));
    }
    if !pointer.is_aligned() || count > isize::MAX as usize / size_of::<T>().max(1) {
        return Err(Fault::invalid(format!(
            "{what} cannot be an array of {count} elements: it is too long or not \
            aligned"
        )));
    }
    Ok(())
}
