// A layer behind its attention, and the head, where a worker has several ranks: products of a
// rank's part, and sums over the ranks between them (gpu_cut.h).
#include <algorithm>
#include <vector>

#include "workers/cuda/layer/general.h"
#include "workers/model/gpu_decoder.h"

namespace baton {

using cuda::Bf16;
using cuda::LinearOutput;
using cuda::Linears;

/// x = x + sum over the ranks of W_o attended, n = norm(x); x = x + sum over the ranks of W_down
/// (silu(W_gate n) * (W_up n)), and the norm in front of what comes next.
void GpuDecoder::behind_attention_of_ranks(int index, const Bf16* attended, Bf16* x, int rows,
                                           cuda::Stream stream) {
  const GpuLayer& w = weights_.layers[static_cast<std::size_t>(index)];
  const bool last = index + 1 == config_.layers;
  const Bf16* const next_norm =
      last ? weights_.final_norm : weights_.layers[static_cast<std::size_t>(index) + 1].input_norm;
  const auto eps = static_cast<float>(config_.norm.eps);
  const std::size_t row_bytes = static_cast<std::size_t>(config_.hidden) * sizeof(Bf16);
  const auto add = [&](const Bf16* norm) {
    options_.exchange->add_reduced(part_, x, norm, eps, rows, config_.hidden, normed_, stream);
  };
  linears_.run(attended, rows, w.o, LinearOutput::bf16, part_, stream);
  add(w.post_norm);
  if (w.sparse()) {
    // Every rank has some features of every expert: what it adds up is its part of the sum.
    cuda::fill_bytes(part_, 0, static_cast<std::size_t>(rows) * row_bytes, stream);
    experts(w, part_, rows, /*normed=*/true, stream);
  } else {
    linears_.run(normed_, rows, w.gate_up, LinearOutput::silu_mul, gated_, stream);
    linears_.run(gated_, rows, w.down, LinearOutput::bf16, part_, stream);
  }
  add(next_norm);
  show("layer", index, "", x, rows, config_.hidden);
}

/// The bits of one GPU: every output is the same chain of products and sums.
void GpuDecoder::behind_attention_by_outputs(int index, const Bf16* attended, Bf16* x, int rows,
                                             cuda::Stream stream) {
  const GpuLayer& w = weights_.layers[static_cast<std::size_t>(index)];
  const std::vector<int> heads = equal_columns(config_.attended_columns());
  const std::vector<int> features = equal_columns(config_.intermediate());
  options_.exchange->gather(attended, heads, rows, all_attended_, stream);
  add_by_outputs(all_attended_, w.o, x, rows, stream);
  const Linears::Norm norm{w.post_norm, static_cast<float>(config_.norm.eps), normed_};
  linears_.run(x, rows, w.gate_up, LinearOutput::silu_mul, gated_, stream, &norm);
  options_.exchange->gather(gated_, features, rows, all_gated_, stream);
  add_by_outputs(all_gated_, w.down, x, rows, stream);
  show("layer", index, "", x, rows, config_.hidden);
}

void GpuDecoder::add_by_outputs(const Bf16* input, const cuda::LinearWeight& w, Bf16* x, int rows,
                                cuda::Stream stream) {
  const Slice own = options_.cut.part(config_.hidden);
  cuda::copy_rows(own_x_, static_cast<std::size_t>(own.count) * sizeof(Bf16), x + own.first,
                  static_cast<std::size_t>(config_.hidden) * sizeof(Bf16),
                  static_cast<std::size_t>(own.count) * sizeof(Bf16),
                  static_cast<std::size_t>(rows), stream);
  linears_.run(input, rows, w, LinearOutput::residual, own_x_, stream);
  options_.exchange->gather(own_x_, columns_of(config_.hidden), rows, x, stream);
}

std::vector<int> GpuDecoder::equal_columns(int own) const {
  return std::vector<int>(static_cast<std::size_t>(options_.cut.ranks), own);
}

std::vector<int> GpuDecoder::columns_of(int total) const {
  std::vector<int> columns;
  for (int rank = 0; rank < options_.cut.ranks; ++rank) {
    columns.push_back(static_cast<int>(options_.cut.part_of(rank, total).count));
  }
  return columns;
}

void GpuDecoder::add_product(const Bf16* in, Bf16* all, const cuda::LinearWeight& w, Bf16* x,
                             int rows, cuda::Stream stream) {
  if (options_.exchange == nullptr) {
    return linears_.run(in, rows, w, LinearOutput::residual, x, stream);
  }
  if (options_.cut.by_outputs) {
    options_.exchange->gather(in, equal_columns(w.in / options_.cut.ranks), rows, all, stream);
    return add_by_outputs(all, w, x, rows, stream);
  }
  linears_.run(in, rows, w, LinearOutput::bf16, part_, stream);
  add_parts(x, rows, stream);
}

const Bf16* GpuDecoder::product(const Bf16* in, Bf16* all, const cuda::LinearWeight& w, int rows,
                                cuda::Stream stream) {
  if (options_.exchange == nullptr || !options_.cut.by_outputs) {
    linears_.run(in, rows, w, LinearOutput::bf16, part_, stream);
    return sum_of_parts(rows, stream);
  }
  options_.exchange->gather(in, equal_columns(w.in / options_.cut.ranks), rows, all, stream);
  linears_.run(all, rows, w, LinearOutput::bf16, own_x_, stream);
  options_.exchange->gather(own_x_, columns_of(config_.hidden), rows, part_, stream);
  return part_;
}

const Bf16* GpuDecoder::sum_of_parts(int rows, cuda::Stream stream) {
  if (!sums_over_ranks()) return part_;
  options_.exchange->reduce(part_, sum_, rows, config_.hidden, stream);
  return sum_;
}

void GpuDecoder::add_parts(Bf16* x, int rows, cuda::Stream stream) {
  options_.exchange->add_reduced(part_, x, nullptr, 0, rows, config_.hidden, nullptr, stream);
}

void GpuDecoder::whole_squares(cuda::HeadAppend& append, cuda::Stream stream) {
  const bool alone = options_.exchange == nullptr;
  cuda::head_squares(append, alone ? squares_ : own_squares_, stream);
  append.finish.squares = squares_;
  if (alone) return;
  options_.exchange->gather(own_squares_, equal_columns(config_.heads + config_.kv_heads),
                            append.rows, squares_, stream);
  append.finish.ranks = options_.cut.ranks;
  append.finish.kv_repeats = options_.kv_repeats;
}

bool GpuDecoder::product_of_head(const Bf16* normed, int rows, cuda::Stream stream) {
  const bool alone = options_.exchange == nullptr;
  linears_.run(normed, rows, weights_.lm_head, LinearOutput::f32, alone ? logits_ : own_logits_,
               stream);
  if (alone) return true;
  options_.exchange->gather_to_first(own_logits_, columns_of(config_.vocab), rows, logits_, stream);
  return options_.cut.rank == 0;
}

/// All ranks tell each other where they are, whatever it is that comes from the first.
void GpuDecoder::meet(cuda::Stream stream) {
  if (options_.exchange != nullptr) options_.exchange->broadcast_from_first(sampled_, 1, stream);
}

/// Rank 0 gets all logits and draws; then all ranks know the tokens, which the step behind may
/// begin with. The last layer's sum has normed the rows.
void GpuDecoder::head_of_ranks(const GpuBatch& batch, cuda::Stream stream, const LogitsUse& use) {
  const std::vector<int> columns = columns_of(config_.vocab);
  const bool draws = options_.cut.rank == 0;
  const Bf16* const x = batch.wanted_rows == nullptr ? x_ : wanted_x_;
  const Linears::Norm final_norm{weights_.final_norm, static_cast<float>(config_.norm.eps),
                                 normed_};
  for (int first = 0; first < batch.wanted; first += options_.max_wanted) {
    const int rows = std::min(options_.max_wanted, batch.wanted - first);
    if (sums_over_ranks()) {
      linears_.run(normed_ + std::int64_t{first} * config_.hidden, rows, weights_.lm_head,
                   LinearOutput::f32, own_logits_, stream);
    } else {
      linears_.run(x + std::int64_t{first} * config_.hidden, rows, weights_.lm_head,
                   LinearOutput::f32, own_logits_, stream, &final_norm);
    }
    options_.exchange->gather_to_first(own_logits_, columns, rows, logits_, stream);
    if (!draws) continue;
    sample(batch.samples + first, rows, batch.words, stream);
    if (use) use(first, rows, logits_);
  }
  options_.exchange->broadcast_from_first(sampled_, batch.outputs, stream);
}

}  // namespace baton
