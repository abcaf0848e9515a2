// Where each weight lies in sealed memory: a table behind them, in the order of each_weight(), and
// behind that a head that says what it is.
#include <cstring>
#include <utility>

#include "workers/model/error.h"
#include "workers/model/weights.h"

namespace baton {
namespace {

constexpr std::uint64_t kMagic = 0x7374686769657742;  // "Bweights"

struct Entry {
  std::uint64_t offset = 0;
  std::int64_t rows = 0;     // of a matrix: its panels
  std::int64_t columns = 0;  // of a matrix: its inputs
  std::int64_t out = 0;      // of a matrix
  std::uint32_t type = 0;    // cpu::WeightType
  std::uint32_t paired = 0;
  // Of a matrix of whole numbers: cpu::GroupFormat.
  std::uint32_t group = 0;
  std::uint8_t half_scales = 0;
  std::uint8_t rounds_inputs = 0;
  std::uint16_t second = 0;
};
static_assert(sizeof(Entry) == 48 && std::is_trivially_copyable_v<Entry>);

struct Head {
  std::uint64_t magic = kMagic;
  std::uint64_t layout = kWeightLayoutVersion;
  std::uint64_t entries = 0;
};

template <typename P, typename F>
void each_of_part(P& part, F&& f) {
  f(part.gate_up);
  f(part.down);
  f(part.up_bias);
  f(part.down_bias);
}

template <typename N, typename F>
void each_of_norm(N& norm, F&& f) {
  f(norm.weight);
  f(norm.bias);
}

template <typename W, typename F>
void each_weight(W& weights, F&& f) {
  f(weights.embedding);
  for (auto& layer : weights.layers) {
    for (auto* norm :
         {&layer.input_norm, &layer.attention_after, &layer.post_norm, &layer.mlp_after}) {
      each_of_norm(*norm, f);
    }
    f(layer.latent.q_a);
    f(layer.latent.q_norm);
    f(layer.latent.q);
    f(layer.latent.kv_a);
    f(layer.latent.kv_norm);
    for (auto& matrix : layer.latent.absorb) f(matrix);
    for (auto& matrix : layer.latent.value) f(matrix);
    f(layer.qkv);
    f(layer.qkv_bias);
    f(layer.q_norm);
    f(layer.k_norm);
    f(layer.sinks);
    f(layer.o);
    f(layer.o_bias);
    each_of_part(layer.dense, f);
    f(layer.router);
    f(layer.router_bias);
    f(layer.choice_bias);
    each_of_part(layer.shared, f);
    f(layer.shared_gate);
    for (auto& expert : layer.experts) each_of_part(expert, f);
  }
  each_of_norm(weights.final_norm, f);
  f(weights.lm_head);
}

std::uint64_t bytes_of(const Entry& entry, std::uint64_t element) {
  return static_cast<std::uint64_t>(entry.rows) * static_cast<std::uint64_t>(entry.columns) *
         element;
}

std::uint64_t element_of(std::uint32_t type) {
  return type == static_cast<std::uint32_t>(cpu::WeightType::bf16) ? 2 : 4;
}

/// What a weight's entry says, but for its place, and how many bytes that is.
struct Shape {
  const void* data = nullptr;
  Entry entry;
  std::uint64_t bytes = 0;
};

Shape shape_of(WeightVector v) {
  Shape shape{v.data(), {}, 0};
  shape.entry.rows = static_cast<std::int64_t>(v.size());
  shape.entry.columns = 1;
  shape.bytes = bytes_of(shape.entry, sizeof(float));
  return shape;
}

Shape shape_of(const PackedMatrix& m) {
  Shape shape{m.panels, {}, 0};
  shape.entry = {0,
                 m.panel_count,
                 m.in,
                 m.out,
                 static_cast<std::uint32_t>(m.type),
                 m.paired,
                 static_cast<std::uint32_t>(m.format.group),
                 m.format.half_scales,
                 m.format.rounds_inputs,
                 static_cast<std::uint16_t>(m.format.second)};
  if (m.in > 0) {
    shape.bytes = static_cast<std::uint64_t>(m.panel_count) *
                  static_cast<std::uint64_t>(cpu::panel_bytes(m.in, m.type, m.format));
  }
  return shape;
}

Shape shape_of(const EmbeddingTable& t) {
  Shape shape{t.data, {}, 0};
  shape.entry.rows = t.rows;
  shape.entry.columns = t.columns;
  shape.entry.type = static_cast<std::uint32_t>(t.type);
  shape.bytes = bytes_of(shape.entry, element_of(shape.entry.type));
  return shape;
}

void place(WeightVector& v, const std::byte* at, const Entry& e) {
  v = {reinterpret_cast<const float*>(at), static_cast<std::size_t>(e.rows)};
}

void place(PackedMatrix& m, const std::byte* at, const Entry& e) {
  m = {at,
       static_cast<cpu::WeightType>(e.type),
       static_cast<int>(e.rows),
       static_cast<int>(e.columns),
       static_cast<int>(e.out),
       e.paired != 0,
       {static_cast<int>(e.group), e.half_scales != 0, static_cast<cpu::Second>(e.second),
        e.rounds_inputs != 0}};
}

void place(EmbeddingTable& t, const std::byte* at, const Entry& e) {
  t = {at, static_cast<cpu::WeightType>(e.type), e.rows, e.columns};
}

/// Whether the type is one, and fits: whole numbers have groups that divide the inputs.
bool good_type(const Entry& e) {
  const auto whole = static_cast<std::uint32_t>(cpu::WeightType::int8);
  if (e.type < whole) return e.group == 0;
  return e.type <= static_cast<std::uint32_t>(cpu::WeightType::int4) && e.group > 0 &&
         e.group % cpu::kGroupStep == 0 && e.columns % e.group == 0 &&
         e.second <= static_cast<std::uint16_t>(cpu::Second::e2m1);
}

/// Reads a table that this process has not written.
class TableReader {
 public:
  explicit TableReader(const SealedMemory& memory) : memory_(memory) {
    if (memory.size() < sizeof(Head)) return;
    end_ = memory.size() - sizeof(Head);
    Head head;
    std::memcpy(&head, memory.data() + end_, sizeof head);
    if (head.magic != kMagic || head.layout != kWeightLayoutVersion) return;
    if (head.entries > end_ / sizeof(Entry)) return;
    begin_ = end_ - head.entries * sizeof(Entry);
    at_ = begin_;
    ok_ = true;
  }

