"""`python -m ringfile.compare FILE`: how fast ringfile reads this file, and how fast Python's usual ways do, cold and hot."""

import argparse
import importlib.util
import os
import random
import statistics
import sys
import time

import numpy

from . import doctor, open as _open

# Reads of one round, and rounds of each way in turn.
_RANGES = 1000
_ROUNDS = 5


def _local(path, ranges):
    from fsspec.implementations.local import LocalFileSystem

    starts, ends = [at for at, _ in ranges], [at + length for at, length in ranges]
    return lambda: LocalFileSystem().cat_ranges([path] * len(ranges), starts, ends)


def _ringfile_fsspec(path, ranges):
    from .fs import RingFileSystem

    starts, ends = [at for at, _ in ranges], [at + length for at, length in ranges]
    return lambda: RingFileSystem().cat_ranges([path] * len(ranges), starts, ends)


def _pread(path, ranges):
    def read():
        descriptor = os.open(path, os.O_RDONLY)
        found = [os.pread(descriptor, length, at) for at, length in ranges]
        os.close(descriptor)
        return found

    return read


def _ranges(path, ranges):
    def read():
        with _open(path) as file:
            return file.read_ranges(ranges)

    return read


def _into_array(path, ranges):
    array = numpy.ones(sum(length for _, length in ranges), "uint8")

    def read():
        with _open(path) as file:
            return file.read_ranges(ranges, out=array)

    return read


_WAYS = {"os.pread": _pread, "ringfile: read_ranges": _ranges, "ringfile: into an array": _into_array}
if importlib.util.find_spec("fsspec"):
    _WAYS = {"fsspec: file://": _local, "fsspec: ringfile://": _ringfile_fsspec} | _WAYS


def _set_cached(path, cached):
    with open(path, "rb", buffering=0) as file:
        if cached:
            while file.read(1 << 20):
                pass
        else:
            os.fdatasync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def compare(path, lengths=(4096, 131072), rounds=_ROUNDS, progress=lambda done: None):
    """Returns a dict: (length in bytes, 'cold' or 'hot') to a dict of each way's median time in seconds."""
    path, size = os.fspath(path), os.stat(path).st_size
    results, done = {}, 0
    for length in lengths:
        for state in ("cold", "hot"):
            times = {name: [] for name in _WAYS}
            for seed in range(rounds):
                places = random.Random(seed)
                ranges = [(places.randrange(max(1, size // length)) * length, length) for _ in range(_RANGES)]
                for name, way in _WAYS.items():
                    read = way(path, ranges)
                    _set_cached(path, state == "hot")
                    began = time.perf_counter()
                    read()
                    times[name].append(time.perf_counter() - began)
                    done += 1
                    progress(done / (rounds * len(_WAYS) * len(lengths) * 2))
            results[length, state] = {name: statistics.median(each) for name, each in times.items()}
    return results


def _show(done):
    if sys.stderr.isatty():
        sys.stderr.write(f"\r[{'#' * int(done * 40):40}] {done:4.0%}" + "\n" * (done == 1))


def main(arguments=None):
    """Prints the table and a verdict."""
    parser = argparse.ArgumentParser("python -m ringfile.compare", description=__doc__)
    parser.add_argument("file")
    parser.add_argument("--rounds", type=int, default=_ROUNDS)
    options = parser.parse_args(arguments)
    try:
        told = doctor(options.file)
        if not told["size"]:
            parser.error(f"{options.file} is empty")
        results = compare(options.file, rounds=max(1, options.rounds), progress=_show)
    except OSError as error:
        parser.error(str(error))
    print(f"{_RANGES} random ranges of {options.file}, {told['size'] / 1e6:.1f} MB; milliseconds, median of {options.rounds}\n")
    print(f"{'':26}" + "".join(f"{length // 1024:>5} KiB {state:<5}" for length, state in results))
    for name in _WAYS:
        print(f"{name:26}" + "".join(f"{times[name] * 1e3:14.2f}" for times in results.values()))
    theirs = [name for name in _WAYS if not name.startswith("ringfile") and "ringfile" not in name]
    print()
    for (length, state), times in results.items():
        ours = min((name for name in times if name not in theirs), key=times.get)
        other = min(theirs, key=times.get)
        ratio = times[other] / times[ours]
        word = "faster than" if ratio > 1.1 else "as fast as" if ratio > 0.9 else "slower than"
        print(f"{length // 1024} KiB {state}: {ours} is {word} {other} ({ratio:.1f} times)")
    for line in told["advice"]:
        print(f"note: {line}")


if __name__ == "__main__":
    main()
