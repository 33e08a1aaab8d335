"""`ringfile.fs`, and fsspec's own suite for file systems."""

import io
import os
import pickle
import stat

import fsspec
import fsspec.tests.abstract as abstract
import pytest
from fsspec.implementations.local import LocalFileSystem

from ringfile.fs import RingFileSystem


class Fixtures(abstract.AbstractFixtures):
    @pytest.fixture
    def fs(self):
        return RingFileSystem(auto_mkdir=True, skip_instance_cache=True)

    @pytest.fixture
    def fs_path(self, tmpdir):
        return str(tmpdir)

    @pytest.fixture
    def fs_sanitize_path(self):
        return lambda path: path


class TestCopy(abstract.AbstractCopyTests, Fixtures):
    pass


class TestGet(abstract.AbstractGetTests, Fixtures):
    pass


class TestPut(abstract.AbstractPutTests, Fixtures):
    pass


class TestPipe(abstract.AbstractPipeTests, Fixtures):
    pass


class TestOpen(abstract.AbstractOpenTests, Fixtures):
    pass


@pytest.fixture
def fs():
    return fsspec.filesystem("ringfile", skip_instance_cache=True)


@pytest.fixture
def local():
    return LocalFileSystem(skip_instance_cache=True)


def test_the_entry_point_is_found(fs, path, content):
    assert isinstance(fs, RingFileSystem)
    with fsspec.open(f"ringfile://{path}") as file:
        assert file.read(10) == content[:10]
    assert fs.unstrip_protocol(str(path)) == f"ringfile://{path}"


RANGES = [
    (None, None), (0, 10), (5, None), (None, 7), (-10, None), (-10, -5), (10, 10), (1 << 20, None), (1 << 21, None),
    ((1 << 20) - 5, 1 << 30), (10, 5), (3, 1 << 19), (-(1 << 30), 10), (1 << 21, (1 << 21) + 9), (1 << 21, -5),
]  # fmt: skip


def test_ranges_are_those_of_local_files(fs, local, path):
    paths = [str(path)] * len(RANGES)
    starts, ends = [start for start, _ in RANGES], [end for _, end in RANGES]
    for got, wanted in zip(fs.cat_ranges(paths, starts, ends), local.cat_ranges(paths, starts, ends), strict=True):
        if isinstance(wanted, Exception):
            assert type(got) is type(wanted)
        else:
            assert got == wanted
    for start, end in RANGES:
        try:
            wanted = local.cat_file(str(path), start, end)
        except ValueError:
            with pytest.raises(ValueError):
                fs.cat_file(str(path), start, end)
        else:
            assert fs.cat_file(str(path), start, end) == wanted
    assert fs.cat_ranges([f"ringfile://{path}", str(path)], 3, 5) == local.cat_ranges([str(path)] * 2, 3, 5)


def test_many_files_are_one_batch(fs, local, tmp_path):
    paths = []
    for number in range(20):
        paths.append(str(tmp_path / str(number)))
        (tmp_path / str(number)).write_bytes(os.urandom(50_000))
    names = [paths[number % 20] for number in range(500)]
    starts = [number * 97 % 50_000 for number in range(500)]
    ends = [start + 777 for start in starts]
    assert fs.cat_ranges(names, starts, ends) == local.cat_ranges(names, starts, ends)
    assert fs.cat(paths) == local.cat(paths)
    for how in ["omit", "return"]:
        got, wanted = (one.cat(str(tmp_path), recursive=True, on_error=how) for one in (fs, local))
        assert len(got) == len(wanted) == 20 + (how == "return")
        assert all(got[name] == wanted[name] for name in paths)


def test_errors_are_those_of_local_files(fs, local, path, tmp_path):
    missing = str(tmp_path / "missing")
    for one in (fs, local):
        got = one.cat_ranges([missing, str(path), str(tmp_path)], 0, 5)
        assert isinstance(got[0], FileNotFoundError) and got[1] == path.read_bytes()[:5]
        assert isinstance(got[2], IsADirectoryError)
        for call, error in [
            (lambda: one.cat_ranges([missing], 0, 5, on_error="raise"), FileNotFoundError),
            (lambda: one.cat_ranges(missing, 0, 5), TypeError),
            (lambda: one.cat_ranges([missing], [0, 1], 5), ValueError),
            (lambda: one.cat_ranges([missing], 0, 5, max_gap=1), NotImplementedError),
            (lambda: one.cat_file(missing), FileNotFoundError),
            (lambda: one.cat_file(str(tmp_path)), IsADirectoryError),
            (lambda: one.open(missing), FileNotFoundError),
            (lambda: one.open(str(tmp_path / "no" / "folder"), "wb"), FileNotFoundError),
            (lambda: one.open(str(path), "xb"), FileExistsError),
            (lambda: one.open(str(path), "nonsense"), ValueError),
            (lambda: one.pipe_file(str(path), b"", mode="create"), FileExistsError),
            (lambda: one.pipe_file(str(tmp_path / "no" / "folder"), b""), FileNotFoundError),
            (lambda: one.pipe_file(str(tmp_path), b""), IsADirectoryError),
            (lambda: one.info(missing), FileNotFoundError),
            (lambda: one.rm(missing), FileNotFoundError),
            (lambda: one.rm(str(tmp_path)), ValueError),
            (lambda: one.mkdir(str(tmp_path)), FileExistsError),
            (lambda: one.mv(missing, str(path)), FileNotFoundError),
        ]:
            with pytest.raises(error):
                call()
    assert fs.cat([str(path), missing], on_error="omit") == local.cat([str(path), missing], on_error="omit")


