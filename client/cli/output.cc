#include "client/cli/output.h"

#include <unistd.h>

#include <algorithm>
#include <iostream>
#include <iterator>
#include <numeric>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "proto/message_json.h"

namespace embcache::cli {
namespace {

constexpr size_t kProgressFrom = 20;  // items
constexpr size_t kBarWidth = 30;
constexpr size_t kGap = 2;  // between columns

}  // namespace

std::string TerminalText(absl::string_view text) {
  std::string shown;
  while (!text.empty()) {
    const size_t length = Utf8Length(text);
    const auto first = static_cast<unsigned char>(text[0]);
    // The controls of Latin-1, U+0080 to U+009F, are obeyed by terminals too.
    const bool control =
        first < 0x20 || first == 0x7f ||
        (first == 0xc2 && length == 2 && static_cast<unsigned char>(text[1]) < 0xa0);
    if (length > 0 && !control) {
      absl::StrAppend(&shown, text.substr(0, length));
      text.remove_prefix(length);
    } else {
      absl::StrAppendFormat(&shown, "\\x%02x", first);
      text.remove_prefix(1);
    }
  }
  return shown;
}

size_t Width(absl::string_view text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

std::string Shorten(std::string text, size_t columns) {
  if (Width(text) <= columns) return text;
  size_t end = 0;
  for (size_t width = 1; width < columns; ++width) {
    do {
      ++end;
    } while ((text[end] & 0xC0) == 0x80);
  }
  text.resize(end);
  if (columns > 0) text += '~';
  return text;
}

void Table::Add(std::vector<std::string> row) {
  for (std::string& cell : row) cell = TerminalText(cell);
  rows_.push_back(std::move(row));
}

std::vector<size_t> Table::Widths() const {
  std::vector<size_t> widths(rows_[0].size());
  for (const auto& row : rows_) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], Width(row[i]));
  }
  return widths;
}

void Table::FitInto(size_t columns, const std::vector<std::string>& dispensable) {
  // Of all columns but the first, with the gaps.
  const auto rest = [this] {
    const std::vector<size_t> widths = Widths();
    return std::accumulate(widths.begin() + 1, widths.end(), kGap * (widths.size() - 1));
  };
  const size_t first = Widths()[0];
  for (const std::string& name : dispensable) {
    if (std::min(first, columns / 3) + rest() <= columns) break;
    const auto column = std::find(rows_[0].begin(), rows_[0].end(), name) - rows_[0].begin();
    for (auto& row : rows_) row.erase(row.begin() + column);
  }
  const size_t left = columns - std::min(columns, rest());
  for (auto& row : rows_) row[0] = Shorten(std::move(row[0]), left);
}

void Table::Print(std::ostream& out) const {
  const std::vector<size_t> widths = Widths();
  for (const auto& row : rows_) {
    for (size_t i = 0; i < row.size(); ++i) {
      out << row[i];
      if (i + 1 < row.size()) out << std::string(widths[i] - Width(row[i]) + kGap, ' ');
    }
    out << '\n';
  }
}

std::string HumanBytes(uint64_t bytes) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < std::size(kUnits)) {
    value /= 1024;
    ++unit;
  }
  return unit == 0 ? absl::StrCat(bytes, " B") : absl::StrFormat("%.1f %s", value, kUnits[unit]);
}

std::string HumanNanoseconds(uint64_t ns) {
  if (ns < 1'000) return absl::StrCat(ns, " ns");
  if (ns < 1'000'000) return absl::StrFormat("%.1f us", ns / 1e3);
  if (ns < 1'000'000'000) return absl::StrFormat("%.1f ms", ns / 1e6);
  return absl::StrFormat("%.2f s", ns / 1e9);
}

std::string ShapeText(const std::vector<int64_t>& shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ","), "]");
}

bool IsPrintable(absl::string_view text) {
  for (char c : text) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) return false;
  }
  // The library's own check of UTF-8 is what later writes it.
  try {
    Json(std::string(text)).dump();
    return true;
  } catch (const nlohmann::json::exception&) {
    return false;
  }
}

std::string VariantText(absl::string_view variant) {
  return IsPrintable(variant) ? std::string(variant)
                              : absl::StrCat("hex:", absl::BytesToHexString(variant));
}

Json KeyJson(const client::Key& key) {
  Json json;
  json["model"] = key.model;
  json["hash"] = absl::BytesToHexString(key.content_hash);
  if (IsPrintable(key.variant)) {
    json["variant"] = key.variant;
  } else {
    json["variant_hex"] = absl::BytesToHexString(key.variant);
  }
  return json;
}

Json TensorsJson(const std::vector<client::TensorSpec>& tensors) {
  Json list = Json::array();
  for (const client::TensorSpec& tensor : tensors) {
    Json item;
    item["name"] = tensor.name;
    item["absent"] = tensor.absent;
    if (!tensor.absent) {
      item["dtype"] = std::string(client::DTypeName(tensor.dtype));
      item["shape"] = tensor.shape;
      item["bytes"] = tensor.bytes;
    }
    list.push_back(std::move(item));
  }
  return list;
}

std::string Dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Progress::Progress(std::ostream& err, size_t total)
    : err_(err),
      total_(total),
      shown_(&err == &std::cerr && total >= kProgressFrom && isatty(STDERR_FILENO) == 1) {}

Progress::~Progress() {
  if (shown_) err_ << "\r\033[K" << std::flush;
}

void Progress::Step(absl::string_view name) {
  ++done_;
  if (!shown_) return;
  const size_t filled = kBarWidth * std::min(done_, total_) / total_;
  err_ << "\r\033[K[" << std::string(filled, '#') << std::string(kBarWidth - filled, ' ') << "] "
       << done_ << '/' << total_ << ' ' << TerminalText(name) << std::flush;
}

}  // namespace embcache::cli
