#include "storage/store_directory.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <system_error>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "storage/record_format.h"
#include "storage/small_files.h"

namespace embcache {
namespace {

namespace fs = std::filesystem;

constexpr absl::string_view kLockName = "/LOCK.embcache";
constexpr absl::string_view kFormatName = "/FORMAT";
constexpr absl::string_view kFormatWord = "embcache-l3 ";
constexpr size_t kMostFormatBytes = 64;

absl::Status MakeDirectory(const std::string& path) {
  if (mkdir(path.c_str(), 0750) != 0 && errno != EEXIST) {
    return absl::ErrnoToStatus(errno, absl::StrCat("mkdir ", path));
  }
  return absl::OkStatus();
}

// Of what may pass: a mount that is missing, a disk that fails.
absl::Status Passing(const absl::Status& failure) {
  return absl::UnavailableError(failure.message());
}

absl::StatusOr<int> TakeLock(const std::string& path) {
  int opened = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0640);
  // What is on a read-only file system can still be read.
  if (opened < 0 && errno == EROFS) opened = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  ScopedFd fd(opened);
  if (fd.get() < 0) return Passing(absl::ErrnoToStatus(errno, absl::StrCat("open ", path)));
  if (flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) {
      return Passing(absl::ErrnoToStatus(errno, absl::StrCat("flock ", path)));
    }
    const absl::StatusOr<std::string> owner = ReadWholeFile(path);
    return absl::AlreadyExistsError(
        absl::StrCat(path, ": in use by process ",
                     owner.ok() && !owner->empty() ? absl::StripSuffix(*owner, "\n") : "unknown"));
  }
  // The pid is for people only: a full disk may keep it from being written.
  if (ftruncate(fd.get(), 0) == 0) {
    (void)WriteAll(fd.get(), absl::StrCat(getpid(), "\n"), path);
  }
  return fd.release();
}

// Before anything it speaks of.
absl::Status WriteFormat(const std::string& directory) {
  const std::string target = absl::StrCat(directory, kFormatName);
  absl::StatusOr<int> fd = ReplaceFile(target, absl::StrCat(target, ".new"),
                                       absl::StrCat(kFormatWord, kL3FormatVersion, "\n"));
  if (!fd.ok()) return fd.status();
  close(*fd);
  return absl::OkStatus();
}

// The version in FORMAT. NOT_FOUND: there is no such file. FAILED_PRECONDITION: it is none that
// this program knows. UNAVAILABLE: it cannot be read.
absl::StatusOr<int> ReadFormat(const std::string& directory) {
  const std::string path = absl::StrCat(directory, kFormatName);
  absl::StatusOr<std::string> text = ReadFileBegin(path, kMostFormatBytes + 1);
  if (absl::IsNotFound(text.status())) return text.status();
  if (!text.ok()) return Passing(text.status());
  absl::string_view version = *text;
  int number = 0;
  std::string wrong;
  if (text->size() > kMostFormatBytes) {
    wrong = absl::StrCat("is no format file: it has more than ", kMostFormatBytes, " bytes");
  } else if (!absl::ConsumeSuffix(&version, "\n")) {
    wrong = absl::StrCat("\"", absl::CEscape(*text),
                         "\" has no newline at its end: it was cut off, or edited by hand");
  } else if (!absl::ConsumePrefix(&version, kFormatWord) || !absl::SimpleAtoi(version, &number) ||
             number < kOldestL3FormatVersion || number > kL3FormatVersion) {
    wrong = absl::StrCat("\"", absl::CEscape(absl::StripSuffix(*text, "\n")),
                         "\" is not a version this program knows (", kFormatWord,
                         kOldestL3FormatVersion, " to ", kL3FormatVersion, ")");
  }
  if (wrong.empty()) return number;
  return absl::FailedPreconditionError(
      absl::StrCat(path, ": ", wrong, "; move the directory away or choose another"));
}

absl::Status CheckFormat(const std::string& directory) {
  const absl::Status read = ReadFormat(directory).status();
  if (!absl::IsNotFound(read)) return read;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory, error)) {
    const std::string name = entry.path().filename().string();
    if (name == "LOCK.embcache" || name == "FORMAT.new" || name == "lost+found") continue;
    return absl::FailedPreconditionError(
        absl::StrCat(directory, ": has no FORMAT file but is not empty (", name,
                     "): not an L3 store; choose an empty directory"));
  }
  if (error) return absl::UnavailableError(absl::StrCat(directory, ": ", error.message()));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<StoreDirectory>> StoreDirectory::Open(absl::string_view path) {
  const std::string directory(path);
  absl::Status made = MakeDirectory(directory);
  if (!made.ok()) return Passing(made);
  // Before anything is written into what may be somebody else's; and once more when nobody else can
  // be making a store there.
  absl::Status ours = CheckFormat(directory);
  if (absl::IsFailedPrecondition(ours)) return ours;
  absl::StatusOr<int> lock = TakeLock(absl::StrCat(directory, kLockName));
  if (!lock.ok()) return lock.status();
  std::unique_ptr<StoreDirectory> opened(new StoreDirectory(path, *lock));
  ours = CheckFormat(directory);
  if (!ours.ok()) return ours;
  std::error_code error;
  fs::remove_all(directory + "/stage", error);
  opened->Prepare().IgnoreError();
  return opened;
}

