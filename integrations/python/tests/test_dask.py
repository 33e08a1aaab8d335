"""The example of a cluster, smaller."""

import os
import pathlib
import subprocess
import sys

import pytest

EXAMPLE = pathlib.Path(__file__).parents[1] / "examples/dask_tpch.py"


@pytest.mark.skipif(bool(os.environ.get("RINGFILE_DISABLE")), reason="the cluster is tested once")
def test_answers_are_right_although_workers_are_killed(tmp_path):
    for name in ("dask.dataframe", "distributed", "duckdb", "pandas", "pyarrow"):
        pytest.importorskip(name)
    command = [sys.executable, EXAMPLE, tmp_path, "--scale", "0.1", "--kills", "2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("killed while") == 3 and "each record exactly once" in done.stdout
