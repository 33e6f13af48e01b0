// FaultFileSystem: a disk that fails on demand, under RocksDB.
//
// It counts every operation that writes. A Fault names which of them fails, by its number or by
// what it is and to which file, and with what; a one-shot fault fails one, a sticky one all that
// follow too. A failed append leaves half of its bytes behind, as real disks do. Reads can be made
// to fail or to have a bit flipped. Thread-safe.

#ifndef EMBCACHE_TESTS_UNIT_FAULT_FILE_SYSTEM_H_
#define EMBCACHE_TESTS_UNIT_FAULT_FILE_SYSTEM_H_

#include <rocksdb/env.h>
#include <rocksdb/file_system.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace embcache {

enum class DiskOp { kCreate, kAppend, kSync, kSyncDirectory, kRename, kLink, kDelete, kRead };
enum class DiskError { kNoSpace, kQuota, kIo, kFlippedBit };  // the last one for reads

struct DiskFault {
  DiskError error = DiskError::kNoSpace;
  uint64_t at = 0;  // of the operations that match, counted from 0 since Arm
  bool sticky = false;
  std::optional<DiskOp> op;  // none: all that write
  std::string path_part;     // the file's name has this in it
  uint64_t bit = 4;          // of what is read, modulo its size, that flips
};

class FaultFileSystem : public rocksdb::FileSystemWrapper {
 public:
  FaultFileSystem() : FileSystemWrapper(rocksdb::FileSystem::Default()) {}

  void Arm(DiskFault fault) {
    absl::MutexLock lock(&mu_);
    fault_ = std::move(fault);
    seen_ = 0;
    failed_ = 0;
  }
  void Heal() {
    absl::MutexLock lock(&mu_);
    fault_.reset();
  }
  // From now on no more fits into the files of `directory` than `bytes` in all, though the file
  // system says that it has room. 0: as much as it likes.
  void SetQuota(const std::string& directory, uint64_t bytes) {
    absl::MutexLock lock(&mu_);
    quota_directory_ = directory;
    quota_bytes_ = bytes;
  }
  rocksdb::IOStatus Charge(uint64_t bytes, const std::string& path) {
    absl::MutexLock lock(&mu_);
    if (quota_bytes_ == 0) return rocksdb::IOStatus::OK();
    for (const auto& entry : std::filesystem::recursive_directory_iterator(quota_directory_)) {
      if (!entry.is_regular_file()) continue;
      bytes += entry.file_size() / entry.hard_link_count();
    }
    if (bytes <= quota_bytes_) return rocksdb::IOStatus::OK();
    return rocksdb::IOStatus::IOError("Disk quota exceeded", path);
  }
  // Since the last Arm.
  uint64_t failed() const {
    absl::MutexLock lock(&mu_);
    return failed_;
  }
  uint64_t flipped_bit() const {
    absl::MutexLock lock(&mu_);
    return flips_;
  }
  uint64_t operations() const {  // that write, since the beginning
    absl::MutexLock lock(&mu_);
    return operations_;
  }

  // OK, or how the operation that is about to happen has to fail.
  rocksdb::IOStatus Next(DiskOp op, const std::string& path) {
    absl::MutexLock lock(&mu_);
    if (op != DiskOp::kRead) ++operations_;
    if (!fault_) return rocksdb::IOStatus::OK();
    if (fault_->op ? *fault_->op != op : op == DiskOp::kRead) return rocksdb::IOStatus::OK();
    if (path.find(fault_->path_part) == std::string::npos) return rocksdb::IOStatus::OK();
    const uint64_t number = seen_++;
    if (number < fault_->at || (number > fault_->at && !fault_->sticky)) {
      return rocksdb::IOStatus::OK();
    }
    ++failed_;
    switch (fault_->error) {
      case DiskError::kNoSpace:
        return rocksdb::IOStatus::NoSpace("No space left on device", path);
      case DiskError::kQuota:
        return rocksdb::IOStatus::IOError("Disk quota exceeded", path);
      case DiskError::kFlippedBit:
        flips_ = fault_->bit;
        return rocksdb::IOStatus::Corruption("a bit flips", path);
      case DiskError::kIo:
        break;
    }
    return rocksdb::IOStatus::IOError("Input/output error", path);
  }

  const char* Name() const override { return "FaultFileSystem"; }

