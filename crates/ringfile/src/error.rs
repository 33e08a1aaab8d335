//! Errors: the errno, what was being done to which file, and what to try.
//!
//! [`Error`] has no buffer; [`BufError`] also holds the buffer of the failed operation. Both convert to
//! [`std::io::Error`], and that converts to [`Error`], so `?` works in functions that return either.

use std::borrow::Cow;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use crate::memory::PoolError;

/// A result whose error is [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// The result of an operation with a buffer, which holds the buffer in either case.
pub type BufResult<B> = std::result::Result<B, BufError<B>>;

/// An I/O error with its context.
///
/// Keeps the operating system's errno, and says in one line what was being done, to which file, how much of it was done,
/// and what to try. Turns into [`std::io::Error`] of the same [kind](Error::kind), which holds it and whose
/// `raw_os_error` returns `None`. A [`std::io::Error`] turns into an `Error` of the same kind and errno, or into the one that it
/// holds.
///
/// ```
/// let error = ringfile::File::open_blocking("/no/such/file").unwrap_err();
/// assert_eq!(error.errno(), Some(libc::ENOENT));
/// assert!(error.to_string().contains("/no/such/file"));
///
/// // The errno of any error, which may be one of ringfile's.
/// fn errno(error: &std::io::Error) -> Option<i32> {
///     error.raw_os_error().or_else(|| error.get_ref()?.downcast_ref::<ringfile::Error>()?.errno())
/// }
/// assert_eq!(errno(&error.into()), Some(libc::ENOENT));
///
/// // `?` turns std's errors into it too.
/// fn content() -> ringfile::Result<Vec<u8>> {
///     Ok(std::fs::read("/no/such/file")?)
/// }
/// assert_eq!(content().unwrap_err().errno(), Some(libc::ENOENT));
/// ```
pub struct Error(
    /// `None` if there is no memory even for this: [`NO_MEMORY`].
    Option<Box<Details>>,
);

struct Details {
    kind: io::ErrorKind,
    errno: Option<i32>,
    what: Cow<'static, str>,
    path: Option<PathBuf>,
    offset: Option<u64>,
    done: usize,
    reason: Option<Cow<'static, str>>,
}

impl Details {
    const fn new(kind: io::ErrorKind, what: Cow<'static, str>, reason: Option<Cow<'static, str>>) -> Self {
        Self { kind, errno: None, what, path: None, offset: None, done: 0, reason }
    }
}

static NO_MEMORY: Details = Details::new(
    io::ErrorKind::OutOfMemory,
    Cow::Borrowed("adding an operation to a batch"),
    Some(Cow::Borrowed("there is no memory for that many; run several batches, one after another")),
);

impl Error {
    /// Returns the errno, if the error came from the operating system.
    #[must_use]
    pub fn errno(&self) -> Option<i32> {
        self.context().errno
    }

    /// Returns the kind of the error, as the standard library classifies it.
    #[must_use]
    pub fn kind(&self) -> io::ErrorKind {
        self.context().kind
    }

    /// Returns how many bytes were read or written before the error.
    #[must_use]
    pub fn done(&self) -> usize {
        self.context().done
    }

    /// Returns the path of the file, if it was opened by path.
    #[must_use]
    pub fn path(&self) -> Option<&Path> {
        self.context().path.as_deref()
    }

    /// Returns the offset of the operation in the file, in bytes.
    #[must_use]
    pub fn offset(&self) -> Option<u64> {
        self.context().offset
    }

    pub(crate) fn new(kind: io::ErrorKind, what: impl Into<Cow<'static, str>>) -> Self {
        Self(Some(Box::new(Details::new(kind, what.into(), None))))
    }

    /// Returns the error of an operation for which there was no memory. Allocates nothing.
    pub(crate) fn no_memory() -> Self {
        Self(None)
    }

    fn context(&self) -> &Details {
        self.0.as_deref().unwrap_or(&NO_MEMORY)
    }

    fn with(mut self, set: impl FnOnce(&mut Details)) -> Self {
        if let Some(context) = &mut self.0 {
            set(context);
        }
        self
    }

