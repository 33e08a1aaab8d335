"""zarr and pyarrow over `ringfile://`, over their own local files, and over fsspec's, cold and hot."""

import os
import random
import shutil
import tempfile

import fsspec
import fsspec.parquet
import numpy
from rounds import arguments, measure, set_cached

options = arguments(__doc__)
folder = tempfile.mkdtemp(dir=options.folder)


def sub_cubes(open_store, cubes):
    import zarr

    array = zarr.open_array(open_store(), mode="r")
    return [array[x : x + 32, y : y + 32, z : z + 32] for x, y, z in cubes]


def of_zarr():
    import zarr
    from zarr.storage import FsspecStore, LocalStore

    path = f"{folder}/array"
    numbers = numpy.random.default_rng(7)
    array = zarr.create_array(LocalStore(path), shape=(512,) * 3, chunks=(32,) * 3, shards=(256,) * 3, dtype="uint16")
    for z in range(0, 512, 256):
        array[z : z + 256] = numbers.integers(0, 1 << 12, (256, 512, 512), "uint16")
    places = random.Random(7)
    cubes = [tuple(places.randrange(480) for _ in range(3)) for _ in range(100)]
    stores = {
        "zarr: LocalStore": lambda: LocalStore(path, read_only=True),
        "zarr: file:// of fsspec": lambda: FsspecStore.from_url(f"file://{path}", read_only=True),
        "zarr: ringfile://": lambda: FsspecStore.from_url(f"ringfile://{path}", read_only=True),
    }
    return path, {name: lambda store=store: sub_cubes(store, cubes) for name, store in stores.items()}


def of_pyarrow():
    import pyarrow
    from pyarrow import parquet
    from pyarrow.fs import FSSpecHandler, PyFileSystem

    path = f"{folder}/table.parquet"
    numbers = numpy.random.default_rng(7)
    table = pyarrow.table({f"c{number}": numbers.random(2_000_000) for number in range(16)})
    parquet.write_table(table, path, row_group_size=100_000)
    columns = ["c3", "c7", "c11"]
    ours, theirs = (PyFileSystem(FSSpecHandler(fsspec.filesystem(name))) for name in ("ringfile", "file"))

    def of_fsspec(protocol):
        with fsspec.parquet.open_parquet_file(f"{protocol}://{path}", columns=columns, engine="pyarrow") as file:
            return parquet.read_table(file, columns=columns)

    return path, {
        "pyarrow: read_table": lambda: parquet.read_table(path, columns=columns),
        "pyarrow: read_table, file:// of fsspec": lambda: parquet.read_table(path, columns=columns, filesystem=theirs),
        "pyarrow: read_table, ringfile://": lambda: parquet.read_table(path, columns=columns, filesystem=ours),
        "fsspec.parquet: file://": lambda: of_fsspec("file"),
        "fsspec.parquet: ringfile://": lambda: of_fsspec("ringfile"),
    }


try:
    for title, make in {"100 cubes of 32³ of a sharded array of 512³": of_zarr, "three of 16 columns": of_pyarrow}.items():
        path, ways = make()
        for hot in (False, True):
            measure(f"{title}, {'hot' if hot else 'cold'}", ways, options.rounds, lambda hot=hot: set_cached([path], hot))
finally:
    shutil.rmtree(folder)
