#include "workers/cpu/step_ops.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>

#include "workers/cpu/grouped.h"

namespace baton::cpu {
namespace {

/// Multiply-adds worth handing to another core: about a microsecond of work. Less is done in place.
constexpr std::int64_t kWorthSharing = 32 * 1024;
/// Rows that pass over a group of panels together: enough to use the weights often, few enough to
/// stay in the second-level cache.
constexpr int kRowBlock = 48;
constexpr int kChunksPerThread = 4;

int ceil_div(std::int64_t a, std::int64_t b) { return static_cast<int>((a + b - 1) / b); }

/// Panels that stay together: one to three rows go through four at a time; see linear_impl.h.
int panel_step(int rows, const PackedMatrix& w) { return rows <= 3 ? 4 : w.paired ? 2 : 1; }

RoundedRow rounded_row(const PackedMatrix& w) { return RoundedRow::of(w.in, w.type, w.format); }

float* aligned(std::vector<float>& v) {
  const auto address = reinterpret_cast<std::uintptr_t>(v.data());
  return v.data() + (64 - address % 64) % 64 / sizeof(float);
}

}  // namespace

StepOps::StepOps(int threads, Isa isa, HeadShape shape)
    : kernels_(kernels(isa)), integers_(integer_kernels(isa)), shape_(shape), pool_(threads) {
  const std::size_t floats = attention_scratch(shape.group(), shape.head_dim) + 16;
  scratch_.assign(static_cast<std::size_t>(pool_.threads()), std::vector<float>(floats));
}

void StepOps::embed(const void* table, WeightType type, std::span<const std::int32_t> ids, Rows y) {
  const std::int64_t n = y.columns;
  for (int r = 0; r < y.rows; ++r) {
    const std::int64_t from = ids[static_cast<std::size_t>(r)] * n;
    if (type == WeightType::bf16) {
      kernels_.widen_bf16(static_cast<const std::uint16_t*>(table) + from, y.row(r), n);
    } else {
      std::memcpy(y.row(r), static_cast<const float*>(table) + from,
                  static_cast<std::size_t>(n) * sizeof(float));
    }
  }
}

void StepOps::embed(const PackedMatrix& table, std::span<const std::int32_t> ids, Rows y) {
  // A row lies in as many lines of memory as it has inputs: threads share the waiting.
  pool_.run(y.rows,
            [&](int r, int) { widen_row(table, ids[static_cast<std::size_t>(r)], y.row(r)); });
}

int StepOps::rows_each(std::int64_t columns) {
  return std::max(1, static_cast<int>(kWorthSharing / 4 / columns));
}

void StepOps::norm(Rows x, const NormWeights& w, Rows y) {
  const int columns = static_cast<int>(x.columns);
  if (w.layer) {
    return for_rows(x.rows, x.columns, [&](int r) {
      kernels_.layer_norm(x.row(r), w.weight, w.bias, y.row(r), columns, w.eps);
    });
  }
  for_rows(x.rows, x.columns,
           [&](int r) { kernels_.rms_norm(x.row(r), w.weight, y.row(r), columns, w.eps); });
}

void StepOps::add(Rows y, const float* bias, float factor, Rows x) {
  const int columns = static_cast<int>(x.columns);
  for_rows(x.rows, x.columns,
           [&](int r) { kernels_.add_scaled(y.row(r), bias, factor, x.row(r), columns); });
}

void StepOps::add_bias(const float* bias, Rows x) {
  const int columns = static_cast<int>(x.columns);
  for_rows(x.rows, x.columns,
           [&](int r) { kernels_.add_scaled(bias, nullptr, 1.0F, x.row(r), columns); });
}

void StepOps::scale(float factor, Rows x) {
  for_rows(x.rows, x.columns, [&](int r) {
    float* row = x.row(r);
    for (std::int64_t i = 0; i < x.columns; ++i) row[i] *= factor;
  });
}

void StepOps::soft_cap(float cap, Rows x) {
  for_rows(x.rows, x.columns, [&](int r) { kernels_.soft_cap(x.row(r), x.columns, cap); });
}

void StepOps::activate(Rows x, const Activate& how, const float* bias, Rows y) {
  const int columns = static_cast<int>(how.gated ? x.columns / 2 : x.columns);
  const float* up_bias = bias == nullptr || !how.gated ? nullptr : bias + columns;
  for_rows(x.rows, x.columns, [&](int r) {
    const float* up = how.gated ? x.row(r) + columns : nullptr;
    kernels_.activate(how, x.row(r), bias, up, up_bias, y.row(r), columns);
  });
}

void StepOps::sigmoid(Rows x) {
  for (int r = 0; r < x.rows; ++r) {
    float* row = x.row(r);
    for (std::int64_t i = 0; i < x.columns; ++i) row[i] = -row[i];
    kernels_.exp(row, row, x.columns);
    for (std::int64_t i = 0; i < x.columns; ++i) row[i] = 1.0F / (1.0F + row[i]);
  }
}

void StepOps::add_gated(Rows y, Rows gate, Rows x) {
  sigmoid(gate);
  const int columns = static_cast<int>(x.columns);
  for_rows(x.rows, x.columns,
           [&](int r) { kernels_.add_scaled(y.row(r), nullptr, *gate.row(r), x.row(r), columns); });
}

LinearTask StepOps::Grid::task(int chunk, const Rows& x, const PackedMatrix& w,
                               const Rows& y) const {
  const int block = chunk % row_blocks;
  const int group = chunk / row_blocks;
  const int first_row = static_cast<int>(std::int64_t{rows} * block / row_blocks);
  const int end_row = static_cast<int>(std::int64_t{rows} * (block + 1) / row_blocks);
  LinearTask t;
  t.x = x.row(first_row);
  t.x_stride = x.columns;
  t.rows = end_row - first_row;
  t.k = w.in;
  t.panels = w.panels;
  t.type = w.type;
  t.format = w.format;
  t.first_panel = group * panels_each;
  t.panel_count = std::min(panels_each, panels - t.first_panel);
  t.columns = w.out;
  t.y = y.row(first_row);
  t.y_stride = y.columns;
  return t;
}

StepOps::Grid StepOps::grid_for(const Rows& x, const PackedMatrix& w, int panel_step) const {
  Grid grid;
  grid.rows = x.rows;
  grid.panels = w.panel_count;
  grid.row_blocks = std::max(1, ceil_div(x.rows, kRowBlock));
  const std::int64_t work = std::int64_t{x.rows} * w.panel_count * kPanelColumns * w.in;
  const std::int64_t wanted = std::clamp<std::int64_t>(
      work / kWorthSharing, 1, pool_.threads() == 1 ? 1 : pool_.threads() * kChunksPerThread);
  const int groups = ceil_div(wanted, grid.row_blocks);
  grid.panels_each = ceil_div(ceil_div(w.panel_count, groups), panel_step) * panel_step;
  grid.panel_groups = ceil_div(w.panel_count, grid.panels_each);
  return grid;
}

void StepOps::make_room(const Rows& x, std::int64_t row_bytes) {
  rounded_stride_ = row_bytes;
  const auto bytes = static_cast<std::size_t>(x.rows * row_bytes);
  if (rounded_.size() < bytes) rounded_.resize(bytes);
}

void StepOps::round_inputs(const Rows& x, int first, int rows, const PackedMatrix& w) {
  if (!w.format.rounds_inputs) return;
  const RoundedRow row = rounded_row(w);
  for_rows(rows, w.in, [&](int r) {
    integers_.round_row(x.row(first + r), row, rounded_.data() + (first + r) * rounded_stride_);
  });
}

void StepOps::round_inputs(const Rows& x, const PackedMatrix& w) {
  if (!w.format.rounds_inputs) return;
  make_room(x, rounded_row(w).bytes());
  round_inputs(x, 0, x.rows, w);
}

void StepOps::multiply(LinearTask task, const Rows& x) const {
  if (!task.format.rounds_inputs) return kernels_.linear(task);
  const std::int64_t first_row = (task.x - x.data) / x.columns;
  task.rounded = rounded_.data() + first_row * rounded_stride_;
  task.rounded_stride = rounded_stride_;
  integers_.linear(task);
}

void StepOps::linear(Rows x, const PackedMatrix& w, Epilogue epilogue, Rows y) {
  if (x.rows == 0) return;
  round_inputs(x, w);
  const Grid grid = grid_for(x, w, panel_step(x.rows, w));
  pool_.run(grid.chunks(), [&](int chunk, int) {
    LinearTask task = grid.task(chunk, x, w, y);
    task.epilogue = epilogue;
    multiply(task, x);
  });
}

void StepOps::linear_groups(Rows x, std::span<const LinearGroup> groups, Epilogue epilogue,
                            Rows y) {
  const auto part = [](const Rows& all, const LinearGroup& group) {
    return Rows{all.row(group.first), group.rows, all.columns};
  };
  grids_.clear();
  end_chunks_.clear();
  int chunks = 0;
  for (const LinearGroup& group : groups) {
    grids_.push_back(grid_for(part(x, group), *group.w, panel_step(group.rows, *group.w)));
    chunks += grids_.back().chunks();
    end_chunks_.push_back(chunks);
  }
  if (chunks == 0) return;
  std::int64_t row_bytes = 0;
  for (const LinearGroup& group : groups) {
    if (group.w->format.rounds_inputs)
      row_bytes = std::max(row_bytes, rounded_row(*group.w).bytes());
  }
  make_room(x, row_bytes);
  for (const LinearGroup& group : groups) round_inputs(x, group.first, group.rows, *group.w);
  pool_.run(chunks, [&](int chunk, int) {
    const auto end = std::upper_bound(end_chunks_.begin(), end_chunks_.end(), chunk);
    const auto i = static_cast<std::size_t>(end - end_chunks_.begin());
    const LinearGroup& group = groups[i];
    const Grid& grid = grids_[i];
    const int within = chunk - (*end - grid.chunks());
    LinearTask task = grid.task(within, part(x, group), *group.w, part(y, group));
    task.epilogue = epilogue;
    multiply(task, x);
  });
}

void StepOps::softmax(Rows x) {
  for (int r = 0; r < x.rows; ++r) {
    float* row = x.row(r);
    const float largest = *std::max_element(row, row + x.columns);
    for (std::int64_t i = 0; i < x.columns; ++i) row[i] -= largest;
    kernels_.exp(row, row, x.columns);
    float sum = 0;
    for (std::int64_t i = 0; i < x.columns; ++i) sum += row[i];
    for (std::int64_t i = 0; i < x.columns; ++i) row[i] /= sum;
  }
}

void StepOps::gather(Rows x, std::span<const int> index, Rows y) {
  for (std::size_t i = 0; i < index.size(); ++i) {
    std::copy_n(x.row(index[i]), x.columns, y.row(static_cast<int>(i)));
  }
}

void StepOps::add_experts(const ExpertPlan& plan, Rows y, Rows x) {
  constexpr std::int64_t kBlock = 256;  // columns summed before they are added
  const int rows_each = std::max(1, static_cast<int>(kWorthSharing / 4 / x.columns));
  pool_.run(ceil_div(x.rows, rows_each), [&](int chunk, int) {
    std::array<float, kBlock> sum{};
    const int end = std::min(x.rows, (chunk + 1) * rows_each);
    for (int r = chunk * rows_each; r < end; ++r) {
      for (std::int64_t begin = 0; begin < x.columns; begin += kBlock) {
        const auto n = static_cast<std::size_t>(std::min(kBlock, x.columns - begin));
        sum.fill(0.0F);
        for (const ExpertPlan::Choice& choice : plan.of_row(r)) {
          const float* from = y.row(choice.line) + begin;
          for (std::size_t i = 0; i < n; ++i) sum[i] += choice.weight * from[i];
        }
        float* to = x.row(r) + begin;
        for (std::size_t i = 0; i < n; ++i) to[i] += sum[i];
      }
    }
  });
}

void StepOps::qkv_rope_append(Rows x, const PackedMatrix& w, const QkvFinish& finish,
                              std::span<const RowPlace> places, KvLayer kv, Rows qkv) {
  if (x.rows == 0) return;
  if (finish.whole) {  // what it finishes is wider than a chunk
    linear(x, w, Epilogue::store, qkv);
    finish_whole(qkv, finish, shape_);
    return rope_append(qkv, finish, places, kv);
  }
  // A chunk holds whole heads, so that it can finish what it has just computed.
  const int head_panels = std::lcm(kPanelColumns, shape_.head_dim) / kPanelColumns;
  const Grid grid = grid_for(x, w, head_panels);
  round_inputs(x, w);
  pool_.run(grid.chunks(), [&](int chunk, int) {
    const LinearTask task = grid.task(chunk, x, w, qkv);
    multiply(task, x);
    const int first_column = task.first_panel * kPanelColumns;
    const int end_column = std::min(w.out, (task.first_panel + task.panel_count) * kPanelColumns);
    const int first_row = static_cast<int>((task.y - qkv.data) / qkv.columns);
    for (int r = first_row; r < first_row + task.rows; ++r) {
      append_heads(qkv, r, first_column, end_column, finish, places[static_cast<std::size_t>(r)],
                   kv);
    }
  });
}

void StepOps::finish_whole(Rows qkv, const QkvFinish& finish, HeadShape all) {
  for_rows(qkv.rows, qkv.columns, [&](int r) { finish_row(qkv.row(r), finish, all); });
}

void StepOps::rope_append(Rows qkv, const QkvFinish& finish, std::span<const RowPlace> places,
                          KvLayer kv) {
  const int columns = (shape_.heads + 2 * shape_.kv_heads) * shape_.head_dim;
  const QkvFinish rest{nullptr, nullptr, nullptr, 0, false, finish.rope_dims, finish.interleaved};
  for_rows(qkv.rows, qkv.columns, [&](int r) {
    append_heads(qkv, r, 0, columns, rest, places[static_cast<std::size_t>(r)], kv);
  });
}

/// Adds the bias to heads [first, end) of the row at `values`, norms those of q and k.
void StepOps::finish_heads(float* values, int first, int end, const QkvFinish& finish) const {
  const int dim = shape_.head_dim;
  if (finish.bias != nullptr) {
    for (int c = first * dim; c < end * dim; ++c) values[c] += finish.bias[c];
  }
  for (int head = first; head < std::min(end, shape_.heads + shape_.kv_heads); ++head) {
    const float* weight = head < shape_.heads ? finish.q_norm : finish.k_norm;
    float* x = values + std::int64_t{head} * dim;
    if (weight != nullptr) kernels_.rms_norm(x, weight, x, dim, finish.eps);
  }
}

/// The same for all heads of a row, whose norms are of all of q and of all of k.
void StepOps::finish_row(float* values, const QkvFinish& finish, HeadShape all) const {
  const int q = all.heads * all.head_dim;
  const int k = all.kv_heads * all.head_dim;
  if (finish.bias != nullptr) {
    for (int c = 0; c < q + 2 * k; ++c) values[c] += finish.bias[c];
  }
  kernels_.rms_norm(values, finish.q_norm, values, q, finish.eps);
  kernels_.rms_norm(values + q, finish.k_norm, values + q, k, finish.eps);
}

/// Completes the heads in columns [first, end) of one row: bias and norm, rotates q and k, writes k
/// and v to the pool.
void StepOps::append_heads(const Rows& qkv, int row, int first_column, int end_column,
                           const QkvFinish& finish, const RowPlace& place,
                           const KvLayer& kv) const {
  const int dim = shape_.head_dim;
  const int first = first_column / dim;
  const int end = end_column / dim;
  float* values = qkv.row(row);
  finish_heads(values, first, end, finish);
  const int rotated = std::min(end, shape_.heads + shape_.kv_heads);
  if (first < rotated && place.cos != nullptr) {
    const auto rope = finish.interleaved ? kernels_.rope_interleaved : kernels_.rope;
    rope(values + std::int64_t{first} * dim, rotated - first, dim, finish.rope_dims, place.cos,
         place.sin);
  }
  if (place.query_factor != 1) {
    const int queries = std::max(std::min(end, shape_.heads) - first, 0);
    float* q = values + std::int64_t{first} * dim;
    for (int i = 0; i < queries * dim; ++i) q[i] *= place.query_factor;
  }
  if (!kv.writes) return;
  const KvGeometry& g = *kv.geometry;
  for (int head = std::max(first, shape_.heads); head < end; ++head) {
    const int kv_index = head - shape_.heads;
    const auto part = kv_index < shape_.kv_heads ? KvPart::key : KvPart::value;
    const auto kv_head = kv.first_head + static_cast<std::uint32_t>(kv_index % shape_.kv_heads);
    std::byte* to = kv.base + place.slot + kv_offset_in_block(g, kv.layer, part, kv_head, 0);
    std::memcpy(to, values + std::int64_t{head} * dim,
                static_cast<std::size_t>(dim) * sizeof(float));
  }
}

void StepOps::attention(Rows qkv, std::span<const Segment> segments, const AttentionRule& rule,
                        KvLayer kv, Rows out) {
  items_.clear();
  std::int64_t work = 0;
  for (std::size_t i = 0; i < segments.size(); ++i) {
    const Segment& segment = segments[i];
    std::int64_t keys = segment.position + segment.rows;
    if (rule.window > 0) keys = std::min<std::int64_t>(keys, rule.window);
    work += segment.rows * keys * 2 * out.columns;
    for (int first = 0; first < segment.rows; first += kAttentionRows) {
      const int rows = std::min(kAttentionRows, segment.rows - first);
      for (int head = 0; head < shape_.kv_heads; ++head) {
        items_.push_back({static_cast<std::uint32_t>(i), first, rows, head});
      }
    }
  }
  const auto n = static_cast<int>(items_.size());
  const int chunks =
      static_cast<int>(std::clamp<std::int64_t>(work / kWorthSharing, 1, std::max(n, 1)));
  if (n == 0) return;
  pool_.run(chunks, [&](int chunk, int thread) {
    float* scratch = aligned(scratch_[static_cast<std::size_t>(thread)]);
    const auto end = static_cast<int>(std::int64_t{n} * (chunk + 1) / chunks);
    auto i = static_cast<int>(std::int64_t{n} * chunk / chunks);
    AttentionTask task = task_of(items_[static_cast<std::size_t>(i)], qkv, segments, rule, kv, out);
    for (; i < end; ++i) {
      AttentionTask following;
      if (i + 1 < end) {
        following = task_of(items_[static_cast<std::size_t>(i) + 1], qkv, segments, rule, kv, out);
        task.next = &following;
      }
      task.scratch = scratch;
      kernels_.attention(task);
      task = following;
    }
  });
}

AttentionTask StepOps::task_of(const AttentionItem& item, const Rows& qkv,
                               std::span<const Segment> segments, const AttentionRule& rule,
                               const KvLayer& kv, const Rows& out) const {
  const Segment& segment = segments[item.segment];
  const KvGeometry& g = *kv.geometry;
  const auto head = kv.first_head + static_cast<std::uint32_t>(item.kv_head);
  const int row = segment.first_row + item.first;
  const std::int64_t column = std::int64_t{item.kv_head} * shape_.group() * shape_.head_dim;
  AttentionTask t;
  t.q = qkv.row(row) + column;
  t.q_stride = qkv.columns;
  t.out = out.row(row) + column;
  t.out_stride = out.columns;
  t.rows = item.rows;
  t.group = shape_.group();
  t.head_dim = shape_.head_dim;
  t.position = segment.position + item.first;
  t.window = rule.window;
  t.soft_cap = rule.soft_cap;
  if (rule.sinks != nullptr) t.sinks = rule.sinks + item.kv_head * shape_.group();
  t.keys = kv.base + kv_offset_in_block(g, kv.layer, KvPart::key, head, 0);
  t.values = kv.base + kv_offset_in_block(g, kv.layer, KvPart::value, head, 0);
  if (rule.latent) t.values = t.keys;
  t.block_bytes = g.block_bytes;
  t.block_table = segment.block_table + kv.group;
  t.table_stride = g.groups.count;
  t.tokens_per_block = g.tokens_per_block;
  t.scale = rule.scale;
  return t;
}

}  // namespace baton::cpu
