// The decoder on a GPU: queues one step of prompt chunks and decode rows, mixed. This header and
// its source need no CUDA header: the kernels are behind workers/cuda/*.h.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ipc/kv_layout.h"
#include "workers/cuda/attention/attention.h"
#include "workers/cuda/attention/latent.h"
#include "workers/cuda/attention/travel.h"
#include "workers/cuda/collective/rank_exchange.h"
#include "workers/cuda/device.h"
#include "workers/cuda/layer/experts_layer.h"
#include "workers/cuda/layer/general.h"
#include "workers/cuda/linear/kernel_choices.h"
#include "workers/cuda/linear/linear.h"
#include "workers/cuda/linear/linear_chain.h"
#include "workers/cuda/sampling/sampler.h"
#include "workers/model/config.h"
#include "workers/model/gpu_cut.h"
#include "workers/model/gpu_weights.h"
#include "workers/model/kv_plan.h"

namespace baton {

/// One step as the device sees it: how many of what, and where it was uploaded to. Everything that
/// a graph replays must be at the same address each time.
struct GpuBatch {
  int rows = 0;                             // tokens of the step
  const std::int32_t* tokens = nullptr;     // [rows], rowwise.h says what negative ones mean
  const std::int32_t* positions = nullptr;  // [rows]
  const std::int64_t* slots = nullptr;      // [groups][rows], where K and V of a row go in the pool
  // What the attention plans index: the tables of the first group of layers (kv_plan.h). Those of
  // the others lie behind them, every `table_entries`, with each row's at the same place
  const std::int32_t* block_table = nullptr;
  int table_entries = 0;
  const std::int32_t* table_shifts = nullptr;  // [groups], on the device: group * table_entries
  // Tables name blocks of several pools (workers/pool/pool_numbers.h): by pool, how many elements
  // behind the own one it begins; on the device. Null: they do not
  const std::int64_t* pool_offsets = nullptr;
  /// Is called behind each layer's keys and values, before its attention is queued. Null: nobody
  /// is. Of steps that no graph replays, and that have prompts' rows
  using OnKeys = std::function<void(int layer)>;
  const OnKeys* on_keys = nullptr;
  cuda::DecodeWork singles;  // single tokens
  // Other devices attend to keys of these in their own memory. Null: none does
  const cuda::TravelWork* travel = nullptr;
  // Prompt chunks; null: none
  const cuda::PrefillAttention::Plan* chunks = nullptr;
  // The same for layers whose window is the nearer of two, where attention is planned for each
  cuda::DecodeWork near_singles;
  const cuda::PrefillAttention::Plan* near_chunks = nullptr;
  // Rows whose logits are wanted: all of them, or those of `wanted_rows`
  int wanted = 0;                             // lines of logits
  const std::int32_t* wanted_rows = nullptr;  // [wanted]; null: every row, in order
  const cuda::SampleRow* samples = nullptr;   // [wanted]
  const std::int32_t* words = nullptr;        // where the samples' lists are
  int outputs = 0;  // places of sampled() that it may fill: those of several ranks hand them on
};

class GpuDecoder {
 public:
  struct Options {
    int max_rows = 0;    // tokens of one step
    int max_wanted = 0;  // rows of logits that are held at a time
    int max_table = 0;   // entries of a step's block tables
    int tokens_per_block = 16;
    // Of a prompt that is to be served quickly though its keys are gathered first: it lies in
    // several pools, or its keys are latent
    std::int64_t gathered_keys = 0;
    bool kv_groups = false;  // layers that see equally far share blocks (kv_plan.h)
    bool deterministic = false;
    /// Steps of few rows run the products between two attentions as one kernel (linear_chain.h):
    /// where that was quicker at start, or wherever it can, or never. Never in deterministic mode.
    enum class Chain { if_quicker, wherever_possible, never } chain = Chain::if_quicker;
    /// Of a worker of several ranks: which one this is, and what it exchanges with the others
    /// (outlives the decoder). All ranks queue the same steps in the same order.
    GpuCut cut = {};
    cuda::RankExchange* exchange = nullptr;
    int kv_repeats = 1;  // gpu_cut.h
  };

