# Builds librocksdb.so and db_bench of a later RocksDB, which has its own io_uring, from the sources in the crate
# librocksdb-sys, and builds the file system for it. Sourced, after common.sh.
#
# Everything is in $project, outside the tree. Finished parts are not built again, and an interrupted build continues.
# It takes twenty minutes on two cores; RINGFILE_ROCKSDB_JOBS sets how many compilers run (default: all cores).

# Version 0.19.0 of the crate has RocksDB 11.8.1.
crate_version=0.19.0
project=$build/rocksdb-11
bench11=$project/rocksdb/db_bench

need_rocksdb11() {
    need_compilers
    local header package
    for header in liburing.h:liburing-dev gflags/gflags.h:libgflags-dev lz4.h:liblz4-dev; do
        package=${header#*:}
        test -e "/usr/include/${header%:*}" || fail "no ${header%:*}: apt-get install $package"
    done
}

# Prints the path of the crate's sources, whose folder rocksdb has RocksDB's sources. Fetches them if necessary.
crate_sources() {
    mkdir -p "$project/fetch/src"
    cat >"$project/fetch/Cargo.toml" <<TOML
[package]
name = "rocksdb-sources"
version = "0.0.0"
edition = "2021"

[dependencies]
librocksdb-sys = { version = "=$crate_version", default-features = false, features = ["bindgen-runtime", "io-uring", "lz4"] }

[workspace]
TOML
    touch "$project/fetch/src/lib.rs"
    (cd "$project/fetch" && cargo fetch -q && cargo metadata --format-version 1 --offline) 2>"$project/fetch.log" |
        grep -o '"manifest_path":"[^"]*/librocksdb-sys-[^"]*/Cargo.toml"' | head -1 | sed 's/.*:"//; s#/Cargo.toml"##'
}

# Builds with cmake. $1: log; the other arguments go to `cmake --build`.
build_with_cmake() {
    local log=$1
    shift
    cmake --build "$@" --parallel "${RINGFILE_ROCKSDB_JOBS:-$(nproc)}" >"$log" 2>&1 || fail "$(tail -40 "$log")"
}

# Sets `plugin` to the file system for this RocksDB; further arguments go to its cmake.
build_rocksdb11() {
    local crate
    crate=$(crate_sources)
    test -e "$crate/rocksdb/tools/db_bench.cc" || fail "no sources of librocksdb-sys $crate_version: $(tail -5 "$project/fetch.log")"
    test -e "$bench11" || say "builds RocksDB from $(basename "$crate"), in $project"
    cmake -S "$here/rocksdb-11" -B "$project/rocksdb" -DCRATE="$crate" >"$project/configure.log" || fail "$(tail "$project/configure.log")"
    build_with_cmake "$project/rocksdb.log" "$project/rocksdb"
    cmake -S "$here" -B "$project/plugin" -DCMAKE_CXX_STANDARD=20 -DCMAKE_CXX_FLAGS=-DNDEBUG \
        -DROCKSDB_INCLUDE_DIR="$crate/rocksdb/include" -DROCKSDB_LIBRARY="$project/rocksdb/librocksdb.so" "$@" \
        >"$project/configure.log" || fail "$(tail -20 "$project/configure.log")"
    build_with_cmake "$project/plugin.log" "$project/plugin"
    plugin=$project/plugin/libringfile_rocksdb.so
    test -e "$plugin"
}
