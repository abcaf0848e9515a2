// Writes GGUF files for tests, good ones and bad ones.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

namespace baton::test {

class GgufWriter {
 public:
  void text(const std::string& key, const std::string& value) {
    begin(key, 8);
    put_text(settings, value);
  }
  void count(const std::string& key, std::uint32_t value) {
    begin(key, 4);
    put(settings, value);
  }
  void real(const std::string& key, float value) {
    begin(key, 6);
    put(settings, value);
  }
  void flag(const std::string& key, bool value) {
    begin(key, 7);
    put(settings, static_cast<std::uint8_t>(value ? 1 : 0));
  }
  void texts(const std::string& key, const std::vector<std::string>& values) {
    list(key, 8, values.size());
    for (const std::string& value : values) put_text(settings, value);
  }
  void counts(const std::string& key, const std::vector<std::int32_t>& values) {
    list(key, 5, values.size());
    for (const std::int32_t value : values) put(settings, value);
  }
  void reals(const std::string& key, const std::vector<float>& values) {
    list(key, 6, values.size());
    for (const float value : values) put(settings, value);
  }
  /// `shape` row-major, as a folder has it; `type` by its number. The data lie where they come
  /// next.
  void tensor(const std::string& name, const std::vector<std::uint64_t>& shape, std::uint32_t type,
              const std::string& bytes) {
    data.resize((data.size() + 31) / 32 * 32);
    head(name, shape, type, data.size());
    data += bytes;
  }
  /// The entry alone.
  void head(const std::string& name, const std::vector<std::uint64_t>& shape, std::uint32_t type,
            std::uint64_t offset) {
    ++tensor_count;
    put_text(tensors, name);
    put(tensors, static_cast<std::uint32_t>(shape.size()));
    for (std::size_t i = shape.size(); i > 0; --i) put(tensors, shape[i - 1]);
    put(tensors, type);
    put(tensors, offset);
  }
  void begin(const std::string& key, std::uint32_t type) {
    ++setting_count;
    put_text(settings, key);
    put(settings, type);
  }
  void list(const std::string& key, std::uint32_t element, std::uint64_t size) {
    begin(key, 9);
    put(settings, element);
    put(settings, size);
  }
  std::string bytes() const {
    std::string file = "GGUF";
    put(file, version);
    put(file, tensor_count);
    put(file, setting_count);
    file += settings + tensors;
    file.resize((file.size() + 31) / 32 * 32);
    return file + data;
  }
  template <class T>
  static void put(std::string& to, T value) {
    char raw[sizeof(T)];
    std::memcpy(raw, &value, sizeof value);
    to.append(raw, sizeof value);
  }
  static void put_text(std::string& to, const std::string& value) {
    put(to, static_cast<std::uint64_t>(value.size()));
    to += value;
  }

  std::uint32_t version = 3;
  std::uint64_t tensor_count = 0;
  std::uint64_t setting_count = 0;
  std::string settings, tensors, data;
};

}  // namespace baton::test
