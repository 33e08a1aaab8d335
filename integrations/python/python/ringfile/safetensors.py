"""Models in safetensors files: `load_file`, `safe_open`, `save_file`, as in the package safetensors.

What the page cache has is mapped; what it does not have is read in order, directly from the drive, into memory that the reads
touch first. A header is checked before anything is allocated for it.
"""

import contextlib
import json
import math
import mmap
import os
import sys

import numpy

from . import _ringfile, open as _open

__all__ = ["SafetensorError", "load_file", "safe_open", "save_file"]

# The longest header that safetensors accepts, in bytes.
_LONGEST_HEADER = 100_000_000
# The size of one read, and how many are in one call, between which progress is shown.
_PIECE = 1 << 20
_TOGETHER = 64
# What part of a file must be cached to map it.
_CACHED = 0.95

# The types of a header: bits, and the names in numpy and torch (None: it has no such type).
_TYPES = {
    "BOOL": (8, "bool", "bool"),
    "U8": (8, "uint8", "uint8"),
    "I8": (8, "int8", "int8"),
    "I16": (16, "int16", "int16"),
    "U16": (16, "uint16", "uint16"),
    "F16": (16, "float16", "float16"),
    "BF16": (16, "bfloat16", "bfloat16"),
    "I32": (32, "int32", "int32"),
    "U32": (32, "uint32", "uint32"),
    "F32": (32, "float32", "float32"),
    "I64": (64, "int64", "int64"),
    "U64": (64, "uint64", "uint64"),
    "F64": (64, "float64", "float64"),
    "C64": (64, "complex64", "complex64"),
    "F8_E4M3": (8, "float8_e4m3fn", "float8_e4m3fn"),
    "F8_E5M2": (8, "float8_e5m2", "float8_e5m2"),
    "F8_E8M0": (8, "float8_e8m0fnu", "float8_e8m0fnu"),
    "F8_E4M3FNUZ": (8, "float8_e4m3fnuz", "float8_e4m3fnuz"),
    "F8_E5M2FNUZ": (8, "float8_e5m2fnuz", "float8_e5m2fnuz"),
    "F4": (4, None, None),
    "F6_E2M3": (6, None, None),
    "F6_E3M2": (6, None, None),
}


class SafetensorError(ValueError):
    """A file is no valid safetensors file; the text names the field."""


class _Header:
    """The checked header of a file: its tensors in the order of their bytes."""

    def __init__(self, file):
        size = file.size()
        start = file.read_at(0, 8)
        if len(start) < 8:
            raise SafetensorError(f"{file.name}: the file has {size} bytes, less than the length of a header")
        length = int.from_bytes(start, "little")
        if length > _LONGEST_HEADER:
            raise SafetensorError(f"{file.name}: the header's length is {length}, more than {_LONGEST_HEADER}")
        if length > size - 8:
            raise SafetensorError(f"{file.name}: the header's length is {length}, beyond the file's {size} bytes")
        self.path, self.start, self.size = file.name, 8 + length, size
        text = file.read_at(8, length)
        if text[:1] != b"{":
            raise self._wrong("the header does not begin with '{'")
        try:
            entries = json.loads(text.decode("utf-8"), object_pairs_hook=self._without_duplicates, parse_constant=self._no_number)
        except SafetensorError:
            raise
        except (ValueError, RecursionError) as error:
            raise self._wrong(f"the header is no JSON: {error}") from None
        self.metadata = entries.pop("__metadata__", None)
        if self.metadata is not None and not (
            isinstance(self.metadata, dict) and all(isinstance(value, str) for value in self.metadata.values())
        ):
            raise self._wrong("__metadata__ must have texts only")
        self.tensors = dict(sorted(((name, self._tensor(name, entry)) for name, entry in entries.items()), key=lambda each: each[1][2:]))
        at = 0
        for name, (_, _, begin, end) in self.tensors.items():
            if begin != at:
                raise self._wrong(f"data_offsets of {name!r}: {begin} should be {at}: tensors must not overlap or leave holes")
            at = end
        if at != size - self.start:
            raise self._wrong(f"the tensors end at {at}, and the file at {size - self.start}")

    def _wrong(self, why):
        return SafetensorError(f"{self.path}: {why}")

    def _no_number(self, name):
        raise self._wrong(f"the header has {name}")

    def _without_duplicates(self, pairs):
        entries = dict(pairs)
        if len(entries) != len(pairs):
            raise self._wrong("the header has a name twice")
        return entries

    def _tensor(self, name, entry):
        def is_size(value):
            return type(value) is int and 0 <= value < 1 << 64

        if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
            raise self._wrong(f"{name!r} must have dtype, shape and data_offsets")
        dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
        if not isinstance(dtype, str) or dtype not in _TYPES:
            raise self._wrong(f"dtype of {name!r}: {dtype!r} is unknown")
        if not isinstance(shape, list) or not all(map(is_size, shape)):
            raise self._wrong(f"shape of {name!r}: must be a list of sizes")
        if not isinstance(offsets, list) or len(offsets) != 2 or not all(map(is_size, offsets)) or offsets[0] > offsets[1]:
            raise self._wrong(f"data_offsets of {name!r}: must be a begin and an end")
        bits = _TYPES[dtype][0]
        for length in shape:
            bits *= length
            if bits >= 1 << 64:
                raise self._wrong(f"shape of {name!r}: the size overflows")
        if bits % 8 or bits // 8 != offsets[1] - offsets[0]:
            raise self._wrong(f"{name!r}: {shape} of {dtype} are {bits / 8:g} bytes, data_offsets {offsets[1] - offsets[0]}")
        return dtype, shape, *offsets


