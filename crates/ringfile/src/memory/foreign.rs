//! The buffer traits of other runtimes, for `Buffer`, each behind a feature.
//!
//! Knows only buffers. Invariants: a buffer's memory belongs to its block and does not move with the buffer, as all of
//! these traits require; its whole capacity is initialised.

use super::buffer::Buffer;

#[cfg(feature = "compio-buf-08")]
mod compio {
    use std::mem::MaybeUninit;

    use compio_buf::{IoBuf, IoBufMut, ReserveError, SetLen};

    use super::Buffer;
    use crate::memory::PoolError;

    /// With the feature `compio-buf-08`: for compio 0.19. compio's own ring knows nothing of the pool's registration.
    impl IoBuf for Buffer {
        fn as_init(&self) -> &[u8] {
            self
        }
    }

    /// With the feature `compio-buf-08`: for compio 0.19.
    impl IoBufMut for Buffer {
        /// Returns the whole capacity. Do not write uninitialised bytes there, although this trait allows it: the
        /// buffer, and later buffers in the same memory, treat all of it as initialised.
        fn as_uninit(&mut self) -> &mut [MaybeUninit<u8>] {
            let (start, capacity) = (self.as_mut_ptr(), self.capacity());
            // SAFETY: all of the capacity is the buffer's own, which is borrowed for as long.
            unsafe { std::slice::from_raw_parts_mut(start.cast(), capacity) }
        }

        /// Makes the buffer [grow](Buffer#growing).
        fn reserve(&mut self, len: usize) -> Result<(), ReserveError> {
            self.try_reserve(len).map_err(|error| match error {
                PoolError::NoRoom { .. } => ReserveError::NotSupported,
                error => ReserveError::ReserveFailed(Box::new(error)),
            })
        }
    }

    /// With the feature `compio-buf-08`: for compio 0.19.
    impl SetLen for Buffer {
        unsafe fn set_len(&mut self, len: usize) {
            Buffer::set_len(self, len);
        }
    }
}

/// With the feature `monoio-02`: for monoio 0.2. Its own ring knows nothing of the pool's registration.
// SAFETY: see the module; `len` bytes from the start are initialised.
#[cfg(feature = "monoio-02")]
unsafe impl monoio::buf::IoBuf for Buffer {
    fn read_ptr(&self) -> *const u8 {
        self.as_ptr()
    }

    fn bytes_init(&self) -> usize {
        self.len()
    }
}

/// With the feature `monoio-02`: for monoio 0.2.
// SAFETY: see the module; all of the capacity is the buffer's own.
#[cfg(feature = "monoio-02")]
unsafe impl monoio::buf::IoBufMut for Buffer {
    fn write_ptr(&mut self) -> *mut u8 {
        self.as_mut_ptr()
    }

    fn bytes_total(&mut self) -> usize {
        self.capacity()
    }

    unsafe fn set_init(&mut self, pos: usize) {
        self.set_len(pos);
    }
}

/// With the feature `tokio-uring-05`: for tokio-uring 0.5. Its own ring knows nothing of the pool's registration.
// SAFETY: see the module; `len` bytes from the start are initialised.
#[cfg(feature = "tokio-uring-05")]
unsafe impl tokio_uring::buf::IoBuf for Buffer {
    fn stable_ptr(&self) -> *const u8 {
        self.as_ptr()
    }

    fn bytes_init(&self) -> usize {
        self.len()
    }

    fn bytes_total(&self) -> usize {
        self.capacity()
    }
}

/// With the feature `tokio-uring-05`: for tokio-uring 0.5.
// SAFETY: see the module; all of the capacity is the buffer's own.
#[cfg(feature = "tokio-uring-05")]
unsafe impl tokio_uring::buf::IoBufMut for Buffer {
    fn stable_mut_ptr(&mut self) -> *mut u8 {
        self.as_mut_ptr()
    }

    // This trait's length only grows.
    unsafe fn set_init(&mut self, pos: usize) {
        self.set_len(pos.max(self.len()));
    }
}