    pub(crate) fn from_errno(errno: i32, what: impl Into<Cow<'static, str>>) -> Self {
        let error = Self::new(io::Error::from_raw_os_error(errno).kind(), what);
        error.with(|context| context.errno = Some(errno))
    }

    pub(crate) fn from_io(error: &io::Error, what: impl Into<Cow<'static, str>>) -> Self {
        match error.raw_os_error() {
            Some(errno) => Self::from_errno(errno, what),
            None => Self::new(error.kind(), what).because(error.to_string()),
        }
    }

    pub(crate) fn of_kind(self, kind: io::ErrorKind) -> Self {
        self.with(|context| context.kind = kind)
    }

    pub(crate) fn on(self, path: Option<&Path>) -> Self {
        self.with(|context| context.path = path.map(Path::to_owned))
    }

    pub(crate) fn at(self, offset: u64) -> Self {
        self.with(|context| context.offset = Some(offset))
    }

    pub(crate) fn after(self, done: usize) -> Self {
        self.with(|context| context.done = done)
    }

    /// Adds the reason, and what to do about it.
    pub(crate) fn because(self, reason: impl Into<Cow<'static, str>>) -> Self {
        self.with(|context| context.reason = Some(reason.into()))
    }
}

impl fmt::Display for Details {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)?;
        // An error of std does not say what was being done.
        let mut colon = if self.what.is_empty() { "" } else { ": " };
        if let Some(offset) = self.offset {
            write!(f, " at offset {offset}")?;
        }
        if let Some(path) = &self.path {
            write!(f, " of {}", path.display())?;
        }
        if let Some(errno) = self.errno {
            write!(f, "{colon}{}", io::Error::from_raw_os_error(errno))?;
            colon = ": ";
        }
        if let Some(reason) = &self.reason {
            write!(f, "{colon}{reason}")?;
        }
        if self.done > 0 {
            write!(f, " (after {} bytes)", self.done)?;
        }
        Ok(())
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        OneLine(self.context()).fmt(f)
    }
}

/// Displays a text in one line: control characters, which the names of files may have, are escaped.
pub(crate) struct OneLine<T>(pub(crate) T);

impl<T: fmt::Display> fmt::Display for OneLine<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use fmt::Write;
        write!(Escaping(f), "{}", self.0)
    }
}

struct Escaping<'a, 'f>(&'a mut fmt::Formatter<'f>);

impl fmt::Write for Escaping<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        text.chars().try_for_each(|character| match character.is_control() {
            true => write!(self.0, "{}", character.escape_default()),
            false => self.0.write_char(character),
        })
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for Error {}

impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        io::Error::new(error.kind(), error)
    }
}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Self {
        error.downcast().unwrap_or_else(|error| Self::from_io(&error, ""))
    }
}

impl From<PoolError> for Error {
    fn from(error: PoolError) -> Self {
        let error = io::Error::from(error);
        Self::from_io(&error, "getting memory from the pool")
    }
}

/// The error of an operation with a buffer, together with the buffer.
///
/// Turns into [`Error`] or [`std::io::Error`] by `?`, which drops the buffer; [`into_parts`](Self::into_parts) keeps it.
///
/// ```
/// # fn main() -> std::io::Result<()> {
/// # let path = std::env::temp_dir().join(format!("ringfile-doc-buferror-{}", std::process::id()));
/// # std::fs::write(&path, b"short")?;
/// let file = ringfile::File::open_blocking(&path)?;
/// ringfile::block_on(async {
///     let failed = file.read_exact_at(Vec::with_capacity(64), 0).await.unwrap_err();
///     assert_eq!(failed.kind(), std::io::ErrorKind::UnexpectedEof);
///     assert_eq!(failed.done(), 5);
///     let (_error, buffer) = failed.into_parts();
///     assert_eq!(buffer.capacity(), 64);
/// });
/// # std::fs::remove_file(&path)
/// # }
/// ```
pub struct BufError<B> {
    error: Error,
    buffer: B,
}

impl<B> BufError<B> {
    pub(crate) fn new(error: Error, buffer: B) -> Self {
        Self { error, buffer }
    }

    /// Returns the error.
    #[must_use]
    pub fn error(&self) -> &Error {
        &self.error
    }