  /// On the calling thread's device. `config` is the rank's (gpu_cut.h).
  GpuDecoder(ModelConfig config, GpuWeights weights, const Options& options);
  GpuDecoder(const GpuDecoder&) = delete;
  GpuDecoder& operator=(const GpuDecoder&) = delete;

  const ModelConfig& config() const { return config_; }
  const Options& options() const { return options_; }
  const KvPlan& kv_plan() const { return kv_plan_; }
  const cuda::DecodeAttention& decode_attention() const { return decode_; }
  /// Null where rows of chunks are computed as single tokens: in deterministic mode, and for head
  /// shapes without tiled kernels. Of latent keys, those of whom no kernel expands.
  const cuda::PrefillAttention* prefill_attention() const { return prefill_.get(); }
  /// The same for layers with the nearer of two windows; null where one plan serves all layers.
  const cuda::DecodeAttention* near_decode_attention() const { return near_decode_.get(); }
  const cuda::PrefillAttention* near_prefill_attention() const { return near_prefill_.get(); }
  std::uint64_t weight_bytes() const { return weights_.memory.bytes(); }
  /// Device memory beside the weights.
  std::uint64_t workspace_bytes() const { return workspace_.bytes(); }
  /// What was chosen for the linear layers, for the log.
  std::string linears_report() const;

  /// Times the linear layers' variants on this device.
  void tune(cuda::Stream stream);
  /// What that chose.
  cuda::KernelChoices choices() const;
  /// Takes what was chosen before for the same model, options, device and program; false if
  /// anything in it cannot be so: then tune().
  bool take(const cuda::KernelChoices& kept);
  /// Where keys and values live from now on; `pool` holds geometry.blocks blocks at least.
  void set_pool(std::byte* pool, const KvGeometry& geometry);

  /// Where the tokens of a step are found when it has ended, by SampleRow::output: [max_rows].
  std::int32_t* sampled() const { return sampled_; }
  /// Likewise log probabilities, by SampleRow::logprobs: [max_rows].
  const cuda::TokenLogprobs* logprobs() const { return logprobs_; }
  /// For PrefillAttention::plan().
  void* prefill_float_workspace() const { return prefill_float_; }
  void* prefill_int_workspace() const { return prefill_int_; }
  void* near_prefill_float_workspace() const { return near_prefill_float_; }
  void* near_prefill_int_workspace() const { return near_prefill_int_; }

  /// Lines first .. first + n - 1 of a step's logits, [n, vocab], once the stream has passed the
  /// call and until anything else is queued.
  using LogitsUse = std::function<void(int first, int n, const float* logits)>;
  /// Queues the whole step. Allocates nothing; without chunks it may be recorded into a graph.
  /// `use`, if any, may queue work on the stream; it is called for all lines, max_wanted at a time.
  void run(const GpuBatch& batch, cuda::Stream stream, const LogitsUse& use = {});
  /// Of several ranks: what is queued behind has seen everything that all ranks have queued before,
  /// keys and values too. The last of every step, so that a step has ended on rank 0 when it has
  /// on all.
  void meet(cuda::Stream stream);
  /// Draws again from the lines of the step that was queued last, where they were no more than
  /// max_wanted.
  /// `samples`, [n], and `words` are in device memory.
  void sample(const cuda::SampleRow* samples, int n, const std::int32_t* words,
              cuda::Stream stream);
  /// The lines of the step that was queued last, where they were no more than max_wanted.
  const float* logits() const { return logits_; }
  int max_wanted() const { return options_.max_wanted; }

  /// Tests: is called after parts of a step with a name and what they left, [rows, columns].
  using Dump =
      std::function<void(const std::string& part, const cuda::Bf16* values, int rows, int columns)>;
  void set_dump(Dump dump) { dump_ = std::move(dump); }

