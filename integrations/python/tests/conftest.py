"""Fixtures that all tests share."""

import random

import pytest


@pytest.fixture
def content():
    """A megabyte of bytes that do not repeat."""
    return random.Random(7).randbytes(1 << 20)


@pytest.fixture
def path(tmp_path, content):
    path = tmp_path / "data.bin"
    path.write_bytes(content)
    return path