def test_a_file_is_written_whole_and_keeps_its_permissions(fs, tmp_path):
    path = tmp_path / "value"
    fs.pipe_file(str(path), b"first")
    umask = os.umask(0)
    os.umask(umask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~umask
    path.chmod(0o640)
    before = path.stat().st_ino
    (tmp_path / "link").symlink_to("value")
    fs.pipe({str(tmp_path / "link"): b"second"}, sync=True)
    assert path.read_bytes() == b"second" and (tmp_path / "link").is_symlink()
    assert stat.S_IMODE(path.stat().st_mode) == 0o640 and path.stat().st_ino != before
    fs.pipe_file("/dev/null", b"nothing")
    assert sorted(os.listdir(tmp_path)) == ["link", "value"]


def test_a_transaction_writes_all_or_nothing(fs, tmp_path):
    with fs.transaction:
        with fs.open(str(tmp_path / "a"), "wb") as file:
            file.write(b"a")
        fs.pipe_file(str(tmp_path / "b"), b"b")
        assert not (tmp_path / "a").exists() and not (tmp_path / "b").exists()
    assert (tmp_path / "a").read_bytes() == b"a" and (tmp_path / "b").read_bytes() == b"b"
    with pytest.raises(KeyError), fs.transaction:
        fs.pipe_file(str(tmp_path / "a"), b"other")
        raise KeyError
    assert (tmp_path / "a").read_bytes() == b"a" and sorted(os.listdir(tmp_path)) == ["a", "b"]


@pytest.mark.parametrize("mode", ["wb", "xb", "ab", "r+b", "w", "a"])
def test_modes_are_those_of_local_files(fs, local, tmp_path, mode):
    for one, name in [(fs, "ours"), (local, "theirs")]:
        path = tmp_path / name
        if mode[0] != "x":
            path.write_bytes(b"0123456789")
        with one.open(str(path), mode) as file:
            for _ in range(3):
                file.write(b"ab" if "b" in mode else "ab")
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()


def test_a_file_is_a_stream(fs, path, content):
    with fs.open(str(path)) as file:
        assert file.size == len(content) and file.read(5) == content[:5] and file.tell() == 5
        file.seek(-5, 2)
        assert file.read() == content[-5:]
        file.seek(100)
        again = pickle.loads(pickle.dumps(file))
        assert again.tell() == 100 and again.read(5) == content[100:105]
        buffer = bytearray(10)
        assert file.readinto(buffer) == 10 and buffer == content[100:110]
        assert os.pread(file.fileno(), 3, 0) == content[:3]
    with io.TextIOWrapper(fs.open(str(path))) as file:
        assert file.buffer.read(3) == content[:3]


@pytest.mark.parametrize("cache", ["none", "readahead", "bytes", "blockcache", "mmap", "all", "background", "first"])
def test_caches_of_fsspec(fs, path, content, cache):
    with fs.open(str(path), cache_type=cache, block_size=4096) as file:
        for at in [0, 100, 5000, 4096, len(content) - 10]:
            file.seek(at)
            assert file.read(100) == content[at : at + 100]
        again = pickle.loads(pickle.dumps(file))
        assert again.tell() == file.tell() and again.read() == b""


def test_compression_is_that_of_fsspec(fs, tmp_path):
    with fs.open(str(tmp_path / "text.gz"), "wb", compression="infer") as file:
        file.write(b"text" * 1000)
    with fs.open(str(tmp_path / "text.gz"), compression="infer") as file:
        assert file.read() == b"text" * 1000


def test_a_file_system_is_pickled_by_its_options(path, content):
    fs = RingFileSystem(adaptive=False, sync=True)
    other = pickle.loads(pickle.dumps(fs))
    assert other._reading["adaptive"] is False and other.cat_file(str(path), 0, 5) == content[:5]
    assert fsspec.filesystem("ringfile", adaptive=False, sync=True) is fs
