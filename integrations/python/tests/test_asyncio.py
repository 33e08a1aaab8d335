"""`ringfile.asyncio`."""

import asyncio
import gc
import os
import threading

import numpy
import pytest

import ringfile
import ringfile.asyncio

RUNNERS = ["asyncio", "uvloop"]


@pytest.fixture(params=RUNNERS)
def run(request):
    if request.param == "asyncio":
        return asyncio.run
    return pytest.importorskip(request.param).run


def test_the_calls_are_those_of_a_file(run, path, content, tmp_path):
    async def main():
        async with ringfile.asyncio.open(path) as file:
            assert file.size() == len(content)
            assert await file.read_at(100, 5000) == content[100:5100]
            assert await file.read_at(0, 1 << 30) == content
            buffer = bytearray(100)
            assert await file.read_into(buffer, 7) == 100 and buffer == content[7:107]
            ranges = [(at, 3000) for at in range(0, len(content), 10_007)]
            for got, (at, length) in zip(await file.read_ranges(ranges), ranges, strict=True):
                assert bytes(got) == content[at : at + length]
            array = numpy.zeros((len(ranges), 3000), "uint8")
            lengths = await file.read_ranges(ranges, out=array)
            assert lengths == [min(3000, len(content) - at) for at, _ in ranges]
            assert await file.read_ranges([]) == []
            with pytest.raises(EOFError):
                await file.read_into(buffer, len(content) - 1, exact=True)
            with pytest.raises(ValueError):
                await file.read_at(-1, 1)
            with pytest.raises(OSError):
                await file.write_at(b"x", 0)
        assert file.closed
        with pytest.raises(ValueError):
            await file.read_at(0, 1)
        async with ringfile.asyncio.open(tmp_path / "new", "wb") as file:
            assert await file.write_at(b"written", 0) == 7
            await file.sync()
        assert (tmp_path / "new").read_bytes() == b"written"

    run(main())


def test_many_tasks_read_at_once(run, path, content):
    async def read(file, at):
        assert await file.read_at(at, 4096) == content[at : at + 4096]

    async def main():
        async with ringfile.asyncio.open(path) as file:
            await asyncio.gather(*(read(file, at * 997 % len(content)) for at in range(2000)))

    run(main())
    run(main())


def test_no_thread_waits(run, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    writer = os.open(tmp_path / "pipe", os.O_RDWR)

    async def main():
        async with ringfile.asyncio.open(tmp_path / "pipe") as file:
            first = asyncio.ensure_future(file.read_at(0, 5))
            await asyncio.sleep(0.05)
            assert not first.done() and threading.active_count() == 1
            os.write(writer, b"hello")
            assert await first == b"hello"

    run(main())
    os.close(writer)


def test_cancelling_a_task_keeps_its_memory_until_the_kernel_is_done(run, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    writer = os.open(tmp_path / "pipe", os.O_RDWR)

    async def main():
        buffer = bytearray(10)
        async with ringfile.asyncio.open(tmp_path / "pipe") as file:
            task = asyncio.ensure_future(file.read_into(buffer, 0))
            await asyncio.sleep(0.05)
            with pytest.raises(BufferError):
                buffer.append(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            for _ in range(100):
                await asyncio.sleep(0.02)
                try:
                    buffer.append(0)
                    break
                except BufferError:
                    continue
            else:
                raise AssertionError("the buffer is still exported")
            os.write(writer, b"later")
            assert await file.read_at(0, 5) == b"later"

    run(main())
    os.close(writer)


def test_a_loop_may_end_with_calls_in_flight(run, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    writer = os.open(tmp_path / "pipe", os.O_RDWR)
    buffer = bytearray(10)

    async def main():
        file = ringfile.asyncio.open(tmp_path / "pipe")
        asyncio.ensure_future(file.read_into(buffer, 0))
        await asyncio.sleep(0.05)

    run(main())
    gc.collect()
    os.write(writer, b"nobody reads this")
    os.close(writer)
    assert buffer == bytes(10)
    buffer.append(0)


def test_loops_of_several_threads(path, content):
    async def main():
        async with ringfile.asyncio.open(path) as file:
            for at in range(0, len(content) - 100, 5003):
                assert await file.read_at(at, 100) == content[at : at + 100]

    errors = []

    def thread():
        try:
            asyncio.run(main())
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=thread) for _ in range(4)]
    [each.start() for each in threads]
    [each.join() for each in threads]
    assert not errors
