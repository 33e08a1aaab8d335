# Shared by the scripts of this folder. Sourced, after `set -euo pipefail`.
#
# RINGFILE_ROCKSDB_BUILD   where the file system and RocksDB's tests are built (default: target/rocksdb of the checkout)
# RINGFILE_ROCKSDB_CACHE   where Debian's source package is kept (default: rocksdb-source in the build folder)

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$root/target}
build=${RINGFILE_ROCKSDB_BUILD:-$CARGO_TARGET_DIR/rocksdb}
cache=${RINGFILE_ROCKSDB_CACHE:-$build/rocksdb-source}
plugin=$build/libringfile_rocksdb.so
# The version of RocksDB whose sources and tools the tests use.
version=7.8.3

say() {
    printf '%s\n' "-- $*"
}

fail() {
    printf '%s\n' "$*" >&2
    exit 1
}

# Fails unless a program is installed. $1: the program; $2: the Debian package that contains it.
need() {
    command -v "$1" >/dev/null || fail "no $1: apt-get install $2"
}

# Fails unless the file system can be built. Debian 12 has Rust too, but one that is too old.
need_compilers() {
    command -v cargo >/dev/null || fail "no cargo: install Rust 1.88 or later, https://rustup.rs"
    need cmake cmake
    need c++ g++
}

need_all() {
    need_compilers
    need db_bench rocksdb-tools
    test -e /usr/include/rocksdb/file_system.h || fail "no headers of RocksDB: apt-get install librocksdb-dev"
}

# Builds the file system; further arguments go to cmake.
build_plugin() {
    mkdir -p "$build"
    cmake -S "$here" -B "$build" "$@" >"$build/configure.log" || fail "$(tail -20 "$build/configure.log")"
    cmake --build "$build" >"$build/build.log" 2>&1 || fail "$(tail -40 "$build/build.log")"
    test -e "$plugin"
}

# Runs any program of RocksDB, with the file system available. Its counts go to the file that $statistics names.
with_ringfile() {
    LD_PRELOAD=$plugin RINGFILE_ROCKSDB_STATISTICS=${statistics:-} "$@"
}

# Prints one count of a statistics file, added up over the programs that wrote to it.
counted() {
    cat "$2" 2>/dev/null | awk -v name="ringfile.$1" '$1 == name { sum += $2 } END { print sum + 0 }'
}

# Returns whether this process may use io_uring. If not, the file system makes plain calls.
has_ring() {
    test -z "${RINGFILE_DISABLE:-}" && test "$(cat /proc/sys/kernel/io_uring_disabled 2>/dev/null || echo 0)" = 0
}

fresh_folder() {
    mktemp -d "${TMPDIR:-/tmp}/ringfile-rocksdb-XXXXXX"
}
