"""`ringfile.open` and `File`."""

import errno
import io
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
import time

import numpy
import pytest

import ringfile


def test_reads_what_the_file_has(path, content):
    with ringfile.open(path) as file:
        assert file.size() == len(content)
        assert file.read_at(100, 4096) == content[100:4196]
        assert file.read_at(0, 1 << 30) == content
        assert file.read_at(len(content) - 5, 100) == content[-5:]
        assert file.read_at(len(content) + 5, 100) == b""
        assert file.read_at(7, 0) == b""


@pytest.mark.parametrize("options", [{}, {"adaptive": False}, {"dont_cache": True}, {"direct": True}])
def test_reads_the_same_with_all_options(path, content, options):
    try:
        file = ringfile.open(path, **options)
    except OSError as error:
        assert options == {"direct": True} and error.errno == errno.EOPNOTSUPP
        pytest.skip("this file system has no direct I/O")
    with file:
        ranges = [(at, 1000 + at % 5000) for at in range(3, len(content), 7919)]
        for got, (at, length) in zip(file.read_ranges(ranges), ranges, strict=True):
            assert bytes(got) == content[at : at + length]


def test_ranges_are_read_into_memory_of_the_caller(path, content):
    with ringfile.open(path) as file:
        ranges = [(0, 4096), (100_000, 4096), (len(content) - 10, 4096)]
        array = numpy.zeros((3, 4096), "uint8")
        assert file.read_ranges(ranges, out=array) == [4096, 4096, 10]
        assert array[1].tobytes() == content[100_000:104_096]
        each = [bytearray(5000), numpy.zeros(1024, "float32"), memoryview(bytearray(4096))]
        assert file.read_ranges(ranges, out=each) == [4096, 4096, 10]
        assert bytes(each[0][:4096]) == content[:4096]
        assert each[1].tobytes() == content[100_000:104_096]
        with pytest.raises(EOFError, match="10 of 4096 bytes"):
            file.read_ranges(ranges, out=array, exact=True)
        with pytest.raises(EOFError):
            file.read_ranges(ranges, exact=True)
        buffer = bytearray(100)
        assert file.read_into(buffer, 50) == 100 and buffer == content[50:150]
        assert file.read_into(buffer, len(content) - 1) == 1
        with pytest.raises(EOFError):
            file.read_into(buffer, len(content) - 1, exact=True)


def test_memory_of_the_pool_outlives_the_file(path, content):
    with ringfile.open(path) as file:
        memory = file.read_ranges([(10, 100)])[0]
    view = memoryview(memory)
    assert len(memory) == 100 and view == content[10:110]
    del memory
    view[0] = 1
    assert view[0] == 1 and view[1] == content[11]
    assert numpy.frombuffer(view, "uint8")[2] == content[12]


def test_arrays_of_the_pool_are_registered(path, content):
    array = ringfile.Pool.array((16, 1024), "int32")
    assert array.shape == (16, 1024) and array.dtype == "int32" and not array.any()
    with ringfile.open(path, "r+b") as file:
        assert file.read_into(array[4:8], 4096) == 16384
        assert array[4:8].tobytes() == content[4096:20480]
        assert not array[:4].any() and not array[8:].any()
        assert file.write_at(array[4:8], 0) == 16384
        assert file.read_at(0, 16384) == content[4096:20480]
    assert ringfile.Pool.array(0).size == 0
    with pytest.raises(ValueError):
        ringfile.Pool.array(-1)
    with pytest.raises(OSError) as failed:
        ringfile.Pool.array(1 << 40)
    assert failed.value.errno == errno.ENOMEM or failed.value.errno == errno.EINVAL


def test_writes_and_syncs(tmp_path):
    path = tmp_path / "new"
    with ringfile.open(path, "xb") as file:
        assert file.write_at(b"0123456789", 0) == 10
        assert file.write_at(numpy.arange(3, dtype="uint8"), 4) == 3
        assert file.write_at(b"", 100) == 0
        file.sync()
        assert file.size() == 10
        with pytest.raises(OSError) as failed:
            file.read_at(0, 1)
        assert failed.value.errno == errno.EBADF and failed.value.filename == str(path)
    assert path.read_bytes() == b"0123\0\1\x02789"
    with pytest.raises(FileExistsError):
        ringfile.open(path, "xb")
    with ringfile.open(path, "wb"):
        assert path.stat().st_size == 0


def test_errors_have_an_errno_and_the_file_name(tmp_path, path):
    missing = tmp_path / "missing"
    with pytest.raises(FileNotFoundError) as failed:
        ringfile.open(missing)
    assert (failed.value.errno, failed.value.filename) == (errno.ENOENT, str(missing))
    with pytest.raises(IsADirectoryError):
        ringfile.open(tmp_path)
    with ringfile.open(path) as file:
        with pytest.raises(OSError) as failed:
            file.write_at(b"x", 0)
        assert (failed.value.errno, failed.value.filename) == (errno.EBADF, str(path))
        with pytest.raises(OSError) as failed:
            file.read_at((1 << 63) - 1, 10)
        assert failed.value.errno == errno.EINVAL


