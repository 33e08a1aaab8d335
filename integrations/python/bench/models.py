"""A model of 2 GiB in a safetensors file: loading it cold and hot, into memory that is there, and saving it durably."""

import os
import shutil
import tempfile

import numpy
from rounds import arguments, measure, set_cached

from ringfile.safetensors import load_file, save_file

options = arguments(__doc__, mib=2048)
folder = tempfile.mkdtemp(dir=options.folder)
path, copy = os.path.join(folder, "model.safetensors"), os.path.join(folder, "copy.safetensors")
tensor = numpy.random.default_rng(7).integers(0, 1 << 30, 16 << 18, "int32").view("float32")
tensors = {f"layer {number}": tensor for number in range(options.mib // 16)}
save_file(tensors, path)
into = {name: numpy.ones_like(array) for name, array in tensors.items()}
plain = numpy.ones(os.path.getsize(path), "uint8")


def touch(tensors):
    """Reads a byte of each page, as whoever uses the tensors will: a mapping has read nothing before."""
    for array in tensors.values():
        if not isinstance(array, numpy.ndarray):
            array = array.numpy()
        array.reshape(-1).view("uint8")[::4096].max()
    return tensors


def theirs(framework):
    import importlib

    return touch(importlib.import_module(f"safetensors.{framework}").load_file(path))


def streamer():
    from runai_model_streamer import SafetensorsStreamer

    with SafetensorsStreamer() as stream:
        stream.stream_file(path)
        return touch(dict(stream.get_tensors()))


def fast():
    from fastsafetensors import SafeTensorsFileLoader, SingleGroup

    loader = SafeTensorsFileLoader(SingleGroup(), device="cpu", nogds=True)
    loader.add_filenames({0: [path]})
    found = loader.copy_files_to_device()
    return touch({name: found.get_tensor(name) for name in loader.get_keys()})


def readinto():
    with open(path, "rb", buffering=0) as file:
        at = 0
        while at < plain.size:
            at += file.readinto(plain[at:])


def save_theirs():
    from safetensors.numpy import save_file

    save_file(tensors, copy)
    descriptor = os.open(copy, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def fresh_copy():
    if os.path.exists(copy):
        os.unlink(copy)
    os.sync()


try:
    ways = {
        "safetensors.numpy": lambda: theirs("numpy"),
        "safetensors.torch": lambda: theirs("torch"),
        "runai-model-streamer": streamer,
        "fastsafetensors": fast,
        "ringfile: load_file": lambda: touch(load_file(path)),
    }
    for hot in (False, True):
        measure(f"{options.mib} MiB, {'hot' if hot else 'cold'}", ways, options.rounds, lambda hot=hot: set_cached([path], hot))
    ways = {"readinto": readinto, "ringfile: load_file(into=)": lambda: load_file(path, into=into)}
    measure("into memory that is there, cold", ways, options.rounds, lambda: set_cached([path], False))
    ways = {"safetensors.numpy.save_file, fsync": save_theirs, "ringfile: save_file": lambda: save_file(tensors, copy)}
    measure("saved durably", ways, options.rounds, fresh_copy)
finally:
    shutil.rmtree(folder)
