#include "storage/rocksdb_options.h"

#include <rocksdb/env.h>
#include <rocksdb/listener.h>
#include <rocksdb/table.h>

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace embcache {
namespace {

// What RocksDB says at every first start, and of every ingested file.
bool IsHarmless(absl::string_view text) {
  return (absl::StrContains(text, "Error when reading") && absl::StrContains(text, "NotFound")) ||
         absl::StrContains(text, "without unique ID");
}

// RocksDB's own logger appends to a file, and this build asserts that no append follows a failed
// one: on a full disk it would end the process. This one cannot fail.
class CallbackLogger : public rocksdb::Logger {
 public:
  explicit CallbackLogger(std::function<void(absl::string_view)> log)
      : Logger(rocksdb::InfoLogLevel::WARN_LEVEL), log_(std::move(log)) {}

  using rocksdb::Logger::Logv;
  void Logv(const char* format, va_list arguments) override {
    if (!log_) return;
    char text[512];
    const int length = std::vsnprintf(text, sizeof(text), format, arguments);
    const absl::string_view line = absl::StripAsciiWhitespace(text);
    if (length > 0 && !IsHarmless(line)) log_(absl::StrCat("rocksdb: ", line));
  }
  // The dump of options and versions at every opening.
  void LogHeader(const char*, va_list) override {}

 private:
  const std::function<void(absl::string_view)> log_;
};

// RocksDB would try to recover from a full disk by itself, on a handle that we have given up.
class NoSelfRecovery : public rocksdb::EventListener {
 public:
  void OnErrorRecoveryBegin(rocksdb::BackgroundErrorReason, rocksdb::Status,
                            bool* auto_recovery) override {
    *auto_recovery = false;
  }
};

}  // namespace

rocksdb::Options StoreRocksDbOptions(const RocksDbSettings& settings) {
  rocksdb::BlockBasedTableOptions table;
  table.checksum = rocksdb::kXXH3;    // the CRC of this build is not accelerated
  table.block_size = 8 * 1024;        // not more than kFooterMinBytes
  table.no_block_cache = true;        // payloads are read once, into their place
  table.filter_policy = nullptr;      // every key that is asked for exists
  table.max_auto_readahead_size = 0;  // a chunk is a block; a buffer between would copy it again
  rocksdb::Options options;
  if (settings.env != nullptr) options.env = settings.env;
  options.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
  options.compression = rocksdb::kNoCompression;
  options.bottommost_compression = rocksdb::kNoCompression;
  options.disable_auto_compactions = true;
  options.periodic_compaction_seconds = 0;
  options.ttl = 0;
  options.info_log = std::make_shared<CallbackLogger>(settings.log);
  options.listeners.push_back(std::make_shared<NoSelfRecovery>());
  options.max_bgerror_resume_count = 0;
  // A damaged file then costs its own entries and not the whole database.
  options.paranoid_checks = false;
  options.allow_fallocate = false;
  options.max_open_files = settings.max_open_files;
  options.use_direct_reads = settings.direct_reads;
  options.max_background_jobs = 2;
  options.max_manifest_file_size =
      std::clamp<uint64_t>(settings.capacity_bytes / 64, 64 * 1024, 4 << 20);
  options.stats_dump_period_sec = 0;
  options.stats_persist_period_sec = 0;
  options.skip_stats_update_on_db_open = true;
  return options;
}

absl::Status FromRocksDb(const rocksdb::Status& status, absl::string_view doing) {
  if (status.ok()) return absl::OkStatus();
  const std::string text = status.ToString();
  const std::string message = absl::StrCat(doing, ": ", text);
  if (status.IsNoSpace() || absl::StrContains(text, "File too large") ||
      absl::StrContains(text, "Disk quota exceeded")) {
    return absl::ResourceExhaustedError(message);
  }
  if (absl::StrContains(text, "lock hold by current process") ||
      absl::StrContains(text, "While lock file")) {
    return absl::FailedPreconditionError(message);
  }
  if (status.IsCorruption() || status.IsNotFound() || status.IsPathNotFound() ||
      status.IsInvalidArgument() || status.IsNotSupported()) {
    return absl::DataLossError(message);
  }
  return absl::UnavailableError(message);
}

}  // namespace embcache
