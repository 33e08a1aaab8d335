#!/usr/bin/env bash
# Measures the CPU time of the whole machine for each GB of a log: messages of 1000 bytes in durable batches, 4
# producers, at a fixed rate. In each round these sides run in turn: ringfile's Appender with O_DIRECT, buffered writes
# with fdatasync, and these once more (A/A). The time is what the cores were not idle for, so kernel threads and
# interrupts count, and so does everything else on the machine.
#
#   log.sh FOLDER [ROUNDS]    FOLDER is on the disk to measure; 7 rounds by default
#
# BATCHES     messages in a batch (default: "256 1000")
# CONSUMERS   threads that read the log and check it (default: "4 0")
# RATE        MiB a second of all producers, and as much of all consumers (default: 250)
# DURATION    length of each run (default: 6s; each is made twice)
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
folder=$(realpath "${1:?usage: log.sh FOLDER [ROUNDS]}")
rounds=${2:-7}
ringfile=${RINGFILE:-${CARGO_TARGET_DIR:-$here/../target}/release/ringfile}
[ -x "$ringfile" ] || cargo build --locked --release --manifest-path "$here/../Cargo.toml" -p ringfile-cli
results=$(mktemp -d)
trap 'rm -r "$results"' EXIT

# Prints the time in which the cores were idle since the machine started, in hundredths of a second.
idle() {
    awk '$1 == "cpu" { print $5 + $6 }' /proc/stat
}

# measure SIDE MEMORY BATCH CONSUMERS   does one run, and adds a line: CPU seconds, GB written, the producers' p99.9 in µs
measure() {
    local idle_before began idle_after ended sides=$(($4 > 0 ? 2 : 1))
    idle_before=$(idle) began=$(date +%s%N)
    "$ringfile" perf pool --message-size 1000 --sync --rate-limit "$((${RATE:-250} * sides))MiB" --batch "$3" --consumers "$4" \
        --memory "$2" --duration "${DURATION:-6s}" --warmup 1s --rounds 1 --folder "$folder" --size 64m --quiet \
        --force --json "$results/run.json" >"$results/run.txt" || { cat "$results/run.txt" >&2; exit 1; }
    idle_after=$(idle) ended=$(date +%s%N)
    python3 - "$results/run.json" "$(nproc)" $(((ended - began) / 1000)) $((idle_after - idle_before)) >>"$results/$1" <<'END'
import json, sys
path, cores, elapsed, idle = sys.argv[1], *map(int, sys.argv[2:])
runs = [run for run in json.load(open(path))["runs"] if run["side"] == "producer"]
written = sum(run["pool"]["written_blocks"] * run["block_size_bytes"] for run in runs)
if any(run["pool"]["backlog_ops"] for run in runs):
    sys.exit("the rate was not carried: choose a lower RATE")
print((cores * elapsed / 1e6 - idle / 100) / (written / 1e9), runs[0]["latency_ns"]["p999"] / 1000)
END
}

echo "| messages in a batch | consumers | side | CPU seconds for a GB, median [min..max] | over buffered | p99.9 µs |"
echo "|--:|--:|---|--:|--:|--:|"
for consumers in ${CONSUMERS:-4 0}; do
    for batch in ${BATCHES:-256 1000}; do
        rm -f "$results/appender" "$results/buffered" "$results/again"
        sides=("buffered vec" "appender pool" "again vec")
        for ((round = 0; round < rounds; round++)); do
            for ((turn = 0; turn < 3; turn++)); do
                read -r side memory <<<"${sides[(round + turn) % 3]}"
                measure "$side" "$memory" "$batch" "$consumers"
            done
        done
        python3 - "$results" "$batch" "$consumers" <<'END'
import statistics, sys
folder, batch, consumers = sys.argv[1:]
figures = {
    side: [list(map(float, line.split())) for line in open(f"{folder}/{side}")]
    for side in ("buffered", "appender", "again")
}
def spread(values, digits):
    return f"{statistics.median(values):.{digits}f} [{min(values):.{digits}f}..{max(values):.{digits}f}]"
names = {"buffered": "buffered write, fdatasync", "appender": "Appender, O_DIRECT", "again": "A/A"}
for side, name in names.items():
    ratios = [one[0] / base[0] for one, base in zip(figures[side], figures["buffered"])]
    cpu, tail = ([row[column] for row in figures[side]] for column in (0, 1))
    print(f"| {batch} | {consumers} | {name} | {spread(cpu, 2)} | {spread(ratios, 2)} | {spread(tail, 0)} |", flush=True)
END
    done
done
