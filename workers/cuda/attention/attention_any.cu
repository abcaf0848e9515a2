// Attention of single query tokens for heads and scores that the tiled kernels do not have: heads
// of up to 256 components, groups of any size, capped scores. A CTA takes a row and a KV head;
// eight lanes share a key, so that their loads are whole lines, and the CTA's sixteen such teams
// take keys in turns. Each keeps the softmax of its own keys; they meet in shared memory at the
// end, in order.
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "workers/cuda/attention/attention_any.h"
#include "workers/cuda/attention/pool_block.cuh"
#include "workers/cuda/bf16_pair.cuh"
#include "workers/cuda/launch.cuh"

namespace baton::cuda {

namespace {

constexpr int kThreads = 128;
constexpr int kTeam = 8;  // lanes
constexpr int kTeams = kThreads / kTeam;
constexpr int kStep = 2;  // keys that a team takes at a time

/// Eight components.
__device__ __forceinline__ void widen(const uint4& from, float (&to)[8]) {
  const std::uint32_t words[4] = {from.x, from.y, from.z, from.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 pair = to_floats(words[i]);
    to[2 * i] = pair.x;
    to[2 * i + 1] = pair.y;
  }
}

__device__ __forceinline__ float team_sum(float x) {
#pragma unroll
  for (int step = kTeam / 2; step > 0; step /= 2) x += __shfl_xor_sync(~0U, x, step);
  return x;
}

/// One team's softmax of one head over its keys: o is not divided by l yet.
template <int kChunks>
struct State {
  float o[kChunks][8];
  float m, l;
};

/// Heads head .. head + kHeads - 1 of the group. A lane holds components 64 c + 8 lane ... + 7.
/// kPools: keys lie in several pools.
template <int kChunks, int kHeads, bool kPools>
__global__ void __launch_bounds__(kThreads) any_attention_kernel(AnyAttention a, int first_head) {
  __shared__ float shared_o[kTeams][kHeads][64 * kChunks];
  __shared__ float2 shared_sums[kTeams][kHeads];
  grid_wait();
  grid_release();
  if (static_cast<int>(blockIdx.y) >= *a.n_items) return;
  const DecodeItem item = a.items[blockIdx.y];
  const int team = static_cast<int>(threadIdx.x) / kTeam;
  const int lane = static_cast<int>(threadIdx.x) % kTeam;
  const int dim = a.shape.head_dim;
  const int group = a.shape.heads / a.shape.kv_heads;
  const int kv_head = static_cast<int>(blockIdx.x);
  const int head = kv_head * group + first_head;
  const std::int64_t columns = std::int64_t{a.shape.heads + 2 * a.shape.kv_heads} * dim;
  const auto chunk = [&](const Bf16* from, int c) {
    const int at = 64 * c + 8 * lane;
    return at < dim ? *reinterpret_cast<const uint4*>(from + at) : uint4{0, 0, 0, 0};
  };
  float q[kHeads][kChunks][8];
  State<kChunks> state[kHeads];
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    const bool here = first_head + h < group;
    const Bf16* from = a.qkv + item.row * columns + std::int64_t{here ? head + h : head} * dim;
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      widen(chunk(from, c), q[h][c]);
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        q[h][c][i] *= a.scale;
        state[h].o[c][i] = 0;
      }
    }
    state[h].m = -INFINITY;
    state[h].l = 0;
  }
  const Bf16* pool = a.kv.pool + a.kv.layer_offset + kv_head * a.kv.head_stride;
  const std::int32_t* table =
      a.table + (a.kv.table_shift == nullptr ? 0 : *a.kv.table_shift) + item.first_block;
  const auto key_of = [&](int key) {
    return pool +
           offset_of_block<kPools>(table[key / a.kv.tokens_per_block], a.kv.block_stride,
                                   a.kv.pool_offsets) +
           std::int64_t{key % a.kv.tokens_per_block} * dim;
  };
  int begin = item.key_begin;
  if (a.rule.window > 0) begin = max(begin, item.key_end - a.rule.window);
  // All teams of a warp go round equally often: the shuffles need them.
  for (int first = begin; first < item.key_end; first += kTeams * kStep) {
    uint4 k[kStep][kChunks];
    uint4 v[kStep][kChunks];
    bool seen[kStep];
#pragma unroll
    for (int s = 0; s < kStep; ++s) {
      const int key = first + s * kTeams + team;
      seen[s] = key < item.key_end;
      const Bf16* from = key_of(seen[s] ? key : begin);  // its weight is 0 then
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
        k[s][c] = chunk(from, c);
        v[s][c] = chunk(from + a.kv.part_stride, c);
      }
    }
    float score[kHeads][kStep];
