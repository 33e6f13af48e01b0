// The RocksDB options of the L3 store, each chosen for a reason given in the .cc file.

#ifndef EMBCACHE_STORAGE_ROCKSDB_OPTIONS_H_
#define EMBCACHE_STORAGE_ROCKSDB_OPTIONS_H_

#include <rocksdb/options.h>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "storage/rocksdb_handle.h"

namespace embcache {

rocksdb::Options StoreRocksDbOptions(const RocksDbSettings& settings);

// The canonical code of a RocksDB status; see RocksDbHandle::Open for their meaning.
absl::Status FromRocksDb(const rocksdb::Status& status, absl::string_view doing);

}  // namespace embcache

#endif  // EMBCACHE_STORAGE_ROCKSDB_OPTIONS_H_