def test_bad_input_is_refused(path):
    for mode in ["a", "ab", "rw", "", "rt"]:
        with pytest.raises(ValueError):
            ringfile.open(path, mode)
    for bad in [5, None, 1.5]:
        with pytest.raises(TypeError):
            ringfile.open(bad)
    with pytest.raises(ValueError, match="null"):
        ringfile.open("a\0b")
    with ringfile.open(path, "r+b") as file:
        for call in [
            lambda: file.read_at(-1, 1),
            lambda: file.read_at(0, -1),
            lambda: file.read_into(bytearray(1), -1),
            lambda: file.write_at(b"", -1),
            lambda: file.read_ranges([(0, -1)]),
            lambda: file.read_ranges([(0, 10)], out=bytearray(9)),
            lambda: file.read_ranges([(0, 10)], out=[bytearray(9)]),
            lambda: file.read_ranges([(0, 10)], out=[]),
            lambda: file.read_ranges([(0, (1 << 63) - 1)] * 3, out=bytearray(9)),
        ]:
            with pytest.raises(ValueError):
                call()
        for call in [
            lambda: file.read_at("0", 1),
            lambda: file.read_at(0),
            lambda: file.read_into("text", 0),
            lambda: file.write_at("text", 0),
            lambda: file.read_ranges([1]),
            lambda: file.read_ranges(7),
            lambda: file.read_ranges([(0, 1)], out=7),
        ]:
            with pytest.raises(TypeError):
                call()
        with pytest.raises(OverflowError):
            file.read_at(1 << 64, 1)
        for read_only in [b"bytes", memoryview(b"bytes")]:
            with pytest.raises((BufferError, TypeError)):
                file.read_into(read_only, 0)
        with pytest.raises((BufferError, ValueError)):
            file.read_into(numpy.zeros((4, 4), "uint8")[:, 1], 0)
        with pytest.raises(MemoryError):
            ringfile.open("/dev/zero").read_at(0, 1 << 62)


def test_a_closed_file_says_so(path):
    file = ringfile.open(path)
    file.close()
    file.close()
    assert file.closed and "closed" in repr(file)
    for call in [file.size, file.sync, file.__enter__, lambda: file.read_at(0, 1), lambda: file.read_ranges([])]:
        with pytest.raises(ValueError, match="closed"):
            call()
    with pytest.raises(ValueError, match="closed"):
        pickle.dumps(file)


def test_a_stream_has_a_position_of_its_own(path, content, tmp_path):
    with ringfile.open(path).as_io() as raw, io.BufferedReader(raw) as stream:
        assert stream.read(10) == content[:10]
        assert stream.seek(-20, os.SEEK_END) == len(content) - 20
        assert stream.read() == content[-20:] and stream.read() == b""
        stream.seek(0)
        assert stream.read() == content
        assert raw.name == str(path) and raw.readable() and not raw.writable()
        with pytest.raises(OSError):
            raw.seek(-1)
        with pytest.raises(io.UnsupportedOperation):
            raw.write(b"x")
    assert raw.closed
    with pytest.raises(ValueError):
        raw.read(1)
    with io.BufferedWriter(ringfile.open(tmp_path / "out", "wb").as_io()) as stream:
        for line in range(10_000):
            stream.write(b"%d\n" % line)
    lines = ringfile.open(tmp_path / "out").as_io()
    assert [int(line) for line in io.BufferedReader(lines)] == list(range(10_000))


def test_files_are_pickled_by_path(path, content):
    with ringfile.open(path, adaptive=False) as file:
        with pickle.loads(pickle.dumps(file)) as other:
            assert other.read_at(5, 5) == content[5:10] and other.mode == "rb"
    with ringfile.open(path.with_name("new"), "wb") as file:
        file.write_at(b"kept", 0)
        with pickle.loads(pickle.dumps(file)) as other:
            assert other.mode == "r+b" and other.read_at(0, 4) == b"kept"


def test_many_threads_use_one_file(path, content):
    file, errors = ringfile.open(path), []

    def read(seed):
        for at in range(seed, len(content) - 5000, 9973):
            if bytes(file.read_ranges([(at, 5000)])[0]) != content[at : at + 5000]:
                errors.append(at)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(8)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert not errors


