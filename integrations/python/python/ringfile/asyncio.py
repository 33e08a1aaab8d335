"""`File` for asyncio: the same calls, awaited. One descriptor is watched by the loop; no thread is started for a call."""

import asyncio
import weakref

from . import _ringfile

__all__ = ["File", "open"]

# Each loop's engine. The loop itself has it, among what it watches, until it is closed.
_engines = weakref.WeakKeyDictionary()


def _engine(loop):
    engine = _engines[loop]() if loop in _engines else None
    if engine is None:
        engine = _ringfile.Engine()
        loop.add_reader(engine.fileno(), engine.collect)
        _engines[loop] = weakref.ref(engine)
    return engine


class File:
    """An open file. Its calls are those of `ringfile.File`; cancelling a task that awaits one is safe."""

    def __init__(self, file):
        self._file = file

    async def _call(self, name, *arguments):
        loop = asyncio.get_running_loop()
        engine = _engine(loop)
        number, future = getattr(engine, name)(self._file, loop, *arguments)
        if not number:
            return future
        try:
            return await future
        except asyncio.CancelledError:
            engine.cancel(number)
            raise

    async def read_at(self, offset, length):
        """Reads `length` bytes from `offset`; fewer only at the end of the file."""
        return await self._call("read_at", offset, length)

    async def read_into(self, buffer, offset, *, exact=False):
        """Reads from `offset` into memory, until it is full or the file ends. Returns the number of bytes."""
        return await self._call("read_into", buffer, offset, exact)

    async def read_ranges(self, ranges, out=None, *, exact=False):
        """Reads many ranges together, as `ringfile.File.read_ranges`."""
        return await self._call("read_ranges", ranges, out, exact)

    async def write_at(self, data, offset):
        """Writes all of `data` at `offset`. Returns the number of bytes."""
        return await self._call("write_at", data, offset)

    async def sync(self):
        """Makes all that was written durable."""
        await self._call("sync")

    def size(self):
        """Returns the file's size in bytes. Does not wait."""
        return self._file.size()

    def close(self):
        """Closes the file when its calls have ended. Does not wait."""
        self._file.close()

    @property
    def closed(self):
        """Whether the file was closed."""
        return self._file.closed

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        self.close()

    def __repr__(self):
        return f"<ringfile.asyncio.File of {self._file!r}>"


def open(path, mode="rb", *, direct=False, adaptive=True, dont_cache=False):
    """Opens a file, as `ringfile.open`. Does not wait, except for the folders of the path if they are not cached."""
    return File(_ringfile.open(path, mode, direct=direct, adaptive=adaptive, dont_cache=dont_cache))
