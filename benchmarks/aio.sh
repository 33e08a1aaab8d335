#!/usr/bin/env bash
# Measures what Linux AIO gains where io_uring is refused: direct reads under a seccomp filter that makes the three
# io_uring calls fail with EPERM. In each round these sides run in turn: AIO, the ring with registered memory, the ring
# once more (A/A), and worker threads only.
#
#   aio.sh FILE [ROUNDS]    FILE is on a disk, and is created if it does not exist; 15 rounds by default
#
# DURATION   length of each run (default: 1s)
# WARMUP     time before each run that is not measured (default: 300ms)
# SIZE       size of FILE (default: 1g)
# DEPTH      queue depth (default: 128)
# RW         kind of operation (default: randread)
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
file=$(realpath -m "${1:?usage: aio.sh FILE [ROUNDS]}")
rounds=${2:-15}
ringfile=${RINGFILE:-${CARGO_TARGET_DIR:-$here/../target}/release/ringfile}
compare=${COMPARE:-${CARGO_TARGET_DIR:-$here/target}/release/compare}
[ -x "$ringfile" ] || cargo build --locked --release --manifest-path "$here/../Cargo.toml" -p ringfile-cli
[ -x "$compare" ] || cargo build --locked --release --manifest-path "$here/Cargo.toml" --bin compare
results=$(mktemp -d)
trap 'rm -r "$results"' EXIT

# Prints one figure from a report that has only one run.
figure() {
    sed -n "s/^ *\"$2\": \([0-9.eE+-]*\),\{0,1\}$/\1/p" "$1" | head -n 1
}

# measure SIDE COMMAND...   does one run, and adds a line to the side's figures: IOPS, CPU time, and how many operations
# used AIO, the ring and workers
measure() {
    local side=$1
    shift
    "$@" perf file --file "$file" --size "${SIZE:-1g}" --direct --rw "${RW:-randread}" --numjobs 1 --iodepth "${DEPTH:-128}" \
        --duration "${DURATION:-1s}" --warmup "${WARMUP:-300ms}" --rounds 1 --quiet --force --json "$results/run.json" "${ways[@]}" \
        >"$results/run.txt" || { cat "$results/run.txt" >&2; exit 1; }
    printf '%s %s %s %s %s\n' "$(figure "$results/run.json" iops)" "$(figure "$results/run.json" cpu_us_per_io)" \
        "$(figure "$results/run.json" aio)" "$(figure "$results/run.json" ring)" "$(figure "$results/run.json" workers)" \
        >>"$results/$side"
}

sides=(ring aio again workers)
for ((round = 0; round < rounds; round++)); do
    for ((turn = 0; turn < ${#sides[@]}; turn++)); do
        side=${sides[(round + turn) % ${#sides[@]}]}
        case $side in
        ring | again) ways=(--route ring --buffers fixed) && measure "$side" "$ringfile" ;;
        aio) ways=(--route auto --buffers fixed) && measure "$side" "$compare" blocked "$ringfile" ;;
        workers) ways=(--route workers --buffers fixed) && measure "$side" "$ringfile" ;;
        esac
    done
    echo "round $((round + 1))/$rounds" >&2
done

echo "| side | kIOPS | CPU µs for one operation | IOPS over the ring's | CPU over the ring's | went |"
echo "|---|--:|--:|--:|--:|---|"
for side in ring again aio workers; do
    paste -d ' ' "$results/$side" "$results/ring" | awk -v side="$side" '
        function spread(all, count, digits,    i, j, kept, format) {
            for (i = 2; i <= count; i++)
                for (j = i; j > 1 && all[j - 1] > all[j]; j--) { kept = all[j]; all[j] = all[j - 1]; all[j - 1] = kept }
            format = "%." digits "f [%." digits "f..%." digits "f]"
            return sprintf(format, all[int((count + 1) / 2)], all[1], all[count])
        }
        { iops[NR] = $1 / 1000; cpu[NR] = $2; more[NR] = $1 / $6; dearer[NR] = $2 / $7; aio += $3; ring += $4; workers += $5 }
        END {
            names["ring"] = "ring"; names["again"] = "ring again (A/A)"
            names["aio"] = "io_uring refused: AIO"; names["workers"] = "workers"
            all = aio + ring + workers
            printf "| %s | %s | %s | %s | %s | ring %.1f %%, AIO %.1f %%, workers %.1f %% |\n", names[side], \
                spread(iops, NR, 1), spread(cpu, NR, 2), spread(more, NR, 3), spread(dearer, NR, 3), \
                ring / all * 100, aio / all * 100, workers / all * 100
        }'
done
echo
echo "Median [min..max] of $rounds rounds in turn, ${RW:-randread} of 4 KiB, O_DIRECT, depth ${DEPTH:-128}, one thread; ratios inside a round."
echo "Wanted: AIO at least 0.95 of the IOPS, at most 1.2 times the CPU."
