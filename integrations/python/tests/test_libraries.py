"""Libraries that read and write through `ringfile://`. Each is skipped if it is not installed."""

import fsspec
import numpy
import pytest

import ringfile

# As `file://` with fsspec, which makes no folders by itself either.
MAKES_FOLDERS = {"auto_mkdir": True}


@pytest.fixture
def fs():
    return fsspec.filesystem("ringfile")


def test_pandas(tmp_path):
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame({"a": range(10_000), "b": [f"text {n}" for n in range(10_000)]})
    table.to_csv(f"ringfile://{tmp_path}/table.csv", index=False)
    pandas.testing.assert_frame_equal(pandas.read_csv(f"ringfile://{tmp_path}/table.csv"), table)
    pytest.importorskip("pyarrow")
    table.to_parquet(f"ringfile://{tmp_path}/table.parquet")
    pandas.testing.assert_frame_equal(pandas.read_parquet(f"ringfile://{tmp_path}/table.parquet"), table)
    got = pandas.read_parquet(f"ringfile://{tmp_path}/table.parquet", columns=["b"])
    assert list(got.columns) == ["b"]


def test_pyarrow(tmp_path, fs):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import dataset, parquet
    from pyarrow.fs import FSSpecHandler, PyFileSystem

    ours = PyFileSystem(FSSpecHandler(fs))
    table = pyarrow.table({"a": range(100_000), "b": [n % 7 for n in range(100_000)]})
    parquet.write_table(table, f"{tmp_path}/table.parquet", filesystem=ours, row_group_size=1000)
    assert parquet.read_table(f"{tmp_path}/table.parquet", filesystem=ours, columns=["b"]) == table.select(["b"])
    dataset.write_dataset(table, f"{tmp_path}/parts", filesystem=ours, format="parquet", partitioning=["b"])
    assert dataset.dataset(f"{tmp_path}/parts", filesystem=ours, partitioning=["b"]).count_rows() == 100_000
    import fsspec.parquet

    with fsspec.parquet.open_parquet_file(f"ringfile://{tmp_path}/table.parquet", columns=["a"], engine="pyarrow") as file:
        assert parquet.read_table(file, columns=["a"]) == table.select(["a"])


def test_duckdb(tmp_path, fs):
    duckdb = pytest.importorskip("duckdb")
    database = duckdb.connect()
    database.register_filesystem(fs)
    database.execute(f"COPY (SELECT range AS a FROM range(50000)) TO 'ringfile://{tmp_path}/table.parquet'")
    assert database.execute(f"SELECT sum(a) FROM 'ringfile://{tmp_path}/table.parquet'").fetchone() == (1249975000,)


def test_zarr(tmp_path):
    zarr = pytest.importorskip("zarr")
    data = numpy.random.default_rng(7).integers(0, 1000, (64, 64, 64))
    array = zarr.create_array(
        f"ringfile://{tmp_path}/array", shape=data.shape, chunks=(16, 16, 16), shards=(32, 32, 32), dtype=data.dtype, storage_options=MAKES_FOLDERS)
    array[:] = data
    got = zarr.open_array(f"ringfile://{tmp_path}/array", mode="r")
    assert numpy.array_equal(got[10:40, 3:5, 60:], data[10:40, 3:5, 60:])


def test_xarray(tmp_path):
    xarray = pytest.importorskip("xarray")
    pytest.importorskip("zarr")
    data = xarray.Dataset({"a": (("x", "y"), numpy.arange(600.0).reshape(20, 30))})
    data.to_zarr(f"ringfile://{tmp_path}/set", storage_options=MAKES_FOLDERS)
    xarray.testing.assert_equal(xarray.open_zarr(f"ringfile://{tmp_path}/set").load(), data)


def test_datasets(tmp_path):
    datasets = pytest.importorskip("datasets")
    pandas = pytest.importorskip("pandas")
    made = datasets.Dataset.from_dict({"a": list(range(1000)), "b": [str(n) for n in range(1000)]})
    made.save_to_disk(f"ringfile://{tmp_path}/set")
    assert datasets.load_from_disk(f"ringfile://{tmp_path}/set")["a"][-1] == 999
    pandas.DataFrame({"a": range(100)}).to_parquet(f"{tmp_path}/table.parquet")
    loaded = datasets.load_dataset("parquet", data_files=f"ringfile://{tmp_path}/table.parquet", cache_dir=f"{tmp_path}/cache", split="train")
    assert loaded["a"][:] == list(range(100))


def test_torch_reads_into_tensors(path, content):
    torch = pytest.importorskip("torch")
    tensor = torch.zeros(4, 256, dtype=torch.bfloat16)
    with ringfile.open(path, "r+b") as file:
        assert file.read_into(tensor, 512) == 2048
        assert bytes(tensor.view(torch.uint8).numpy().reshape(-1)) == content[512:2560]
        assert file.write_at(tensor, 0) == 2048 and file.read_at(0, 2048) == content[512:2560]
        with pytest.raises(ValueError):
            file.read_into(tensor.t(), 0)
