"""1,000 ranges over 20 files: fsspec's `cat_ranges`, obstore, and `read_ranges`; 4 and 128 KiB, cold and hot."""

import os
import random
import shutil
import tempfile

import numpy
from fsspec.implementations.local import LocalFileSystem
from rounds import arguments, make, measure, set_cached

import ringfile
from ringfile.fs import RingFileSystem

FILES, SIZE, RANGES = 20, 32 << 20, 1000


def ways(folder, paths, length):
    places = random.Random(7)
    starts = [places.randrange(SIZE // length) * length for _ in range(RANGES)]
    ends = [start + length for start in starts]
    names = [paths[number % FILES] for number in range(RANGES)]
    of_file = {path: [(starts[at], length) for at in range(RANGES) if names[at] == path] for path in paths}
    array = numpy.ones((RANGES, length), "uint8")
    local, ours = LocalFileSystem(), RingFileSystem()

    def read_ranges(out):
        at, found = 0, []
        for path, ranges in of_file.items():
            with ringfile.open(path) as file:
                found.append(file.read_ranges(ranges, array[at : at + len(ranges)] if out else None))
            at += len(ranges)
        return found

    def obstore():
        from obstore.store import LocalStore

        store = LocalStore(folder)
        return [
            store.get_ranges(os.path.basename(path), starts=[at for at, _ in ranges], lengths=[size for _, size in ranges])
            for path, ranges in of_file.items()
        ]

    return {
        "fsspec: LocalFileSystem.cat_ranges": lambda: local.cat_ranges(names, starts, ends),
        "obstore: get_ranges": obstore,
        "ringfile: cat_ranges": lambda: ours.cat_ranges(names, starts, ends),
        "ringfile: read_ranges": lambda: read_ranges(False),
        "ringfile: read_ranges(out=array)": lambda: read_ranges(True),
    }


options = arguments(__doc__)
folder = tempfile.mkdtemp(dir=options.folder)
try:
    paths = [os.path.join(folder, str(number)) for number in range(FILES)]
    for number, path in enumerate(paths):
        make(path, SIZE, number)
    for length in (4096, 131072):
        for hot in (False, True):
            title = f"{RANGES} ranges of {length >> 10} KiB over {FILES} files, {'hot' if hot else 'cold'}"
            measure(title, ways(folder, paths, length), options.rounds, lambda hot=hot: set_cached(paths, hot))
finally:
    shutil.rmtree(folder)
