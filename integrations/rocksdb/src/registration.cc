// Registers the file system's URI with RocksDB when this library is loaded.
#include "file_system.h"
#include "rocksdb/env.h"
#include "rocksdb/utilities/object_registry.h"

namespace ringfile_rocksdb {

namespace {

constexpr char kScheme[] = "ringfile";
constexpr char kSeparator[] = "://";

// Returns whether the URI is valid. The part after the scheme is the route. There are no options with `=`, because RocksDB
// would parse those itself.
bool RouteOf(const std::string& uri, Route* route) {
    const std::string name = uri.substr(sizeof kScheme - 1 + sizeof kSeparator - 1);
    const std::pair<const char*, Route> routes[] = {
        {"", Route::kAuto},
        {"auto", Route::kAuto},
        {"ring", Route::kRing},
        {"inline", Route::kInline},
        {"workers", Route::kWorkers},
        {"aio", Route::kAio},
        {"adaptive", Route::kAdaptive},
    };
    for (const auto& [known, value] : routes) {
        if (name == known) {
            *route = value;
            return true;
        }
    }
    return false;
}

rocksdb::FileSystem* Make(const std::string& uri, std::unique_ptr<rocksdb::FileSystem>* made, std::string* error) {
    Route route = Route::kAuto;
    if (!RouteOf(uri, &route)) {
        *error = uri + ": use ringfile:// or ringfile://auto, ringfile://ring, ringfile://inline, ringfile://workers, "
                       "ringfile://aio, ringfile://adaptive";
        return nullptr;
    }
    made->reset(new FileSystem(rocksdb::FileSystem::Default(), route));
    return made->get();
}

// For programs that accept only the URI of an Env.
rocksdb::Env* MakeEnv(const std::string& uri, std::unique_ptr<rocksdb::Env>* made, std::string* error) {
    std::unique_ptr<rocksdb::FileSystem> files;
    if (Make(uri, &files, error) == nullptr) {
        return nullptr;
    }
    *made = rocksdb::NewCompositeEnv(std::move(files));
    return made->get();
}

rocksdb::ObjectLibrary::PatternEntry Pattern() {
    return rocksdb::ObjectLibrary::PatternEntry(kScheme).AddSeparator(kSeparator, false);
}

// This library is loaded after RocksDB, on which it depends, so the registry exists.
[[maybe_unused]] const auto& registered = rocksdb::ObjectLibrary::Default()->AddFactory<rocksdb::FileSystem>(
    Pattern(), Make);
[[maybe_unused]] const auto& registered_env = rocksdb::ObjectLibrary::Default()->AddFactory<rocksdb::Env>(
    Pattern(), MakeEnv);

}  // namespace

}  // namespace ringfile_rocksdb
