// Turns errors of the kernel into RocksDB's.
#include "status.h"

#include <cerrno>
#include <system_error>

namespace ringfile_rocksdb {

using rocksdb::IOStatus;

IOStatus ErrorStatus(const std::string& doing, const std::string& path, int error) {
    const std::string where = doing + ": " + path;
    const std::string why = std::generic_category().message(error);
    switch (error) {
        case ENOSPC: {
            IOStatus status = IOStatus::NoSpace(where, why);
            status.SetRetryable(true);
            return status;
        }
        case ESTALE:
            return IOStatus::IOError(IOStatus::kStaleFile);
        case ENOENT:
            return IOStatus::PathNotFound(where, why);
        default:
            return IOStatus::IOError(where, why);
    }
}

IOStatus ReadError(const std::string& path, uint64_t offset, size_t length, int error) {
    return ErrorStatus("While reading " + std::to_string(length) + " bytes at " + std::to_string(offset), path, error);
}

}  // namespace ringfile_rocksdb
