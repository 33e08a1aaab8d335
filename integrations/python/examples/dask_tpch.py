"""TPC-H on a Dask cluster whose workers read Parquet through `ringfile://` and are killed: `python dask_tpch.py FOLDER`.

Three worker processes compute q1, q6, q12 and a join with a shuffle; DuckDB computes the same from the same files. Then a worker
is killed with SIGKILL in the middle of reading, of computing, and of a shuffle, again and again: Dask computes anew what was lost
with it, and each answer must be the same. At last the workers read 200 files of records, one is killed, and each record must be
there exactly once.

FOLDER is local, or a mount that all workers share. Its tables are made by tpchgen-cli if they are not there. Needs
`dask[dataframe]`, `distributed`, `duckdb`, `pandas`, `pyarrow` and `tpchgen-cli`.
"""

import argparse
import datetime
import glob
import os
import random
import shutil
import signal
import subprocess
import sysconfig
import tempfile
import threading
import time

import dask.dataframe
import distributed
import duckdb
import fsspec
import numpy
import pandas
import pyarrow.compute
from pyarrow import parquet
from pyarrow.fs import FSSpecHandler, PyFileSystem

import ringfile

WORKERS, PARTS = 3, 24
FILES, RECORDS, RECORD = 200, 2000, 64
STAGES = "RINGFILE_EXAMPLE_STAGES"


def make_tables(folder, scale):
    """Makes the two large tables, in 24 files each."""
    if not glob.glob(f"{folder}/lineitem/*.parquet"):
        program = shutil.which("tpchgen-cli", path=f"{sysconfig.get_path('scripts')}:{os.environ['PATH']}") or "tpchgen-cli"
        options = f"parquet --scale-factor={scale} --parts={PARTS} --tables=lineitem,orders --output-dir"
        subprocess.run([program, *options.split(), folder], check=True, stdout=subprocess.DEVNULL)
    return {name: sorted(glob.glob(f"{folder}/{name}/*.parquet")) for name in ("lineitem", "orders")}


def mark(stage):
    """Tells the one who kills that this process has begun a stage."""
    open(f"{os.environ[STAGES]}/{stage}.{os.getpid()}", "w").close()


def read(path, columns=None):
    """Reads some columns of a file. Money and shares become whole numbers of cents and per cent, so that sums are exact."""
    mark("reading")
    files = PyFileSystem(FSSpecHandler(fsspec.filesystem("ringfile")))
    found = parquet.read_table(path, columns=columns, filesystem=files)
    for number, field in enumerate(found.schema):
        column, kind = found.column(number), field.type
        if pyarrow.types.is_decimal(kind):
            column = pyarrow.compute.round(pyarrow.compute.multiply(column.cast("float64"), 100)).cast("int64")
        elif pyarrow.types.is_date(kind):
            column = column.cast(pyarrow.timestamp("s"))
        elif pyarrow.types.is_string_view(kind):
            column = column.cast("string")
        found = found.set_column(number, field.name, column)
    return found.to_pandas()


def with_prices(frame):
    mark("computing")
    frame = frame.assign(disc_price=frame.l_extendedprice * (100 - frame.l_discount))
    return frame.assign(charge=frame.disc_price * (100 + frame.l_tax)) if "l_tax" in frame else frame


def table(files, columns):
    return dask.dataframe.from_map(read, files, columns=columns.split())


def q1(tables):
    frame = table(tables["lineitem"], "l_returnflag l_linestatus l_quantity l_extendedprice l_discount l_tax l_shipdate")
    frame = frame[frame.l_shipdate <= datetime.datetime(1998, 9, 2)].map_partitions(with_prices)
    sums = frame.groupby(["l_returnflag", "l_linestatus"])[["l_quantity", "l_extendedprice", "disc_price", "charge"]].sum()
    return sums.reset_index()


def q6(tables):
    frame = table(tables["lineitem"], "l_shipdate l_discount l_quantity l_extendedprice")
    year = (frame.l_shipdate >= datetime.datetime(1994, 1, 1)) & (frame.l_shipdate < datetime.datetime(1995, 1, 1))
    frame = frame[year & (frame.l_discount >= 5) & (frame.l_discount <= 7) & (frame.l_quantity < 2400)].map_partitions(with_prices)
    return (frame.l_extendedprice * frame.l_discount).sum()


