"""`ringfile.safetensors`."""

import json
import os

import numpy
import pytest

from ringfile.safetensors import SafetensorError, load_file, safe_open, save_file


def tensors():
    random = numpy.random.default_rng(7)
    return {
        "weight": random.standard_normal((300, 1000)).astype("float32"),
        "half": random.standard_normal(1001).astype("float16"),
        "flags": random.random(77) > 0.5,
        "scalar": numpy.array(5, "int64"),
        "empty": numpy.zeros((0, 3), "uint8"),
        "large": random.integers(0, 255, 3_000_001).astype("uint8"),
    }


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "model.safetensors"
    save_file(tensors(), path, {"format": "np"})
    return path


def same(got, wanted):
    assert got.keys() == wanted.keys()
    for name, array in wanted.items():
        assert got[name].dtype == array.dtype and got[name].shape == array.shape
        assert numpy.array_equal(got[name], array)


def cool(path):
    descriptor = os.open(path, os.O_RDONLY)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)


def test_what_was_saved_is_loaded(saved, capsys):
    assert [entry.name for entry in saved.parent.iterdir()] == [saved.name]
    same(load_file(saved), tensors())
    cool(saved)
    loaded = load_file(saved, progress=True)
    same(loaded, tensors())
    loaded["weight"][0] = 0
    same(load_file(saved), tensors())
    cool(saved)
    into = {name: numpy.ones_like(array) for name, array in tensors().items()}
    assert load_file(saved, into=into) is into
    same(into, tensors())


def test_single_tensors_are_read(saved):
    with safe_open(saved) as file:
        assert set(file.keys()) == set(tensors()) and file.metadata() == {"format": "np"}
        assert numpy.array_equal(file.get_tensor("half"), tensors()["half"])
        same(file.get_tensors(["flags", "scalar", "empty"]), {name: tensors()[name] for name in ["flags", "scalar", "empty"]})
        with pytest.raises(SafetensorError, match="missing"):
            file.get_tensor("missing")


def test_the_package_safetensors_reads_and_writes_the_same(saved, tmp_path):
    theirs = pytest.importorskip("safetensors.numpy")
    same(theirs.load_file(saved), tensors())
    theirs.save_file(tensors(), tmp_path / "theirs")
    same(load_file(tmp_path / "theirs"), tensors())


def test_tensors_of_torch(saved, tmp_path):
    torch = pytest.importorskip("torch")
    loaded = load_file(saved, framework="torch")
    assert torch.equal(loaded["weight"], torch.from_numpy(tensors()["weight"]))
    made = {"b": torch.arange(10, dtype=torch.bfloat16), "c": torch.zeros(3, 0)}
    save_file(made, tmp_path / "torch")
    again = load_file(tmp_path / "torch", framework="torch")
    assert all(torch.equal(again[name], made[name]) for name in made)
    into = {name: torch.ones_like(tensor) for name, tensor in made.items()}
    load_file(tmp_path / "torch", into=into)
    assert torch.equal(into["b"], made["b"])


