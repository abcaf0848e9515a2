#include "workers/model/safetensors.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "ipc/files.h"
#include "workers/model/error.h"
#include "workers/model/gguf_model.h"

namespace baton {
namespace {

using Json = nlohmann::json;
namespace fs = std::filesystem;

constexpr std::uint64_t kLengthBytes = 8;
constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;  // the format's own limit
constexpr std::uint64_t kMaxIndexBytes = 100'000'000;
constexpr std::size_t kMaxRank = 8;
constexpr int kMaxDepth = 4;

/// Bytes of an element; 0 for a type that the format does not know.
std::uint64_t dtype_bytes(const std::string& dtype) {
  static const std::map<std::string, std::uint64_t> kBytes = {
      {"BOOL", 1}, {"U8", 1},  {"I8", 1},  {"F8_E4M3", 1}, {"F8_E5M2", 1},
      {"U16", 2},  {"I16", 2}, {"F16", 2}, {"BF16", 2},    {"U32", 4},
      {"I32", 4},  {"F32", 4}, {"U64", 8}, {"I64", 8},     {"F64", 8}};
  const auto it = kBytes.find(dtype);
  return it == kBytes.end() ? 0 : it->second;
}

[[noreturn]] void fail(const std::string& file, const std::string& tensor, const std::string& why) {
  throw ModelError(file + ": " + (tensor.empty() ? "" : "tensor " + tensor + ": ") + why);
}

/// Parses text that nobody vouches for: bounded depth, no key twice in one object.
Json parse_json(const char* begin, const char* end, const std::string& file) {
  std::vector<std::set<std::string>> keys;
  const auto watch = [&](int depth, Json::parse_event_t event, Json& value) {
    using Event = Json::parse_event_t;
    if (event == Event::object_start || event == Event::array_start) {
      if (depth > kMaxDepth) fail(file, "", "the JSON is nested too deeply");
      if (event == Event::object_start) keys.emplace_back();
    } else if (event == Event::object_end) {
      keys.pop_back();
    } else if (event == Event::key && !keys.back().insert(value.get<std::string>()).second) {
      fail(file, value.get<std::string>(), "named twice");
    }
    return true;
  };
  try {
    Json json = Json::parse(begin, end, watch);
    if (!json.is_object()) fail(file, "", "the JSON is not an object");
    return json;
  } catch (const Json::exception& error) {
    fail(file, "", std::string("malformed JSON: ") + error.what());
  }
}

std::uint64_t unsigned_number(const Json& value, const std::string& file, const std::string& tensor,
                              const char* what) {
  if (!value.is_number_unsigned()) {
    fail(file, tensor, std::string(what) + " " + value.dump() + " is not a number >= 0");
  }
  return value.get<std::uint64_t>();
}

/// One entry of the header; `data_bytes` bytes of data begin at `data`.
TensorView parse_entry(const std::string& tensor, const Json& entry, const std::byte* data,
                       std::uint64_t data_bytes, const std::string& file) {
  const auto member = [&](const char* key, Json::value_t type) -> const Json& {
    if (!entry.is_object() || !entry.contains(key) || entry.at(key).type() != type) {
      fail(file, tensor, std::string(key) + " is missing or of the wrong type");
    }
    return entry.at(key);
  };
  TensorView view;
  view.file = file;
  view.dtype = member("dtype", Json::value_t::string).get<std::string>();
  const std::uint64_t element = dtype_bytes(view.dtype);
  if (element == 0) fail(file, tensor, "unknown dtype " + view.dtype);
  const Json& shape = member("shape", Json::value_t::array);
  if (shape.size() > kMaxRank) fail(file, tensor, "more than 8 dimensions");
  std::uint64_t bytes = element;
  for (const Json& size : shape) {
    const std::uint64_t n = unsigned_number(size, file, tensor, "size");
    constexpr auto kMax = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
    if (n > kMax || (n != 0 && bytes > kMax / n)) fail(file, tensor, "the shape overflows");
    bytes *= n;
    view.shape.push_back(static_cast<std::int64_t>(n));
  }
  const Json& offsets = member("data_offsets", Json::value_t::array);
  if (offsets.size() != 2) fail(file, tensor, "data_offsets are not two numbers");
  const std::uint64_t begin = unsigned_number(offsets[0], file, tensor, "offset");
  const std::uint64_t end = unsigned_number(offsets[1], file, tensor, "offset");
  if (begin > end || end > data_bytes) fail(file, tensor, "the data lie outside of the file");
  if (end - begin != bytes) fail(file, tensor, "the data do not have the size of the shape");
  if (reinterpret_cast<std::uintptr_t>(data + begin) % element != 0) {
    fail(file, tensor, "the data are not aligned");
  }
  view.data = data + begin;
  view.offset = begin;
  view.bytes = bytes;
  return view;
}

/// The data must be used once each: no overlap, no hole, nothing behind.
void check_cover(const std::map<std::string, TensorView>& tensors, const std::byte* data,
                 std::uint64_t data_bytes, const std::string& file) {
  std::vector<std::pair<const TensorView*, const std::string*>> order;
  for (const auto& [tensor, view] : tensors) order.emplace_back(&view, &tensor);
  std::sort(order.begin(), order.end(), [](const auto& a, const auto& b) {
    return std::make_pair(a.first->data, a.first->bytes) <
           std::make_pair(b.first->data, b.first->bytes);
  });
  const std::byte* next = data;
  for (const auto& [view, tensor] : order) {
    if (view->data < next) fail(file, *tensor, "the data overlap those of another tensor");
    if (view->data > next) fail(file, *tensor, "unused bytes before the data");
    next += view->bytes;
  }
  if (next != data + data_bytes) fail(file, "", "unused bytes at the end of the file");
}

}  // namespace

std::map<std::string, TensorView> parse_safetensors(const std::byte* file, std::uint64_t file_bytes,
                                                    const std::string& name) {
  if (file_bytes < kLengthBytes) fail(name, "", "too short for a safetensors file");
  std::uint64_t header = 0;
  for (std::uint64_t i = 0; i < kLengthBytes; ++i) {
    header |= std::to_integer<std::uint64_t>(file[i]) << (8 * i);
  }
  constexpr std::string_view kLfsPointer = "version https://git-lfs.";
  if (std::string_view(reinterpret_cast<const char*>(file), file_bytes).starts_with(kLfsPointer)) {
    fail(name, "", "a git-lfs pointer instead of the weights; fetch them with: git lfs pull");
  }
  if (header > kMaxHeaderBytes || header > file_bytes - kLengthBytes) {
    fail(name, "",
         "the header of " + std::to_string(header) + " bytes is longer than allowed or " +
             "than the file");
  }
  const auto* text = reinterpret_cast<const char*>(file + kLengthBytes);
  const Json json = parse_json(text, text + header, name);
  const std::byte* data = file + kLengthBytes + header;
  const std::uint64_t data_bytes = file_bytes - kLengthBytes - header;
  std::map<std::string, TensorView> tensors;
  for (const auto& [tensor, entry] : json.items()) {
    if (tensor == "__metadata__") continue;
    tensors.emplace(tensor, parse_entry(tensor, entry, data, data_bytes, name));
  }
  check_cover(tensors, data, data_bytes, name);
  return tensors;
}

/// A whole file, mapped to read.
struct Checkpoint::Mapping {
  explicit Mapping(const std::string& path) {
    const int fd =
        ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // never waits for a pipe
    if (fd < 0) throw ModelError(path + ": " + std::strerror(errno));
    const auto found = file_stamp(fd);
    if (!found) {
      ::close(fd);
      throw ModelError(path + ": not a regular file");
    }
    stamp = *found;
    bytes = stamp.bytes;
    // mmap refuses a length of 0; the parser names an empty file.
    if (bytes != 0) address = ::mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE, fd, 0);
    const int error = errno;
    ::close(fd);
    if (address == MAP_FAILED) throw ModelError(path + ": mmap: " + std::strerror(error));
  }
  ~Mapping() {
    if (address != nullptr) ::munmap(address, bytes);
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  void* address = nullptr;
  std::uint64_t bytes = 0;
  FileStamp stamp;
};

namespace {

/// FNV-1a, 64 bits, over one number more.
std::uint64_t hashed(std::uint64_t hash, std::uint64_t number) {
  for (int i = 0; i < 8; ++i) hash = (hash ^ ((number >> (8 * i)) & 0xFF)) * 0x100000001B3ULL;
  return hash;
}

/// Old GPTQ checkpoints are one file that is named after its settings. Empty if there is none.
std::string gptq_file(const std::string& folder) {
  std::string found;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with("gptq_model") || !name.ends_with(".safetensors")) continue;
    if (!found.empty()) throw ModelError(folder + ": more than one gptq_model*.safetensors");
    found = entry.path().string();
  }
  return found;
}

}  // namespace