def test_other_threads_run_while_a_call_waits(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    writer = os.open(tmp_path / "pipe", os.O_RDWR)
    got = []
    with ringfile.open(tmp_path / "pipe") as file:
        reader = threading.Thread(target=lambda: got.append(file.read_at(0, 5)))
        reader.start()
        time.sleep(0.05)
        os.write(writer, b"hello")
        reader.join(10)
    os.close(writer)
    assert got == [b"hello"]


@pytest.fixture
def interrupts():
    """Python raises KeyboardInterrupt only if its parent did not have SIGINT ignored, as shells do in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_a_signal_interrupts_within_100_ms(tmp_path, interrupts):
    os.mkfifo(tmp_path / "pipe")
    writer = os.open(tmp_path / "pipe", os.O_RDWR)
    with ringfile.open(tmp_path / "pipe") as file:
        buffer = bytearray(10)
        for call in [lambda: file.read_at(0, 10), lambda: file.read_into(buffer, 0)]:
            sent = []

            def send():
                time.sleep(0.1)
                sent.append(time.monotonic())
                os.kill(os.getpid(), signal.SIGINT)

            thread = threading.Thread(target=send)
            thread.start()
            with pytest.raises(KeyboardInterrupt):
                call()
            assert time.monotonic() - sent[0] < 0.5
            thread.join()
        buffer.append(1)
    os.close(writer)


def test_memory_cannot_be_resized_while_it_is_read_into(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    writer = os.open(tmp_path / "pipe", os.O_RDWR)
    buffer, ready = bytearray(10), threading.Event()
    with ringfile.open(tmp_path / "pipe") as file:

        def read():
            ready.set()
            file.read_into(buffer, 0)

        reader = threading.Thread(target=read)
        reader.start()
        ready.wait()
        time.sleep(0.05)
        with pytest.raises(BufferError):
            buffer.append(0)
        os.write(writer, b"0123456789")
        reader.join(10)
    os.close(writer)
    buffer.append(0)
    assert buffer == b"0123456789\0"


def _size_and_bytes(file):
    return file.size(), file.read_at(3, 3)


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_other_processes_use_a_file(path, content, method):
    with ringfile.open(path) as file:
        with multiprocessing.get_context(method).Pool(1) as pool:
            assert pool.apply(_size_and_bytes, (file,)) == (len(content), content[3:6])


def test_after_a_fork_each_call_says_what_to_do(path):
    code = f"""
import os, ringfile
file = ringfile.open({str(path)!r})
array = ringfile.Pool.array(10)
file.read_at(0, 1)
if (child := os.fork()) == 0:
    failed = 0
    calls = [lambda: ringfile.open({str(path)!r}), lambda: file.read_at(0, 1), lambda: file.read_ranges([(0, 1)]), file.size,
        lambda: ringfile.Pool.array(1), ringfile.metrics, lambda: ringfile.doctor({str(path)!r})]
    for call in calls:
        try:
            call()
        except RuntimeError as error:
            failed += "spawn" in str(error)
    file.close()
    del array
    os._exit(100 + failed)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 107
assert len(file.read_at(0, 10)) == 10
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_process_that_only_imported_ringfile_may_fork(path):
    code = f"""
import os, ringfile
if os.fork() == 0:
    os._exit(len(ringfile.open({str(path)!r}).read_at(0, 10)))
assert os.waitstatus_to_exitcode(os.wait()[1]) == 10
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_subinterpreter_refuses_the_import():
    interpreters = pytest.importorskip("_interpreters" if sys.version_info >= (3, 13) else "_xxsubinterpreters")
    one = interpreters.create()
    code = "try:\n    import ringfile\nexcept ImportError:\n    pass\nelse:\n    raise SystemError"
    assert interpreters.run_string(one, code) is None
    interpreters.destroy(one)


def test_an_interpreter_may_end_while_a_thread_reads(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    code = f"""
import os, ringfile, threading, time
writer = os.open({str(tmp_path / "pipe")!r}, os.O_RDWR)
file = ringfile.open({str(tmp_path / "pipe")!r})
threading.Thread(target=file.read_at, args=(0, 10), daemon=True).start()
time.sleep(0.1)
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_counters_and_doctor_are_dicts(path):
    before = ringfile.metrics()
    with ringfile.open(path) as file:
        file.read_at(0, 10)
    after = ringfile.metrics()
    assert after["ops"] > before["ops"] and after["bytes_read"] - before["bytes_read"] == 10
    told = ringfile.doctor(path)
    assert told["size"] == 1 << 20 and isinstance(told["advice"], list)
    with pytest.raises(FileNotFoundError):
        ringfile.doctor("/missing")


def test_events_are_logged(path):
    code = f"""
import logging, ringfile
logging.basicConfig(level=logging.INFO)
ringfile.open({str(path)!r}, adaptive=False).read_ranges([(0, 4096)] * 10)
for _ in range(1000): pass
"""
    environment = {**os.environ, "RINGFILE_DISABLE": "nonsense"}
    done = subprocess.run([sys.executable, "-c", code], check=True, timeout=60, capture_output=True, text=True, env=environment)
    assert "WARNING:ringfile:ignoring RINGFILE_DISABLE" in done.stderr