    /// Returns the errno, as [`Error::errno`] does.
    #[must_use]
    pub fn errno(&self) -> Option<i32> {
        self.error.errno()
    }

    /// Returns the kind of the error, as [`Error::kind`] does.
    #[must_use]
    pub fn kind(&self) -> io::ErrorKind {
        self.error.kind()
    }

    /// Returns how many bytes were read or written before the error.
    #[must_use]
    pub fn done(&self) -> usize {
        self.error.done()
    }

    /// Returns the buffer. After a failed read its length is the number of bytes that were read.
    #[must_use]
    pub fn into_buffer(self) -> B {
        self.buffer
    }

    /// Splits this into the error and the buffer.
    #[must_use]
    pub fn into_parts(self) -> (Error, B) {
        (self.error, self.buffer)
    }
}

impl<B> fmt::Display for BufError<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<B> fmt::Debug for BufError<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<B> std::error::Error for BufError<B> {}

impl<B> From<BufError<B>> for Error {
    fn from(failed: BufError<B>) -> Self {
        failed.error
    }
}

impl<B> From<BufError<B>> for io::Error {
    fn from(failed: BufError<B>) -> Self {
        failed.error.into()
    }
}

/// Turns a result into the pair that tokio-uring and monoio return, for code that is ported from them.
///
/// ```
/// use ringfile::buf::IntoParts;
/// # fn main() -> std::io::Result<()> {
/// # let path = std::env::temp_dir().join(format!("ringfile-doc-parts-{}", std::process::id()));
/// # std::fs::write(&path, b"abc")?;
/// let file = ringfile::File::open_blocking(&path)?;
/// let (result, buffer) =
///     ringfile::block_on(file.read_at(Vec::with_capacity(16), 0)).into_parts();
/// assert_eq!(result?, 3);
/// assert_eq!(buffer, b"abc");
/// # std::fs::remove_file(&path)
/// # }
/// ```
pub trait IntoParts<B> {
    /// Returns the number of bytes, or the error, and the buffer.
    fn into_parts(self) -> (io::Result<usize>, B);
}

impl<B: crate::IoBuf> IntoParts<B> for BufResult<B> {
    fn into_parts(self) -> (io::Result<usize>, B) {
        match self {
            Ok(buffer) => (Ok(buffer.len()), buffer),
            Err(failed) => (Err(failed.error.into()), failed.buffer),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_of_std_keeps_its_errno_or_text_and_one_of_ours_comes_back_as_it_was() {
        let texts = |error: io::Error| {
            let error = Error::from(error);
            (error.errno(), error.to_string(), format!("{error:?}"))
        };
        let missing = "No such file or directory (os error 2)".to_owned();
        assert_eq!(texts(io::Error::from_raw_os_error(2)), (Some(2), missing.clone(), missing));
        let other = "invalid".to_owned();
        assert_eq!(
            texts(io::Error::new(io::ErrorKind::InvalidData, "invalid")),
            (None, other.clone(), other)
        );
        let ours = Error::from_errno(libc::EIO, "reading").on(Some(Path::new("data"))).after(3);
        let text = ours.to_string();
        assert_eq!(texts(ours.into()), (Some(libc::EIO), text.clone(), text));
    }

    #[test]
    fn an_error_is_one_line_whatever_the_file_is_called() {
        let path = Path::new("a\nb\x1b[31m\u{85}ü'\\");
        let errors = [
            crate::File::open_blocking(path).unwrap_err(),
            crate::block_on(crate::fs::metadata(path)).unwrap_err(),
            crate::block_on(crate::fs::rename(path, path)).unwrap_err(),
            Error::new(io::ErrorKind::Other, "reading").because(path.display().to_string()),
        ];
        for error in errors {
            assert!(error.path().is_none_or(|named| named == path));
            let texts = [error.to_string(), format!("{error:?}"), io::Error::from(error).to_string()];
            for text in texts {
                assert!(!text.chars().any(char::is_control), "{text:?}");
                assert!(text.contains(r"a\nb\u{1b}[31m\u{85}ü'\"), "{text}");
            }
        }
    }
}
