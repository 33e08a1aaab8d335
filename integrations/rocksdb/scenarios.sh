# Tests that run under each version of RocksDB. Sourced, after common.sh.
#
# Needs these variables and functions:
#
# checks          the folder of the programs of check/
# folder          an empty folder
# stress          the duration of the stress test, in seconds
# plain_tool      runs one of RocksDB's tools without the file system
# ringfile_tool   runs one of RocksDB's tools with it, by the URI $uri

uri=ringfile://

# Runs one of RocksDB's tools with adaptive tables.
adaptive_tool() {
    local uri=ringfile://adaptive
    ringfile_tool "$@"
}

own_tests() {
    mkdir "$folder/own"
    "$checks/file_system" "$folder/own" >"$folder/own.log" || fail "$(cat "$folder/own.log")"
    case $(stat -f -c %T "$folder") in
        ext2/ext3 | xfs | btrfs)
            (($(counted cache_hits "$folder/own.log") + $(counted cache_misses "$folder/own.log") > 0)) || fail "no read was adaptive"
            ;;
    esac
    # All routes must look the same to RocksDB.
    RINGFILE_DISABLE=io_uring,aio "$checks/file_system" "$folder/own" >/dev/null
}

async_reads() {
    RINGFILE_ROCKSDB_STRESS_SECONDS=$stress "$checks/async_reads" "$folder/own"
    # Tests the other routes, which remain if a process has no io_uring.
    RINGFILE_ROCKSDB_STRESS_SECONDS=1 RINGFILE_DISABLE=io_uring,aio "$checks/async_reads" "$folder/own"
}

slow_reads() {
    "$checks/slow_reads" "$folder/own" | grep -v '^ringfile\.'
    "$checks/submitted_reads" "$folder/own"
}

bench=(--num=20000 --key_size=100 --value_size=1000 --compression_type=lz4 --block_size=16384 --write_buffer_size=4194304)

# Reads keys with db_bench, and fails unless all were found. $1: database; the other arguments run db_bench.
read_all() {
    local db=$1 out direct=(--use_direct_reads)
    shift
    test "$1" != adaptive_tool || direct=()
    out=$("$@" --db="$db" "${bench[@]}" --use_existing_db --benchmarks=multireadrandom --multiread_batched=true \
        --batch_size=100 --threads=2 --reads=5000 "${direct[@]}" --cache_size=0 2>&1) || fail "$out"
    grep -q '(5000 of 5000 found)' <<<"$out" || fail "keys are missing in $db: $out"
}

# Runs iterators that read the next piece while they process the current one.
iterators() {
    local out
    statistics=$folder/iterator-statistics
    out=$(ringfile_tool db_bench --db="$folder/without" "${bench[@]}" --use_existing_db --benchmarks=seekrandom \
        --seek_nexts=200 --reads=500 --threads=2 --async_io --use_direct_reads --cache_size=0 2>&1) || fail "$out"
    grep -q '(500 of 500 found)' <<<"$out" || fail "keys are missing: $out"
    echo "ReadAsync: $(counted async_reads "$statistics") calls; given up: $(counted async_reads_aborted "$statistics")"
    (($(counted async_reads "$statistics") > 0)) || fail "ReadAsync was never called"
    statistics=
}