def _numpy_type(dtype):
    name = _TYPES[dtype][1]
    if name is None:
        raise SafetensorError(f"numpy has no type {dtype}")
    try:
        return numpy.dtype(name)
    except TypeError:
        # ml_dtypes defines what numpy lacks.
        try:
            import ml_dtypes

            return numpy.dtype(getattr(ml_dtypes, name))
        except (ImportError, AttributeError):
            raise SafetensorError(f"numpy has no type {dtype}: install ml_dtypes") from None


def _framework(name):
    """Returns the function that makes a tensor of a type, a shape and an array of bytes."""
    if name in ("numpy", "np"):
        return lambda dtype, shape, data: _aligned(data, _numpy_type(dtype).itemsize).view(_numpy_type(dtype)).reshape(shape)
    if name not in ("torch", "pt"):
        raise ValueError(f"framework {name!r}: must be 'numpy' or 'torch'")
    import torch

    def make(dtype, shape, data):
        kind = getattr(torch, _TYPES[dtype][2] or "", None)
        if kind is None:
            raise SafetensorError(f"torch has no type {dtype}")
        if data.size == 0:
            return torch.empty(shape, dtype=kind)
        return torch.from_numpy(_aligned(data, kind.itemsize)).view(kind).reshape(shape)

    return make


def _aligned(data, multiple):
    """Returns the bytes, copied if they are not at a multiple of a type's size."""
    return data if data.ctypes.data % multiple == 0 else data.copy()