  template <typename W>
  void operator()(W& weight) {
    if (at_ + sizeof(Entry) > end_) ok_ = false;
    if (!ok_) return;
    Entry entry;
    std::memcpy(&entry, memory_.data() + at_, sizeof entry);
    at_ += sizeof entry;
    constexpr std::int64_t kMost = 1LL << 31;  // so that nothing overflows below
    ok_ = entry.rows >= 0 && entry.rows < kMost && entry.columns >= 0 && entry.columns < kMost &&
          entry.out >= 0 && entry.out < kMost && good_type(entry) && entry.offset % 64 == 0 &&
          entry.offset <= begin_;
    if (!ok_) return;
    const bool there = entry.rows > 0 && entry.columns > 0;
    if (!there) return;
    place(weight, memory_.data() + entry.offset, entry);
    ok_ = shape_of(weight).bytes <= begin_ - entry.offset;
  }
  bool ok() const { return ok_ && at_ == end_; }

 private:
  const SealedMemory& memory_;
  std::size_t begin_ = 0;  // of the entries; weights end before
  std::size_t end_ = 0;
  std::size_t at_ = 0;
  bool ok_ = false;
};

}  // namespace

std::uint64_t Weights::bytes() const {
  std::uint64_t total = 0;
  each_weight(*this, [&](const auto& weight) { total += shape_of(weight).bytes; });
  return total;
}

std::shared_ptr<const SealedMemory> seal_weights(Weights packed, WeightMemory& memory) {
  std::vector<Entry> table;
  each_weight(packed, [&](const auto& weight) {
    const Shape shape = shape_of(weight);
    table.push_back(shape.entry);
    if (shape.bytes > 0) {
      table.back().offset =
          static_cast<std::uint64_t>(static_cast<const std::byte*>(shape.data) - memory.base());
    }
  });
  const Head head{kMagic, kWeightLayoutVersion, table.size()};
  // The end of the memory is where the head ends: what fills the last line stands in front.
  const std::size_t bytes = table.size() * sizeof(Entry) + sizeof(Head);
  const std::size_t line = (bytes + 63) / 64 * 64;
  std::byte* at = memory.take(line) + (line - bytes);
  std::memcpy(at, table.data(), table.size() * sizeof(Entry));
  std::memcpy(at + table.size() * sizeof(Entry), &head, sizeof head);
  return std::make_shared<const SealedMemory>(memory.seal());
}

Result<Weights> view_weights(const ModelConfig& config, const ModelCut& cut,
                             std::shared_ptr<const SealedMemory> memory) {
  const std::int64_t heads = config.latent.rank > 0 ? cut.heads(config).count : 0;
  Weights weights;
  weights.layers.resize(static_cast<std::size_t>(config.layers));
  for (int i = 0; i < config.layers; ++i) {
    LatentWeights& latent = weights.layers[static_cast<std::size_t>(i)].latent;
    latent.absorb.resize(static_cast<std::size_t>(heads));
    latent.value.resize(latent.absorb.size());
    if (config.sparse(i))
      weights.layers[static_cast<std::size_t>(i)].experts.resize(
          static_cast<std::size_t>(config.layer(i).experts.count));
  }
  TableReader reader(*memory);
  each_weight(weights, reader);
  if (!reader.ok()) return invalid("what is sealed are no weights of this model");
  weights.memory = std::move(memory);
  return weights;
}

}  // namespace baton