def q12(tables):
    lines = table(tables["lineitem"], "l_orderkey l_shipmode l_shipdate l_commitdate l_receiptdate l_extendedprice l_discount")
    year = (lines.l_receiptdate >= datetime.datetime(1994, 1, 1)) & (lines.l_receiptdate < datetime.datetime(1995, 1, 1))
    late = (lines.l_commitdate < lines.l_receiptdate) & (lines.l_shipdate < lines.l_commitdate)
    lines = lines[year & late & lines.l_shipmode.isin(["MAIL", "SHIP"])].map_partitions(with_prices)
    joined = lines.merge(table(tables["orders"], "o_orderkey o_orderpriority"), left_on="l_orderkey", right_on="o_orderkey")
    joined = joined.assign(high=joined.o_orderpriority.isin(["1-URGENT", "2-HIGH"]).astype("int64"), all=1)
    return joined.groupby("l_shipmode")[["high", "all"]].sum().reset_index()


def join(tables):
    """All lines with their orders: both tables go from each worker to each other one."""
    lines = table(tables["lineitem"], "l_orderkey l_shipmode l_extendedprice l_discount").map_partitions(with_prices)
    orders = table(tables["orders"], "o_orderkey o_orderpriority o_totalprice")
    joined = lines.merge(orders, left_on="l_orderkey", right_on="o_orderkey", shuffle_method="p2p")
    sums = joined.groupby(["o_orderpriority", "l_shipmode"])[["disc_price", "o_totalprice"]].sum()
    return sums.reset_index()


CENTS = "CAST({0} * 100 AS BIGINT)".format
QUERIES = {
    q1: f"""SELECT l_returnflag, l_linestatus, sum({CENTS('l_quantity')}), sum({CENTS('l_extendedprice')}),
        sum({CENTS('l_extendedprice')} * (100 - {CENTS('l_discount')})),
        sum({CENTS('l_extendedprice')} * (100 - {CENTS('l_discount')}) * (100 + {CENTS('l_tax')}))
        FROM lineitem WHERE l_shipdate <= DATE '1998-09-02' GROUP BY ALL""",
    q6: f"""SELECT sum({CENTS('l_extendedprice')} * {CENTS('l_discount')}) FROM lineitem WHERE l_discount BETWEEN 0.05 AND 0.07
        AND l_shipdate >= DATE '1994-01-01' AND l_shipdate < DATE '1995-01-01' AND l_quantity < 24""",
    q12: """SELECT l_shipmode, sum(CASE WHEN o_orderpriority IN ('1-URGENT', '2-HIGH') THEN 1 ELSE 0 END), count(*)
        FROM lineitem JOIN orders ON l_orderkey = o_orderkey WHERE l_shipmode IN ('MAIL', 'SHIP')
        AND l_commitdate < l_receiptdate AND l_shipdate < l_commitdate
        AND l_receiptdate >= DATE '1994-01-01' AND l_receiptdate < DATE '1995-01-01' GROUP BY ALL""",
    join: f"""SELECT o_orderpriority, l_shipmode, sum({CENTS('l_extendedprice')} * (100 - {CENTS('l_discount')})),
        sum({CENTS('o_totalprice')}) FROM lineitem JOIN orders ON l_orderkey = o_orderkey GROUP BY ALL""",
}


def rows(found):
    """Returns the rows in order, as texts and whole numbers."""
    if isinstance(found, pandas.DataFrame):
        found = found.itertuples(index=False)
    elif numpy.isscalar(found):
        found = [[found]]
    return sorted(tuple(each if isinstance(each, str) else int(each) for each in row) for row in found)


def by_duckdb(tables, query):
    database = duckdb.connect()
    for name, files in tables.items():
        database.execute(f"CREATE VIEW {name} AS SELECT * FROM read_parquet({files})")
    return rows(database.execute(query).fetchall())