Checkpoint::Checkpoint(const std::string& folder) : folder_(folder) {
  const fs::path single = fs::path(folder) / "model.safetensors";
  const fs::path index = fs::path(folder) / "model.safetensors.index.json";
  if (names_gguf(folder)) {
    add_gguf(folder);
  } else if (fs::exists(single)) {
    add_file(single.string(), nullptr);
  } else if (fs::exists(index)) {
    add_shards(index.string());
  } else if (const auto quantised = gptq_file(folder); !quantised.empty()) {
    add_file(quantised, nullptr);
  } else {
    throw ModelError(folder + ": neither model.safetensors nor model.safetensors.index.json");
  }
}

Checkpoint::~Checkpoint() = default;

void Checkpoint::add_gguf(const std::string& path) {
  auto file = GgufFile::open(path);
  if (!file.ok()) throw ModelError(file.status().message());
  gguf_ = std::move(file).value();
  stamp_ =
      hashed(hashed(stamp_, gguf_->bytes()), static_cast<std::uint64_t>(gguf_->stamp().modified));
  files_.emplace_back(path, gguf_->stamp());
  tensors_ = gguf_tensors(*gguf_, path, load_model_config(path));
}

void Checkpoint::add_file(const std::string& path, const std::vector<std::string>* expected) {
  auto mapping = std::make_unique<Mapping>(path);
  auto found =
      parse_safetensors(static_cast<const std::byte*>(mapping->address), mapping->bytes, path);
  for (const char c : fs::path(path).filename().string())
    stamp_ = hashed(stamp_, static_cast<unsigned char>(c));
  stamp_ =
      hashed(hashed(stamp_, mapping->bytes), static_cast<std::uint64_t>(mapping->stamp.modified));
  files_.emplace_back(path, mapping->stamp);
  mappings_.push_back(std::move(mapping));
  if (expected == nullptr) {
    tensors_ = std::move(found);
    return;
  }
  for (const std::string& tensor : *expected) {
    const auto it = found.find(tensor);
    if (it == found.end()) fail(path, tensor, "the index puts it here, but it is not");
    tensors_.emplace(tensor, std::move(it->second));
  }
}

