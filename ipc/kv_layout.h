// Geometry of a KV pool: integers only, no pointers, no allocation, std only.
//
// A pool is an array of blocks. One block holds, contiguously and in this order,
//   [layer][K|V][kv_head][token][head_dim]
// where the layers are those of one group (kv_groups.h), which most models have one of;
// so a block is one read for a pull, a swap or a checksum; the heads of one tensor-parallel rank
// are contiguous within a layer; and the keys of one (layer, head) are a dense [token][head_dim]
// matrix.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>

#include "ipc/kv_groups.h"
#include "ipc/status.h"
#include "ipc/types.h"

namespace baton {

/// Of the order above and whatever else a kept pool's next reader must agree with: raised when the
/// same bytes mean something else.
constexpr std::uint32_t kKvLayoutVersion = 1;

/// Element type of keys and values in the pool. The numbers travel in Hello: never renumber.
enum class KvDtype : std::uint32_t { f32 = 0, f16 = 1, bf16 = 2 };

enum class KvPart : std::uint32_t { key = 0, value = 1 };

constexpr std::uint32_t kDefaultTokensPerBlock = 16;

/// Bounds that no real model reaches; a geometry beyond them is an error, not an allocation.
constexpr std::uint32_t kMaxLayers = 4096;
constexpr std::uint32_t kMaxKvHeads = 4096;
constexpr std::uint32_t kMaxHeadDim = 4096;
constexpr std::uint32_t kMaxTokensPerBlock = 4096;

/// Shape of one pool, as Hello carries it.
struct KvGeometry {
  std::uint64_t model_fingerprint = 0;
  KvDtype dtype = KvDtype::f32;
  std::uint32_t layers = 0;    // in one block: those of one group
  std::uint32_t kv_heads = 0;  // heads held by this pool (all of the model's without a head split)
  std::uint32_t head_dim = 0;
  std::uint32_t tokens_per_block = kDefaultTokensPerBlock;
  std::uint64_t block_bytes = 0;  // derived; see kv_block_bytes()
  std::uint32_t blocks = 0;
  KvGroups groups;
  bool operator==(const KvGeometry&) const = default;
};

inline const char* to_string(KvDtype dtype) {
  switch (dtype) {
    case KvDtype::f32:
      return "f32";
    case KvDtype::f16:
      return "f16";
    case KvDtype::bf16:
      return "bf16";
  }
  return "unknown";
}

/// Bytes of one element; 0 for a number that names no type (it may come from a message).
constexpr std::uint64_t kv_element_bytes(KvDtype dtype) {
  switch (dtype) {
    case KvDtype::f32:
      return 4;
    case KvDtype::f16:
    case KvDtype::bf16:
      return 2;
  }
  return 0;
}

// ------------------------------------------------------------------ strides inside a block, in
// bytes

constexpr std::uint64_t kv_token_stride(const KvGeometry& g) {
  return kv_element_bytes(g.dtype) * g.head_dim;
}
constexpr std::uint64_t kv_head_stride(const KvGeometry& g) {
  return kv_token_stride(g) * g.tokens_per_block;
}
constexpr std::uint64_t kv_part_stride(const KvGeometry& g) {
  return kv_head_stride(g) * g.kv_heads;
}
constexpr std::uint64_t kv_layer_stride(const KvGeometry& g) { return kv_part_stride(g) * 2; }

/// Byte offset of element 0 of (layer, part, head, token) from the start of its block. The indices
/// must lie inside a geometry that kv_check() accepted; the sums then fit 64 bits.
constexpr std::uint64_t kv_offset_in_block(const KvGeometry& g, std::uint32_t layer, KvPart part,
                                           std::uint32_t head, std::uint32_t token) {
  return kv_layer_stride(g) * layer + kv_part_stride(g) * static_cast<std::uint32_t>(part) +
         kv_head_stride(g) * head + kv_token_stride(g) * token;
}

/// The same from the start of the pool.
constexpr std::uint64_t kv_offset(const KvGeometry& g, BlockId block, std::uint32_t layer,
                                  KvPart part, std::uint32_t head, std::uint32_t token) {
  return g.block_bytes * block + kv_offset_in_block(g, layer, part, head, token);
}

// ------------------------------------------------------------------ sizes, checked

namespace kv_detail {
/// a * b, or nothing where 64 bits do not hold it.
constexpr std::optional<std::uint64_t> multiply(std::optional<std::uint64_t> a, std::uint64_t b) {
  if (!a || (b != 0 && *a > std::numeric_limits<std::uint64_t>::max() / b)) return std::nullopt;
  return *a * b;
}
}  // namespace kv_detail

/// Bytes of one block of this shape; nothing if they do not fit 64 bits.
constexpr std::optional<std::uint64_t> kv_block_bytes(const KvGeometry& g) {
  using kv_detail::multiply;
  auto bytes = multiply(kv_element_bytes(g.dtype), g.head_dim);
  bytes = multiply(bytes, g.tokens_per_block);
  bytes = multiply(bytes, g.kv_heads);
  return multiply(multiply(bytes, g.layers), 2);
}

/// Bytes of the whole pool; nothing if they do not fit 63 bits (file offsets are signed).
constexpr std::optional<std::uint64_t> kv_pool_bytes(const KvGeometry& g) {
  const auto bytes = kv_detail::multiply(g.block_bytes, g.blocks);
  if (!bytes || *bytes > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
    return std::nullopt;
  }
  return bytes;
}

/// Blocks that hold `tokens` tokens.
constexpr std::uint64_t kv_blocks_for(const KvGeometry& g, std::uint64_t tokens) {
  return tokens / g.tokens_per_block + (tokens % g.tokens_per_block != 0 ? 1 : 0);
}

/// Whether a geometry, perhaps from a message, is one that offsets may be computed with.
inline Status kv_check(const KvGeometry& g) {
  const auto bad = [](const char* field, std::uint64_t value) {
    return invalid(std::string("KV geometry: ") + field + " = " + std::to_string(value) +
                   " is out of range");
  };
  if (kv_element_bytes(g.dtype) == 0) return bad("dtype", static_cast<std::uint32_t>(g.dtype));
  if (g.layers == 0 || g.layers > kMaxLayers) return bad("layers", g.layers);
  if (g.groups.count == 0 || g.groups.count > kMaxKvGroups) return bad("groups", g.groups.count);
  if (g.kv_heads == 0 || g.kv_heads > kMaxKvHeads) return bad("kv_heads", g.kv_heads);
  if (g.head_dim == 0 || g.head_dim > kMaxHeadDim) return bad("head_dim", g.head_dim);
  if (g.tokens_per_block == 0 || g.tokens_per_block > kMaxTokensPerBlock) {
    return bad("tokens_per_block", g.tokens_per_block);
  }
  if (g.blocks == 0) return bad("blocks", g.blocks);
  const auto block_bytes = kv_block_bytes(g);
  if (!block_bytes || *block_bytes != g.block_bytes) return bad("block_bytes", g.block_bytes);
  if (!kv_pool_bytes(g)) return bad("blocks * block_bytes", g.blocks);
  return {};
}

/// Empty if blocks may travel between pools of these two shapes, else a sentence that names the
/// first field that differs. The number of blocks may differ, and so may the head split (kv_heads
/// and, with it, block_bytes): the fingerprint already holds the model's head count.
inline std::string kv_difference(const KvGeometry& a, const KvGeometry& b) {
  const auto differ = [](const char* field, const std::string& x, const std::string& y) {
    return std::string("KV geometry differs: ") + field + " is " + x + " here and " + y + " there";
  };
  if (a.model_fingerprint != b.model_fingerprint) {
    return differ("model_fingerprint", std::to_string(a.model_fingerprint),
                  std::to_string(b.model_fingerprint));
  }
  if (a.dtype != b.dtype) return differ("dtype", to_string(a.dtype), to_string(b.dtype));
  const auto number = [&](const char* field, std::uint32_t x, std::uint32_t y) {
    return x == y ? std::string() : differ(field, std::to_string(x), std::to_string(y));
  };
  if (auto text = number("layers", a.layers, b.layers); !text.empty()) return text;
  if (auto text = number("groups", a.groups.count, b.groups.count); !text.empty()) return text;
  for (std::uint32_t i = 0; i < a.groups.count; ++i) {
    auto text = number("a group's window", a.groups.windows[i], b.groups.windows[i]);
    if (!text.empty()) return text;
  }
  if (auto text = number("head_dim", a.head_dim, b.head_dim); !text.empty()) return text;
  return number("tokens_per_block", a.tokens_per_block, b.tokens_per_block);
}

/// Whether a block of one pool can be copied into the other byte by byte (no difference, same
/// split).
inline bool kv_same_block(const KvGeometry& a, const KvGeometry& b) {
  return kv_difference(a, b).empty() && a.kv_heads == b.kv_heads && a.block_bytes == b.block_bytes;
}

}  // namespace baton