#pragma unroll
    for (int s = 0; s < kStep; ++s) {
      float dots[kHeads] = {};
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
        float key[8];
        widen(k[s][c], key);
#pragma unroll
        for (int h = 0; h < kHeads; ++h) {
#pragma unroll
          for (int i = 0; i < 8; ++i) dots[h] = fmaf(q[h][c][i], key[i], dots[h]);
        }
      }
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
        float x = team_sum(dots[h]);
        if (a.rule.soft_cap > 0) x = a.rule.soft_cap * tanhf(x / a.rule.soft_cap);
        score[h][s] = seen[s] ? x : -INFINITY;
      }
    }
    if (!seen[0]) continue;  // then none of the team's is
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      State<kChunks>& own = state[h];
      float most = own.m;
#pragma unroll
      for (int s = 0; s < kStep; ++s) most = fmaxf(most, score[h][s]);
      const float fade = __expf(own.m - most);
      own.m = most;
      own.l *= fade;
#pragma unroll
      for (int s = 0; s < kStep; ++s) {
        score[h][s] = __expf(score[h][s] - most);
        own.l += score[h][s];
      }
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
#pragma unroll
        for (int i = 0; i < 8; ++i) own.o[c][i] *= fade;
      }
    }
#pragma unroll
    for (int s = 0; s < kStep; ++s) {
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
        float value[8];
        widen(v[s][c], value);
#pragma unroll
        for (int h = 0; h < kHeads; ++h) {
#pragma unroll
          for (int i = 0; i < 8; ++i) {
            state[h].o[c][i] = fmaf(score[h][s], value[i], state[h].o[c][i]);
          }
        }
      }
    }
  }
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
#pragma unroll
      for (int i = 0; i < 8; ++i) shared_o[team][h][64 * c + 8 * lane + i] = state[h].o[c][i];
    }
    if (lane == 0) shared_sums[team][h] = float2{state[h].m, state[h].l};
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < kHeads * dim; i += kThreads) {
    const int h = i / dim;
    const int d = i % dim;
    if (first_head + h >= group) break;
    float most = -INFINITY;
    for (int t = 0; t < kTeams; ++t) most = fmaxf(most, shared_sums[t][h].x);
    float sum = 0;
    float out = 0;
    for (int t = 0; t < kTeams; ++t) {
      const float share = __expf(shared_sums[t][h].x - most);  // 0 for a team without keys
      sum = fmaf(share, shared_sums[t][h].y, sum);
      out = fmaf(share, shared_o[t][h][d], out);
    }
    if (a.rule.sinks != nullptr) sum += __expf(a.rule.sinks[head + h] - most);
    reinterpret_cast<__nv_bfloat16*>(
        a.out)[(std::int64_t{item.row} * a.shape.heads + head + h) * dim + d] =
        __float2bfloat16(out / sum);
  }
}

template <int kChunks, bool kPools>
void launch_chunks(const AnyAttention& a, int launched_items, Stream stream) {
  const int group = a.shape.heads / a.shape.kv_heads;
  const dim3 grid(static_cast<unsigned>(a.shape.kv_heads), static_cast<unsigned>(launched_items));
  for (int head = 0; head < group; head += 2) {
    const auto kernel = head + 1 < group ? any_attention_kernel<kChunks, 2, kPools>
                                         : any_attention_kernel<kChunks, 1, kPools>;
    launch("attention", kernel, grid, kThreads, 0, stream, a, head);
  }
}

template <bool kPools>
void launch_dim(const AnyAttention& a, int launched_items, Stream stream) {
  if (a.shape.head_dim <= 64) return launch_chunks<1, kPools>(a, launched_items, stream);
  if (a.shape.head_dim <= 128) return launch_chunks<2, kPools>(a, launched_items, stream);
  launch_chunks<4, kPools>(a, launched_items, stream);
}

}  // namespace

void run_any_attention(const AnyAttention& a, int launched_items, Stream stream) {
  if (a.shape.head_dim % 8 != 0) throw CudaError("attention: head_dim is no multiple of 8");
  if (a.kv.pool_offsets != nullptr) return launch_dim<true>(a, launched_items, stream);
  launch_dim<false>(a, launched_items, stream);
}

}  // namespace baton::cuda
