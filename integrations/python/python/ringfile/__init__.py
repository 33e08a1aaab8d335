"""Disk I/O over Linux io_uring: many ranges in one call, into memory that you choose.

`open` gives a `File` for reads and writes at offsets; `ringfile.fs` is a file system for fsspec, `ringfile.asyncio` the same
file in asyncio, `ringfile.safetensors` loads models.
"""

import sys as _sys

if not _sys.platform.startswith("linux"):
    raise ImportError("ringfile needs 64-bit Linux")

from ._ringfile import File, Memory, metrics, open
from . import _ringfile

__all__ = ["File", "Memory", "Pool", "doctor", "metrics", "open"]


class Pool:
    """ringfile's pool of memory for I/O: aligned for direct I/O, registered with the kernel when it is first used."""

    @staticmethod
    def array(shape, dtype="uint8"):
        """Returns a numpy array of zeros in the pool. Reading into it and writing it takes the kernel's fixed form.

        The memory goes back to the pool with the last view of it. At most 1 GiB.
        """
        import numpy

        dtype = numpy.dtype(dtype)
        shape = (shape,) if isinstance(shape, int) else tuple(shape)
        if any(length < 0 for length in shape):
            raise ValueError("negative dimensions are not allowed")
        size = dtype.itemsize
        for length in shape:
            size *= length
        if size == 0:
            return numpy.zeros(shape, dtype)
        return numpy.frombuffer(_ringfile.array_memory(size), dtype).reshape(shape)


def doctor(path):
    """Explains a file and this machine: how it is read, what the page cache has of it, and what the kernel offers.

    Returns a dict: `size` and `cached` in bytes (`cached` is None where the kernel does not say), `adaptive`, `alignment` of
    direct I/O, `io_uring` (and `io_uring_refused`: why not), `registration_refused`, `kernel`, `advice`.
    """
    import os

    with open(path) as file:
        result = _ringfile.describe(file)
    try:
        with open(path, direct=True) as file:
            direct = _ringfile.describe(file)
        result.update((name, direct[name]) for name in ("direct", "alignment", "memory_alignment"))
    except OSError as error:
        result["direct_refused"] = str(error)
    result["kernel"] = os.uname().release
    advice = []
    if not result["io_uring"]:
        advice.append(f"io_uring is refused ({result['io_uring_refused']}): direct reads use Linux AIO, others threads")
    if not result["adaptive"]:
        advice.append("reads are buffered: this file system has no direct I/O, or the kernel does not say what it has cached")
    if result["registration_refused"]:
        advice.append(f"memory is not registered: {result['registration_refused']}")
    result["advice"] = advice
    return result


def _reopen(path, mode, direct, adaptive, dont_cache):
    return open(path, mode, direct=direct, adaptive=adaptive, dont_cache=dont_cache)
