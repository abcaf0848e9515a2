// The operations of one forward step over all its rows: kernels.h split over a thread pool.
// Torch-free.
//
// A step's rows are the tokens of its segments, one after another; a segment is a run of
// consecutive positions of one sequence (a prompt chunk, or one decode token).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "ipc/kv_layout.h"
#include "workers/cpu/experts.h"
#include "workers/cpu/integer.h"
#include "workers/cpu/kernels.h"
#include "workers/cpu/packing.h"
#include "workers/cpu/thread_pool.h"

namespace baton::cpu {

/// A matrix of activations [rows, columns], dense rows.
struct Rows {
  float* data = nullptr;
  int rows = 0;
  std::int64_t columns = 0;
  float* row(int r) const { return data + r * columns; }
};

struct Segment {
  int first_row = 0;
  int rows = 0;
  std::int64_t position = 0;                   // of its first row
  const std::uint32_t* block_table = nullptr;  // covers position + rows tokens, for each group
};

/// Where a row's token is: its angles and its slot in the pool.
struct RowPlace {
  const float* cos = nullptr;  // [dims / 2] of the rotation; null: nothing turns
  const float* sin = nullptr;
  std::uint64_t slot = 0;  // bytes from the pool's base to (block, layer 0, K, head 0, token)
  float query_factor = 1;  // queries are multiplied by it
};

struct HeadShape {
  int heads = 0;
  int kv_heads = 0;
  int head_dim = 0;
  int group() const { return heads / kv_heads; }
};

/// What happens to q, k and v between the product and the rotation. Null: nothing.
struct QkvFinish {
  const float* bias = nullptr;    // [(heads + 2 kv_heads) * head_dim], added
  const float* q_norm = nullptr;  // [head_dim]: every head of q becomes rms_norm(head) * weight
  const float* k_norm = nullptr;
  float eps = 0;
  bool whole = false;        // the norms are of all of q and of all of k: [heads * head_dim]
  int rope_dims = 0;         // components of each head that turn
  bool interleaved = false;  // in pairs of neighbours
};

/// Of attention over latent keys and values: a token leaves rank + rope numbers, one key for all
/// heads, whose first `rank` numbers are the value as well.
struct LatentShape {
  int rank = 0;
  int rope = 0;
  int plain = 0;  // components of a query that do not turn
  int width() const { return rank + rope; }
};

/// How one layer's queries look at its keys.
struct AttentionRule {
  int window = 0;  // keys that a query sees at most, its own among them; 0: all
  float scale = 0;
  float soft_cap = 0;            // 0: none
  const float* sinks = nullptr;  // [heads]; null: none
  bool latent = false;           // keys lie over the pool's key and value parts, and are the values
};

/// A norm's weights, [columns].
struct NormWeights {
  const float* weight = nullptr;
  const float* bias = nullptr;  // may be null
  float eps = 0;
  bool layer = false;  // layer norm, else rms norm
};

/// One layer of a paged fp32 pool. Of a rank (workers/model/cut.h): its heads alone.
struct KvLayer {
  std::byte* base = nullptr;  // of the pool
  const KvGeometry* geometry = nullptr;
  std::uint32_t layer = 0;       // in the blocks of ...
  std::uint32_t group = 0;       // ... its group (geometry->groups)
  std::uint32_t first_head = 0;  // of the pool's: where HeadShape::kv_heads begin
  bool writes = true;            // false: another rank writes the same heads
};

/// Rows [first, first + rows) of a matrix go through `w`.
struct LinearGroup {
  const PackedMatrix* w = nullptr;
  int first = 0;
  int rows = 0;
};

/// Row r of every result depends, to the bit, on row r of the inputs (and its own keys and values)
/// alone: not on the other rows, their number, the number of threads, or the vector width.
class StepOps {
 public:
  StepOps(int threads, Isa isa, HeadShape shape);

  const char* isa_name() const { return kernels_.name; }
  int threads() const { return pool_.threads(); }
  /// As ThreadPool::count_chunks(); before the first step.
  void count_chunks(std::atomic<std::uint32_t>* progress) { pool_.count_chunks(progress); }

