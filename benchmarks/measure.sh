#!/usr/bin/env bash
# Measures everything in docs/performance.md on this machine, and writes the tables to files in DIRECTORY. Takes about
# two hours, as root, on an idle machine.
#
#   measure.sh DIRECTORY
#
# DISK   folder for the measured file, on ext4 or xfs (default: /var/tmp)
set -euo pipefail

out=$(realpath -m "${1:?usage: measure.sh DIRECTORY}")
disk=${DISK:-/var/tmp}
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$out"

cargo build --release --manifest-path "$here/Cargo.toml"
cargo build --release --manifest-path "$here/../Cargo.toml"
target=${CARGO_TARGET_DIR:-$here/target}
compare=$target/release/compare
ringfile=${CARGO_TARGET_DIR:-$here/../target}/release/ringfile
places=$disk/ringfile-places
trap '"$here"/devices.sh down; "$here"/places.sh teardown "$places"' EXIT

step() { printf '%s %s\n' "$(date +%T)" "$1" >&2; }

step 'cached file, all sides'
"$compare" --file "$disk/ringfile-compare.bin" --depth 16,128 --duration 400ms --rounds 5 >"$out/cached.md"
step 'heap allocations'
"$compare" allocs --file "$disk/ringfile-compare.bin" >"$out/allocations.md"
step 'batches'
"$compare" batch --file "$disk/ringfile-compare.bin" --duration 400ms --rounds 5 >"$out/batch.md"
step 'inside tokio'
"$compare" tokio --file "$disk/ringfile-compare.bin" --duration 400ms --rounds 5 >"$out/tokio-cached.md"
"$compare" tokio --file "$disk/ringfile-compare.bin" --direct --duration 400ms --rounds 5 >"$out/tokio-direct.md"
step 'adaptive files and the object store'
"$compare" adaptive --file "$disk/ringfile-compare.bin" >"$out/adaptive.md"
"$compare" get-ranges --file "$disk/ringfile-compare.bin" >"$out/get-ranges.md"
rm -f "$disk/ringfile-compare.bin"

step 'zram'
zram=$("$here/devices.sh" zram-up 1G | tail -n 1)
"$compare" --file "$zram" --direct --fill --depth 128 --duration 400ms --rounds 5 >"$out/zram.md"
"$compare" vectored --file "$zram" --direct --duration 400ms --rounds 5 >"$out/vectored.md"
step 'loop device'
loop=$("$here/devices.sh" loop-up 1G | tail -n 1)
"$compare" --file "$loop" --direct --fill --depth 128 --duration 400ms --rounds 5 >"$out/loop.md"

"$here/devices.sh" down

step 'routes'
COMPARE=$compare "$here/places.sh" setup "$places" >"$out/places.txt"
"$compare" routes --fill --rounds 5 --seconds 1 $(sed 's/^/--place /' "$out/places.txt") >"$out/routes.md"
"$here/places.sh" teardown "$places"

step 'pool'
cargo bench --manifest-path "$here/../Cargo.toml" -p ringfile-buffer --bench pool >"$out/pool.md"

step 'log'
RINGFILE=$ringfile "$here/log.sh" "$disk" >"$out/log.md"

step 'cached file against fio'
"$ringfile" perf file --tables --file "$disk/ringfile-perf.bin" --route auto --numjobs 1 --iodepth 1,16 --rw randread \
    --duration 1s --rounds 5 --against fio,fio-batch,fio-psync,pread >"$out/fio-cached.md"
step 'disk against fio'
"$ringfile" perf file --tables --file "$disk/ringfile-perf.bin" --direct --numjobs 1 --iodepth 128 --rw randread \
    --duration 1s --rounds 15 --against fio >"$out/fio-disk.md"
step 'tmpfs against fio'
"$ringfile" perf file --tables --route auto --rounds 3 --against fio,pread --json "$out/tmpfs.json" --force >"$out/fio-tmpfs.md"
step 'done'
