// Counts RocksDB's calls. ringfile itself counts its operations.
#include "counters.h"

#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <utility>

#include "ringfile.h"
#include "ringfile/rocksdb.h"

namespace ringfile_rocksdb {

namespace {

constexpr char kVariable[] = "RINGFILE_ROCKSDB_STATISTICS";

void Report() {
    const char* path = std::getenv(kVariable);
    if (path == nullptr || *path == '\0') {
        return;
    }
    const bool to_error = path[0] == '-' && path[1] == '\0';
    // Appends, because a benchmark may run several programs.
    std::FILE* file = to_error ? stderr : std::fopen(path, "a");
    if (file == nullptr) {
        std::perror((std::string(kVariable) + "=" + path).c_str());
        return;
    }
    std::fputs(ToString(GetStatistics()).c_str(), file);
    if (!to_error) {
        std::fclose(file);
    }
}

}  // namespace

Counters& Count() {
    static Counters* counters = new Counters;
    return *counters;
}

void ReportAtExit() {
    static std::once_flag once;
    std::call_once(once, [] { std::atexit(Report); });
}

Statistics GetStatistics() {
    const Counters& counters = Count();
    Statistics statistics;
    statistics.reads = counters.reads.Get();
    statistics.multi_reads = counters.multi_reads.Get();
    statistics.multi_read_requests = counters.multi_read_requests.Get();
    statistics.multi_read_bytes = counters.multi_read_bytes.Get();
    statistics.multi_read_errors = counters.multi_read_errors.Get();
    statistics.async_reads = counters.async_reads.Get();
    statistics.async_reads_aborted = counters.async_reads_aborted.Get();
    statistics.submitted_reads = counters.submitted_reads.Get();
    statistics.sequential_reads = counters.sequential_reads.Get();
    statistics.appends = counters.appends.Get();
    statistics.append_bytes = counters.append_bytes.Get();
    statistics.syncs = counters.syncs.Get();
    statistics.inline_calls = counters.plain_reads.Get();
    ringfile_counts counts{};
    counts.size = sizeof counts;
    if (ringfile_metrics(&counts) == 0) {
        statistics.through_ring = counts.ops - counts.inline_ops - counts.worker_ops - counts.aio_ops;
        statistics.inline_calls += counts.inline_ops;
        statistics.by_workers = counts.worker_ops;
        statistics.by_aio = counts.aio_ops;
        statistics.registered = counts.fixed_ops;
        statistics.cache_hits = counts.cache_hits;
        statistics.cache_misses = counts.cache_misses;
    }
    return statistics;
}

std::string ToString(const Statistics& statistics) {
    const std::pair<const char*, uint64_t> lines[] = {
        {"reads", statistics.reads},
        {"multi_reads", statistics.multi_reads},
        {"multi_read_requests", statistics.multi_read_requests},
        {"multi_read_bytes", statistics.multi_read_bytes},
        {"multi_read_errors", statistics.multi_read_errors},
        {"async_reads", statistics.async_reads},
        {"async_reads_aborted", statistics.async_reads_aborted},
        {"submitted_reads", statistics.submitted_reads},
        {"sequential_reads", statistics.sequential_reads},
        {"appends", statistics.appends},
        {"append_bytes", statistics.append_bytes},
        {"syncs", statistics.syncs},
        {"through_ring", statistics.through_ring},
        {"inline_calls", statistics.inline_calls},
        {"by_workers", statistics.by_workers},
        {"by_aio", statistics.by_aio},
        {"registered", statistics.registered},
        {"cache_hits", statistics.cache_hits},
        {"cache_misses", statistics.cache_misses},
    };
    std::string text;
    for (const auto& [name, count] : lines) {
        text += std::string("ringfile.") + name + " " + std::to_string(count) + "\n";
    }
    return text;
}

}  // namespace ringfile_rocksdb