void Checkpoint::add_shards(const std::string& index_path) {
  const auto read = read_regular_file(index_path, kMaxIndexBytes);
  if (!read.ok()) throw ModelError(read.status().message());
  const std::string text = read.value().value_or("");
  const Json json = parse_json(text.data(), text.data() + text.size(), index_path);
  if (!json.contains("weight_map") || !json["weight_map"].is_object()) {
    throw ModelError(index_path + ": weight_map is missing");
  }
  std::map<std::string, std::vector<std::string>> shards;
  for (const auto& [tensor, shard] : json["weight_map"].items()) {
    // A shard lies beside its index; a path could point anywhere.
    if (!shard.is_string() || shard.get<std::string>().find('/') != std::string::npos ||
        shard.get<std::string>().empty() || shard.get<std::string>().front() == '.') {
      fail(index_path, tensor, shard.dump() + " is not a plain file name");
    }
    shards[shard.get<std::string>()].push_back(tensor);
  }
  for (const auto& [shard, tensors] : shards) {
    add_file((fs::path(index_path).parent_path() / shard).string(), &tensors);
  }
}

const TensorView* Checkpoint::find(const std::string& name) const {
  const auto it = tensors_.find(name);
  return it == tensors_.end() ? nullptr : &it->second;
}

}  // namespace baton