absl::Status StoreDirectory::Prepare() const {
  const absl::StatusOr<int> version = ReadFormat(path_);
  if (!version.ok() && !absl::IsNotFound(version.status())) return version.status();
  if (!version.ok() || *version != kL3FormatVersion) {
    absl::Status written = WriteFormat(path_);
    if (!written.ok()) return written;
  }
  return MakeDirectory(path_ + "/stage");
}

// Closing the descriptor ends the lock. The file stays: removing it would let two processes lock
// two files of one name.
StoreDirectory::~StoreDirectory() { close(lock_fd_); }

std::string StoreDirectory::StagedFile(uint64_t number) const {
  return absl::StrCat(path_, "/stage/", number, ".sst");
}

uint64_t StoreDirectory::Bytes() const {
  uint64_t total = 0;
  absl::flat_hash_set<uint64_t> linked;  // files with several names count once
  const auto add = [&](const std::string& name) {
    struct stat info;
    if (lstat(name.c_str(), &info) != 0) return;
    if (S_ISREG(info.st_mode) && info.st_nlink > 1 && !linked.insert(info.st_ino).second) return;
    uint64_t bytes = static_cast<uint64_t>(info.st_blocks) * 512;
    if (S_ISREG(info.st_mode)) bytes = std::max(bytes, static_cast<uint64_t>(info.st_size));
    total += bytes;
  };
  add(path_);
  std::error_code error;
  // Files come and go meanwhile, which ends a recursive_directory_iterator with an error; the
  // directories themselves do not.
  std::vector<std::string> directories = {path_};
  while (!directories.empty()) {
    const std::string directory = std::move(directories.back());
    directories.pop_back();
    fs::directory_iterator at(directory, error);
    for (; !error && at != fs::directory_iterator(); at.increment(error)) {
      const std::string name = at->path().string();
      add(name);
      std::error_code ignored;
      if (at->is_directory(ignored) && !at->is_symlink(ignored)) directories.push_back(name);
    }
    error.clear();
  }
  return total;
}

std::optional<StoreDirectory::DiskSpace> StoreDirectory::Space() const {
  struct statvfs info;
  if (statvfs(path_.c_str(), &info) != 0) return std::nullopt;
  return DiskSpace{.total = static_cast<uint64_t>(info.f_blocks) * info.f_frsize,
                   .free = static_cast<uint64_t>(info.f_bavail) * info.f_frsize};
}

bool StoreDirectory::HasDatabase() const {
  std::error_code error;
  return fs::exists(db(), error) && !fs::is_empty(db(), error);
}

bool StoreDirectory::HasDatabaseRoot() const {
  return access((db() + "/CURRENT").c_str(), F_OK) == 0;
}

absl::Status StoreDirectory::Discard() const {
  // In this order: without a database its log of removals means nothing.
  absl::Status moved = MoveDatabaseAside();
  if (!moved.ok()) return moved;
  if (unlink(meta_log().c_str()) != 0 && errno != ENOENT) {
    return absl::ErrnoToStatus(errno, absl::StrCat("unlink ", meta_log()));
  }
  return absl::OkStatus();
}

absl::Status StoreDirectory::MoveDatabaseAside() const {
  if (!HasDatabase()) return absl::OkStatus();
  RemoveAside();
  if (rename(db().c_str(), aside().c_str()) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("rename ", db(), " to ", aside()));
  }
  return absl::OkStatus();
}

void StoreDirectory::RemoveDatabase() const {
  std::error_code error;
  fs::remove_all(db(), error);
}

bool StoreDirectory::HasAside() const { return access(aside().c_str(), F_OK) == 0; }

void StoreDirectory::RemoveAside() const {
  std::error_code error;
  fs::remove_all(aside(), error);
}

absl::Status StoreDirectory::Probe(uint64_t bytes) const {
  const std::string name = absl::StrCat(path_, "/stage/probe");
  absl::Status status;
  {
    ScopedFd fd(open(name.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0640));
    if (fd.get() < 0) return absl::ErrnoToStatus(errno, absl::StrCat("open ", name));
    status = WriteAll(fd.get(), std::string(bytes, 'p'), name);
    if (status.ok() && fdatasync(fd.get()) != 0) {
      status = absl::ErrnoToStatus(errno, absl::StrCat("fdatasync ", name));
    }
  }
  unlink(name.c_str());
  return status;
}

void StoreDirectory::RemoveStaged(uint64_t number) const { unlink(StagedFile(number).c_str()); }

}  // namespace embcache
