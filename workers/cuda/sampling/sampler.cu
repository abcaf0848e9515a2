// One cluster of CTAs a row: every CTA keeps its slice of the logits in shared memory, so that the
// row is read once however often it is looked through.
//
// Weights are fixed-point integers (2^40 is the heaviest token's), so that sums do not depend on
// the order of adding: a draw follows from its row alone. top_k, top_p and the draw itself are one
// question, "which token, in rank order, carries the running count or weight to a target?",
// answered by histograms: first over the distance from the best logit, then, only while more than
// kList tokens share a bin, over the bits of the logits in it; the last bin is sorted. (Radix
// selection as in Alabi and others, "Fast k-selection algorithms for graphics processing units",
// 2012, with weights.)
#include "workers/cuda/sampling/sampler.h"

#include <cstdint>

#include "workers/cuda/launch.cuh"
#include "workers/cuda/sampling/sampler_draw.cuh"
#include "workers/cuda/sampling/sampler_row.cuh"

namespace baton::cuda {
namespace {

// ------------------------------------------------------------------ reading a row

__device__ __forceinline__ unsigned shared_address(const void* p) {
  return static_cast<unsigned>(__cvta_generic_to_shared(p));
}

/// Copies the slice to shared memory, 16 bytes at a time where its address allows, all under way at
/// once.
__device__ void stage(const float* from, float* to, int count) {
  const int thread = static_cast<int>(threadIdx.x);
  const int vectors = reinterpret_cast<std::uintptr_t>(from) % 16 == 0 ? count / 4 : 0;
  for (int i = thread; i < vectors; i += kThreads) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(to + 4 * i)),
                 "l"(from + 4 * i)
                 : "memory");
  }
  for (int i = 4 * vectors + thread; i < count; i += kThreads) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared_address(to + i)),
                 "l"(from + i)
                 : "memory");
  }
  asm volatile("cp.async.wait_all;" ::: "memory");
}

// ------------------------------------------------------------------ edits

/// -infinity for what the mask excludes.
__device__ void keep_only(Row& row, const std::int32_t* mask) {
  for (int i = static_cast<int>(threadIdx.x); i < row.count; i += kThreads) {
    const int token = row.first + i;
    if ((static_cast<unsigned>(mask[token / 32]) >> (token % 32) & 1U) == 0)
      row.slice[i] = -INFINITY;
  }
}

__device__ __forceinline__ bool edits(const SampleRow& p) {
  return p.n_masked > 0 || p.n_biases > 0 || p.n_seen > 0 || p.allowed >= 0;
}

/// The formulas and roundings of workers/sampling/logit_edits.cpp. The barriers part what may meet
/// at one logit.
__device__ void edit(Row& row, const SampleRow& p, const std::int32_t* words) {
  const int thread = static_cast<int>(threadIdx.x);
  const auto* const biases = reinterpret_cast<const LogitBias*>(words + p.first_bias);
  for (int i = thread; i < p.n_biases; i += kThreads) {
    const int token = biases[i].token;
    const int at = token - row.first;
    if (at < 0 || at >= row.count || (i > 0 && biases[i - 1].token == token)) continue;
    float value = row.slice[at];
    for (int j = i; j < p.n_biases && biases[j].token == token; ++j) {
      value = __fadd_rn(value, biases[j].value);
    }
    row.slice[at] = value;
  }
  __syncthreads();
  const auto* const seen = reinterpret_cast<const SeenToken*>(words + p.first_seen);
  for (int i = thread; i < p.n_seen; i += kThreads) {
    const int at = seen[i].token - row.first;
    if (at < 0 || at >= row.count) continue;
    const int times = seen[i].times;
    float value = row.slice[at];
    value =
        value > 0 ? __fdiv_rn(value, p.repetition_penalty) : __fmul_rn(value, p.repetition_penalty);
    value = __fsub_rn(value, __fmul_rn(p.frequency_penalty, static_cast<float>(times)));
    if (times > 0) value = __fsub_rn(value, p.presence_penalty);
    row.slice[at] = value;
  }
  __syncthreads();
  for (int i = thread; i < p.n_masked; i += kThreads) {
    const int at = words[p.first_masked + i] - row.first;
    if (at >= 0 && at < row.count) row.slice[at] = -INFINITY;
  }
  if (p.allowed >= 0) keep_only(row, words + p.allowed);
  __syncthreads();
}

