#include "text/gguf/gguf_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <limits>
#include <utility>

namespace baton {
namespace {

constexpr std::uint32_t kMagic = 0x46554747;    // "GGUF"
constexpr std::uint64_t kMaxNames = 1U << 20U;  // settings or tensors; published files have 3,000
constexpr std::uint64_t kMaxNameBytes = 65'535;
constexpr std::uint32_t kMaxDims = 4;  // the format's own limit
constexpr std::uint64_t kMost = std::numeric_limits<std::int64_t>::max();

template <class T>
T value_at(std::string_view bytes) {
  T value;
  std::memcpy(&value, bytes.data(), sizeof value);
  return value;
}

std::string in_quotes(std::string_view name) {
  return "'" + std::string(name.substr(0, 200)) + "'";
}

}  // namespace

std::optional<GgmlLayout> ggml_layout(std::uint32_t type) {
  switch (static_cast<GgmlType>(type)) {
    case GgmlType::f32:
      return GgmlLayout{"F32", 1, 4};
    case GgmlType::f16:
      return GgmlLayout{"F16", 1, 2};
    case GgmlType::bf16:
      return GgmlLayout{"BF16", 1, 2};
    case GgmlType::q4_0:
      return GgmlLayout{"Q4_0", 32, 18};
    case GgmlType::q4_1:
      return GgmlLayout{"Q4_1", 32, 20};
    case GgmlType::q5_0:
      return GgmlLayout{"Q5_0", 32, 22};
    case GgmlType::q5_1:
      return GgmlLayout{"Q5_1", 32, 24};
    case GgmlType::q8_0:
      return GgmlLayout{"Q8_0", 32, 34};
    case GgmlType::q4_k:
      return GgmlLayout{"Q4_K", 256, 144};
    case GgmlType::q5_k:
      return GgmlLayout{"Q5_K", 256, 176};
    case GgmlType::q6_k:
      return GgmlLayout{"Q6_K", 256, 210};
  }
  return std::nullopt;
}

/// Reads the head from left to right; once something is wrong, nothing more is read.
class GgufHead::Reader {
 public:
  Reader(std::string_view bytes, const std::string& name) : bytes_(bytes), name_(name) {}

  std::string_view take(std::uint64_t n, std::string_view what) {
    if (!ok()) return {};
    if (n > bytes_.size() - at_) {
      fail(std::string(what) + " reaches behind the end of the file");
      return {};
    }
    const std::string_view taken = bytes_.substr(at_, n);
    at_ += n;
    return taken;
  }
  template <class T>
  T number(std::string_view what) {
    const std::string_view taken = take(sizeof(T), what);
    return ok() ? value_at<T>(taken) : T{};
  }
  std::string_view text(std::string_view what) { return take(number<std::uint64_t>(what), what); }
  std::string_view name(std::string_view what) {
    const std::string_view taken = text(what);
    if (ok() && (taken.empty() || taken.size() > kMaxNameBytes)) {
      fail(std::string(what) + " is empty or longer than 65,535 bytes");
    }
    return taken;
  }
  void fail(const std::string& why) {
    if (ok()) status_ = invalid(name_ + ": " + why);
  }
  bool ok() const { return status_.ok(); }
  Status status() const { return status_; }
  std::uint64_t at() const { return at_; }
  std::uint64_t left() const { return bytes_.size() - at_; }
  std::string_view since(std::uint64_t begin) const { return bytes_.substr(begin, at_ - begin); }

