//! Operations on paths: how each begins, and the future of those that change a directory or permissions.

use std::future::Future;
use std::marker::PhantomPinned;
use std::path::Path;
use std::pin::Pin;
use std::task::{Context, Poll};

use pin_project_lite::pin_project;

use crate::driver::{Kind, Request};
use crate::error::Result;
use crate::file::File;
use crate::file::ask::{Ask, Asked};
use crate::file::io::OperationFuture;
use crate::memory::{Held, Paths};

/// Creates an operation on paths, of which `path` is the first. [`OperationFuture::poll_control`] fails if one
/// contains a NUL byte, and `paths` is `None`.
pub(super) fn on_path(
    kind: Kind,
    op_flags: u32,
    path: &Path,
    paths: Option<Box<Paths>>,
) -> OperationFuture<File> {
    let request = Request { op_flags, ..Request::of(kind) };
    OperationFuture::new(File::of_path(path.to_owned()), request, paths.map_or(Held::None, Held::Paths))
}

pin_project! {
    /// A change of a directory or of permissions. Await it, or [add](crate::Operation) it to a batch or a queue.
    ///
    /// `Send`; it borrows nothing, and works in any executor.
    #[must_use = "nothing is done until it is awaited, or added to a batch or a queue"]
    pub struct Change {
        operation: OperationFuture<File>,
        #[pin]
        pinned: PhantomPinned,
    }
}

impl Change {
    /// Creates a change of what is at a path, which uses these permission bits if it sets any.
    pub(super) fn of(kind: Kind, op_flags: u32, path: &Path, mode: u32) -> Self {
        let paths = Paths::new(path).map(|paths| paths.with_mode(mode));
        Self { operation: on_path(kind, op_flags, path, paths), pinned: PhantomPinned }
    }

    /// Creates a change that names two paths.
    pub(super) fn of_two(kind: Kind, op_flags: u32, path: &Path, to: &Path) -> Self {
        let paths = Paths::new(path).and_then(|paths| paths.and(to));
        Self { operation: on_path(kind, op_flags, path, paths), pinned: PhantomPinned }
    }
}

impl Ask for Change {
    fn ask<R>(self, add: impl FnOnce(&File, Asked) -> R) -> R {
        self.operation.ask(add)
    }
}

impl Future for Change {
    type Output = Result<()>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.project().operation.poll_control(context).map(|done| done.map(drop))
    }
}
