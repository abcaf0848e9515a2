// The parameters of a checkpoint by their place in the model: names, shapes and types are checked
// here, once for all backends. Torch-free.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "workers/cpu/grouped.h"
#include "workers/cpu/packing.h"
#include "workers/cpu/thread_pool.h"
#include "workers/model/config.h"
#include "workers/model/cut.h"
#include "workers/model/dequantize.h"
#include "workers/model/safetensors.h"

namespace baton {

/// A layer that becomes whole numbers when it is asked for.
struct LazyGrouped {
  std::int64_t out = 0;
  std::int64_t in = 0;
  std::string name;  // for messages: file and tensor
  std::function<cpu::GroupedMatrix(cpu::ThreadPool&)> make;
};

/// A matrix of one expert as MXFP4 stores it, in the mapped checkpoint: expert_reader.cpp.
struct Mxfp4Weight {
  const std::byte* codes = nullptr;   // [out, in / 2], the lower half of a byte first
  const std::byte* scales = nullptr;  // [out, in / 32]
  bool alternating = false;           // rows are gate's and up's in turns
  std::string name;                   // for messages: file and tensor
};

/// A linear layer [out, in] as it is stored: one of the five. It lies in the mapped checkpoint, or
/// in memory of its own (plain.owner).
struct LinearSource {
  cpu::MatrixSource plain;         // row-major
  std::optional<Int4Weight> int4;  // gptq or awq, as the configuration says
  std::optional<Fp8Weight> fp8;
  std::optional<BlockWeight> blocks = std::nullopt;  // of a GGUF file
  std::optional<LazyGrouped> lazy = std::nullopt;
  std::optional<Mxfp4Weight> mxfp4 = std::nullopt;  // the same as `lazy`, for who packs it himself
  /// As which whole numbers it may stay in memory on CPUs; nothing where it can only become fp32.
  std::optional<cpu::GroupedType> grouped = std::nullopt;

