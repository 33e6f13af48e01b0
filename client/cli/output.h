// How embcachectl prints: tables, sizes, keys, and a progress bar.

#ifndef EMBCACHE_CLIENT_CLI_OUTPUT_H_
#define EMBCACHE_CLIENT_CLI_OUTPUT_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <ostream>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "client/cpp/client.h"

namespace embcache::cli {

using Json = nlohmann::ordered_json;

// `text` as a terminal may show it: control characters and bytes that are no UTF-8 as \x escapes.
std::string TerminalText(absl::string_view text);
size_t Width(absl::string_view text);  // characters of valid UTF-8
// At most `columns` characters of UTF-8; the last is "~" when some are left out.
std::string Shorten(std::string text, size_t columns);

// Columns as wide as they need to be. The first row is the heading. Cells may hold anything.
class Table {
 public:
  explicit Table(std::vector<std::string> heading) : rows_{std::move(heading)} {}
  void Add(std::vector<std::string> row);
  // Leaves columns out, those named in `dispensable` one after the other, until no line is longer
  // when the first column has a third of it or less; and shortens that column as need be.
  void FitInto(size_t columns, const std::vector<std::string>& dispensable);
  void Print(std::ostream& out) const;

 private:
  std::vector<size_t> Widths() const;

  std::vector<std::vector<std::string>> rows_;
};

std::string HumanBytes(uint64_t bytes);                    // "1.5 MiB"
std::string HumanNanoseconds(uint64_t ns);                 // "61.2 us"
std::string ShapeText(const std::vector<int64_t>& shape);  // "[256,384]"
bool IsPrintable(absl::string_view text);                  // UTF-8 without control characters
std::string VariantText(absl::string_view variant);        // as it is, or "hex:..."
Json KeyJson(const client::Key& key);                      // model, hash, variant or variant_hex
Json TensorsJson(const std::vector<client::TensorSpec>& tensors);
std::string Dump(const Json& json);  // one line; never throws

// "\r[####      ] 12/30 name" on stderr, when that is a terminal and there is enough to do.
class Progress {
 public:
  Progress(std::ostream& err, size_t total);
  ~Progress();
  void Step(absl::string_view name);

 private:
  std::ostream& err_;
  const size_t total_;
  const bool shown_;
  size_t done_ = 0;
};

}  // namespace embcache::cli

#endif  // EMBCACHE_CLIENT_CLI_OUTPUT_H_
