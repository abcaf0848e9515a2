#include "workers/execute/gpu_step.h"

#include <algorithm>
#include <cstring>

#include "workers/execute/upload_places.h"

namespace baton {

namespace {

/// Padding writes nothing to the pool.
constexpr std::int64_t kNoSlot = -1;

/// Parts of the upload that are for other devices, and rows whose pieces they compute.
struct TravelPlaces {
  TravelPlaces() = default;
  TravelPlaces(UploadPlaces& places, const GpuPools& pools, std::size_t rows)
      : merges(places.take<cuda::DecodeItem>(rows)),
        items(places.take<cuda::DecodeItem>(GpuStepPacker::kTravelSlots)),
        counts(places.take<std::int32_t>(pools.others.size())),
        held(places.take<std::int64_t>(pools.held.size())) {}
  UploadPlaces::Array<cuda::DecodeItem> merges;
  UploadPlaces::Array<cuda::DecodeItem> items;  // of one of the others after the other
  UploadPlaces::Array<std::int32_t> counts;     // likewise
  UploadPlaces::Array<std::int64_t> held;       // by pool
};

/// What the others are given to do. `tables`: as the items' first_block counts.
cuda::TravelWork lay_out(const cuda::TravelPlan& plan, const GpuPools& pools,
                         const TravelPlaces& to, const std::int32_t* tables) {
  cuda::TravelWork work;
  std::copy(plan.merges.begin(), plan.merges.end(), to.merges.host);
  work.merges = to.merges.device;
  work.rows = static_cast<int>(plan.merges.size());
  std::copy(pools.held.begin(), pools.held.end(), to.held.host);
  std::size_t end = 0;  // of the items
  for (std::size_t i = 0; i < pools.others.size(); ++i) {
    const auto& items = plan.items[i + 1];
    if (items.empty()) continue;
    std::copy(items.begin(), items.end(), to.items.host + end);
    to.counts.host[i] = static_cast<std::int32_t>(items.size());
    cuda::TravelPart part;
    part.device = pools.others[i].device;
    part.pool = pools.others[i].pool;
    part.work.items = to.items.device + end;
    part.work.n_items = to.counts.device + i;
    part.work.rows = work.rows;
    part.work.launch = static_cast<int>(items.size());
    part.work.more_slots = GpuStepPacker::kTravelSlots;
    part.block_table = tables;
    part.pool_offsets = to.held.device;
    work.parts.push_back(part);
    end += items.size();
  }
  return work;
}

/// The own device's pieces of rows that travel, behind those of the others.
void add_own_pieces(const std::vector<cuda::DecodeItem>& pieces, cuda::DecodeItem* items,
                    std::int32_t* n_items, cuda::DecodeWork& work) {
  std::copy(pieces.begin(), pieces.end(), items + *n_items);
  *n_items += static_cast<std::int32_t>(pieces.size());
  work.launch = *n_items;
  work.more_slots = GpuStepPacker::kTravelSlots;
}

/// The kernel passes it over.
void skip(cuda::SampleRow& sample) {
  sample = {};
  sample.logits_row = -1;
}

}  // namespace

cuda::TravelPart moved(const cuda::TravelPart& part, const std::byte* from, const std::byte* to) {
  cuda::TravelPart result = part;
  move_upload(result.work.items, from, to);
  move_upload(result.work.n_items, from, to);
  move_upload(result.block_table, from, to);
  move_upload(result.pool_offsets, from, to);
  return result;
}

GpuStepPacker::GpuStepPacker(const GpuDecoder& decoder, const KvGeometry& geometry)
    : attention_(decoder.decode_attention()),
      near_attention_(decoder.near_decode_attention()),
      geometry_(geometry),
      prefill_(decoder.prefill_attention()),
      most_gathered_keys_(prefill_ == nullptr || decoder.near_prefill_attention() != nullptr
                              ? 0
                              : prefill_->most_gathered_keys()),
      max_wanted_(static_cast<std::size_t>(decoder.max_wanted())),
      edits_(static_cast<std::uint32_t>(decoder.config().vocab)) {}

bool GpuStepPacker::needs_host(const BatchRow& row) {
  return row.ranks || (row.samples() && (row.sampling->typical_p != 1.0F || row.sampling->pools()));
}

bool GpuStepPacker::decodes_only(const RunStep& step) {
  return std::all_of(step.rows.begin(), step.rows.end(), [](const BatchRow& row) {
    return row.tokens.size() == 1 && row.logits == LogitsWanted::last;
  });
}

/// `pools`: the keys of chunks lie in several.
void GpuStepPacker::find_chunks(const RunStep& step, bool pools) {
  is_chunk_.clear();
  const bool gathers = pools || (prefill_ != nullptr && prefill_->always_gathers());
  if (!gathers) {
    for (const BatchRow& row : step.rows) {
      is_chunk_.push_back(prefill_ != nullptr && row.tokens.size() > 1);
    }
    return;
  }
  lengths_.clear();
  for (const BatchRow& row : step.rows) {
    const auto tokens = static_cast<std::int64_t>(row.tokens.size());
    const std::int64_t keys = row.position + tokens;
    lengths_.push_back({tokens, keys, prefill_ == nullptr ? 2 : prefill_->least_rows(keys)});
  }
  is_chunk_ = choose_chunks(lengths_, cuda::PrefillAttention::kGatherTile, most_gathered_keys_);
}

/// The kernel for chunks wants their rows side by side.
void GpuStepPacker::order_rows(const RunStep& step) {
  order_.clear();
  first_row_.assign(step.rows.size(), 0);
  int next = 0;
  for (const bool chunks : {true, false}) {
    for (std::size_t i = 0; i < step.rows.size(); ++i) {
      if (is_chunk_[i] != chunks) continue;
      order_.push_back(static_cast<int>(i));
      first_row_[i] = next;
      next += static_cast<int>(step.rows[i].tokens.size());
    }
  }
}

bool GpuStepPacker::may_travel() const {
  return near_attention_ == nullptr && groups() == 1 && attention_.may_travel();
}

/// `tables` is what single rows' first_block counts from.
void GpuStepPacker::plan_travel(const GpuPools& pools, const std::int32_t* tables) {
  cuda::TravelRules rules;
  rules.device_of_pool = pools.device;
  rules.devices = static_cast<int>(pools.others.size()) + 1;
  rules.tokens_per_block = static_cast<int>(geometry_.tokens_per_block);
  rules.fixed_split = attention_.fixed_split();
  rules.pieces_at_once = attention_.pieces_at_once();
  rules.first_slot = attention_.split_slots();
  rules.slots = kTravelSlots;
  rules.in_place_keys = pools.in_place_keys;
  cuda::plan_travel(singles_, tables, rules, travel_);
}

GpuStepPacker::Packed GpuStepPacker::pack(const RunStep& step, int padded_rows, std::byte* host,
                                          std::byte* device, std::size_t capacity,
                                          const GpuPools* pools) {
  find_chunks(step, pools != nullptr);
  const bool travels = pools != nullptr && !pools->others.empty();
  order_rows(step);
  std::size_t tokens = 0;
  std::size_t wanted = 0;
  std::size_t entries = 0;  // of the tables of one group
  for (const BatchRow& row : step.rows) {
    tokens += row.tokens.size();
    entries += row.blocks.size() / groups();
    if (row.logits == LogitsWanted::none) continue;
    wanted += row.tokens.size() - row.first_logits();
  }
  const std::size_t rows = padded_rows > 0 ? static_cast<std::size_t>(padded_rows) : tokens;
  const std::size_t samples = padded_rows > 0 ? rows : wanted;
  const auto max_items =
      static_cast<std::size_t>(rows == 0 ? 0 : attention_.max_items(static_cast<int>(rows)));
  const std::size_t near_items = near_attention_ == nullptr ? 0 : max_items;

  Packed packed;
  // First what a graph needs at fixed places, then what varies: that is named by index.
  UploadPlaces places(host, device, capacity);
  const auto d_tokens = places.take<std::int32_t>(rows);
  const auto d_positions = places.take<std::int32_t>(rows);
  const auto d_slots = places.take<std::int64_t>(groups() * rows);
  const auto d_wanted = places.take<std::int32_t>(samples);
  const auto d_samples = places.take<cuda::SampleRow>(samples);
  const auto d_n_items = places.take<std::int32_t>(1);
  const auto d_items = places.take<cuda::DecodeItem>(max_items + (travels ? kTravelSlots : 0));
  const auto d_n_near = places.take<std::int32_t>(near_items > 0 ? 1 : 0);
  const auto d_near = places.take<cuda::DecodeItem>(near_items);
  const auto d_offsets = places.take<std::int64_t>(pools == nullptr ? 0 : pools->offsets.size());
  const TravelPlaces far = travels ? TravelPlaces(places, *pools, rows) : TravelPlaces();
  const auto d_shifts = places.take<std::int32_t>(groups() > 1 ? groups() : 0);
  const auto d_table = places.take<std::int32_t>(groups() * entries);
  packed.too_large = places.full();
  if (packed.too_large) return packed;
  auto* const words = reinterpret_cast<std::int32_t*>(host);
  const auto index_of = [&](const std::int32_t* p) { return static_cast<int>(p - words); };

  place_rows(step, {d_tokens.host, d_positions.host, d_slots.host, rows, d_table.host, entries,
                    index_of(d_table.host)});
  for (std::size_t r = tokens; r < rows; ++r) {
    d_tokens.host[r] = 0;
    d_positions.host[r] = 0;
    for (std::size_t g = 0; g < groups(); ++g) d_slots.host[g * rows + r] = kNoSlot;
  }
  if (groups() > 1) {
    for (std::size_t g = 0; g < groups(); ++g) {
      d_shifts.host[g] = static_cast<std::int32_t>(g * entries);
    }
  }

  WordArea area{words, places.used() / sizeof(std::int32_t), capacity / sizeof(std::int32_t)};
  const std::size_t w =
      pack_samples(step, samples <= max_wanted_, d_samples.host, d_wanted.host, area, packed);
  for (std::size_t i = w; i < samples; ++i) {
    skip(d_samples.host[i]);
    d_wanted.host[i] = 0;
  }
  packed.bytes = area.used * sizeof(std::int32_t);

  GpuBatch& b = packed.batch;
  b.rows = static_cast<int>(rows);
  b.tokens = d_tokens.device;
  b.positions = d_positions.device;
  b.slots = d_slots.device;
  b.block_table = reinterpret_cast<const std::int32_t*>(device);
  b.table_entries = static_cast<int>(entries);
  b.table_shifts = d_shifts.device;
  if (pools != nullptr) {
    std::copy(pools->offsets.begin(), pools->offsets.end(), d_offsets.host);
    b.pool_offsets = d_offsets.device;
  }
  if (travels) {
    plan_travel(*pools, words);
    packed.travel = lay_out(travel_, *pools, far, b.block_table);
    packed.keys_elsewhere = travel_.keys_elsewhere;
  }
  b.singles.items = d_items.device;
  b.singles.n_items = d_n_items.device;
  if (max_items > 0) {
    plan_singles(attention_, travels ? travel_.others : singles_, padded_rows, d_items.host,
                 d_n_items.host, b.singles);
    if (!packed.travel.parts.empty()) {
      add_own_pieces(travel_.items.front(), d_items.host, d_n_items.host, b.singles);
    }
  }
  b.near_singles.items = d_near.device;
  b.near_singles.n_items = d_n_near.device;
  if (near_items > 0) {
    plan_singles(*near_attention_, singles_, padded_rows, d_near.host, d_n_near.host,
                 b.near_singles);
  }
  b.wanted = static_cast<int>(samples);
  b.wanted_rows = padded_rows > 0 ? nullptr : d_wanted.device;
  b.samples = d_samples.device;
  b.words = reinterpret_cast<const std::int32_t*>(device);
  b.outputs = static_cast<int>(padded_rows > 0 ? rows : step.rows.size());
  return packed;
}

/// All rows in their order: what they are, their tables, and where their keys and values go. The
/// tables of a group lie side by side, each row's at the same place in every group; what lies in
/// front of a group's window is not written, since no kernel reads it.
void GpuStepPacker::place_rows(const RunStep& step, const RowPlaces& to) {
  const TableShape shape(geometry_.tokens_per_block, geometry_.groups);
  chunks_.clear();
  singles_.clear();
  std::size_t end = 0;  // of the tables
  for (const int i : order_) {
    const BatchRow& row = step.rows[static_cast<std::size_t>(i)];
    const int first = first_row_[static_cast<std::size_t>(i)];
    const std::size_t columns = row.blocks.size() / groups();
    (is_chunk_[static_cast<std::size_t>(i)] ? chunks_ : singles_)
        .push_back({first, static_cast<int>(row.tokens.size()), row.position,
                    to.table_index + static_cast<int>(end), static_cast<int>(columns)});
    for (std::size_t g = 0; g < groups(); ++g) {
      std::int32_t* const table = to.table + g * to.entries + end;
      const auto position = static_cast<std::uint32_t>(row.position);
      for (std::size_t c = shape.first(static_cast<std::uint32_t>(g), position); c < columns; ++c) {
        table[c] = static_cast<std::int32_t>(row.blocks[c * groups() + g]);
      }
    }
    end += columns;
    place_tokens(row, static_cast<std::size_t>(first), to);
  }
}

void GpuStepPacker::place_tokens(const BatchRow& row, std::size_t first,
                                 const RowPlaces& to) const {
  for (std::size_t t = 0; t < row.tokens.size(); ++t) {
    const std::uint64_t at = static_cast<std::uint64_t>(row.position) + t;
    to.tokens[first + t] = row.tokens[t];
    to.positions[first + t] = static_cast<std::int32_t>(at);
    for (std::size_t g = 0; g < groups(); ++g) {
      const std::uint64_t block = row.blocks[at / geometry_.tokens_per_block * groups() + g];
      const std::uint64_t byte = geometry_.block_bytes * block +
                                 kv_token_stride(geometry_) * (at % geometry_.tokens_per_block);
      to.slots[g * to.rows + first + t] = static_cast<std::int64_t>(byte / sizeof(cuda::Bf16));
    }
  }
  if (row.from_row >= 0) to.tokens[first + row.tokens.size() - 1] = -1 - row.from_row;
}

/// A graph launches the most items that a step of its rows may have.
void GpuStepPacker::plan_singles(const cuda::DecodeAttention& attention,
                                 std::span<const cuda::AttentionRow> rows, int padded_rows,
                                 cuda::DecodeItem* items, std::int32_t* n_items,
                                 cuda::DecodeWork& work) {
  attention.plan(rows, plan_, padded_rows);
  std::copy(plan_.items.begin(), plan_.items.end(), items);
  *n_items = static_cast<std::int32_t>(plan_.items.size());
  work.rows = plan_.rows;
  work.launch = padded_rows > 0 ? attention.max_items(padded_rows)
                                : static_cast<int>(rows.empty() ? 0 : plan_.items.size());
}

/// What is wanted of each line of logits; returns how many there are. Lists go to `area`.
std::size_t GpuStepPacker::pack_samples(const RunStep& step, bool keeps_logits,
                                        cuda::SampleRow* samples, std::int32_t* wanted,
                                        WordArea& area, Packed& packed) {
  edits_.begin_step();
  host_lines_.clear();
  late_lines_.clear();
  on_host_.assign(step.rows.size(), false);
  told_lines_ = 0;
  std::size_t w = 0;
  for (std::size_t i = 0; i < step.rows.size(); ++i) {
    const BatchRow& row = step.rows[i];
    if (row.logits == LogitsWanted::none) continue;
    for (std::size_t t = row.first_logits(); t < row.tokens.size(); ++t, ++w) {
      const Line line{static_cast<int>(w), {i, t}};
      wanted[w] = first_row_[i] + static_cast<int>(t);
      cuda::SampleRow& s = samples[w];
      s = sample_of(line);
      const bool last = t + 1 == row.tokens.size();
      const Token next = last ? row.next : row.tokens[t + 1];
      if (row.logits == LogitsWanted::all && next != kNoToken) {
        s.about = next;
        s.n_top = std::max(row.sampling->prompt_logprobs, 0);
        s.logprobs = line.at;
        told_lines_ = w + 1;
        continue;
      }
      const bool late = row.samples() && row.sampling->grammar_kind != GrammarKind::none;
      if (late && keeps_logits && !needs_host(row)) {
        late_lines_.push_back(line);
        skip(s);
      } else if (late || needs_host(row) || !draw_on_device(row, line, area, s)) {
        // A step behind may have been promised this token in device memory.
        packed.too_large = packed.too_large || !(row.ranks || row.holds_next_step());
        on_host_[i] = true;
        host_lines_.push_back(line);
        skip(s);
        continue;
      }
      if (row.sampling->logprobs >= 0) told_lines_ = w + 1;
    }
  }
  return w;
}

cuda::SampleRow GpuStepPacker::sample_of(const Line& line) const {
  cuda::SampleRow s;
  s.logits_row = static_cast<std::int32_t>(static_cast<std::size_t>(line.at) % max_wanted_);
  s.output = static_cast<std::int32_t>(line.line.row);
  return s;
}

bool GpuStepPacker::draw_on_device(const BatchRow& row, const Line& line, WordArea& area,
                                   cuda::SampleRow& s, bool may_stop) {
  const SamplingParams& p = *row.sampling;
  s = sample_of(line);
  s.temperature = p.temperature;
  s.top_p = p.top_p;
  s.top_k = p.top_k;
  s.min_p = p.min_p;
  s.n_generated = row.n_generated;
  s.seed = p.seed;
  s.logprobs = p.logprobs >= 0 ? line.at : -1;
  s.n_top = std::max(p.logprobs, 0);
  return edits_.write(row, area, s, may_stop);
}

GpuStepPacker::Packed GpuStepPacker::pack_nothing(int padded_rows, std::byte* host,
                                                  std::byte* device, std::size_t capacity) {
  return pack(RunStep{}, padded_rows, host, device, capacity);
}

}  // namespace baton
