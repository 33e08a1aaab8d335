"""One cached read of 4 KiB: `read_at` over `os.pread`, and awaited in asyncio over aiofiles."""

import asyncio
import os
import random
import shutil
import tempfile

from rounds import arguments, make, measure, set_cached

import ringfile
import ringfile.asyncio

READS, AWAITED, LENGTH, SIZE = 100_000, 2_000, 4096, 64 << 20

options = arguments(__doc__)
folder = tempfile.mkdtemp(dir=options.folder)
path = os.path.join(folder, "data")
make(path, SIZE)
starts = [at * LENGTH for at in random.Random(7).choices(range(SIZE // LENGTH), k=READS)]


def pread():
    descriptor, read = os.open(path, os.O_RDONLY), os.pread
    for start in starts:
        read(descriptor, LENGTH, start)
    os.close(descriptor)


def ours(**how):
    with ringfile.open(path, **how) as file:
        read = file.read_at
        for start in starts:
            read(start, LENGTH)


def into():
    buffer = bytearray(LENGTH)
    with ringfile.open(path) as file:
        read = file.read_into
        for start in starts:
            read(buffer, start)


async def aio():
    import aiofiles

    async with aiofiles.open(path, "rb", buffering=0) as file:
        for start in starts[:AWAITED]:
            await file.seek(start)
            await file.read(LENGTH)


async def awaited():
    async with ringfile.asyncio.open(path) as file:
        for start in starts[:AWAITED]:
            await file.read_at(start, LENGTH)


try:
    ways = {"os.pread": pread, "ringfile: read_at": ours, "ringfile: read_at, adaptive=False": lambda: ours(adaptive=False)}
    ways |= {"ringfile: read_into": into}
    hot = lambda: set_cached([path], True)  # noqa: E731
    measure("a cached read of 4 KiB", ways, options.rounds, hot, 1e9 / READS, "ns")
    ways = {"aiofiles": lambda: asyncio.run(aio()), "ringfile.asyncio": lambda: asyncio.run(awaited())}
    measure("the same, awaited in asyncio", ways, options.rounds, hot, 1e9 / AWAITED, "ns")
finally:
    shutil.rmtree(folder)