 private:
  /// A layer's products as GEMMs of a chain: W_o, gate and up, W_down, and W_qkv of the layer
  /// behind, if any.
  std::vector<cuda::ChainGemm> gemms_behind(int index) const;
  /// The same of a layer that is computed by parts.
  std::vector<cuda::ChainGemm> general_gemms_behind(int index) const;
  /// Whether a chain computes all layers that are not fused.
  bool chains_parts() const;
  /// What a layer's chain computes, by several kernels.
  void run_several_kernels(int index, int rows, cuda::Stream stream);
  /// The call of a layer of experts' kernel; quantised W_o and W_qkv are left out of it, and have
  /// kernels of their own.
  cuda::ExpertLayerCall expert_layer_behind(int index, int rows) const;
  /// Whether the layer kernel of experts knows all that the layer has.
  bool has_expert_layer(const LayerSpec& spec) const;
  /// The most rows that a layer's kernel takes; 0: it has none.
  int layer_kernel_rows(int index) const;
  bool has_layer_kernel(int index) const { return layer_kernels_[static_cast<std::size_t>(index)]; }
  /// Of layer `index`, which has one; the next that is run is the next that has one, of the first
  /// `layers`.
  void run_layer_kernel(int index, int layers, int rows, cuda::Stream stream);
  void tune_layer_kernels(cuda::Stream stream);
  /// Finds which layers have a kernel; the most rows of a step that may run them; 0: none may.
  int find_layer_kernels();
  /// The first layers, so many are timed.
  int timed_layers() const;
  bool as_one_kernel(const GpuBatch& batch) const;
  /// What a layer's kernel keeps.
  static std::size_t layer_state_bytes();
  /// q, k, v of the layer behind, by kernels of its own.
  void project_next(int index, int rows, bool is_normed, cuda::Stream stream);
  void project(int index, int rows, cuda::Stream stream);
  void attend(int index, const GpuBatch& batch, cuda::Stream stream);
  void behind_attention(int index, const GpuBatch& batch, cuda::Stream stream);
  void feed_forward(const GpuLayer& layer, cuda::Bf16* x, int rows, cuda::Stream stream);
  /// Added to x. `normed`: the rows of normed_ are the layer's normed input already; else it is
  /// x's.
  void experts(const GpuLayer& layer, cuda::Bf16* x, int rows, bool normed, cuda::Stream stream);
  /// routed_ = W_router norm(x)
  void route(const cuda::LinearWeight& router, const cuda::Bf16* x, int rows,
             const cuda::Linears::Norm* norm, cuda::Stream stream);
  /// `rope`: if not null, attention does what rope_append() would have.
  void attention(int index, const GpuBatch& batch, const cuda::KvLayerView& kv,
                 const cuda::Rope* rope, cuda::Stream stream);
  void head(const GpuBatch& batch, cuda::Stream stream, const LogitsUse& use);
  void show(const char* part, int index, const char* of_it, const cuda::Bf16* values, int rows,
            int columns) const {
    if (dump_)
      dump_(part + (index < 0 ? "" : std::to_string(index)) + of_it, values, rows, columns);
  }
  // The same over several ranks (gpu_decoder_ranks.cpp).
  void behind_attention_of_ranks(int index, const cuda::Bf16* attended, cuda::Bf16* x, int rows,
                                 cuda::Stream stream);
  void behind_attention_by_outputs(int index, const cuda::Bf16* attended, cuda::Bf16* x, int rows,
                                   cuda::Stream stream);
  /// x [rows, hidden] += input [rows, w.in] W^T, of which each rank computes some columns.
  void add_by_outputs(const cuda::Bf16* input, const cuda::LinearWeight& w, cuda::Bf16* x, int rows,
                      cuda::Stream stream);
  /// Whether sums over the ranks come with the norm behind them.
  bool sums_over_ranks() const { return options_.exchange != nullptr && !options_.cut.by_outputs; }
  void head_of_ranks(const GpuBatch& batch, cuda::Stream stream, const LogitsUse& use);
  /// So many numbers of each rank, and those of `total` that each rank has.
  std::vector<int> equal_columns(int own) const;
  std::vector<int> columns_of(int total) const;
  /// logits_ = W_head normed, of up to max_wanted rows. Whether they are here, to be drawn from.
  bool product_of_head(const cuda::Bf16* normed, int rows, cuda::Stream stream);
  // What leads back to [hidden] where layers are computed by parts, on one GPU or on several. `in`
  // [rows, numbers of this rank]; `all` has room for everybody's where the cut is by outputs.
  /// x += W in.
  void add_product(const cuda::Bf16* in, cuda::Bf16* all, const cuda::LinearWeight& w,
                   cuda::Bf16* x, int rows, cuda::Stream stream);
  /// W in; returns where it is, until the next call.
  const cuda::Bf16* product(const cuda::Bf16* in, cuda::Bf16* all, const cuda::LinearWeight& w,
                            int rows, cuda::Stream stream);
  /// What all ranks have in part_ is added up; returns where.
  const cuda::Bf16* sum_of_parts(int rows, cuda::Stream stream);
  /// Likewise, and added to x.
  void add_parts(cuda::Bf16* x, int rows, cuda::Stream stream);
  /// What norms over all of q and all of k divide by.
  void whole_squares(cuda::HeadAppend& append, cuda::Stream stream);
  // Layers outside of the fused kernels' pattern, part by part (gpu_general.cpp).
  void run_general(const GpuBatch& batch, cuda::Stream stream, const LogitsUse& use);
  void general_project(int index, int rows, bool is_normed, cuda::Stream stream);
  void general_attend(int index, const GpuBatch& batch, cuda::Stream stream);
  // The same of latent keys and values (gpu_latent.cpp).
  void latent_project(int index, int rows, cuda::Stream stream);
  void latent_attend(int index, const GpuBatch& batch, cuda::Stream stream);
  /// Of the rows of `x`, whose attention is in `attended` and whose normed x in `normed`.
  bool general_behind(int index, const cuda::Bf16* attended, cuda::Bf16* normed, cuda::Bf16* x,
                      int rows, cuda::Stream stream);
  /// What the layer's feed-forward part, or its experts, make of `n`: returns where it is, or null
  /// if it is in x already.
  const cuda::Bf16* general_feed_forward(int index, const cuda::Bf16* n, cuda::Bf16* x, int rows,
                                         cuda::Stream stream);
  /// gated_ = act(W_gate n + b) * (W_up n + b)
  void general_gated(const MlpSpec& spec, const cuda::LinearWeight& up, const float* up_bias,
                     const cuda::Bf16* normed, int rows, cuda::Stream stream);
  void general_experts(int index, const cuda::Bf16* normed, cuda::Bf16* x, int rows,
                       cuda::Stream stream);
  /// Both parts of a layer are summed over the ranks at once.
  bool sums_once(int index) const;
  void general_head(const GpuBatch& batch, cuda::Stream stream, const LogitsUse& use);
  void tune_alike(const std::vector<cuda::LinearWeight>& all, cuda::LinearOutput output,
                  void* scratch, std::size_t bytes, cuda::Stream stream);
  void tune_general(void* scratch, std::size_t scratch_bytes, cuda::Stream stream);
  bool make_near_attention();
  void carve_workspace();
  const KvPlan::Place& place_of(int index) const {
    return kv_plan_.places[static_cast<std::size_t>(index)];
  }
  cuda::KvLayerView kv_layer(int index, const GpuBatch& batch) const;
  /// The tables of its group, for kernels that no graph replays.
  const std::int32_t* table_of(int index, const GpuBatch& batch) const {
    return batch.block_table + std::int64_t{place_of(index).group} * batch.table_entries;
  }
  /// Where the keys and values of its rows go.
  const std::int64_t* slots_of(int index, const GpuBatch& batch) const {
    return batch.slots + std::int64_t{place_of(index).group} * batch.rows;
  }