  /// y[r] = table[ids[r]]: `table` is [vocab, y.columns] of bf16 or f32.
  void embed(const void* table, WeightType type, std::span<const std::int32_t> ids, Rows y);
  /// The same with the rows of a packed matrix of whole numbers.
  void embed(const PackedMatrix& table, std::span<const std::int32_t> ids, Rows y);
  /// y = norm(x); y may be x.
  void norm(Rows x, const NormWeights& weights, Rows y);
  /// x += (y + bias) * factor; bias, [columns], may be null.
  void add(Rows y, const float* bias, float factor, Rows x);
  /// x += bias, in every row.
  void add_bias(const float* bias, Rows x);
  /// x *= factor.
  void scale(float factor, Rows x);
  /// x = cap * tanh(x / cap).
  void soft_cap(float cap, Rows x);
  /// y = gate(g + bias) (* (up + bias)): x is [rows, g | up] or [rows, g], as is the bias, which
  /// may be null; y may be columns of wider rows.
  void activate(Rows x, const Activate& how, const float* bias, Rows y);
  /// x[r] += sigmoid(gate[r]) * y[r]: `gate` is [rows, 1].
  void add_gated(Rows y, Rows gate, Rows x);
  /// x = 1 / (1 + exp(-x)).
  void sigmoid(Rows x);
  /// y (op)= w x.
  void linear(Rows x, const PackedMatrix& w, Epilogue epilogue, Rows y);
  /// The same for groups of rows, each through a matrix of its own, all of the same shape.
  void linear_groups(Rows x, std::span<const LinearGroup> groups, Epilogue epilogue, Rows y);
  /// x[r] = exp(x[r] - max) / sum; the sum is taken in ascending order.
  void softmax(Rows x);
  /// y[i] = x[index[i]].
  void gather(Rows x, std::span<const int> index, Rows y);
  /// x[r] += sum over the row's choices, in their order, of weight * y[line].
  void add_experts(const ExpertPlan& plan, Rows y, Rows x);
  /// qkv = w x, [rows, (heads + 2 kv_heads) * head_dim], finished; rotates q and k; writes k and v
  /// to the pool.
  void qkv_rope_append(Rows x, const PackedMatrix& w, const QkvFinish& finish,
                       std::span<const RowPlace> places, KvLayer kv, Rows qkv);
  /// The two steps of the same for norms over all of q and k, of which each rank has a part: first
  /// bias and norms of whole rows of all heads, then the rest for a row's own heads.
  void finish_whole(Rows qkv, const QkvFinish& finish, HeadShape all);
  void rope_append(Rows qkv, const QkvFinish& finish, std::span<const RowPlace> places, KvLayer kv);
  /// out[r] = attention of the q part of qkv[r] over its sequence's keys and values up to itself,
  /// inside the window.
  /// Segments name rows of `qkv` and `out`, [rows, heads * head_dim].
  void attention(Rows qkv, std::span<const Segment> segments, const AttentionRule& rule, KvLayer kv,
                 Rows out);

  // Of latent keys and values (latent.cpp): `by_head` is [heads * T, ...], the rows of head 0
  // first, `wide` is [T, heads * width()].
  /// kv[r] = its first `rank` numbers normed, the rest turned; goes into the pool.
  void latent_append(Rows kv, const LatentShape& shape, const float* norm, float eps,
                     bool interleaved, std::span<const RowPlace> places, KvLayer layer);
  /// What does not turn of q, [T, heads * (plain + rope)], goes to `by_head`, what turns is turned
  /// and goes behind `rank` numbers of each head of `wide`.
  void latent_split(Rows q, const LatentShape& shape, bool interleaved,
                    std::span<const RowPlace> places, Rows by_head, Rows wide);
  /// The first `width` numbers of each head, which lie `stride` apart in `wide`.
  void heads_to_rows(Rows by_head, int width, int stride, Rows wide);
  void rows_to_heads(Rows wide, int width, int stride, Rows by_head);

 private:
  /// How a product is cut into chunks: row blocks times groups of panels.
  struct Grid {
    int row_blocks = 1;
    int panel_groups = 1;
    int panels_each = 0;
    int rows = 0;
    int panels = 0;

    int chunks() const { return row_blocks * panel_groups; }
    /// Chunks that share weights come one after another.
    LinearTask task(int chunk, const Rows& x, const PackedMatrix& w, const Rows& y) const;
  };
  Grid grid_for(const Rows& x, const PackedMatrix& w, int panel_step) const;
  /// Rounds x for `w`, if its format asks for it.
  void round_inputs(const Rows& x, const PackedMatrix& w);
  /// The same of rows [first, first + rows), for which there is room.
  void round_inputs(const Rows& x, int first, int rows, const PackedMatrix& w);
  /// Room for x's rows rounded for these matrices.
  void make_room(const Rows& x, std::int64_t row_bytes);
  /// A task whose rows are some of x's, through the kernel of its format.
  void multiply(LinearTask task, const Rows& x) const;
  /// Runs f(row) for all rows, several of them at a time on every thread.
  template <class F>
  void for_rows(int rows, std::int64_t columns, F&& f) {
    const int each = rows_each(columns);
    pool_.run((rows + each - 1) / each, [&](int chunk, int) {
      const int end = std::min(rows, (chunk + 1) * each);
      for (int r = chunk * each; r < end; ++r) f(r);
    });
  }
  static int rows_each(std::int64_t columns);
  void finish_heads(float* values, int first, int end, const QkvFinish& finish) const;
  void finish_row(float* values, const QkvFinish& finish, HeadShape all) const;
  void append_heads(const Rows& qkv, int row, int first_column, int end_column,
                    const QkvFinish& finish, const RowPlace& place, const KvLayer& kv) const;
  struct AttentionItem {
    std::uint32_t segment;
    std::int32_t first;  // row within the segment
    std::int32_t rows;
    std::int32_t kv_head;
  };
  AttentionTask task_of(const AttentionItem& item, const Rows& qkv,
                        std::span<const Segment> segments, const AttentionRule& rule,
                        const KvLayer& kv, const Rows& out) const;

  const Kernels& kernels_;
  const IntegerKernels& integers_;
  HeadShape shape_;
  ThreadPool pool_;
  std::vector<std::byte> rounded_;  // inputs of the product at hand (RoundedRow)
  std::int64_t rounded_stride_ = 0;
  std::vector<std::vector<float>> scratch_;  // one a thread
  std::vector<AttentionItem> items_;
  std::vector<Grid> grids_;      // of linear_groups()
  std::vector<int> end_chunks_;  // of each of them
};

}  // namespace baton::cpu
