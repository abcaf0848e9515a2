// The part of GpuDecoder for latent keys and values (workers/cuda/attention/latent.h). A single
// row looks at latent vectors, as on CPUs (project_latent() and look() in llama.cpp): through a
// head's matrix kv_b [plain + value, rank] a query's plain components lead to latent numbers,
// q_l = q_plain W_plain, and what attention leaves to the head's value, W_value o_l. Rows of chunks
// attend to keys and values that the same matrix makes of latent vectors.
#include "workers/cuda/layer/general.h"
#include "workers/model/gpu_decoder.h"
#include "workers/model/gpu_shapes.h"

namespace baton {
/// Queries of as many numbers as the heads have; what is behind them in qkv_ stays there.
void GpuDecoder::latent_project(int index, int rows, cuda::Stream stream) {
  const int q_rank = config_.latent.q_rank;
  if (q_rank == 0) return;
  const GpuLatent& w = weights_.layers[static_cast<std::size_t>(index)].general.latent;
  cuda::NormCall norm;
  norm.x = qkv_;
  norm.x_stride = projected_columns(config_);
  norm.norm = {w.q_norm, nullptr, LatentSpec::kEps, false};
  norm.rows = rows;
  norm.columns = norm.y_stride = q_rank;
  norm.y = latent_q_;
  cuda::norm_rows(norm, stream);
  linears_.run(latent_q_, rows, w.q, cuda::LinearOutput::bf16, queries_, stream);
}

void GpuDecoder::latent_attend(int index, const GpuBatch& batch, cuda::Stream stream) {
  const LatentSpec& spec = config_.latent;
  const AttentionSpec& attention = config_.layer(index).attention;
  const GpuLatent& w = weights_.layers[static_cast<std::size_t>(index)].general.latent;
  const RopeConfig& rope = config_.ropes[static_cast<std::size_t>(attention.rope)];
  const GpuRope& table = weights_.ropes[static_cast<std::size_t>(attention.rope)];
  const int projected = projected_columns(config_);
  const int width = spec.rank + spec.rope;
  const bool at_once = spec.q_rank == 0;
  // Rows of chunks come first.
  const int chunk_rows = batch.chunks == nullptr ? 0 : cuda::PrefillAttention::rows(*batch.chunks);

  cuda::LatentAppend append;
  append.shape = latent_of(config_);
  append.rows = batch.rows;
  append.kv = qkv_ + latent_queries(config_);
  append.kv_stride = projected;
  append.q = at_once ? qkv_ : queries_;
  append.q_stride = at_once ? projected : config_.heads * config_.head_dim;
  append.in_place = chunk_rows;
  append.norm = w.kv_norm;
  append.eps = LatentSpec::kEps;
  append.cos = table.cos;
  append.sin = table.sin;
  append.interleaved = rope.interleaved;
  append.query_growth = static_cast<float>(rope.query_growth);
  append.query_context = static_cast<float>(rope.query_context);
  append.positions = batch.positions;
  append.slots = slots_of(index, batch);
  append.kv_layer = kv_layer(index, batch);
  append.wide = wide_;
  cuda::latent_append(append, stream);
  if (batch.on_keys != nullptr) (*batch.on_keys)(index);

  const auto scale = static_cast<float>(attention.scale);
  if (chunk_rows > 0) {
    cuda::LatentChunks chunks;
    chunks.q = append.q;
    chunks.q_stride = append.q_stride;
    chunks.out = attended_;
    chunks.kv = append.kv_layer;
    chunks.block_table = batch.block_table;
    chunks.kv_b = w.kv_b;
    chunks.scale = scale;
    prefill_->run_latent(*batch.chunks, chunks, stream);
  }

  cuda::HeadProduct product;
  product.w = w.kv_b;
  product.w_head = std::int64_t{spec.plain + spec.value} * spec.rank;
  product.inputs_first = true;
  product.in = spec.plain;
  product.out = spec.rank;
  product.rows = batch.rows - chunk_rows;
  product.heads = config_.heads;
  product.x = append.q + chunk_rows * append.q_stride;
  product.x_row = append.q_stride;
  product.x_head = config_.head_dim;
  product.y_row = std::int64_t{config_.heads} * width;
  product.y = wide_ + chunk_rows * product.y_row;
  product.y_head = width;
  cuda::head_product(product, stream);

  latent_->run(wide_, looked_, append.kv_layer, batch.block_table, batch.singles, scale,
               latent_workspace_, stream);

  product.w = w.kv_b + std::int64_t{spec.plain} * spec.rank;
  product.inputs_first = false;
  product.in = spec.rank;
  product.out = spec.value;
  product.x_row = std::int64_t{config_.heads} * spec.rank;
  product.x = looked_ + chunk_rows * product.x_row;
  product.x_head = spec.rank;
  product.y_row = config_.attended_columns();
  product.y = attended_ + chunk_rows * product.y_row;
  product.y_head = spec.value;
  cuda::head_product(product, stream);
  show("layer", index, ".attended", attended_, batch.rows, config_.attended_columns());
}

}  // namespace baton