  rocksdb::IOStatus NewWritableFile(const std::string& name, const rocksdb::FileOptions& options,
                                    std::unique_ptr<rocksdb::FSWritableFile>* file,
                                    rocksdb::IODebugContext* debug) override;
  rocksdb::IOStatus ReopenWritableFile(const std::string& name, const rocksdb::FileOptions& options,
                                       std::unique_ptr<rocksdb::FSWritableFile>* file,
                                       rocksdb::IODebugContext* debug) override;
  rocksdb::IOStatus NewRandomAccessFile(const std::string& name,
                                        const rocksdb::FileOptions& options,
                                        std::unique_ptr<rocksdb::FSRandomAccessFile>* file,
                                        rocksdb::IODebugContext* debug) override;
  rocksdb::IOStatus NewDirectory(const std::string& name, const rocksdb::IOOptions& options,
                                 std::unique_ptr<rocksdb::FSDirectory>* directory,
                                 rocksdb::IODebugContext* debug) override;
  rocksdb::IOStatus CreateDir(const std::string& name, const rocksdb::IOOptions& options,
                              rocksdb::IODebugContext* debug) override {
    rocksdb::IOStatus status = Next(DiskOp::kCreate, name);
    return status.ok() ? target()->CreateDir(name, options, debug) : status;
  }
  rocksdb::IOStatus CreateDirIfMissing(const std::string& name, const rocksdb::IOOptions& options,
                                       rocksdb::IODebugContext* debug) override {
    rocksdb::IOStatus status = Next(DiskOp::kCreate, name);
    return status.ok() ? target()->CreateDirIfMissing(name, options, debug) : status;
  }
  rocksdb::IOStatus RenameFile(const std::string& from, const std::string& to,
                               const rocksdb::IOOptions& options,
                               rocksdb::IODebugContext* debug) override {
    rocksdb::IOStatus status = Next(DiskOp::kRename, to);
    return status.ok() ? target()->RenameFile(from, to, options, debug) : status;
  }
  rocksdb::IOStatus LinkFile(const std::string& from, const std::string& to,
                             const rocksdb::IOOptions& options,
                             rocksdb::IODebugContext* debug) override {
    rocksdb::IOStatus status = Next(DiskOp::kLink, to);
    return status.ok() ? target()->LinkFile(from, to, options, debug) : status;
  }
  rocksdb::IOStatus DeleteFile(const std::string& name, const rocksdb::IOOptions& options,
                               rocksdb::IODebugContext* debug) override {
    rocksdb::IOStatus status = Next(DiskOp::kDelete, name);
    return status.ok() ? target()->DeleteFile(name, options, debug) : status;
  }

 private:
  mutable absl::Mutex mu_;
  std::optional<DiskFault> fault_ ABSL_GUARDED_BY(mu_);
  std::string quota_directory_ ABSL_GUARDED_BY(mu_);
  uint64_t quota_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t seen_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t failed_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t operations_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t flips_ ABSL_GUARDED_BY(mu_) = 0;
};

// Not owned: the file system outlives its files.
class FaultWritableFile : public rocksdb::FSWritableFileOwnerWrapper {
 public:
  FaultWritableFile(std::unique_ptr<rocksdb::FSWritableFile> file, std::string name,
                    FaultFileSystem* disk)
      : FSWritableFileOwnerWrapper(std::move(file)), name_(std::move(name)), disk_(disk) {}

  rocksdb::IOStatus Append(const rocksdb::Slice& data, const rocksdb::IOOptions& options,
                           rocksdb::IODebugContext* debug) override {
    rocksdb::IOStatus status = disk_->Next(DiskOp::kAppend, name_);
    if (status.ok()) status = disk_->Charge(data.size(), name_);
    if (status.ok()) return target()->Append(data, options, debug);
    target()->Append({data.data(), data.size() / 2}, options, debug).PermitUncheckedError();
    return status;
  }
  rocksdb::IOStatus Append(const rocksdb::Slice& data, const rocksdb::IOOptions& options,
                           const rocksdb::DataVerificationInfo&,
                           rocksdb::IODebugContext* debug) override {
    return Append(data, options, debug);
  }
  rocksdb::IOStatus Sync(const rocksdb::IOOptions& options,
                         rocksdb::IODebugContext* debug) override {
    rocksdb::IOStatus status = disk_->Next(DiskOp::kSync, name_);
    return status.ok() ? target()->Sync(options, debug) : status;
  }
  rocksdb::IOStatus Fsync(const rocksdb::IOOptions& options,
                          rocksdb::IODebugContext* debug) override {
    rocksdb::IOStatus status = disk_->Next(DiskOp::kSync, name_);
    return status.ok() ? target()->Fsync(options, debug) : status;
  }

 private:
  const std::string name_;
  FaultFileSystem* const disk_;
};

