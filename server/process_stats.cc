#include "server/process_stats.h"

#include <dirent.h>
#include <sys/resource.h>
#include <unistd.h>

#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"

namespace embcache {
namespace {

std::string ReadFile(const char* path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

uint64_t OpenDescriptors() {
  DIR* const directory = opendir("/proc/self/fd");
  if (directory == nullptr) return 0;
  uint64_t count = 0;
  while (readdir(directory) != nullptr) ++count;
  closedir(directory);
  return count < 3 ? 0 : count - 3;  // without ".", ".." and the directory's own
}

double BootUnixSeconds() {
  double seconds = 0;
  for (const absl::string_view line : absl::StrSplit(ReadFile("/proc/stat"), '\n')) {
    const std::vector<absl::string_view> words = absl::StrSplit(line, ' ');
    if (words.size() == 2 && words[0] == "btime" && absl::SimpleAtod(words[1], &seconds)) break;
  }
  return seconds;
}

}  // namespace

ProcessStats ReadProcessStats() {
  ProcessStats stats;
  const std::string text = ReadFile("/proc/self/stat");
  // The program's name, in parentheses, may hold anything; the rest is numbers. See proc(5).
  const size_t end_of_name = text.rfind(") ");
  if (end_of_name == std::string::npos) return stats;
  const std::vector<absl::string_view> fields =
      absl::StrSplit(absl::string_view(text).substr(end_of_name + 2), ' ');
  const auto field = [&fields](size_t number_in_manual) {
    uint64_t value = 0;
    const size_t at = number_in_manual - 3;
    return at < fields.size() && absl::SimpleAtoi(fields[at], &value) ? value : 0;
  };
  const auto ticks = static_cast<double>(sysconf(_SC_CLK_TCK));
  stats.cpu_seconds = static_cast<double>(field(14) + field(15)) / ticks;
  stats.threads = field(20);
  stats.start_unix_seconds = BootUnixSeconds() + static_cast<double>(field(22)) / ticks;
  stats.virtual_bytes = field(23);
  stats.resident_bytes = field(24) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  stats.open_fds = OpenDescriptors();
  rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0) stats.max_fds = limit.rlim_cur;
  return stats;
}

uint64_t PrivateResidentBytes() {
  const std::vector<std::string> pages = absl::StrSplit(ReadFile("/proc/self/statm"), ' ');
  uint64_t resident = 0, shared = 0;
  if (pages.size() < 3 || !absl::SimpleAtoi(pages[1], &resident) ||
      !absl::SimpleAtoi(pages[2], &shared) || shared > resident) {
    return 0;
  }
  return (resident - shared) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

}  // namespace embcache
