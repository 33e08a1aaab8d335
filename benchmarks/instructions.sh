#!/usr/bin/env bash
# Counts the instructions in user space that one cached read through the ring takes, with valgrind: the difference
# between a run of 60,000 and one of 20,000 reads, so that start and end do not count. Prints a table.
#
#   instructions.sh [FILE [FUNCTIONS]]
#
# FILE        on ext4 or xfs; created and removed (default: /var/tmp/ringfile-instructions.bin)
# FUNCTIONS   also lists this many functions, those with the most instructions first
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
file=$(realpath -m "${1:-/var/tmp/ringfile-instructions.bin}")
functions=${2:-0}
target=${CARGO_TARGET_DIR:-$here/target}
command -v valgrind >/dev/null || { echo "instructions: needs valgrind" >&2; exit 1; }
[[ ! -e $file ]] || { echo "instructions: $file is there already; name another" >&2; exit 1; }
cargo build --quiet --release --manifest-path "$here/Cargo.toml" --bin instructions
counts=$(mktemp -d)
trap 'rm -rf "$counts" "$file"' EXIT

# Prints the instructions of one run, in total or by function.
count() {
    valgrind --tool=callgrind --callgrind-out-file="$counts/$1-$2" "$target/release/instructions" "$1" "$3" "$2" "$file" \
        >/dev/null 2>"$counts/log" || { cat "$counts/log" >&2; exit 1; }
    awk '/^(summary|totals):/ { total = $2 } END { print total }' "$counts/$1-$2"
}

# Makes the file first, so that this is not counted.
"$target/release/instructions" queue 1 1 "$file" 2>/dev/null

echo "| how | reads in flight | instructions for a read |"
echo "|---|--:|--:|"
for pair in async:16 batch:32 batch:256 queue:128; do
    how=${pair%:*} depth=${pair#*:}
    few=$(count "$how" 20000 "$depth")
    many=$(count "$how" 60000 "$depth")
    echo "| $how | $depth | $(((many - few) / 40000)) |"
done
if ((functions)); then
    for how in async batch queue; do
        echo "== $how, 60,000 reads"
        callgrind_annotate "$counts/$how-60000" | sed -n "/Ir.*file:function/,\$p" | head -n "$functions"
    done
fi
