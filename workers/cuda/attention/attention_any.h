// Private to DecodeAttention: its kernel for head shapes that the tiled ones do not have.
#pragma once

#include "workers/cuda/attention/attention.h"

namespace baton::cuda {

/// Arguments as in DecodeAttention::run; items are never pieces. head_dim <= 256.
struct AnyAttention {
  const Bf16* qkv = nullptr;
  Bf16* out = nullptr;
  KvLayerView kv;
  HeadShape shape;
  const std::int32_t* table = nullptr;
  const DecodeItem* items = nullptr;
  const std::int32_t* n_items = nullptr;
  float scale = 1;
  AttentionRule rule = {};
};
void run_any_attention(const AnyAttention& a, int launched_items, Stream stream);

}  // namespace baton::cuda