class Killer(threading.Thread):
    """Kills a worker once, a moment after it has begun a stage."""

    def __init__(self, client, stage, pause):
        super().__init__(daemon=True)
        self.client, self.stage, self.pause, self.killed = client, stage, pause, None
        self.workers = client.run(os.getpid)
        self.over = threading.Event()
        for name in os.listdir(os.environ[STAGES]):
            os.unlink(f"{os.environ[STAGES]}/{name}")

    def victim(self):
        if self.stage != "shuffling":
            found = (int(name.split(".")[1]) for name in os.listdir(os.environ[STAGES]) if name.startswith(self.stage))
            return next((process for process in found if process in self.workers.values()), None)
        for address, keys in self.client.processing().items():
            if any(part in str(key) for key in keys for part in ("shuffle", "hash-join")):
                return self.workers.get(address)
        return None

    def run(self):
        while not self.over.is_set():
            victim = self.victim()
            if victim is not None:
                self.over.wait(self.pause)
                if not self.over.is_set():
                    os.kill(victim, signal.SIGKILL)
                    self.killed = victim
                return
            time.sleep(0.002)


def disturbed(client, stage, compute, pause):
    """Computes while a worker is killed in that stage. Returns the result, and how long it took; no time if nobody was."""
    client.wait_for_workers(WORKERS)
    killer = Killer(client, stage, pause)
    killer.start()
    began = time.monotonic()
    found = compute()
    took = time.monotonic() - began
    killer.over.set()
    killer.join()
    return found, took if killer.killed else None


def make_records(folder):
    """Makes files of records, each with its number and what follows from that."""
    paths = [f"{folder}/{number:03}.records" for number in range(FILES)]
    for number, path in enumerate(paths):
        with open(path, "wb") as file:
            for record in range(number * RECORDS, (number + 1) * RECORDS):
                file.write(record.to_bytes(8, "little") * (RECORD // 8))
    return paths


def read_records(path):
    """Returns the numbers of a file's records, after a look at their bytes."""
    mark("reading")
    array = numpy.empty((RECORDS, RECORD // 8), "<u8")
    ranges = [(record * RECORD, RECORD) for record in range(RECORDS)]
    with ringfile.open(path) as file:
        file.read_ranges(ranges, out=array, exact=True)
    if (array != array[:, :1]).any():
        raise ValueError(f"{path}: a record was torn")
    return array[:, 0]


def run(folder, scale, kills, seed):
    numbers = random.Random(seed)
    tables = make_tables(folder, scale)
    rights = {query: by_duckdb(tables, text) for query, text in QUERIES.items()}
    with tempfile.TemporaryDirectory() as stages:
        os.environ[STAGES] = stages
        with distributed.LocalCluster(n_workers=WORKERS, threads_per_worker=1, dashboard_address=None) as cluster, cluster.get_client() as client:
            undisturbed = {}
            for query, right in rights.items():
                client.wait_for_workers(WORKERS)
                began = time.monotonic()
                found = rows(query(tables).compute())
                undisturbed[query] = time.monotonic() - began
                assert found == right, f"{query.__name__}: {found} is not {right}"
                print(f"{query.__name__}: the {len(right)} rows of DuckDB, in {undisturbed[query]:.2f} s", flush=True)
            for stage, query in {"reading": q6, "computing": q1, "shuffling": join}.items():
                times = []
                for _ in range(kills * 5):
                    found, took = disturbed(client, stage, lambda: rows(query(tables).compute()), numbers.random() * 0.1)
                    assert found == rights[query], f"{query.__name__}, killed while {stage}: {found} is not {rights[query]}"
                    times += [took] if took else []
                    if len(times) == kills:
                        break
                assert len(times) == kills, f"only {len(times)} of {kills} workers could be killed while {stage}"
                shown = ", ".join(f"{took:.2f}" for took in times)
                print(f"{query.__name__}, killed while {stage}, {kills} times: right; {shown} s", flush=True)
            with tempfile.TemporaryDirectory(dir=folder) as records:
                paths = make_records(records)
                compute = lambda: client.gather(client.map(read_records, paths, pure=False))  # noqa: E731
                found, took = disturbed(client, "reading", compute, numbers.random() * 0.1)
            every = numpy.sort(numpy.concatenate(found))
            assert (every == numpy.arange(FILES * RECORDS)).all(), "a record is missing, or there twice"
            how = "with a worker killed" if took else "undisturbed"
            print(f"{FILES} files of {RECORDS} records, {how}: each record exactly once", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--scale", default="1")
    parser.add_argument("--kills", type=int, default=10, help="in each stage")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    options = parser.parse_args()
    print(f"seed {options.seed}")
    run(os.path.realpath(options.folder), options.scale, options.kills, options.seed)


if __name__ == "__main__":
    main()
