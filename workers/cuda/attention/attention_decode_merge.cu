// Ends rows of the split kernel (attention_decode.cu) whose pieces several devices have computed.
#include <cuda_runtime.h>

#include "workers/cuda/attention/attention.h"
#include "workers/cuda/attention/attention_decode.cuh"
#include "workers/cuda/attention/attention_decode_slots.cuh"
#include "workers/cuda/attention/attention_decode_walk.cuh"
#include "workers/cuda/launch.cuh"

namespace baton::cuda {
namespace {

using namespace split;

constexpr int kMergeLanes = 8;

/// Grid (kv_heads, rows, heads of a group); a thread for four elements of the output and some of
/// the pieces. One lane takes all of them in their order: the bits of the split kernel's own merge.
template <int kDim, int kLanes>
__global__ void __launch_bounds__(kDim / 4 * kLanes)
    merge_rows(const __grid_constant__ Arguments a) {
  __shared__ float4 o[kLanes][kDim / 4];
  __shared__ float2 sums[kLanes];
  const DecodeItem row = load_item(a.items + blockIdx.y);
  grid_wait();
  grid_release();
  const int column = static_cast<int>(threadIdx.x), lane = static_cast<int>(threadIdx.y);
  const int each = (row.pieces + kLanes - 1) / kLanes;
  const int begin = lane * each, end = min(row.pieces, begin + each);
  const Slots<kDim> slots(a, row.slot);
  std::uint16_t* out =
      a.out + (static_cast<std::int64_t>(row.row) * gridDim.x + blockIdx.x) * a.group * kDim;
  const int head = static_cast<int>(blockIdx.z);
  const int i = head * (kDim / 4) + column;
  Partial p{float4{0, 0, 0, 0}, -INFINITY, 0};
  if (begin < end) {
    p = slots.load(begin, i);
#pragma unroll 16
    for (int piece = begin + 1; piece < end; ++piece) p = merged(p, slots.load(piece, i));
  }
  if constexpr (kLanes > 1) {
    o[lane][column] = p.o;
    if (column == 0) sums[lane] = float2{p.m, p.l};
    __syncthreads();
    if (lane > 0) return;
    for (int other = 1; other < kLanes && other * each < row.pieces; ++other) {
      p = merged(p, Partial{o[other][column], sums[other].x, sums[other].y});
    }
  }
  store_output(out + 4 * i, with_sink(a, head, p));
}

template <int kDim>
void launch_merge(const Arguments& a, dim3 grid, bool in_order, Stream stream) {
  constexpr int kColumns = kDim / 4;
  if (in_order) {
    launch("merge of rows", merge_rows<kDim, 1>, grid, dim3(kColumns), 0, stream, a);
  } else {
    launch("merge of rows", merge_rows<kDim, kMergeLanes>, grid, dim3(kColumns, kMergeLanes), 0,
           stream, a);
  }
}

}  // namespace

void DecodeAttention::merge(const DecodeItem* rows, int n, Bf16* out, int more_slots,
                            void* workspace, Stream stream, const AttentionRule& rule) const {
  if (n == 0) return;
  if (!may_travel()) throw CudaError("decode attention: rows of such heads are not cut");
  const HeadShape& s = options_.shape;
  Arguments a{};
  WorkspaceParts(s, split_slots() + more_slots).show(workspace, a);
  a.out = reinterpret_cast<std::uint16_t*>(out);
  a.items = rows;
  a.group = s.heads / s.kv_heads;
  a.sinks = rule.sinks;
  const auto launch_it = s.head_dim == 256   ? launch_merge<256>
                         : s.head_dim == 128 ? launch_merge<128>
                                             : launch_merge<64>;
  launch_it(a, dim3(s.kv_heads, n, a.group), options_.fixed_split > 0, stream);
}

}  // namespace baton::cuda
