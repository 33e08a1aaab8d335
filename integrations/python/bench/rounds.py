"""What the benchmarks share: ways in turn, round by round, with the page cache as asked for, and a table.

Each prints, for each way, the median time and the processor time of all threads, and the time of the reference over it. The
reference stands there twice, so that the second row shows the noise. Run one with an argument, a folder on the drive to be
measured: `python bench/ranges.py FOLDER`.
"""

import argparse
import os
import resource
import statistics
import time

import numpy

import ringfile
from ringfile import _ringfile

ROUNDS = 5


def arguments(description, **more):
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("folder", help="where files are made, and removed at the end")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    for name, value in more.items():
        parser.add_argument(f"--{name}", type=type(value), default=value)
    return parser.parse_args()


def make(path, size, seed=7):
    """Makes a file of random bytes, durable."""
    block = numpy.random.default_rng(seed).bytes(64 << 20)
    with open(path, "wb") as file:
        for at in range(0, size, len(block)):
            file.write(block[: size - at])
        os.fsync(file.fileno())


def files_of(paths):
    for path in paths:
        if os.path.isdir(path):
            for folder, _, names in os.walk(path):
                yield from (os.path.join(folder, name) for name in names)
        else:
            yield path


def set_cached(paths, hot):
    """Makes the page cache have all of the files, or nothing, and looks."""
    for path in files_of(paths):
        size = os.path.getsize(path)
        with open(path, "rb", buffering=0) as file:
            if hot:
                while file.read(1 << 20):
                    pass
            else:
                os.fdatasync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        if not size:
            continue
        with ringfile.open(path, adaptive=False) as file:
            cached = _ringfile.cached(file, size)
        if cached is not None and (cached < 0.98 * size if hot else cached > max(4096, 0.02 * size)):
            raise SystemExit(f"{path}: the page cache has {cached} of {size} bytes, though it should have {'all' if hot else 'none'}")


def processor_time():
    use = resource.getrusage(resource.RUSAGE_SELF)
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return use.ru_utime + use.ru_stime + children.ru_utime + children.ru_stime


def measure(title, ways, rounds, before=lambda: None, unit=1e3, name="ms"):
    """Measures ways, a dict of functions without arguments. The first is the reference. What one returns is kept until its
    time was taken. A way that raises is left out."""
    reference = next(iter(ways))
    ways = {**ways, f"{reference} (again)": ways[reference]}
    times, cpus = {way: [] for way in ways}, {way: [] for way in ways}
    left_out = {}
    for number in range(rounds + 1):
        # Each begins once.
        order = list(ways)[number % len(ways) :] + list(ways)[: number % len(ways)]
        for way in order:
            if way in left_out:
                continue
            before()
            cpu, began = processor_time(), time.perf_counter()
            try:
                kept = ways[way]()
            except Exception as error:
                left_out[way] = f"{type(error).__name__}: {error}"
                continue
            took, cpu = time.perf_counter() - began, processor_time() - cpu
            del kept
            # The first round is for what is made once.
            if number:
                times[way].append(took)
                cpus[way].append(cpu)
    print(f"\n{title}: {name}, median of {rounds} rounds (least to most)")
    if reference in left_out:
        print(f"  {reference}: {left_out[reference]}")
        return
    middle = statistics.median(times[reference])
    for way in ways:
        if way in left_out:
            print(f"  {way:44} left out: {left_out[way][:100]}")
            continue
        median, cpu = statistics.median(times[way]), statistics.median(cpus[way])
        span = f"({min(times[way]) * unit:.2f} to {max(times[way]) * unit:.2f})"
        print(f"  {way:44} {median * unit:10.2f} {span:24} CPU {cpu * unit:10.2f}   {middle / median:6.2f} times")