def write(path, header, data=b"", length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes((len(text) if length is None else length).to_bytes(8, "little") + text + data)


def entry(dtype="U8", shape=(4,), offsets=(0, 4)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


BAD = {
    "a header beyond the file": ({}, b"", 100),
    "a header of more than 100 MB": ({}, b"", 100_000_001),
    "a length that overflows": ({}, b"", (1 << 64) - 1),
    "no JSON": (b"{nonsense", b"", None),
    "a list": (b"[]", b"", None),
    "space in front": (b" {}", b"", None),
    "no UTF-8": (b'{"\xff": 1}', b"", None),
    "deep nesting": (b'{"a":' + b"[" * 100_000, b"", None),
    "duplicate names": (b'{"a": %s, "a": %s}' % ((json.dumps(entry()).encode(),) * 2), bytes(4), None),
    "duplicate fields": (b'{"a": {"dtype": "U8", "dtype": "U8", "shape": [4], "data_offsets": [0, 4]}}', bytes(4), None),
    "overlapping tensors": ({"a": entry(), "b": entry(offsets=(2, 6))}, bytes(6), None),
    "a hole": ({"a": entry(), "b": entry(offsets=(5, 9))}, bytes(9), None),
    "bytes at the end": ({"a": entry()}, bytes(5), None),
    "data beyond the file": ({"a": entry()}, bytes(3), None),
    "a size that overflows": ({"a": entry(shape=(1 << 32, 1 << 32))}, bytes(4), None),
    "sizes that overflow and cancel": ({"a": entry(shape=(1 << 63, 4, 0), offsets=(0, 0))}, b"", None),
    "another size": ({"a": entry(shape=(5,))}, bytes(4), None),
    "half a byte": ({"a": entry(dtype="F4", shape=(3,), offsets=(0, 1))}, bytes(1), None),
    "a negative size": ({"a": entry(shape=(-4,))}, bytes(4), None),
    "a size that is no integer": ({"a": entry(shape=(4.0,))}, bytes(4), None),
    "a size that is a bool": ({"a": entry(shape=(True,), offsets=(0, 1))}, bytes(1), None),
    "offsets in reverse": ({"a": entry(offsets=(4, 0))}, bytes(4), None),
    "three offsets": ({"a": entry(offsets=(0, 4, 8))}, bytes(4), None),
    "an unknown type": ({"a": entry(dtype="U9")}, bytes(4), None),
    "a type that is no text": ({"a": entry(dtype=[])}, bytes(4), None),
    "a missing field": ({"a": {"dtype": "U8", "shape": [4]}}, bytes(4), None),
    "a field too many": ({"a": entry() | {"more": 1}}, bytes(4), None),
    "an entry that is no object": ({"a": 5}, b"", None),
    "metadata that are no texts": ({"__metadata__": {"a": 5}}, b"", None),
    "metadata that are a list": ({"__metadata__": []}, b"", None),
}


@pytest.mark.parametrize("name", BAD)
def test_a_hostile_header_is_refused(tmp_path, name):
    path = tmp_path / "bad"
    write(path, *BAD[name])
    for call in [load_file, safe_open]:
        with pytest.raises(SafetensorError, match="bad"):
            call(path)


def test_a_file_that_is_too_short_is_refused(tmp_path):
    path = tmp_path / "bad"
    for content in [b"", b"1234567"]:
        path.write_bytes(content)
        with pytest.raises(SafetensorError):
            load_file(path)
    with pytest.raises(FileNotFoundError):
        load_file(tmp_path / "missing")


def test_tensors_at_any_offset_are_loaded(tmp_path):
    path = tmp_path / "odd"
    array = numpy.arange(10, dtype="float64")
    header = {"a": entry("U8", (3,), (0, 3)), "b": entry("F64", (10,), (3, 83))}
    write(path, json.dumps(header).encode() + b" ", b"abc" + array.tobytes())
    assert numpy.array_equal(load_file(path)["b"], array)


def test_bad_arguments_are_refused(saved, tmp_path):
    with pytest.raises(ValueError, match="framework"):
        load_file(saved, framework="jax")
    with pytest.raises(ValueError, match="device"):
        load_file(saved, device="cuda")
    with pytest.raises(ValueError, match="'empty'"):
        load_file(saved, into={})
    wrong = {name: numpy.zeros_like(array) for name, array in tensors().items()}
    wrong["half"] = numpy.zeros(1000, "float16")
    with pytest.raises(ValueError, match="'half'"):
        load_file(saved, into=wrong)
    with pytest.raises(SafetensorError):
        save_file({"a": numpy.array(["text"])}, tmp_path / "new")
    with pytest.raises(TypeError):
        save_file({}, tmp_path / "new", {"a": 1})
    assert not (tmp_path / "new").exists()
