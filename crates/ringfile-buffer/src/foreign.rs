//! The buffer traits of other runtimes, for `Buffer`, each behind a feature.
//!
//! Knows only buffers. Invariants: a buffer's memory belongs to its block and does not move with the buffer, as all of
//! these traits require; its whole capacity is initialised, and stays so: no trait that lets safe code write
//! uninitialised bytes is implemented for `Buffer` itself.

use super::buffer::Buffer;

#[cfg(feature = "compio-buf-08")]
pub(super) mod compio {
    use std::mem::MaybeUninit;
    use std::ops::Deref;

    use compio_buf::{IntoInner, IoBuf, IoBufMut, ReserveError, SetLen};

    use super::Buffer;
    use crate::error::PoolError;

    /// With the feature `compio-buf-08`: for writes of compio 0.19. Reads need a [`CompioBuffer`]. compio's own ring
    /// knows nothing of the pool's registration.
    impl IoBuf for Buffer {
        fn as_init(&self) -> &[u8] {
            self
        }
    }

    /// A [`Buffer`] for reads of compio 0.19, with the feature `compio-buf-08`.
    ///
    /// Creating one is unsafe because compio's [`IoBufMut`] lets safe code write uninitialised bytes to a buffer,
    /// which cannot be detected afterwards, while all bytes of a `Buffer`, and of later ones in the same memory, are
    /// initialised.
    /// A `CompioBuffer` derefs to its `Buffer`; [`IntoInner::into_inner`] and `Buffer::from` return it.
    #[derive(Debug)]
    pub struct CompioBuffer(Buffer);

    impl CompioBuffer {
        /// Creates a buffer into which compio may read, from the start or, with `uninit()`, behind its content.
        ///
        /// # Safety
        /// No code may write uninitialised bytes (such as [`MaybeUninit::uninit`]) to what [`IoBufMut::as_uninit`] and
        /// [`IoBufMut::buf_mut_ptr`] return. Reads of files and sockets by compio itself do not.
        pub unsafe fn new(buffer: Buffer) -> Self {
            Self(buffer)
        }
    }

    impl From<CompioBuffer> for Buffer {
        fn from(buffer: CompioBuffer) -> Self {
            buffer.0
        }
    }

    impl IntoInner for CompioBuffer {
        type Inner = Buffer;

        fn into_inner(self) -> Buffer {
            self.0
        }
    }

    impl Deref for CompioBuffer {
        type Target = Buffer;

        fn deref(&self) -> &Buffer {
            &self.0
        }
    }

    impl IoBuf for CompioBuffer {
        fn as_init(&self) -> &[u8] {
            &self.0
        }
    }

    impl IoBufMut for CompioBuffer {
        /// Returns the whole capacity. Uninitialised bytes must not be written there: see [`CompioBuffer::new`].
        fn as_uninit(&mut self) -> &mut [MaybeUninit<u8>] {
            let (start, capacity) = (self.0.as_mut_ptr(), self.0.capacity());
            // SAFETY: all of the capacity belongs to the buffer, which is borrowed for as long. It stays initialised,
            // as the caller of `CompioBuffer::new` has promised.
            unsafe { std::slice::from_raw_parts_mut(start.cast(), capacity) }
        }

        /// Makes the buffer [grow](Buffer#growing).
        fn reserve(&mut self, len: usize) -> Result<(), ReserveError> {
            self.0.try_reserve(len).map_err(|error| match error {
                PoolError::NoRoom { .. } => ReserveError::NotSupported,
                error => ReserveError::ReserveFailed(Box::new(error)),
            })
        }
    }

    impl SetLen for CompioBuffer {
        unsafe fn set_len(&mut self, len: usize) {
            self.0.set_len(len);
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
// SAFETY: see the module; all of the capacity is the buffer's own. Only unsafe code can write through the pointer.
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
#[cfg(all(feature = "tokio-uring-05", target_os = "linux"))]
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
// SAFETY: see the module; all of the capacity is the buffer's own. Only unsafe code can write through the pointer.
#[cfg(all(feature = "tokio-uring-05", target_os = "linux"))]
unsafe impl tokio_uring::buf::IoBufMut for Buffer {
    fn stable_mut_ptr(&mut self) -> *mut u8 {
        self.as_mut_ptr()
    }

    // This trait's length only grows.
    unsafe fn set_init(&mut self, pos: usize) {
        self.set_len(pos.max(self.len()));
    }
}