class FaultRandomAccessFile : public rocksdb::FSRandomAccessFileOwnerWrapper {
 public:
  FaultRandomAccessFile(std::unique_ptr<rocksdb::FSRandomAccessFile> file, std::string name,
                        FaultFileSystem* disk)
      : FSRandomAccessFileOwnerWrapper(std::move(file)), name_(std::move(name)), disk_(disk) {}

  rocksdb::IOStatus Read(uint64_t offset, size_t bytes, const rocksdb::IOOptions& options,
                         rocksdb::Slice* result, char* scratch,
                         rocksdb::IODebugContext* debug) const override {
    rocksdb::IOStatus fault = disk_->Next(DiskOp::kRead, name_);
    if (!fault.ok() && !fault.IsCorruption()) return fault;
    rocksdb::IOStatus status = target()->Read(offset, bytes, options, result, scratch, debug);
    if (fault.ok() || !status.ok() || result->empty()) return status;
    const uint64_t bit = disk_->flipped_bit() % (result->size() * 8);
    const_cast<char*>(result->data())[bit / 8] ^= static_cast<char>(1 << bit % 8);
    return status;
  }

 private:
  const std::string name_;
  FaultFileSystem* const disk_;
};

class FaultDirectory : public rocksdb::FSDirectoryWrapper {
 public:
  FaultDirectory(std::unique_ptr<rocksdb::FSDirectory> directory, std::string name,
                 FaultFileSystem* disk)
      : FSDirectoryWrapper(std::move(directory)), name_(std::move(name)), disk_(disk) {}

  rocksdb::IOStatus Fsync(const rocksdb::IOOptions& options,
                          rocksdb::IODebugContext* debug) override {
    rocksdb::IOStatus status = disk_->Next(DiskOp::kSyncDirectory, name_);
    return status.ok() ? FSDirectoryWrapper::Fsync(options, debug) : status;
  }
  rocksdb::IOStatus FsyncWithDirOptions(const rocksdb::IOOptions& options,
                                        rocksdb::IODebugContext* debug,
                                        const rocksdb::DirFsyncOptions& how) override {
    rocksdb::IOStatus status = disk_->Next(DiskOp::kSyncDirectory, name_);
    return status.ok() ? FSDirectoryWrapper::FsyncWithDirOptions(options, debug, how) : status;
  }

 private:
  const std::string name_;
  FaultFileSystem* const disk_;
};

inline rocksdb::IOStatus FaultFileSystem::NewWritableFile(
    const std::string& name, const rocksdb::FileOptions& options,
    std::unique_ptr<rocksdb::FSWritableFile>* file, rocksdb::IODebugContext* debug) {
  rocksdb::IOStatus status = Next(DiskOp::kCreate, name);
  if (status.ok()) status = target()->NewWritableFile(name, options, file, debug);
  if (status.ok()) *file = std::make_unique<FaultWritableFile>(std::move(*file), name, this);
  return status;
}

inline rocksdb::IOStatus FaultFileSystem::ReopenWritableFile(
    const std::string& name, const rocksdb::FileOptions& options,
    std::unique_ptr<rocksdb::FSWritableFile>* file, rocksdb::IODebugContext* debug) {
  rocksdb::IOStatus status = Next(DiskOp::kCreate, name);
  if (status.ok()) status = target()->ReopenWritableFile(name, options, file, debug);
  if (status.ok()) *file = std::make_unique<FaultWritableFile>(std::move(*file), name, this);
  return status;
}

inline rocksdb::IOStatus FaultFileSystem::NewRandomAccessFile(
    const std::string& name, const rocksdb::FileOptions& options,
    std::unique_ptr<rocksdb::FSRandomAccessFile>* file, rocksdb::IODebugContext* debug) {
  rocksdb::IOStatus status = target()->NewRandomAccessFile(name, options, file, debug);
  if (status.ok()) *file = std::make_unique<FaultRandomAccessFile>(std::move(*file), name, this);
  return status;
}

inline rocksdb::IOStatus FaultFileSystem::NewDirectory(
    const std::string& name, const rocksdb::IOOptions& options,
    std::unique_ptr<rocksdb::FSDirectory>* directory, rocksdb::IODebugContext* debug) {
  rocksdb::IOStatus status = target()->NewDirectory(name, options, directory, debug);
  if (status.ok()) *directory = std::make_unique<FaultDirectory>(std::move(*directory), name, this);
  return status;
}

}  // namespace embcache

#endif  // EMBCACHE_TESTS_UNIT_FAULT_FILE_SYSTEM_H_
