// Kernels of the CPU backend: raw pointers, no torch, no allocation, no threads.
//
// The bits of every result follow from its own inputs alone. For each kernel this header states the
// order of the arithmetic; an AVX2 and an AVX-512 variant follow the same order and give the same
// bits. All sizes are in elements, all strides too unless a name says bytes.
#pragma once

#include <cstddef>
#include <cstdint>

namespace baton::cpu {

/// Columns of one weight panel. Weights of a linear layer [out, in] are stored as
/// [ceil(out / 32)][in][32]: the 32 outputs of a panel lie side by side for every input.
constexpr int kPanelColumns = 32;

/// How packed weights are stored. Converting bf16 to fp32 is exact, so both give the same bits.
/// int8 and int4 are whole numbers with scales (GroupFormat): the bits are those of the fp32
/// numbers that they stand for.
enum class WeightType : std::uint8_t { f32 = 0, bf16 = 1, int8 = 2, int4 = 3 };

/// What a group of inputs has beside its scale.
enum class Second : std::uint8_t {
  none,    // w = q * scale
  zero,    // w = (q - zero) * scale, zero a whole number of eight bits
  offset,  // w = q * scale + offset, rounded twice
  e2m1,    // nothing; w = v * scale, v the 4-bit float that a nibble is (MXFP4, NVFP4); int4 alone
};

/// Weights that stay whole numbers. A panel is [in / group] groups, each of them: 32 scales; 32
/// zeros (int8) or offsets (f32), if there are any; then eight inputs at a time, int8 [8][32], or
/// int4 as one word a column [32] whose nibbles, from the lowest, are the eight inputs' (unsigned).
struct GroupFormat {
  int group = 0;             // inputs that share a scale: a multiple of 8 that divides `in`
  bool half_scales = false;  // scales are f16, else f32
  Second second = Second::none;
  /// Products take inputs rounded to eight bits (integer.h). Then eight inputs of int8 are two
  /// words a column, [2][32]: inputs 0, 2, 4, 6 and 1, 3, 5, 7, each plus 128; int4 lie as above.
  bool rounds_inputs = false;

