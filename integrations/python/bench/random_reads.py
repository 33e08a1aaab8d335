"""4,096 random ranges of 4 KiB of one large file into one array, cold: against `os.preadv` in 32 threads, mmap, and fio."""

import concurrent.futures
import json
import mmap
import os
import random
import shutil
import subprocess
import tempfile

import numpy
from rounds import arguments, make, measure, set_cached

import ringfile

COUNT, LENGTH, THREADS = 4096, 4096, 32

options = arguments(__doc__, gib=4)
folder = tempfile.mkdtemp(dir=options.folder)
path, size = os.path.join(folder, "data"), options.gib << 30
make(path, size)
starts = [at * LENGTH for at in random.Random(7).sample(range(size // LENGTH), COUNT)]
ranges = [(start, LENGTH) for start in starts]
array = ringfile.Pool.array((COUNT, LENGTH))
pool = concurrent.futures.ThreadPoolExecutor(THREADS)


def threads():
    descriptor = os.open(path, os.O_RDONLY)

    def part(number):
        for at in range(number, COUNT, THREADS):
            os.preadv(descriptor, [array[at]], starts[at])

    list(pool.map(part, range(THREADS)))
    os.close(descriptor)


def mapped():
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as memory:
        memory.madvise(mmap.MADV_RANDOM)
        data = numpy.frombuffer(memory, "uint8")
        for at, start in enumerate(starts):
            array[at] = data[start : start + LENGTH]
        del data


def ours(out, **how):
    with ringfile.open(path, **how) as file:
        file.read_ranges(ranges, out=out)


try:
    ways = {
        f"os.preadv in {THREADS} threads": threads,
        "mmap": mapped,
        "ringfile: into an array of the pool": lambda: ours(array),
        "ringfile: into any array": lambda: ours(numpy.empty((COUNT, LENGTH), "uint8")),
        "ringfile: direct=True": lambda: ours(array, direct=True),
    }
    measure(f"{COUNT} random ranges of {LENGTH} bytes of {options.gib} GiB, cold", ways, options.rounds, lambda: set_cached([path], False))
    if shutil.which("fio"):
        job = f"--name=x --filename={path} --rw=randread --bs={LENGTH} --direct=1 --ioengine=io_uring --iodepth=128 --number_ios={COUNT}"
        job += " --norandommap --randrepeat=0 --fixedbufs --registerfiles --output-format=json"
        reads = [json.loads(subprocess.check_output(["fio", *job.split()]))["jobs"][0]["read"] for _ in range(options.rounds)]
        print("  fio, io_uring, direct, 128 in flight:", *(f"{COUNT / read['iops'] * 1e3:.2f}" for read in reads), "ms")
finally:
    shutil.rmtree(folder)
