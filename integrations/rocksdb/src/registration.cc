// Registers the file system's URI with RocksDB when this library is loaded.
#include <charconv>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "file_system.h"
#include "rocksdb/env.h"
#include "rocksdb/utilities/object_registry.h"

namespace ringfile_rocksdb {

namespace {

constexpr char kScheme[] = "ringfile";
constexpr char kSeparator[] = "://";

constexpr char kUse[] =
    "use ringfile:// or ringfile://auto, ringfile://ring, ringfile://inline, ringfile://workers, ringfile://aio, "
    "ringfile://adaptive; then, optionally, ?async_reads:NUMBER, at least 1";

struct Settings {
    Route route = Route::kAuto;
    uint32_t async_reads = kDefaultAsyncReads;
};

bool ReadRoute(std::string_view name, Route* route) {
    const std::pair<std::string_view, Route> routes[] = {
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

// Options are `name:value`. With `=`, RocksDB would take the URI of an Env for options of its default Env.
bool ReadOption(std::string_view option, Settings* settings) {
    constexpr std::string_view kAsyncReads = "async_reads:";
    if (option.substr(0, kAsyncReads.size()) != kAsyncReads) {
        return false;
    }
    const std::string_view number = option.substr(kAsyncReads.size());
    const char* end = number.data() + number.size();
    const auto [stop, error] = std::from_chars(number.data(), end, settings->async_reads);
    return error == std::errc() && stop == end && settings->async_reads > 0;
}

// Returns whether the URI is valid: the scheme, the route, and maybe a question mark and an option.
bool ReadUri(std::string_view uri, Settings* settings) {
    uri.remove_prefix(sizeof kScheme - 1 + sizeof kSeparator - 1);
    const size_t mark = uri.find('?');
    return ReadRoute(uri.substr(0, mark), &settings->route) &&
           (mark == std::string_view::npos || ReadOption(uri.substr(mark + 1), settings));
}

rocksdb::FileSystem* Make(const std::string& uri, std::unique_ptr<rocksdb::FileSystem>* made, std::string* error) {
    Settings settings;
    if (!ReadUri(uri, &settings)) {
        *error = uri + ": " + kUse;
        return nullptr;
    }
    made->reset(new FileSystem(rocksdb::FileSystem::Default(), settings.route, settings.async_reads));
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
