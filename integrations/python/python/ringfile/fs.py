"""A file system for fsspec: `ringfile:///path`, with all that fsspec's `LocalFileSystem` does.

Many ranges are one batch (`cat_ranges`, `cat`), whichever files they are of. What only names files is LocalFileSystem's own.
"""

import contextlib
import io
import os
import stat
import tempfile

from fsspec.implementations.local import LocalFileOpener, LocalFileSystem
from fsspec.spec import AbstractBufferedFile

from . import _ringfile, open as _open

__all__ = ["RingFileSystem"]

# Writing in pieces of this size costs as little as in larger ones.
_WRITE = 1 << 20


class RingFileSystem(LocalFileSystem):
    """Local files, read and written by ringfile.

    `auto_mkdir` makes the folders of files that are written. `direct`, `adaptive` and `dont_cache` are those of `ringfile.open`,
    for reading. With `sync`, files that are written are durable when they are closed.
    """

    protocol = "ringfile"

    def __init__(self, auto_mkdir=False, direct=False, adaptive=True, dont_cache=False, sync=False, **kwargs):
        super().__init__(auto_mkdir=auto_mkdir, **kwargs)
        self._reading = {"direct": direct, "adaptive": adaptive, "dont_cache": dont_cache}
        self._sync = sync

    def cat_ranges(self, paths, starts, ends, max_gap=None, on_error="return", **kwargs):
        """Reads ranges of one or several files as `bytes`, all in one batch. Errors are as `on_error` says.

        `starts` and `ends` are lists, or one number for all; None is the file's start or end, negative ones count from its end.
        """
        if max_gap is not None:
            raise NotImplementedError
        if not isinstance(paths, list):
            raise TypeError("paths must be a list")
        if not isinstance(starts, list):
            starts = [starts] * len(paths)
        if not isinstance(ends, list):
            ends = [ends] * len(paths)
        if len(starts) != len(paths) or len(ends) != len(paths):
            raise ValueError("paths, starts and ends must have the same length")
        if kwargs:
            return super().cat_ranges(paths, starts, ends, on_error=on_error, **kwargs)
        found = self._cat(paths, starts, ends)
        if on_error != "return":
            _raise_first(found)
        return found

    def cat_file(self, path, start=None, end=None, **kwargs):
        if kwargs:
            return super().cat_file(path, start, end, **kwargs)
        found = self._cat([path], [start], [end])
        _raise_first(found)
        return found[0]

    def cat(self, path, recursive=False, on_error="raise", **kwargs):
        if kwargs or not (recursive or isinstance(path, list)):
            return super().cat(path, recursive=recursive, on_error=on_error, **kwargs)
        paths = self.expand_path(path, recursive=recursive)
        found = self._cat(paths, [None] * len(paths), [None] * len(paths))
        if on_error == "raise":
            _raise_first(found)
        if len(paths) == 1 and not isinstance(path, list) and paths[0] == self._strip_protocol(path):
            return found[0]
        found = zip(paths, found, strict=True)
        return {path: data for path, data in found if on_error == "return" or not isinstance(data, Exception)}

    def _cat(self, paths, starts, ends):
        """Returns for each range its `bytes`, or its exception."""
        numbers = {}
        indices = [numbers.setdefault(path, len(numbers)) for path in paths]
        paths = [self._strip_protocol(path) for path in numbers]
        return _ringfile.cat_ranges(paths, indices, starts, ends, **self._reading)

    def pipe_file(self, path, value, mode="overwrite", sync=None, **kwargs):
        """Writes a file whole: beside its place, made durable if `sync` says so, and renamed. Its permissions stay."""
        if kwargs or self._intrans:
            return super().pipe_file(path, value, mode=mode, **kwargs)
        path = os.path.realpath(self._strip_protocol(path))
        if self.auto_mkdir:
            self.makedirs(self._parent(path), exist_ok=True)
        with _Replacement(path, exclusive=mode == "create") as temporary:
            if temporary is None:
                return super().pipe_file(path, value, mode=mode)
            with _open(temporary, "wb") as file:
                file.write_at(value, 0)
                if self._sync if sync is None else sync:
                    file.sync()
        if self._sync if sync is None else sync:
            _sync_folder(path)

    def _open(self, path, mode="rb", block_size=None, cache_type=None, cache_options=None, **kwargs):
        path = self._strip_protocol(path)
        if mode == "rb" and cache_type is not None:
            return _CachedFile(self, path, block_size=block_size or "default", cache_type=cache_type, cache_options=cache_options)
        if self.auto_mkdir and mode[0] in "wxa":
            self.makedirs(self._parent(path), exist_ok=True)
        return _File(path, mode, fs=self, block_size=block_size, **kwargs)


