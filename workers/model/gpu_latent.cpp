// The part of GpuDecoder for latent keys and values (workers/cuda/attention/latent.h). Every row,
// of a prompt or decoded, looks at latent vectors, as on CPUs (project_latent() and look() in
// llama.cpp): through a head's matrix kv_b [plain + value, rank] a query's plain components lead
// to latent numbers, q_l = q_plain W_plain, and what attention leaves to the head's value,
// W_value o_l.
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

  cuda::LatentAppend append;
  append.shape = latent_of(config_);
  append.rows = batch.rows;
  append.kv = qkv_ + latent_queries(config_);
  append.kv_stride = projected;
  append.q = at_once ? qkv_ : queries_;
  append.q_stride = at_once ? projected : config_.heads * config_.head_dim;
  append.norm = w.kv_norm;
  append.eps = LatentSpec::kEps;
  append.cos = table.cos;
  append.sin = table.sin;
  append.interleaved = rope.interleaved;
  append.positions = batch.positions;
  append.slots = slots_of(index, batch);
  append.kv_layer = kv_layer(index, batch);
  append.wide = wide_;
  cuda::latent_append(append, stream);
  if (batch.on_keys != nullptr) (*batch.on_keys)(index);

  cuda::HeadProduct product;
  product.w = w.kv_b;
  product.w_head = std::int64_t{spec.plain + spec.value} * spec.rank;
  product.inputs_first = true;
  product.in = spec.plain;
  product.out = spec.rank;
  product.rows = batch.rows;
  product.heads = config_.heads;
  product.x = append.q;
  product.x_row = append.q_stride;
  product.x_head = config_.head_dim;
  product.y = wide_;
  product.y_row = std::int64_t{config_.heads} * width;
  product.y_head = width;
  cuda::head_product(product, stream);

  latent_->run(wide_, looked_, append.kv_layer, batch.block_table, batch.singles,
               static_cast<float>(attention.scale), latent_workspace_, stream);

  product.w = w.kv_b + std::int64_t{spec.plain} * spec.rank;
  product.inputs_first = false;
  product.in = spec.rank;
  product.out = spec.value;
  product.x = looked_;
  product.x_row = std::int64_t{config_.heads} * spec.rank;
  product.x_head = spec.rank;
  product.y = attended_;
  product.y_row = config_.attended_columns();
  product.y_head = spec.value;
  cuda::head_product(product, stream);
  show("layer", index, ".attended", attended_, batch.rows, config_.attended_columns());
}

}  // namespace baton