  bool quantized() const { return int4 || fp8 || blocks || lazy; }
  std::int64_t rows() const {
    return int4 ? int4->out : fp8 ? fp8->out : blocks ? blocks->out : lazy ? lazy->out : plain.rows;
  }
  std::int64_t columns() const {
    return int4 ? int4->in : fp8 ? fp8->in : blocks ? blocks->in : lazy ? lazy->in : plain.columns;
  }
};

/// A feed-forward part: a dense layer's, one expert, or what all tokens take beside their experts.
struct FeedForwardSource {
  LinearSource gate, up;  // [intermediate, hidden]; of a fused one `gate` has the rows of both;
                          // of one without a gate `up` alone
  LinearSource down;      // [hidden, intermediate]
  std::vector<float> up_bias;  // gate's, then up's; empty without biases
  std::vector<float> down_bias;
};

/// Attention over latent keys and values.
struct LatentSource {
  LinearSource q_a;            // [q_rank, hidden]; none without q_rank
  std::vector<float> q_norm;   // [q_rank]
  LinearSource q;              // [heads * (plain + rope), q_rank or hidden]
  LinearSource kv_a;           // [rank + rope, hidden]
  std::vector<float> kv_norm;  // [rank]
  LinearSource kv_b;           // [heads * (plain + value), rank]
};

/// One layer's parameters, in the mapped checkpoint; vectors are converted to fp32, which is
/// exact for every stored type. What the spec does not ask for is empty.
struct LayerSource {
  LatentSource latent;                 // instead of q, k and v
  std::vector<float> input_norm;       // [hidden], the norm in front of the attention
  std::vector<float> attention_after;  // [hidden], of what it gives
  LinearSource q;               // [heads * head_dim, hidden]; of a fused one all of qkv's rows
  LinearSource k, v;            // [kv_heads * head_dim, hidden]
  std::vector<float> qkv_bias;  // q's, k's, v's: [qkv_columns()]
  std::vector<float> q_norm, k_norm;  // [head_dim], or [heads * head_dim] and [kv_heads * head_dim]
  std::vector<float> sinks;           // [heads]
  LinearSource o;                     // [hidden, heads * head_dim]
  std::vector<float> o_bias;          // [hidden]
  std::vector<float> post_norm;       // [hidden], the norm in front of the feed-forward part
  std::vector<float> mlp_after;       // [hidden], of what it gives
  std::vector<float> norm_biases[4];  // of the four norms, in this order
  LinearSource router;                // [experts, hidden]; no rows in a dense layer
  std::vector<float> router_bias, choice_bias;  // [experts]
  FeedForwardSource dense;                      // empty in a sparse layer: expert() has its parts
  FeedForwardSource shared;
  LinearSource shared_gate;  // [1, hidden]
};

/// Whether the layer of this name (without ".weight") is stored as the configuration's quantisation
/// has it; quantisers leave some plain.
bool stored_quantized(const Quantization& quantization, const Checkpoint& checkpoint,
                      const std::string& name);

/// As which whole numbers such a layer, with `in` inputs, may stay in memory on CPUs: of q * scale
/// and the like exactly what its format says (cpu::GroupFormat). Nothing for a layer that is stored
/// plain, for FP8, and where a group's inputs do not lie side by side. Reads no weights but
/// the inputs' groups (g_idx).
std::optional<cpu::GroupedType> grouped_type(const Quantization& quantization,
                                             const Checkpoint& checkpoint, const std::string& name,
                                             std::int64_t in);

/// Rows of a quantised layer as fp32, [range.rows, columns]; a `lazy` one is read as a whole. Like
/// grouped_matrix() for any thread, with a pool of its own.
void dequantize_rows(const LinearSource& source, const Quantization& quantization, RowRange range,
                     cpu::ThreadPool& pool, float* to);

/// A quantised layer as whole numbers, whose scales are checked to be numbers; precondition:
/// source.grouped.
cpu::GroupedMatrix grouped_matrix(const LinearSource& source, const Quantization& quantization,
                                  cpu::ThreadPool& pool);

/// The one of `names.roots` that this checkpoint has, and the name of its head.
std::string decoder_root(const TensorNames& names, const Checkpoint& checkpoint);
std::string head_name(const TensorNames& names, const Checkpoint& checkpoint);

/// Whether each of a layer's experts has tensors of its own; `experts` is what their names begin
/// with. Without a checkpoint as the family usually has them.
bool experts_apart(const TensorNames& names, const Checkpoint* checkpoint,
                   const std::string& experts);

/// Whether a layer's experts lie in one tensor for all of them in 8-bit floats.
bool stacked_in_fp8(const ModelConfig& config, const Checkpoint& checkpoint,
                    const std::string& experts);

/// Names behind a layer's prefix.
struct FeedForwardNames {
  std::string fused, gate, up, down;
};

/// Rows of a matrix, where they lie.
cpu::MatrixSource rows_of(cpu::MatrixSource matrix, Slice rows);

/// The two, also where a plain tensor has both.
std::pair<LinearSource, LinearSource> gate_and_up(const FeedForwardSource& part);

/// Takes tensors out of a checkpoint, checks them against the configuration and remembers which
/// were taken. Everything throws ModelError that names the file and the tensor: one that is
/// missing, or whose shape or type does not fit. Results are valid as long as the checkpoint.
class CheckpointReader {
 public:
  /// `config` and `checkpoint` outlive the reader. `progress`, if given, rises to 100 with the
  /// share of tensors taken (another thread may read it). Quantised layers are dequantised by
  /// `threads`.
  CheckpointReader(const ModelConfig& config, const Checkpoint& checkpoint,
                   std::atomic<int>* progress = nullptr, int threads = 1);

  // Vectors and quantised layers' scales are checked to be numbers. Matrices are most of a
  // checkpoint: whoever copies them looks on the way (finite.h).
  cpu::MatrixSource embedding();  // [vocab, hidden]
  LayerSource layer(int index);   // 0 .. layers - 1
  /// One expert of a sparse layer; one at a time, for there are many.
  FeedForwardSource expert(int layer, int index);
  std::vector<float> final_norm();       // [hidden]
  std::vector<float> final_norm_bias();  // [hidden], or empty
  LinearSource lm_head();                // [vocab, hidden]; the embedding's if they are tied
  /// Refuses a tensor that nobody took: it would change the result in a model that has it.
  void expect_all_taken() const;