  bool operator==(const GroupFormat&) const = default;
};

constexpr int kGroupStep = 8;

/// Bytes of one panel.
constexpr std::int64_t panel_bytes(std::int64_t in, WeightType type,
                                   const GroupFormat& format = {}) {
  if (type == WeightType::f32 || type == WeightType::bf16) {
    return in * kPanelColumns * (type == WeightType::bf16 ? 2 : 4);
  }
  const int second = format.second == Second::zero ? 1 : format.second == Second::offset ? 4 : 0;
  const std::int64_t head = kPanelColumns * ((format.half_scales ? 2 : 4) + second);
  return in / format.group * head + in * kPanelColumns * (type == WeightType::int4 ? 4 : 8) / 8;
}

/// What happens to a linear layer's outputs.
enum class Epilogue : std::uint8_t {
  store,     // y = w x
  add,       // y = y + w x
  silu_mul,  // panels alternate gate, up: y = silu(gate x) * (up x)
};

/// y[rows, columns] (op)= x[rows, k] * W. Every dot product is one chain of fused multiply-adds
/// over k ascending that starts at +0.
struct LinearTask {
  const float* x = nullptr;  // [rows, k]
  std::int64_t x_stride = 0;
  int rows = 0;
  int k = 0;
  const void* panels = nullptr;  // panel 0 of the matrix
  WeightType type = WeightType::f32;
  int first_panel = 0;  // of the matrix; even for silu_mul
  int panel_count = 0;  // even for silu_mul
  int columns = 0;      // outputs of the whole matrix: the last panel may be partly empty
  float* y = nullptr;   // [rows, columns]
  std::int64_t y_stride = 0;
  Epilogue epilogue = Epilogue::store;
  GroupFormat format = {};  // of int8 and int4
  const std::byte* rounded = nullptr;  // of a format that rounds_inputs: the rows as RoundedRow ...
  std::int64_t rounded_stride = 0;     // ... and the bytes from one to the next
};

/// Causal attention of `rows` consecutive positions of one sequence over one key/value head, whose
/// `group` query heads lie side by side. For one query, in key order and in tiles of 64 keys that
/// start at position 0: score = (one fma chain over head_dim ascending) * scale; running maximum;
/// exp; sum in 16 lanes; output = one fma chain over keys ascending, rescaled where a tile raises
/// the maximum. Keys in front of the window are left out: tiles stay where they are.
struct AttentionTask {
  const float* q = nullptr;  // query (row, g) at q + row * q_stride + g * head_dim
  std::int64_t q_stride = 0;
  float* out = nullptr;  // the same shape
  std::int64_t out_stride = 0;
  int rows = 0;  // at most kAttentionRows
  int group = 0;
  int head_dim = 0;
  std::int64_t position = 0;  // of row 0; rows see keys 0..position + row
  int window = 0;             // above 0: the last `window` of these keys alone
  float soft_cap = 0;         // above 0: scores become soft_cap * tanh(score / soft_cap)
  const float* sinks = nullptr;  // [group]: a score beside the keys', whose value is 0; may be null
  const std::byte* keys =
      nullptr;  // of token 0 of this head in block 0: [tokens_per_block, head_dim]
  const std::byte* values = nullptr;
  std::uint64_t block_bytes = 0;
  const std::uint32_t* block_table = nullptr;
  std::uint32_t table_stride = 1;  // entries from one block of the sequence to the next
  std::uint32_t tokens_per_block = 0;
  float scale = 0;
  float* scratch = nullptr;  // attention_scratch(group, head_dim) floats, 64-byte aligned
  const AttentionTask* next = nullptr;  // the task that follows, if known: its memory is asked for
};

constexpr int kAttentionRows = 16;
constexpr int kAttentionTile = 64;

/// Floats of scratch for attention().
constexpr std::size_t attention_scratch(int group, int head_dim) {
  const std::size_t dim = (static_cast<std::size_t>(head_dim) + 15) / 16 * 16;
  const std::size_t queries =
      static_cast<std::size_t>(kAttentionRows) * static_cast<std::size_t>(group);
  // queries and accumulators, probabilities, sums (16 lanes) and maxima, transposed keys, a row of
  // zeros
  return queries * (2 * dim + kAttentionTile + 16 + 1) + 64 + dim * kAttentionTile + dim;
}

/// What a feed-forward part does between its products; see activate().
enum class Gate : std::uint8_t {
  silu,       // g / (1 + exp(-g))
  gelu,       // g / 2 * (1 + erf(g / sqrt 2)); erf is within 2e-7
  gelu_tanh,  // g / 2 * (1 + tanh(sqrt(2 / pi) (g + 0.044715 g^3)))
  clamped,    // min(g, limit) / (1 + exp(-alpha min(g, limit))); up is clamped, too, and 1 is added
};

struct Activate {
  Gate gate = Gate::silu;
  bool gated = true;  // times up, else the gate alone
  float limit = 0;    // clamped
  float alpha = 1;
};

/// Largest value of a row and what is wrong with it.
struct RowMax {
  float value = 0;
  std::int32_t index = 0;  // lowest index of the largest value
  bool bad = false;        // a NaN or +infinity among the values, or all of them -infinity
};

constexpr int kExpBlock = 256;  // exp_sums() gives one sum for so many values

struct Kernels {
  const char* name;
  void (*linear)(const LinearTask& task);
  void (*attention)(const AttentionTask& task);
  /// y = x / sqrt(mean(x^2) + eps) * weight. The squares are summed in 16 lanes, then pairwise.
  /// y may be x.
  void (*rms_norm)(const float* x, const float* weight, float* y, int n, float eps);
  /// Rotates the first `dims` components of `heads` vectors of head_dim at x in place: pairs
  /// (i, i + dims / 2), one angle each.
  void (*rope)(float* x, int heads, int head_dim, int dims, const float* cos, const float* sin);
  void (*widen_bf16)(const std::uint16_t* x, float* y, std::int64_t n);
  /// y = exp(x); relative error below 2 ulp, 0 below -87.3.
  void (*exp)(const float* x, float* y, std::int64_t n);
  RowMax (*row_max)(const float* x, std::int64_t n);
  /// y = exp((x - shift) * factor), and the sum of every kExpBlock values, in 16 lanes, then
  /// pairwise.
  void (*exp_sums)(const float* x, std::int64_t n, float shift, float factor, float* y,
                   float* sums);
  /// Writes the ascending indices of the values >= limit, at most `capacity`; returns how many
  /// there are.
  std::int64_t (*collect_ge)(const float* x, std::int64_t n, float limit, std::int32_t* indices,
                             std::int64_t capacity);
  /// The same as rope() with pairs (2i, 2i + 1).
  void (*rope_interleaved)(float* x, int heads, int head_dim, int dims, const float* cos,
                           const float* sin);
  /// y = (x - mean) / sqrt(variance + eps) * weight (+ bias, which may be null). Both sums as in
  /// rms_norm(). y may be x.
  void (*layer_norm)(const float* x, const float* weight, const float* bias, float* y, int n,
                     float eps);
  /// y = gate of g (times up, [n] each). Both biases, added first, may be null; y may be g.
  void (*activate)(const Activate& how, const float* g, const float* g_bias, const float* up,
                   const float* up_bias, float* y, int n);
  /// x = cap * tanh(x / cap), within cap * 2e-7.
  void (*soft_cap)(float* x, std::int64_t n, float cap);
  /// x += (y + bias) * factor; bias may be null.
  void (*add_scaled)(const float* y, const float* bias, float factor, float* x, int n);
};

enum class Isa : std::uint8_t { best, avx2, avx512 };

/// Whether this CPU runs the variant (`best`: any of them).
bool isa_supported(Isa isa);

/// The kernels of a variant that isa_supported(). `best` prefers the wider one.
const Kernels& kernels(Isa isa = Isa::best);

namespace detail {
extern const Kernels kAvx2Kernels;
extern const Kernels kAvx512Kernels;
}  // namespace detail

}  // namespace baton::cpu
