#include "workers/model/fingerprint.h"

#include <string_view>

namespace baton {
namespace {

/// FNV-1a, 64 bits.
class Hash {
 public:
  void bytes(const void* data, std::uint64_t n) {
    const auto* p = static_cast<const unsigned char*>(data);
    for (std::uint64_t i = 0; i < n; ++i) value_ = (value_ ^ p[i]) * 0x100000001B3ULL;
  }
  void number(std::uint64_t n) {
    for (int i = 0; i < 8; ++i) {
      value_ = (value_ ^ ((n >> (8 * i)) & 0xFF)) * 0x100000001B3ULL;
    }
  }
  void text(std::string_view s) {
    number(s.size());
    bytes(s.data(), s.size());
  }
  std::uint64_t value() const { return value_; }

 private:
  std::uint64_t value_ = 0xCBF29CE484222325ULL;
};

void add_config(Hash& hash, const ModelConfig& c) {
  hash.text(describe(c));  // says every number exactly
  const Quantization& q = c.quantization;
  for (const int n :
       {static_cast<int>(q.method), q.group, q.zero_offset, q.act_order ? 1 : 0, q.block_rows,
        q.block_columns, q.bits, q.symmetric ? 1 : 0, q.divides ? 1 : 0}) {
    hash.number(static_cast<std::uint64_t>(n));
  }
}

}  // namespace

std::uint64_t model_fingerprint(const ModelConfig& config, const Checkpoint& checkpoint,
                                const ContentDigest& content) {
  Hash hash;
  add_config(hash, config);
  for (const auto& [name, tensor] : checkpoint.tensors()) {
    hash.text(name);
    hash.text(tensor.dtype);
    hash.number(tensor.shape.size());
    for (const std::int64_t size : tensor.shape) hash.number(static_cast<std::uint64_t>(size));
  }
  hash.number(content.high);
  hash.number(content.low);
  return hash.value() == 0 ? 1 : hash.value();
}

std::uint64_t model_fingerprint(const ModelConfig& config) {
  Hash hash;
  hash.text("random weights");
  add_config(hash, config);
  return hash.value() == 0 ? 1 : hash.value();
}

}  // namespace baton
