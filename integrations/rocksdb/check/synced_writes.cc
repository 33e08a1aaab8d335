// Checks that each synced write survives when the writer is killed.
//
//   synced_writes write FOLDER FS     writes until it is killed; prints the number of each key once its write is synced
//   synced_writes verify FOLDER FS    reads such numbers from standard input, and checks that each key exists
//
// FS is a file system's URI, or `default`. Tables are small and many, so that flushes and compactions run all the time.
// Every second database uses direct I/O.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "ringfile/rocksdb.h"
#include "rocksdb/convenience.h"
#include "rocksdb/db.h"
#include "rocksdb/env.h"
#include "rocksdb/version.h"

namespace {

constexpr int kWriters = 3;

[[noreturn]] void Fail(const std::string& why) {
    std::cerr << "synced_writes: " << why << "\n";
    std::exit(1);
}

void Check(const rocksdb::Status& status, const std::string& doing) {
    if (!status.ok()) {
        Fail(doing + ": " + status.ToString());
    }
}

std::string Key(uint64_t number) {
    char text[32];
    std::snprintf(text, sizeof text, "key-%012llu", static_cast<unsigned long long>(number));
    return text;
}

// Returns a value whose length and bytes differ for each number.
std::string Value(uint64_t number) {
    std::string value(100 + number % 3000, '\0');
    uint64_t state = number * 0x9e3779b97f4a7c15 + 1;
    for (char& byte : value) {
        state = state * 6364136223846793005 + 1442695040888963407;
        byte = static_cast<char>(state >> 56);
    }
    return value;
}

std::unique_ptr<rocksdb::DB> Open(const std::string& folder, const std::string& uri,
                                  std::unique_ptr<rocksdb::Env>& env) {
    rocksdb::Options options;
    options.create_if_missing = true;
    options.write_buffer_size = 256 << 10;
    options.max_background_jobs = 4;
    const bool direct = !folder.empty() && (folder.back() - '0') % 2 == 1;
    options.use_direct_reads = direct;
    options.use_direct_io_for_flush_and_compaction = direct;
    if (uri == "linked") {
        env = rocksdb::NewCompositeEnv(ringfile_rocksdb::NewRingfileFileSystem());
        options.env = env.get();  // must outlive the DB
    } else if (uri != "default") {
        std::shared_ptr<rocksdb::FileSystem> files;
        Check(rocksdb::FileSystem::CreateFromString({}, uri, &files), "making the file system " + uri);
        env = rocksdb::NewCompositeEnv(files);
        options.env = env.get();
    }
#if ROCKSDB_MAJOR >= 10
    std::unique_ptr<rocksdb::DB> db;
    Check(rocksdb::DB::Open(options, folder, &db), "opening " + folder);
    return db;
#else
    rocksdb::DB* db = nullptr;
    Check(rocksdb::DB::Open(options, folder, &db), "opening " + folder);
    return std::unique_ptr<rocksdb::DB>(db);
#endif
}

// Writes synced keys in one of several threads. Each thread has its own numbers, and the threads' writes share syncs.
void Write(rocksdb::DB* db, uint64_t first) {
    rocksdb::WriteOptions synced;
    synced.sync = true;
    for (uint64_t number = first;; number += kWriters) {
        Check(db->Put(synced, Key(number), Value(number)), "writing " + Key(number));
        const std::string line = std::to_string(number) + "\n";
        if (write(STDOUT_FILENO, line.data(), line.size()) != static_cast<ssize_t>(line.size())) {
            Fail("the numbers cannot be printed");
        }
    }
}

int Verify(rocksdb::DB* db, bool asynchronous) {
    uint64_t count = 0;
    for (std::string line; std::getline(std::cin, line); ++count) {
        const uint64_t number = std::stoull(line);
        std::string value;
        Check(db->Get({}, Key(number), &value), "write " + line + " was synced but is missing");
        if (value != Value(number)) {
            Fail("write " + line + " was synced but has another value");
        }
    }
    rocksdb::ReadOptions ahead;
    ahead.async_io = asynchronous;
    ahead.readahead_size = asynchronous ? 64 << 10 : 0;
    const std::unique_ptr<rocksdb::Iterator> all(db->NewIterator(ahead));
    for (all->SeekToFirst(); all->Valid(); all->Next()) {
        const uint64_t number = std::stoull(all->key().ToString().substr(4));
        if (all->value() != Value(number)) {
            Fail("write " + std::to_string(number) + " holds what nobody wrote");
        }
    }
    Check(all->status(), "going through all");
    std::cout << count << " synced writes, all there\n";
    return 0;
}

}  // namespace

int main(int argc, char** argv) {
    if (argc != 4) {
        Fail("usage: synced_writes write|verify FOLDER FS");
    }
    const std::string what = argv[1];
    std::unique_ptr<rocksdb::Env> env;
    const std::unique_ptr<rocksdb::DB> db = Open(argv[2], argv[3], env);
    if (what == "verify") {
        return Verify(db.get(), env != nullptr);
    }
    std::vector<std::thread> writers;
    for (uint64_t first = 0; first < kWriters; ++first) {
        writers.emplace_back(Write, db.get(), first);
    }
    for (std::thread& writer : writers) {
        writer.join();
    }
}