def _memory(length):
    """Returns memory that nobody has touched, in huge pages if the system has them."""
    memory = mmap.mmap(-1, max(length, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError, AttributeError):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return numpy.frombuffer(memory, "uint8", length)


def _read(path, memory, start, progress):
    """Reads a file from `start` into memory, in order, directly if the file system can."""
    try:
        file = _open(path, direct=True)
    except OSError:
        file = _open(path)
    with file, _progress(progress, path, len(memory)) as advance:
        step = _PIECE * _TOGETHER
        for at in range(0, len(memory), step):
            end = min(len(memory), at + step)
            ranges = [(start + piece, min(_PIECE, end - piece)) for piece in range(at, end, _PIECE)]
            file.read_ranges(ranges, out=memory[at:end], exact=True)
            advance(end - at)


@contextlib.contextmanager
def _progress(wanted, path, total):
    if not wanted:
        yield lambda _: None
        return
    try:
        from tqdm import tqdm
    except ImportError:
        done = 0

        def advance(length):
            nonlocal done
            done += length
            sys.stderr.write(f"\r{os.fspath(path)}: {done / 1e9:.2f} of {total / 1e9:.2f} GB")

        yield advance
        sys.stderr.write("\n")
    else:
        with tqdm(total=total, unit="B", unit_scale=True, desc=os.path.basename(os.fspath(path))) as bar:
            yield bar.update


def _bytes_of(path, header, file, progress):
    """Returns all bytes of a file: mapped if they are cached, otherwise read."""
    cached = _ringfile.cached(file, header.size)
    if cached is None or cached >= _CACHED * header.size:
        # Copy on write: the file stays as it is.
        with open(path, "rb") as opened:
            return numpy.frombuffer(mmap.mmap(opened.fileno(), header.size, access=mmap.ACCESS_COPY), "uint8")
    data = _memory(header.size)
    _read(path, data, 0, progress)
    return data


def load_file(path, device="cpu", framework="numpy", into=None, *, progress=False):
    """Loads all tensors of a file: a dict of their names.

    `into` is a dict of arrays or tensors that are read into and returned: each must have its tensor's type and shape. `device`
    is for torch. Tensors may be changed; the file stays as it is.

    Raises SafetensorError if the file is not valid, OSError if it cannot be read.
    """
    with _open(path) as file:
        header = _Header(file)
        if into is not None:
            return _load_into(path, header, into, progress)
        make = _framework(framework)
        data = _bytes_of(path, header, file, progress)
    data = data[header.start :]
    tensors = {name: make(dtype, shape, data[begin:end]) for name, (dtype, shape, begin, end) in header.tensors.items()}
    if device != "cpu":
        if framework in ("numpy", "np"):
            raise ValueError(f"device {device!r}: numpy has the CPU only")
        tensors = {name: tensor.to(device) for name, tensor in tensors.items()}
    return tensors


def _load_into(path, header, into, progress):
    if missing := header.tensors.keys() ^ into.keys():
        raise ValueError(f"{path}: {sorted(missing)[0]!r} is only in the file or only in `into`")
    ranges, buffers = [], []
    for name, (dtype, shape, begin, end) in header.tensors.items():
        there = into[name]
        kind = str(there.dtype).removeprefix("torch.")
        if kind not in _TYPES[dtype][1:] or list(there.shape) != shape:
            raise ValueError(f"{path}: {name!r} is {shape} of {dtype}, in `into` {list(there.shape)} of {kind}")
        if end > begin:
            ranges.append((header.start + begin, end - begin))
            buffers.append(there)
    with _open(path) as file, _progress(progress, path, header.size) as advance:
        file.read_ranges(ranges, out=buffers, exact=True)
        advance(header.size)
    return into


class safe_open:  # noqa: N801, as in safetensors
    """Opens a file to load single tensors: `with safe_open(path) as file: file.get_tensor(name)`."""

    def __init__(self, path, framework="numpy", device="cpu"):
        self._make, self._device = _framework(framework), device
        self._file = _open(path)
        try:
            self._header = _Header(self._file)
        except BaseException:
            self._file.close()
            raise

    def keys(self):
        """Returns the names of all tensors, in the order of their bytes."""
        return list(self._header.tensors)

    def metadata(self):
        """Returns the file's metadata: a dict of texts, or None."""
        return self._header.metadata

    def get_tensor(self, name):
        """Reads one tensor."""
        return self.get_tensors([name])[name]

    def get_tensors(self, names):
        """Reads several tensors, all in one batch: a dict of their names."""
        found = {}
        for name in names:
            if name not in self._header.tensors:
                raise SafetensorError(f"{self._file.name}: there is no tensor {name!r}")
            _, _, begin, end = self._header.tensors[name]
            found[name] = (self._header.start + begin, end - begin)
        memory = [_memory(length) for _, length in found.values()]
        self._file.read_ranges(list(found.values()), out=memory, exact=True)
        tensors = {}
        for name, data in zip(found, memory, strict=True):
            dtype, shape, *_ = self._header.tensors[name]
            tensors[name] = self._make(dtype, shape, data)
            if self._device != "cpu":
                tensors[name] = tensors[name].to(self._device)
        return tensors

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._file.close()


def _type_of(tensor):
    kind = str(tensor.dtype).removeprefix("torch.")
    for name, (_, *kinds) in _TYPES.items():
        if kind in kinds:
            return name
    raise SafetensorError(f"safetensors has no type {kind}")


def save_file(tensors, path, metadata=None):
    """Saves tensors durably: written directly beside `path`, synced, and renamed. The page cache stays as it was."""
    from .fs import _Replacement, _sync_folder

    header, at = {}, 0
    if metadata is not None:
        if not all(isinstance(text, str) for pair in metadata.items() for text in pair):
            raise TypeError("metadata must be a dict of texts")
        header["__metadata__"] = dict(metadata)
    # As safetensors: larger types first, so that all are aligned.
    order = sorted(tensors.items(), key=lambda each: (-_TYPES[_type_of(each[1])][0], each[0]))
    parts = []
    for name, tensor in order:
        if name == "__metadata__":
            raise ValueError("no tensor may be called __metadata__")
        if isinstance(tensor, numpy.ndarray):
            data = numpy.ascontiguousarray(tensor).reshape(-1).view("uint8")
        else:
            data = _ringfile_bytes(tensor)
        shape = list(tensor.shape)
        header[name] = {"dtype": _type_of(tensor), "shape": shape, "data_offsets": [at, at + data.size]}
        at += data.size
        parts.append(data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    parts.insert(0, numpy.frombuffer(len(text).to_bytes(8, "little") + text, "uint8"))
    path = os.path.realpath(os.fspath(path))
    with _Replacement(path) as temporary:
        _write(temporary or path, parts)
    _sync_folder(path)


def _ringfile_bytes(tensor):
    from ._io import as_array

    return as_array(tensor.cpu().contiguous())


def _write(path, parts):
    """Writes parts one behind the other, in blocks; the last, incomplete one is filled up and cut off."""
    try:
        file = _open(path, "wb", direct=True)
    except OSError:
        file = _open(path, "wb", dont_cache=True)
    total = sum(part.size for part in parts)
    block, at, used = _memory(_PIECE * 8), 0, 0
    with file:
        for part in parts:
            for begin in range(0, part.size, block.size):
                rest = part[begin : begin + block.size]
                while rest.size:
                    length = min(rest.size, block.size - used)
                    block[used : used + length] = rest[:length]
                    used, rest = used + length, rest[length:]
                    if used == block.size:
                        file.write_at(block, at)
                        at, used = at + used, 0
        if used:
            end = math.ceil(used / 4096) * 4096
            block[used:end] = 0
            file.write_at(block[:end], at)
            file._truncate(total)
        file.sync()
