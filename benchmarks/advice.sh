#!/usr/bin/env bash
# Checks that `ringfile perf buffers` gives the right advice where the answer is known: plain calls for files in memory
# and on an overlay; the ring, direct I/O and a high queue depth for a disk and a loop device. Also checks that noise is
# not reported as a difference. Takes about ten minutes, as root, on an idle machine.
#
#   advice.sh DIRECTORY    DIRECTORY must be on a disk, and must not exist yet
set -uo pipefail

here=$(cd "$(dirname "$0")" && pwd)
dir=$(realpath -m "${1:?usage: advice.sh DIRECTORY}")
ringfile=${RINGFILE:-${CARGO_TARGET_DIR:-$here/../target}/release/ringfile}
[ -x "$ringfile" ] || cargo build --locked --release --manifest-path "$here/../Cargo.toml" -p ringfile-cli || exit 2

results=$(mktemp -d)
trap '"$here/places.sh" teardown "$dir"; rm -r "$results"' EXIT
wrong=0

# Prints the value of a key in the advised configuration.
advised() {
    sed -n "s/^$2 = //p" "$results/$1.toml" | tr -d '"'
}

# measure NAME ARGUMENTS...   runs the quick grid, reads only
measure() {
    local name=$1
    shift
    "$ringfile" perf buffers --quick --quiet --rw randread --json "$results/$name.json" --emit-config "$results/$name.toml" \
        "$@" > "$results/$name.txt" || { echo "$name: not measured" >&2; wrong=1; }
}

# expect NAME KEY WANTED...   checks for one of these, or more:N for a number above N
expect() {
    local name=$1 key=$2 value said=WRONG wanted
    shift 2
    value=$(advised "$name" "$key")
    for wanted in "$@"; do
        case $wanted in
            more:*) [ "${value:-0}" -gt "${wanted#more:}" ] && said=right ;;
            *) [ "$value" = "$wanted" ] && said=right ;;
        esac
    done
    [ $said = right ] || wrong=1
    printf '|%-10s|%-8s|%-16s|%-10s|%s|\n' "$name" "$key" "$*" "${value:-none}" "$said"
}

echo '|file      |setting |wanted          |advised   |     |'
echo '|----------|--------|----------------|----------|-----|'
places=$("$here/places.sh" setup "$dir" 2> "$results/skipped")
grep -E 'SKIPPED (tmpfs|overlayfs|ext4|loop)' "$results/skipped" >&2
for place in $places; do
    name=${place%%=*} path=${place#*=}
    case $name in
        tmpfs)
            measure tmpfs --file "$path/advice.bin"
            expect tmpfs route inline
            ;;
        overlayfs)
            measure overlayfs --buffered --file "$path/advice.bin"
            expect overlayfs route inline
            ;;
        ext4)
            measure disk --file "$path/advice.bin"
            ;;
        loop)
            # Reads of a device that was never written to find only holes.
            dd if=/dev/urandom of="$path" bs=1M oflag=direct status=none 2> /dev/null
            measure loop --file "$path"
            ;;
        *) continue ;;
    esac
    case $name in ext4) name=disk ;; loop) ;; *) continue ;; esac
    expect "$name" route ring
    expect "$name" direct true
    expect "$name" depth more:1
done

# Measures the same thing twice, so any difference that is reported as beyond the noise is a false one.
measure once --file "$dir/noise.bin" --buffers normal,fixed
measure twice --file "$dir/noise.bin" --buffers normal,fixed
"$ringfile" report "$results/once.json" "$results/twice.json" > "$results/noise.txt"
printf '\nThe same twice:\n'
cat "$results/noise.txt"
grep -q ': 0 of ' "$results/noise.txt" || { echo 'WRONG: the same twice has no difference to tell of'; wrong=1; }
exit $wrong
