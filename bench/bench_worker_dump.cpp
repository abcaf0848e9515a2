#include "bench/bench_worker_dump.h"

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <utility>

namespace baton::bench {

void ActivationFile::add(const std::string& part, const float* values, int rows, int columns) {
  auto it =
      std::find_if(parts_.begin(), parts_.end(), [&](const Part& p) { return p.name == part; });
  if (it == parts_.end()) {
    parts_.push_back({part, static_cast<std::size_t>(columns), {}});
    it = parts_.end() - 1;
  }
  it->values.insert(it->values.end(), values, values + std::ptrdiff_t{rows} * columns);
}

void ActivationFile::write(const std::string& path, const std::vector<Token>& tokens) {
  const std::vector<Part> parts = std::exchange(parts_, {});
  const std::size_t rows = parts.empty() ? 0 : parts[0].values.size() / parts[0].columns;
  if (rows == 0 || rows > tokens.size()) throw std::runtime_error("no activations for " + path);
  nlohmann::ordered_json header;
  std::size_t offset = 0;
  const auto describe = [&](const std::string& name, const char* type,
                            const std::vector<std::size_t>& shape, std::size_t bytes) {
    header[name] = {{"dtype", type}, {"shape", shape}, {"data_offsets", {offset, offset + bytes}}};
    offset += bytes;
  };
  for (const Part& part : parts) {
    if (part.values.size() != rows * part.columns) {
      throw std::runtime_error(part.name + " has " +
                               std::to_string(part.values.size() / part.columns) +
                               " rows where others have " + std::to_string(rows));
    }
    describe(part.name, "F32", {rows, part.columns}, part.values.size() * sizeof(float));
  }
  describe("tokens", "I32", {rows}, rows * sizeof(Token));
  std::string text = header.dump();
  text.append((8 - text.size() % 8) % 8, ' ');
  const std::uint64_t length = text.size();
  std::ofstream file(path, std::ios::binary);
  const auto put = [&](const void* data, std::size_t bytes) {
    file.write(static_cast<const char*>(data), static_cast<std::streamsize>(bytes));
  };
  put(&length, sizeof length);
  put(text.data(), text.size());
  for (const Part& part : parts) put(part.values.data(), part.values.size() * sizeof(float));
  put(tokens.data(), rows * sizeof(Token));
  if (!file.flush()) throw std::runtime_error(path + ": cannot be written");
}

}  // namespace baton::bench
