// Private to DecodeAttention: its kernel for many rows.
#pragma once

#include <cstdint>

#include "workers/cuda/attention/attention.h"

namespace baton::cuda {

/// Arguments as in DecodeAttention::run. group (heads a KV head) <= 8, head_dim 64 or 128,
/// tokens_per_block % 16 == 0.
struct StreamedAttention {
  const Bf16* qkv = nullptr;
  Bf16* out = nullptr;
  KvLayerView kv;
  HeadShape shape;
  const std::int32_t* table = nullptr;
  const DecodeItem* items = nullptr;
  const std::int32_t* starts = nullptr;  // [runs + 1]
  int runs = 0;
  float scale = 1;
  // The split workspace; heads of a KV head count as an even number
  std::uint32_t* counters = nullptr;  // [slots, kv_heads]
  void* sums = nullptr;               // two floats each, [slots, kv_heads, group]
  void* partials = nullptr;           // floats, [slots, kv_heads, group * head_dim]
};

/// How many runs the grid takes for each KV head; 0 if the kernel does not compute this shape, or
/// not on this device.
int streamed_attention_runs(const HeadShape& shape, int tokens_per_block);
void run_streamed_attention(const StreamedAttention& a, Stream stream);

}  // namespace baton::cuda