  ModelConfig config_;
  GpuWeights weights_;
  Options options_;
  KvPlan kv_plan_;
  cuda::DecodeAttention decode_;
  std::unique_ptr<cuda::PrefillAttention> prefill_;
  std::unique_ptr<cuda::DecodeAttention> near_decode_;
  std::unique_ptr<cuda::PrefillAttention> near_prefill_;
  std::unique_ptr<cuda::LatentAttention> latent_;
  int near_window_ = 0;  // of the two above
  bool fused_ = true;    // has_fused_layers()
  std::vector<bool>
      layer_kernels_;  // [layers], which have one; found while the workspace is carved
  cuda::DeviceMemory workspace_;

  // Activations, [max_rows, ...] unless said otherwise
  cuda::Bf16* x_ = nullptr;         // [hidden], the residual stream
  cuda::Bf16* normed_ = nullptr;    // [hidden]
  cuda::Bf16* qkv_ = nullptr;       // [projected_columns()]
  cuda::Bf16* attended_ = nullptr;  // [attended_columns()]
  cuda::Bf16* gated_ = nullptr;     // [intermediate]
  float* routed_ = nullptr;         // [kMostExpertRows at most, experts]
  // Where layers are not fused:
  cuda::Bf16* part_ = nullptr;           // [hidden], what a layer's part gives (or a rank's)
  cuda::Bf16* up_ = nullptr;             // [2 * intermediate], of parts that are not plain()
  cuda::Bf16* wanted_normed_ = nullptr;  // [hidden]
  cuda::Bf16* shared_ = nullptr;         // [hidden], what all tokens take, where it has a gate
  float* lse_ = nullptr;                 // [heads], of prompts' rows that have sinks
  float* squares_ = nullptr;             // [ranks, heads + kv_heads], head_squares() of all ranks
  float* own_squares_ = nullptr;         // of several ranks: [heads + kv_heads]
  // Of latent keys and values:
  cuda::Bf16* latent_q_ = nullptr;  // [q_rank], where queries go through so many numbers
  cuda::Bf16* queries_ = nullptr;   // and then [heads * head_dim]
  cuda::Bf16* wide_ = nullptr;      // [heads, rank + rope], queries in latent numbers
  cuda::Bf16* looked_ = nullptr;    // [heads, rank], what attention leaves
  void* latent_workspace_ = nullptr;
  cuda::Bf16* sum_ = nullptr;              // of several ranks that sum: [hidden], what all give
  cuda::Bf16* wanted_x_ = nullptr;         // [hidden]
  cuda::Bf16* wanted_attended_ = nullptr;  // [attended_columns()]
  // Of several ranks that cut by outputs: everybody's, and columns of the residual stream
  cuda::Bf16* all_attended_ = nullptr;  // [all heads * head_dim]
  cuda::Bf16* all_gated_ = nullptr;     // [the whole intermediate]
  cuda::Bf16* own_x_ = nullptr;         // [this rank's part of hidden]
  float* logits_ = nullptr;             // [max_wanted, vocab]
  float* own_logits_ = nullptr;         // of several ranks: [max_wanted, this one's tokens]
  std::int32_t* sampled_ = nullptr;
  cuda::TokenLogprobs* logprobs_ = nullptr;
  void* decode_workspace_ = nullptr;
  void* prefill_float_ = nullptr;
  void* prefill_int_ = nullptr;
  void* near_prefill_float_ = nullptr;
  void* near_prefill_int_ = nullptr;
  void* sample_workspace_ = nullptr;
  void* experts_workspace_ = nullptr;
  void* linear_workspace_ = nullptr;
  std::size_t linear_workspace_bytes_ = 0;
  std::byte* chain_states_ = nullptr;  // [layers], of layer_state_bytes()
  std::byte* chain_workspace_ = nullptr;

  cuda::Linears linears_;
  std::vector<cuda::ChainChoice> chain_choices_;
  cuda::Bf16* pool_ = nullptr;
  KvGeometry geometry_;
  Dump dump_;
};

}  // namespace baton
