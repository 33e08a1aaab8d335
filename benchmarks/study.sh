#!/usr/bin/env bash
# Repeats Nowoczynski's study of fixed and plain buffers (2021) with `ringfile perf buffers`: block sizes, depths, one
# and two threads, parts, CPU time, kernel functions, and the ring flags of its time. Prints
# Markdown for docs/study.md. Takes about five minutes; the figures are valid only if nothing else runs.
#
#   study.sh [FOLDER]    FOLDER is on the disk to measure (default: /var/tmp)
#
# RINGFILE   the program (default: target/release/ringfile of the checkout; built if it does not exist)
# ROUNDS     rounds of each cell (default: 5)
# ZRAM       measured too, if it is unused and the script runs as root; its contents are lost (default: /dev/zram0)
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/.." && pwd)
folder=${1:-/var/tmp}
rounds=${ROUNDS:-5}
ringfile=${RINGFILE:-${CARGO_TARGET_DIR:-$root/target}/release/ringfile}
[ -x "$ringfile" ] || cargo build --locked --release --manifest-path "$here/../Cargo.toml" -p ringfile-cli
short=(--duration 200ms --warmup 50ms --rounds "$rounds" --rw randread --direct)
out=$(mktemp)
file=$folder/ringfile-study-$$.bin
made=

clean() {
    rm -f "$out" "$file"
    test -z "$made" || "$here/devices.sh" down
}
trap clean EXIT

# Prints only the tables of a measurement; the notes of the last one end the page.
measure() {
    "$ringfile" perf buffers --tables "${short[@]}" "$@" >"$out" 2>"$out.errors" || {
        cat "$out.errors" >&2
        rm -f "$out.errors"
        return 1
    }
    rm -f "$out.errors"
    awk '/^\|/ { on = 1; print } /^$/ && on' "$out"
}

# $1: the heading; the other arguments name the file or device for ringfile.
place() {
    local name=$1
    shift
    printf '## %s\n\n### One thread, fixed and plain buffers\n\n' "$name"
    measure "$@" --numjobs 1 --bs 4k,32k,128k --iodepth 1,16,128 --buffers normal,fixed
    printf '### Two threads\n\n'
    measure "$@" --numjobs 2 --bs 4k --iodepth 16,128 --buffers normal,fixed
    printf '### 128 KiB in one piece and in 32\n\n'
    measure "$@" --numjobs 1 --bs 128k --iodepth 16,128
}

mkdir -p "$folder"
dd if=/dev/urandom of="$file" bs=1M count=512 status=none
sync "$file"
place "Disk" --file "$file"
printf '### Functions that took CPU time\n\n'
"$ringfile" perf buffers --tables --duration 50ms --warmup 0s --rounds 1 --rw randread --direct --numjobs 1 --bs 4k,128k \
    --iodepth 128 --profile --file "$file" 2>/dev/null | awk '/^\|profile/ { on = 1 } /^$/ { on = 0 } on'
echo
if zram=$("$here/devices.sh" zram-up 512M 2>/dev/null); then
    made=yes
    dd if=/dev/urandom of="$zram" bs=1M count=512 oflag=direct status=none
    place "zram" --file "$zram"
    printf '### Ring flags, and rings by hand\n\n'
    measure --file "$zram" --numjobs 1 --bs 4k --iodepth 16,128 --buffers normal,fixed --by-hand \
        --ring-flags none,coop,defer,sqpoll
else
    printf 'No zram: root, an unused /dev/zram0 and the module zram are needed.\n\n'
fi
grep -E '^- ' "$out" || true
printf '\n## 16 jobs on %s cores, /dev/shm\n\n' "$(nproc)"
against=()
! command -v fio >/dev/null || against=(--against fio)
# Without a route, both kinds of buffers on the ring, where they differ, and the library's own choice.
"$ringfile" perf file --tables --numjobs 16 --iodepth 1,16 --size 512m --duration 400ms --warmup 100ms --rounds 3 "${against[@]}" \
    2>/dev/null | awk '/^\|/ || /^$/'
printf '\nTook %s s.\n' "$SECONDS"
