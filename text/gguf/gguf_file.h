// GGUF files (version 2 and 3, little endian), mapped and never trusted: settings by name, and
// where each tensor lies.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ipc/files.h"
#include "ipc/status.h"

namespace baton {

/// Types of tensors by their number in a file. What is not here is refused by its number.
enum class GgmlType : std::uint32_t {
  f32 = 0,
  f16 = 1,
  q4_0 = 2,
  q4_1 = 3,
  q5_0 = 6,
  q5_1 = 7,
  q8_0 = 8,
  q4_k = 12,
  q5_k = 13,
  q6_k = 14,
  bf16 = 30,
};

/// How a type is stored: blocks of `numbers` weights, `bytes` each.
struct GgmlLayout {
  const char* name;
  std::uint64_t numbers;
  std::uint64_t bytes;
};
/// Nothing for a type that is not read.
std::optional<GgmlLayout> ggml_layout(std::uint32_t type);

struct GgufTensor {
  GgmlType type = GgmlType::f32;
  std::vector<std::int64_t> shape;  // row-major: the file's sizes backwards
  std::uint64_t offset = 0;         // from the file's first byte
  std::uint64_t bytes = 0;
};

/// The head of a file. Texts point into the file's bytes.
class GgufHead {
 public:
  /// Checks everything that the head says about a file of these bytes: the magic, the version,
  /// counts and lengths (against what is left of the file), names that come twice, types, shapes,
  /// and that every tensor's data lie inside the file, aligned, and overlap no other's. Errors name
  /// `name` and the setting or tensor.
  static Result<GgufHead> parse(std::string_view file, const std::string& name);

  const std::map<std::string, GgufTensor>& tensors() const { return tensors_; }

  /// Whether a setting is there.
  bool has(std::string_view key) const { return values_.find(key) != values_.end(); }
  /// Nothing where there is no such setting, or one of another kind.
  std::optional<std::uint64_t> count(std::string_view key) const;  // a whole number >= 0
  std::optional<double> number(std::string_view key) const;        // any scalar number
  std::optional<bool> flag(std::string_view key) const;
  std::optional<std::string_view> text(std::string_view key) const;
  std::optional<std::vector<std::string_view>> texts(std::string_view key) const;
  std::optional<std::vector<double>> numbers(std::string_view key) const;

 private:
  enum class Kind : std::uint32_t {
    u8,
    i8,
    u16,
    i16,
    u32,
    i32,
    f32,
    flag,
    text,
    list,
    u64,
    i64,
    f64
  };
  struct Value {
    Kind kind = Kind::u8;
    Kind element = Kind::u8;  // of a list
    std::uint64_t count = 0;  // of a list
    std::string_view bytes;   // the number's, the text itself, or all of the list's elements
  };
  class Reader;
  static std::uint64_t width(Kind kind);
  static double as_number(Kind kind, std::string_view bytes);
  const Value* find(std::string_view key) const;
  Status read_values(Reader& reader, std::uint64_t count);
  Status read_tensors(Reader& reader, std::uint64_t count);
  Status place_tensors(std::uint64_t head_bytes, std::uint64_t file_bytes, const std::string& name);

  std::map<std::string, Value, std::less<>> values_;
  std::map<std::string, GgufTensor> tensors_;
};

/// A file, mapped. Everything that its head points to lives as long as this.
class GgufFile {
 public:
  static Result<std::shared_ptr<const GgufFile>> open(const std::string& path);
  ~GgufFile();
  GgufFile(const GgufFile&) = delete;
  GgufFile& operator=(const GgufFile&) = delete;

  const GgufHead& head() const { return head_; }
  const std::byte* data() const { return static_cast<const std::byte*>(address_); }
  std::uint64_t bytes() const { return bytes_; }
  /// Of the file that was opened.
  const FileStamp& stamp() const { return stamp_; }

 private:
  GgufFile() = default;
  void* address_ = nullptr;
  std::uint64_t bytes_ = 0;
  FileStamp stamp_;
  GgufHead head_;
};

/// Whether a model is named by such a file, and not by a folder.
bool names_gguf(const std::string& model);

}  // namespace baton