  /// Any tensor by its name: F32, F16 or BF16 of exactly this shape; blocks become fp32.
  cpu::MatrixSource matrix(const std::string& name, std::int64_t rows, std::int64_t columns);
  std::vector<float> vector(const std::string& name, std::int64_t size);
  /// A linear layer [out, in] by its name without ".weight", plain or quantised.
  LinearSource linear(const std::string& name, std::int64_t out, std::int64_t in);
  /// The same as values, all rows or some: a quantised one becomes fp32 in memory of its own.
  cpu::MatrixSource dequantized(const LinearSource& source) {
    return dequantized(source, {0, source.rows()});
  }
  cpu::MatrixSource dequantized(const LinearSource& source, Slice rows);
  cpu::MatrixSource embedding_rows(Slice rows);
  /// The same as whole numbers; precondition: source.grouped.
  cpu::GroupedMatrix grouped(const LinearSource& source);

  /// An expert that another rank has: its tensors are nobody's mistake, and are not read.
  void leave_expert(int layer, int index);
  /// Bytes of the checkpoint that whoever copies what this reader gave will have read.
  std::uint64_t bytes_read() const { return bytes_read_; }

 private:
  std::vector<float> norm(const std::string& name, std::int64_t size);
  void read_attention(const std::string& prefix, const AttentionSpec& spec, LayerSource& layer);
  void read_latent(const std::string& prefix, LatentSource& latent);
  FeedForwardSource feed_forward(const std::string& prefix, const MlpSpec& spec,
                                 const FeedForwardNames& names);
  FeedForwardSource stacked_expert(int layer, int index);
  LinearSource transposed_expert(const std::string& name, std::int64_t out, std::int64_t in,
                                 int expert, bool alternate);
  bool rows_first(const std::string& experts, std::int64_t middle) const;
  LinearSource expert_in_rows(const std::string& name, std::int64_t out, std::int64_t in,
                              int expert);
  LinearSource fp8_expert(const std::string& name, std::int64_t out, std::int64_t in, int expert,
                          Slice rows);
  LinearSource mxfp4_expert(const std::string& name, std::int64_t out, std::int64_t in, int expert,
                            bool alternate);
  std::string prefix(int layer) const;
  const TensorView& take(const std::string& name, const std::vector<std::int64_t>& shape);
  static cpu::MatrixSource as_matrix(const TensorView& view, const std::string& name,
                                     std::int64_t rows, std::int64_t columns);
  std::uint64_t stored_bytes(const LinearSource& source, std::int64_t rows) const;
  Int4Weight int4(const std::string& name, std::int64_t out, std::int64_t in);
  Fp8Weight fp8(const std::string& name, std::int64_t out, std::int64_t in);
  LazyGrouped gptq8(const std::string& name, std::int64_t out, std::int64_t in);
  LazyGrouped packed_integers(const std::string& name, std::int64_t out, std::int64_t in);
  LazyGrouped nvfp4(const std::string& name, std::int64_t out, std::int64_t in);
  void expect_order(const std::string& name, std::int64_t in, int group);
  float one_number(const std::string& name);
  cpu::MatrixSource fp8_scales(const std::string& name, std::int64_t rows, std::int64_t columns);
  const std::byte* words(const std::string& name, std::int64_t rows, std::int64_t columns);
  std::vector<std::int32_t> input_groups(const std::string& name, std::int64_t in,
                                         std::int64_t groups);
  BlockWeight block_weight(const TensorView& view, const std::string& name, std::int64_t out,
                           std::int64_t in) const;
  void refuse_other_head() const;
  bool idle_bias(const std::string& name, const TensorView& view) const;

  const ModelConfig& config_;
  const Checkpoint& checkpoint_;
  std::string root_;  // in front of the decoder's names
  std::string head_;
  std::atomic<int>* progress_;
  cpu::ThreadPool pool_;
  std::set<std::string> taken_;
  std::uint64_t bytes_read_ = 0;
};

}  // namespace baton