def _raise_first(found):
    for each in found:
        if isinstance(each, Exception):
            raise each


def _sync_folder(path):
    folder = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


class _Replacement:
    """A temporary file beside `path` that takes its place at the end. None if what is there is no regular file."""

    def __init__(self, path, exclusive=False):
        self.path, self.exclusive, self.temporary = path, exclusive, None

    def __enter__(self):
        mode = 0o666 & ~_umask()
        with contextlib.suppress(FileNotFoundError):
            there = os.stat(self.path)
            if self.exclusive:
                raise FileExistsError(17, "File exists", self.path)
            if not stat.S_ISREG(there.st_mode):
                return None
            mode = stat.S_IMODE(there.st_mode)
        folder, name = os.path.split(self.path)
        try:
            descriptor, self.temporary = tempfile.mkstemp(prefix=f".{name[:100]}.", dir=folder)
        except PermissionError:
            # A file may be writable in a folder that is not.
            return None
        os.fchmod(descriptor, mode)
        os.close(descriptor)
        return self.temporary

    def __exit__(self, kind, *_):
        if self.temporary is None:
            return
        try:
            if kind is None and self.exclusive:
                os.link(self.temporary, self.path)
            elif kind is None:
                os.replace(self.temporary, self.path)
                return
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.temporary)


def _umask():
    mask = os.umask(0o22)
    os.umask(mask)
    return mask


class _File(LocalFileOpener):
    """An open file, buffered as Python's own. A transaction's is written beside its place and renamed at the end."""

    def __init__(self, path, mode, fs=None, block_size=None, **kwargs):
        self._block_size = block_size if isinstance(block_size, int) else None
        super().__init__(path, mode, fs=fs, **{name: kwargs[name] for name in ("autocommit", "compression") if name in kwargs})

    def _open(self):
        if self.f is not None and not self.f.closed:
            return
        path, self._replacement = self.path, None
        if not self.autocommit and "w" in self.mode:
            self._replacement = _Replacement(os.path.realpath(path))
            path = self._replacement.__enter__() or path
        if self.mode == "rb":
            raw = _open(path, **self.fs._reading).as_io()
            self.f = io.BufferedReader(raw, self._block_size or io.DEFAULT_BUFFER_SIZE)
        elif self.mode in ("wb", "xb"):
            self.f = io.BufferedWriter(_open(path, self.mode).as_io(), self._block_size or _WRITE)
        else:
            self.f = open(path, self.mode)
        if self.compression:
            from fsspec.compression import compr

            self.f = compr[self.compression](self.f, mode=self.mode)
        if "w" not in self.mode:
            self.size = self.f.seek(0, 2)
            self.f.seek(0)
            with contextlib.suppress(AttributeError):
                self.f.size = self.size

    def close(self):
        if not self.f.closed and self.writable() and self.fs._sync:
            self.f.flush()
            os.fsync(self.f.fileno())
        return super().close()

    def commit(self):
        self._end(None)

    def discard(self):
        self._end(Exception)

    def _end(self, kind):
        if self.autocommit:
            raise RuntimeError("Can only commit if not already set to autocommit")
        self.close()
        if self._replacement is not None:
            self._replacement.__exit__(kind)


class _CachedFile(AbstractBufferedFile):
    """A file that is read through one of fsspec's block caches."""

    def __init__(self, fs, path, **kwargs):
        self._file = _open(path, **fs._reading)
        super().__init__(fs, path, "rb", size=self._file.size(), **kwargs)

    def _fetch_range(self, start, end):
        return self._file.read_at(start, end - start)

    def __reduce__(self):
        options = (self.blocksize, self.cache.name, dict(self.kwargs))
        return _reopen, (self.fs, self.path, options, self.tell())

    def close(self):
        super().close()
        self._file.close()


def _reopen(fs, path, options, at):
    file = fs._open(path, block_size=options[0], cache_type=options[1], **options[2])
    file.seek(at)
    return file