 private:
  std::string_view bytes_;
  std::uint64_t at_ = 0;
  const std::string& name_;
  Status status_;
};

/// Bytes of a number; 0: not a number.
std::uint64_t GgufHead::width(Kind kind) {
  switch (kind) {
    case Kind::u8:
    case Kind::i8:
    case Kind::flag:
      return 1;
    case Kind::u16:
    case Kind::i16:
      return 2;
    case Kind::u32:
    case Kind::i32:
    case Kind::f32:
      return 4;
    case Kind::u64:
    case Kind::i64:
    case Kind::f64:
      return 8;
    default:
      return 0;
  }
}

double GgufHead::as_number(Kind kind, std::string_view bytes) {
  switch (kind) {
    case Kind::u8:
    case Kind::flag:
      return value_at<std::uint8_t>(bytes);
    case Kind::i8:
      return value_at<std::int8_t>(bytes);
    case Kind::u16:
      return value_at<std::uint16_t>(bytes);
    case Kind::i16:
      return value_at<std::int16_t>(bytes);
    case Kind::u32:
      return value_at<std::uint32_t>(bytes);
    case Kind::i32:
      return value_at<std::int32_t>(bytes);
    case Kind::f32:
      return static_cast<double>(value_at<float>(bytes));
    case Kind::u64:
      return static_cast<double>(value_at<std::uint64_t>(bytes));
    case Kind::i64:
      return static_cast<double>(value_at<std::int64_t>(bytes));
    default:
      return value_at<double>(bytes);
  }
}

Status GgufHead::read_values(Reader& reader, std::uint64_t count) {
  for (std::uint64_t i = 0; i < count && reader.ok(); ++i) {
    const std::string key(reader.name("a setting's name"));
    const std::string what = "the setting " + in_quotes(key);
    const auto kind = reader.number<std::uint32_t>(what);
    Value value;
    value.kind = static_cast<Kind>(kind);
    if (value.kind == Kind::text) {
      value.bytes = reader.text(what);
    } else if (value.kind == Kind::list) {
      value.element = static_cast<Kind>(reader.number<std::uint32_t>(what));
      value.count = reader.number<std::uint64_t>(what);
      const std::uint64_t begin = reader.at();
      const std::uint64_t each = width(value.element);
      if (each == 0 && value.element != Kind::text) {
        reader.fail(what + " is a list of the unknown or nested type " +
                    std::to_string(static_cast<std::uint32_t>(value.element)));
      } else if (value.count > reader.left() / (each == 0 ? 8 : each)) {
        reader.fail(what + " has more elements than the file has room for");
      } else if (each != 0) {
        reader.take(value.count * each, what);
      } else {
        for (std::uint64_t k = 0; k < value.count && reader.ok(); ++k) reader.text(what);
      }
      if (reader.ok()) value.bytes = reader.since(begin);
    } else if (width(value.kind) != 0) {
      value.bytes = reader.take(width(value.kind), what);
    } else {
      reader.fail(what + " has the unknown type " + std::to_string(kind));
    }
    if (reader.ok() && !values_.emplace(key, value).second) reader.fail(what + " is there twice");
  }
  return reader.status();
}

Status GgufHead::read_tensors(Reader& reader, std::uint64_t count) {
  for (std::uint64_t i = 0; i < count && reader.ok(); ++i) {
    const std::string key(reader.name("a tensor's name"));
    const std::string what = "tensor " + in_quotes(key);
    GgufTensor tensor;
    const auto dims = reader.number<std::uint32_t>(what);
    if (reader.ok() && (dims == 0 || dims > kMaxDims)) {
      reader.fail(what + ": has " + std::to_string(dims) + " dimensions, 1 to 4 are allowed");
    }
    std::uint64_t numbers = 1;
    for (std::uint32_t d = 0; d < dims && reader.ok(); ++d) {
      const auto size = reader.number<std::uint64_t>(what);
      if (reader.ok() && (size == 0 || size > kMost / 8 / numbers)) {
        reader.fail(what + ": the shape is empty or overflows");
      }
      numbers *= reader.ok() ? size : 1;
      tensor.shape.insert(tensor.shape.begin(), static_cast<std::int64_t>(size));
    }
    const auto type = reader.number<std::uint32_t>(what);
    tensor.offset = reader.number<std::uint64_t>(what);
    if (!reader.ok()) break;
    const auto layout = ggml_layout(type);
    if (!layout) {
      reader.fail(
          what + ": the type " + std::to_string(type) +
          " is not supported, only F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K "
          "and Q6_K are");
      break;
    }
    if (static_cast<std::uint64_t>(tensor.shape.back()) % layout->numbers != 0) {
      reader.fail(what + ": rows of " + std::to_string(tensor.shape.back()) +
                  " numbers do not divide into blocks of " + layout->name);
    }
    tensor.type = static_cast<GgmlType>(type);
    tensor.bytes = numbers / layout->numbers * layout->bytes;
    if (!tensors_.emplace(key, std::move(tensor)).second) reader.fail(what + ": is there twice");
  }
  return reader.status();
}

/// Offsets count from the first aligned byte behind the head.
Status GgufHead::place_tensors(std::uint64_t head_bytes, std::uint64_t file_bytes,
                               const std::string& name) {
  const std::uint64_t alignment =
      has("general.alignment") ? count("general.alignment").value_or(0) : 32;
  if (!std::has_single_bit(alignment) || alignment < 8 || alignment > (1U << 20U)) {
    return invalid(name + ": general.alignment is no power of two from 8 to 1,048,576");
  }
  const std::uint64_t data = (head_bytes + alignment - 1) / alignment * alignment;
  std::vector<std::pair<const std::string, GgufTensor>*> order;
  for (auto& entry : tensors_) {
    GgufTensor& tensor = entry.second;
    const std::string what = name + ": tensor " + in_quotes(entry.first) + ": ";
    if (tensor.offset % alignment != 0) return invalid(what + "the data are not aligned");
    if (data > file_bytes || tensor.offset > file_bytes - data ||
        tensor.bytes > file_bytes - data - tensor.offset) {
      return invalid(what + "the data reach behind the end of the file (is it complete?)");
    }
    tensor.offset += data;
    order.push_back(&entry);
  }
  std::sort(order.begin(), order.end(),
            [](const auto* a, const auto* b) { return a->second.offset < b->second.offset; });
  for (std::size_t i = 1; i < order.size(); ++i) {
    const GgufTensor& before = order[i - 1]->second;
    if (before.offset + before.bytes > order[i]->second.offset) {
      return invalid(name + ": tensor " + in_quotes(order[i]->first) +
                     ": the data overlap those of another tensor");
    }
  }
  return {};
}

Result<GgufHead> GgufHead::parse(std::string_view file, const std::string& name) {
  Reader reader(file, name);
  const auto magic = reader.number<std::uint32_t>("the magic number");
  const auto version = reader.number<std::uint32_t>("the version");
  if (!reader.ok() || magic != kMagic) return invalid(name + ": not a GGUF file");
  if (version != 2 && version != 3) {
    return invalid(name + ": GGUF version " + std::to_string(version) +
                   " is not supported, only 2 and 3 (little endian) are");
  }
  const auto tensors = reader.number<std::uint64_t>("the number of tensors");
  const auto values = reader.number<std::uint64_t>("the number of settings");
  if (reader.ok() && (tensors > kMaxNames || values > kMaxNames)) {
    reader.fail("more than " + std::to_string(kMaxNames) + " tensors or settings");
  }
  GgufHead head;
  if (Status status = head.read_values(reader, values); !status.ok()) return status;
  if (Status status = head.read_tensors(reader, tensors); !status.ok()) return status;
  if (Status status = head.place_tensors(reader.at(), file.size(), name); !status.ok())
    return status;
  return head;
}

const GgufHead::Value* GgufHead::find(std::string_view key) const {
  const auto it = values_.find(key);
  return it == values_.end() ? nullptr : &it->second;
}

std::optional<double> GgufHead::number(std::string_view key) const {
  const Value* value = find(key);
  if (value == nullptr || width(value->kind) == 0 || value->kind == Kind::flag) return std::nullopt;
  return as_number(value->kind, value->bytes);
}

std::optional<std::uint64_t> GgufHead::count(std::string_view key) const {
  const std::optional<double> value = number(key);
  if (!value || !(*value >= 0 && *value <= 0x1p53)) return std::nullopt;
  const auto whole = static_cast<std::uint64_t>(*value);
  if (static_cast<double>(whole) != *value) return std::nullopt;
  return whole;
}

std::optional<bool> GgufHead::flag(std::string_view key) const {
  const Value* value = find(key);
  if (value == nullptr || value->kind != Kind::flag) return std::nullopt;
  return value->bytes.front() != 0;
}

std::optional<std::string_view> GgufHead::text(std::string_view key) const {
  const Value* value = find(key);
  if (value == nullptr || value->kind != Kind::text) return std::nullopt;
  return value->bytes;
}

std::optional<std::vector<std::string_view>> GgufHead::texts(std::string_view key) const {
  const Value* value = find(key);
  if (value == nullptr || value->kind != Kind::list || value->element != Kind::text) {
    return std::nullopt;
  }
  std::vector<std::string_view> found;
  found.reserve(value->count);
  std::string_view rest = value->bytes;  // parse() has been through it
  while (!rest.empty()) {
    const auto size = value_at<std::uint64_t>(rest);
    found.push_back(rest.substr(8, size));
    rest.remove_prefix(8 + size);
  }
  return found;
}

std::optional<std::vector<double>> GgufHead::numbers(std::string_view key) const {
  const Value* value = find(key);
  if (value == nullptr || value->kind != Kind::list || width(value->element) == 0) {
    return std::nullopt;
  }
  std::vector<double> found;
  const std::uint64_t each = width(value->element);
  found.reserve(value->count);
  for (std::uint64_t i = 0; i < value->count; ++i) {
    found.push_back(as_number(value->element, value->bytes.substr(i * each, each)));
  }
  return found;
}

Result<std::shared_ptr<const GgufFile>> GgufFile::open(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // never waits for a pipe
  if (fd < 0) return invalid(path + ": " + std::strerror(errno));
  const auto stamp = file_stamp(fd);
  if (!stamp || stamp->bytes == 0) {
    ::close(fd);
    return invalid(path + ": not a regular file, or an empty one");
  }
  std::shared_ptr<GgufFile> file(new GgufFile);
  file->bytes_ = stamp->bytes;
  file->stamp_ = *stamp;
  void* address = ::mmap(nullptr, file->bytes_, PROT_READ, MAP_PRIVATE, fd, 0);
  const int error = errno;
  ::close(fd);
  if (address == MAP_FAILED) return invalid(path + ": mmap: " + std::strerror(error));
  file->address_ = address;
  auto head = GgufHead::parse({static_cast<const char*>(address), file->bytes_}, path);
  if (!head.ok()) return head.status();
  file->head_ = std::move(head).value();
  return std::shared_ptr<const GgufFile>(std::move(file));
}

GgufFile::~GgufFile() {
  if (address_ != nullptr) ::munmap(address_, bytes_);
}

bool names_gguf(const std::string& model) {
  const std::string_view name = model;
  return name.ends_with(".gguf") || name.ends_with(".GGUF");
}

}  // namespace baton
