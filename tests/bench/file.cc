// file-2mb: a hit against reading the same bytes from a file that is in the page cache.

#include <fcntl.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/bench/bench.h"
#include "tests/integration/daemon_process.h"

namespace embcache::bench {
namespace {

constexpr uint64_t kBytes = 2 << 20;

absl::Status WriteFile(const std::string& path, const std::vector<uint8_t>& bytes) {
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0) return absl::ErrnoToStatus(errno, path);
  const ssize_t written = write(fd, bytes.data(), bytes.size());
  close(fd);
  if (written == static_cast<ssize_t>(bytes.size())) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(path, ": wrote ", written, " bytes"));
}

absl::Status ReadFile(const std::string& path, std::vector<uint8_t>* buffer) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return absl::ErrnoToStatus(errno, path);
  const ssize_t size = pread(fd, buffer->data(), buffer->size(), 0);
  close(fd);
  if (size == static_cast<ssize_t>(buffer->size())) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(path, ": read ", size, " bytes"));
}

}  // namespace

absl::Status File2Mb(Report* report) {
  testing_support::DaemonProcess daemon({"--l3-write=off", "--l1-capacity=1GiB"});
  absl::Status status = daemon.Start();
  if (!status.ok()) return status;
  auto client = daemon.Connect(client::Role::kWriter, "bench");
  if (!client.ok()) return client.status();
  std::vector<uint8_t> payload = MakePayload(kBytes);
  const std::string path = daemon.directory() + "/file";
  status = WriteFile(path, payload);
  if (status.ok()) status = PutEntry(**client, 1, payload);
  if (!status.ok()) return status;
  const client::Key key = MakeKey(1);
  const auto compared = Interleave(15, MedianLatency(300, [&] { return Hit(**client, key); }),
                                   MedianLatency(300, [&] { return ReadFile(path, &payload); }));
  if (!compared.ok()) return compared.status();
  report->Add({"file-2mb", compared->value, "us", compared->baseline, compared->ratio, AtMost(0.01),
               "open, pread from the page cache into warm memory, close"});
  return absl::OkStatus();
}

}  // namespace embcache::bench
