"""The type stubs, if mypy is installed."""

import os
import pathlib
import subprocess
import sys

import pytest

pytest.importorskip("mypy")
pytestmark = pytest.mark.skipif(bool(os.environ.get("RINGFILE_DISABLE")), reason="types are the same without io_uring")


def run(*command):
    done = subprocess.run([sys.executable, "-m", *map(str, command)], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_typed_program_passes_mypy(tmp_path):
    run("mypy", "--strict", "--cache-dir", tmp_path, pathlib.Path(__file__).with_name("typed.py"))


def test_the_stubs_say_what_is_there(tmp_path):
    allowed = tmp_path / "allowed"
    # Parts of the package that are nobody else's.
    allowed.write_text("ringfile\\._ringfile\nringfile\\._io\nringfile\\.compare\\.numpy\n")
    run("mypy.stubtest", "ringfile", "--ignore-unused-allowlist", "--allowlist", allowed)