// ------------------------------------------------------------------ the best ones

/// Grows with the rank: of equal logits the lowest id is the greatest. Never 0.
__device__ __forceinline__ u64 pair_of(float logit, int token) {
  return u64{key_of(logit)} << 32 | (kAll - static_cast<unsigned>(token));
}
__device__ __forceinline__ int token_of(u64 pair) {
  return static_cast<int>(kAll - static_cast<unsigned>(pair));
}
__device__ __forceinline__ float logit_of_pair(u64 pair) {
  return logit_of(static_cast<unsigned>(pair >> 32));
}
/// Of the greatest pair: whether it is a logit with a softmax.
__device__ __forceinline__ bool usable(u64 pair) {
  const auto key = static_cast<unsigned>(pair >> 32);
  return key != kAll && key > kMinusInfinityKey;
}

/// The greatest pair among this thread's; all bits where there is a NaN or +infinity.
__device__ u64 best_here(const Row& row) {
  float best = -INFINITY;
  int best_at = 0;
  bool bad = false;
  row.each([&](float logit, int i) {
    if (logit > best) {
      best = logit;
      best_at = i;
    }
    bad = bad || !(logit < INFINITY);
  });
  return bad ? ~u64{0} : pair_of(best, row.first + best_at);
}

/// The greatest pair below `limit` among this thread's; 0: none.
__device__ u64 next_here(const Row& row, u64 limit) {
  u64 next = 0;
  row.each([&](float logit, int i) {
    const u64 pair = pair_of(logit, row.first + i);
    if (pair < limit && pair > next) next = pair;
  });
  return next;
}

/// Writes the most probable tokens, `best` being the first; returns the logarithm of the sum of all
/// exponentials.
__device__ double tell_top(Row& row, const SampleRow& p, u64 best, TokenLogprobs& out) {
  row.best = logit_of_pair(best);
  row.factor = 1.0F;
  u64 mine = 0;
  row.each([&](float logit, int) { mine += row.weight(logit); });
  const u64 sum = over_row<false>({mine, 0}, row).a;
  const double log_total = static_cast<double>(row.best) + log(static_cast<double>(sum) * 0x1p-40);
  const bool writes = row.rank == 0 && threadIdx.x == 0;
  int n = 0;
  for (u64 top = best; n < p.n_top && usable(top);) {
    if (writes) {
      out.tokens[n] = token_of(top);
      out.logprobs[n] = static_cast<float>(static_cast<double>(logit_of_pair(top)) - log_total);
    }
    if (++n < p.n_top) top = over_row<true>({next_here(row, top), 0}, row).a;
  }
  if (writes) out.n_top = n;
  return log_total;
}

// ------------------------------------------------------------------ the kernel

