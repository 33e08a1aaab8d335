//! Reading and writing through pointers that come from C.
//!
//! Invariants: a null pointer is an error; the header documents what any other pointer must point to, and the functions
//! here access no more than that.

use std::ffi::{CStr, OsStr, c_char};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::error::{Fault, Result};

/// A struct in the header that begins with its size, and for which all zeros is a value.
///
/// # Safety
/// The type is `repr(C)` and consists of integers only, with a `size_t` first.
pub(crate) unsafe trait Growing: Copy {}

/// Returns the struct as this version knows it. The caller's struct may be shorter or longer, since it comes from the
/// caller's version of the header. A null pointer means the defaults.
///
/// # Safety
/// A pointer that is not null points to a struct whose first field contains its size.
pub(crate) unsafe fn options<T: Growing>(from: *const T, what: &str) -> Result<T> {
    // SAFETY: the struct consists of integers, for which zero is a valid value.
    let mut known: T = unsafe { std::mem::zeroed() };
    if from.is_null() {
        return Ok(known);
    }
    // SAFETY: the size is readable, by this function's contract.
    let given = unsafe { from.cast::<usize>().read() };
    if !(size_of::<usize>()..=4096).contains(&given) {
        return Err(Fault::invalid(format!("the size of {what} is {given}: set its field `size` to sizeof")));
    }
    let own = size_of::<T>();
    // SAFETY: the caller's struct has that many bytes, by its size field, and they fit here.
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
    // SAFETY: by this function's contract.
    let room = unsafe { room(to, what) }?;
    let size = size_of::<usize>();
    let len = room.min(size_of::<T>()) - size;
    // SAFETY: the bytes follow the size, and lie within both structs.
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
    // SAFETY: the size is readable, by this function's contract.
    let room = unsafe { to.cast::<usize>().read() };
    if !(size_of::<usize>()..=4096).contains(&room) {
        return Err(Fault::invalid(format!("the size of {what} is {room}: set its field `size` to sizeof")));
    }
    Ok(room)
}

/// Writes a result to the caller's memory.
///
/// # Safety
/// A pointer that is not null may be written to.
pub(crate) unsafe fn put<T>(to: *mut T, value: T, what: &str) -> Result<()> {
    if to.is_null() {
        return Err(Fault::null(what));
    }
    // SAFETY: it may be written to, by this function's contract.
    unsafe { to.write(value) };
    Ok(())
}

/// Returns a path, or an error for a null pointer.
///
/// # Safety
/// A pointer that is not null points to a NUL-terminated string and stays for as long as the path is used.
pub(crate) unsafe fn path<'a>(text: *const c_char) -> Result<&'a Path> {
    if text.is_null() {
        return Err(Fault::null("the path"));
    }
    // SAFETY: it is a NUL-terminated string, by this function's contract.
    let text = unsafe { CStr::from_ptr(text) };
    Ok(Path::new(OsStr::from_bytes(text.to_bytes())))
}

/// Returns an array to read. A null pointer stands for an empty array.
///
/// # Safety
/// `count` elements are valid, and stay unchanged while they are used.
pub(crate) unsafe fn array<'a, T>(from: *const T, count: usize, what: &str) -> Result<&'a [T]> {
    check(from, count, what)?;
    // SAFETY: by this function's contract; for none, any aligned pointer will do.
    Ok(if count == 0 { &[] } else { unsafe { std::slice::from_raw_parts(from, count) } })
}

/// Returns an array to write to. A null pointer stands for an empty array.
///
/// # Safety
/// `count` elements are valid, and nothing else accesses them while they are used.
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
