# RocksDB's own tests, compiled from Debian's source package and linked to Debian's library. Sourced, after common.sh.
#
# The sources are fetched into $cache, outside the tree, and none of them is copied. Code that the tests need but
# Debian's library lacks is compiled with them. NDEBUG is not defined, as in the library, so sync points and asserts are on.

theirs=$build/theirs
sources=$cache/rocksdb-$version

helpers=(
    db/db_test_util.cc
    db/db_with_timestamp_test_util.cc
    table/mock_table.cc
    monitoring/thread_status_updater_debug.cc
    utilities/agg_merge/test_agg_merge.cc
    test_util/mock_time_env.cc
    test_util/testharness.cc
    third-party/gtest-1.8.1/fused-src/gtest/gtest-all.cc
)

# The flags of Debian's build, so that classes have the same sizes; -O0, since most of the time goes to compiling.
flags=(
    -std=c++17 -O0 -w -DROCKSDB_USE_RTTI -DGFLAGS=1
    -DBZIP2 -DLZ4 -DSNAPPY -DZLIB -DZSTD
    -DOS_LINUX -DROCKSDB_PLATFORM_POSIX -DROCKSDB_LIB_IO_POSIX -DROCKSDB_FALLOCATE_PRESENT -DROCKSDB_RANGESYNC_PRESENT
    -DROCKSDB_MALLOC_USABLE_SIZE -DROCKSDB_PTHREAD_ADAPTIVE_MUTEX -DROCKSDB_SCHED_GETCPU_PRESENT
    -DROCKSDB_AUXV_GETAUXVAL_PRESENT
    -I"$sources" -I"$sources/include" -isystem "$sources/third-party/gtest-1.8.1/fused-src"
)

# Fetches the source package from the system's own mirrors. apt's lists are kept in the cache, so that the system's own
# lists stay as they are.
fetch_with_own_lists() {
    local state=$cache/apt
    mkdir -p "$state/lists/partial" "$state/archives/partial"
    apt-get indextargets --format 'deb-src [signed-by=$(SIGNED_BY)] $(REPO_URI) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' |
        sed 's/\[signed-by=\($(SIGNED_BY)\)\?\] //' | sort -u | grep -E ' main$' >"$state/sources.list"
    local own=(-o Dir::Etc::SourceList="$state/sources.list" -o Dir::Etc::SourceParts=/dev/null
        -o Dir::State::Lists="$state/lists" -o Dir::Cache="$state" -o Debug::NoLocking=1)
    apt-get "${own[@]}" update -qq && apt-get "${own[@]}" source -qq "rocksdb=$version-2"
}

# Prints why the sources cannot be fetched.
fetch_sources() {
    test -e "$sources/db/db_basic_test.cc" && return 0
    command -v apt-get >/dev/null || { echo "no apt-get"; return 1; }
    command -v dpkg-source >/dev/null || { echo "no dpkg-source: apt-get install dpkg-dev"; return 1; }
    mkdir -p "$cache"
    (
        cd "$cache"
        apt-get source -qq rocksdb="$version-2" || fetch_with_own_lists
    ) >"$cache/fetch.log" 2>&1 || true
    test -e "$sources/db/db_basic_test.cc" || { echo "apt-get source rocksdb=$version-2 gave nothing: see $cache/fetch.log"; return 1; }
}

# Builds a test by its path in the sources, on all processors, and prints where the program is.
build_theirs() {
    local test=$1 name object objects=() pairs=()
    name=$(basename "$test" .cc)
    mkdir -p "$theirs"
    for source in "${helpers[@]}" "$test"; do
        object=$theirs/$(basename "$source" .cc).o
        objects+=("$object")
        test "$object" -nt "$sources/$source" || pairs+=("$sources/$source" -o "$object")
    done
    ((${#pairs[@]} == 0)) || printf '%s\0' "${pairs[@]}" | xargs -0 -n 3 -P "$(nproc)" c++ "${flags[@]}" -c || return
    c++ -o "$theirs/$name" "${objects[@]}" -lrocksdb -lgflags -lsnappy -llz4 -lzstd -lz -lbz2 -lpthread || return
    echo "$theirs/$name"
}

# Runs a test in a fresh folder on the file system of that URI, and kills it after an hour: a test that hangs would keep
# the others from running. $1: program; $2: URI; $3: log; the other arguments are the program's.
run_theirs() {
    local program=$1 uri=$2 log=$3 folder status=0
    shift 3
    folder=$(fresh_folder)
    # env_basic_test expects the URI in another variable.
    local variable=TEST_FS_URI
    test "$(basename "$program")" != env_basic_test || variable=TEST_ENV_URI
    timeout -k 10 3600 env "$variable=$uri" TEST_TMPDIR="$folder" LD_PRELOAD="$plugin" \
        RINGFILE_ROCKSDB_STATISTICS="${statistics:-}" "$program" "$@" >"$log" 2>&1 || status=$?
    rm -rf "$folder"
    return "$status"
}