__global__ void __launch_bounds__(kThreads, 2)
    sample_kernel(const float* logits, int vocab, int slice, int ctas, bool staged,
                  const SampleRow* rows, const std::int32_t* words, std::int32_t* tokens,
                  TokenLogprobs* logprobs, float* copies) {
  extern __shared__ __align__(16) unsigned char memory[];
  Shared& s = *reinterpret_cast<Shared*>(memory);
  float* const held = reinterpret_cast<float*>(memory + sizeof(Shared));
  grid_release();
  grid_wait();
  const SampleRow p = rows[blockIdx.x / ctas];
  if (p.logits_row < 0) return;  // the whole cluster leaves
  cluster_started();
  const int thread = static_cast<int>(threadIdx.x);
  const int rank = cluster_rank();
  const int first = min(rank * slice, vocab);
  const int count = min(slice, vocab - first);
  const float* const untouched = logits + static_cast<std::size_t>(p.logits_row) * vocab;
  float* values = held;
  if (staged) {
    stage(untouched + first, held, count);
  } else if (edits(p) || p.grammar >= 0) {
    values = copies + static_cast<std::size_t>(blockIdx.x / ctas) * vocab + first;
    for (int i = thread; i < count; i += kThreads) values[i] = untouched[first + i];
  } else {
    values = const_cast<float*>(untouched) + first;  // only read
  }
  __syncthreads();
  const bool aligned = reinterpret_cast<std::uintptr_t>(values) % 16 == 0;
  Row row{s, values, first, count, aligned ? count / 4 : 0, ctas, rank, 0, 0.0F, 0.0F};
  if (p.grammar >= 0) {
    keep_only(row, words + p.grammar);
    __syncthreads();
  }
  const bool tells = p.logprobs >= 0;
  if (!tells && edits(p)) edit(row, p, words);
  u64 mine = best_here(row);
  cluster_await_start();
  u64 best = over_row<true>({mine, 0}, row).a;
  // From here on the cluster meets after every remote write: no CTA is gone while another writes to
  // it.
  const bool writes = rank == 0 && thread == 0;
  const bool told = tells && usable(best);
  double log_total = 0;
  if (tells) {
    TokenLogprobs& out = logprobs[p.logprobs];
    if (told) {
      log_total = tell_top(row, p, best, out);
    } else if (writes) {
      out.n_top = -1;
    }
    if (p.about < 0 && edits(p)) {
      edit(row, p, words);
      best = over_row<true>({best_here(row), 0}, row).a;
    }
  }
  int token = p.about;
  if (token < 0) {
    if (!usable(best)) {
      token = kNoSample;
    } else if (p.temperature < kGreedyBelow || p.top_k == 1) {
      token = token_of(best);
    } else {
      row.best = logit_of_pair(best);
      token = draw(row, p, vocab);
    }
    if (writes) tokens[p.output] = token;
  }
  if (told && writes && token >= 0) {
    logprobs[p.logprobs].logprob =
        static_cast<float>(static_cast<double>(untouched[token]) - log_total);
  }
}

int attribute(cudaDeviceAttr which) {
  int device = 0;
  int value = 0;
  check(cudaGetDevice(&device), "sample");
  check(cudaDeviceGetAttribute(&value, which, device), "sample");
  return value;
}

/// How a row is spread, and whether its slices fit into shared memory.
struct Spread {
  int ctas;
  int slice;
  bool staged;
  std::size_t shared;
};

Spread spread_of(int vocab) {
  Spread spread{};
  spread.ctas = attribute(cudaDevAttrClusterLaunch) != 0 ? kCluster : 1;
  spread.slice = ((vocab + spread.ctas - 1) / spread.ctas + 3) / 4 * 4;
  const auto most = static_cast<std::size_t>(attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin));
  const std::size_t with_slice =
      sizeof(Shared) + static_cast<std::size_t>(spread.slice) * sizeof(float);
  spread.staged = with_slice <= most;
  spread.shared = spread.staged ? with_slice : sizeof(Shared);
  return spread;
}

}  // namespace

std::size_t sample_workspace_bytes(int rows, int vocab) {
  if (spread_of(vocab).staged) return 0;
  return static_cast<std::size_t>(rows) * static_cast<std::size_t>(vocab) * sizeof(float);
}

void sample(const float* logits, int vocab, const SampleRow* rows, int n_rows,
            const std::int32_t* words, std::int32_t* tokens, TokenLogprobs* logprobs,
            void* workspace, Stream stream) {
  if (n_rows <= 0) return;
  if (vocab <= 0) throw CudaError("sample: an empty vocabulary");
  const Spread spread = spread_of(vocab);
  check(cudaFuncSetAttribute(sample_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(spread.shared)),
        "sample");
  const int ctas = spread.ctas;
  launch_clusters("sample", sample_kernel,
                  static_cast<unsigned>(n_rows) * static_cast<unsigned>(ctas), kThreads,
                  spread.shared, ctas, stream, logits, vocab, spread.slice, ctas, spread.staged,
                  rows, words, tokens, logprobs, static_cast<float*>(workspace));
}

}  // namespace baton::cuda
