"""What a program that is checked by `mypy --strict` writes. It is checked, and not run."""

import os
from pathlib import Path
from typing import assert_type

import numpy

import ringfile
import ringfile.asyncio
from ringfile.compare import compare
from ringfile.fs import RingFileSystem
from ringfile.safetensors import load_file, safe_open, save_file


def calls(path: Path) -> None:
    with ringfile.open(path, "r+b", direct=True) as file:
        assert_type(file.read_at(0, 10), bytes)
        array = ringfile.Pool.array((2, 10), "float32")
        assert_type(file.read_into(array, 0, exact=True), int)
        assert_type(file.read_into(bytearray(10), 0), int)
        assert_type(file.read_ranges([(0, 10)]), list[ringfile.Memory])
        assert_type(file.read_ranges([(0, 10)], out=array), list[int])
        assert_type(file.read_ranges([(0, 10)], [bytearray(10), memoryview(bytearray(10))]), list[int])
        assert_type(file.write_at(b"bytes", 0), int)
        view = memoryview(file.read_ranges([(0, 10)])[0])
        assert_type(view[0], int)
        assert_type(file.as_io().readable(), bool)
    assert_type(ringfile.metrics()["ops"], int)
    assert_type(compare(os.fspath(path))[4096, "cold"]["os.pread"], float)


async def awaited(path: Path) -> None:
    async with ringfile.asyncio.open(path) as file:
        assert_type(await file.read_at(0, 10), bytes)
        assert_type(await file.read_ranges([(0, 10)], out=numpy.empty(10)), list[int])


def models(path: Path, tensors: dict[str, numpy.ndarray[tuple[int, ...], numpy.dtype[numpy.float32]]]) -> None:
    save_file(tensors, path, {"format": "np"})
    assert_type(load_file(path)["weight"].nbytes, int)
    load_file(path, framework="torch", progress=True)["weight"].cuda()
    assert_type(
        load_file(path, into=tensors), dict[str, numpy.ndarray[tuple[int, ...], numpy.dtype[numpy.float32]]]
    )
    with safe_open(path) as file:
        assert_type(file.keys(), list[str])


def system(path: str) -> None:
    fs = RingFileSystem(auto_mkdir=True, sync=True)
    assert_type(fs.cat_file(path, 0, 10), bytes)
    fs.cat_ranges([path], 0, [10])
