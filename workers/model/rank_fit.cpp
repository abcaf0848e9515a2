#include "workers/model/rank_fit.h"

#include <algorithm>
#include <cstdio>
#include <functional>
#include <initializer_list>
#include <string_view>

#include "ipc/kv_layout.h"
#include "ipc/max_ranks.h"
#include "workers/model/checkpoint_reader.h"
#include "workers/model/cut.h"
#include "workers/model/error.h"
#include "workers/model/gpu_cut.h"
#include "workers/model/gpu_formats.h"
#include "workers/model/gpu_limits.h"
#include "workers/model/kv_plan.h"

namespace baton {
namespace {

constexpr std::uint64_t kMib = 1U << 20U;
/// Of each process: activations, libraries; on a GPU its context and workspace, too.
constexpr std::uint64_t kOwnOnCpus = 64 * kMib;
constexpr std::uint64_t kOwnOnGpu = 1024 * kMib;

/// Of a rank on a GPU, while prompts' latent keys are expanded: GpuDecoder's room for the longest
/// context and the fewest heads at once (PrefillAttention).
std::uint64_t expanded_keys(const ModelConfig& config, int ranks) {
  const LatentSpec& l = config.latent;
  if (l.rank == 0) return 0;
  const int heads = config.heads / ranks;
  int at_once = std::min(heads, 8);
  while (heads % at_once != 0) --at_once;
  constexpr std::uint64_t kTail = 2048;
  const auto numbers = static_cast<std::uint64_t>(l.rank + at_once * (l.plain + l.rope + l.value));
  const std::uint64_t keys = static_cast<std::uint64_t>(config.max_context) + kTail;
  return std::max(512 * kMib, 2 * keys * numbers);
}

std::uint64_t divided(std::uint64_t n, std::uint64_t by) { return (n + by - 1) / by; }

std::string gib(std::uint64_t bytes) {
  char text[32];
  std::snprintf(text, sizeof text, "%.2f GiB", static_cast<double>(bytes) / (1U << 30U));
  return text;
}

std::uint64_t elements_of(const TensorView& view) {
  std::uint64_t elements = 1;
  for (const std::int64_t n : view.shape) elements *= static_cast<std::uint64_t>(n);
  return elements;
}

/// Blocks of a GGUF file on a GPU (gpu_format.h): kept with a word of scale for 32 numbers, or
/// bf16.
std::uint64_t blocks_on_gpu(const TensorView& view, bool widened) {
  const std::uint64_t elements = elements_of(view);
  if (!widened && view.blocks == GgmlType::q4_0) return elements / 2 + elements / 8;
  const bool eight = view.blocks == GgmlType::q8_0 || view.blocks == GgmlType::q5_0;
  return !widened && eight ? elements + elements / 8 : 2 * elements;
}

/// Experts in MXFP4, two numbers a byte, as bf16.
std::uint64_t widened_mxfp4(const TensorView& view, const std::string& name) {
  return name.ends_with("_scales") ? 0 : 4 * view.bytes;
}

/// What stays quantised of a layer, on all of so many GPUs.
struct KeptLayer {
  cuda::ExpertFormat experts = cuda::ExpertFormat::bf16;
  bool qkv = true, q_b = true, o = true, gate_up = true, down = true;
  bool shared_up = true, shared_down = true;
};

std::vector<KeptLayer> kept_layers(const ModelConfig& config, const Checkpoint& checkpoint,
                                   int ranks) {
  std::vector<KeptLayer> layers(static_cast<std::size_t>(config.layers));
  for (int r = 0; r < ranks; ++r) {
    const GpuCut cut{{r, ranks}, false};
    const GpuFormats formats(config, &checkpoint, cut);
    for (int i = 0; i < config.layers; ++i) {
      KeptLayer& layer = layers[static_cast<std::size_t>(i)];
      const auto keep = [](bool& kept, const LinearFormat& format) {
        kept = kept && format.format != cuda::WeightFormat::bf16;
      };
      keep(layer.qkv, formats.qkv(i));
      keep(layer.o, formats.o(i));
      if (config.latent.q_rank > 0) keep(layer.q_b, formats.latent_q(i));
      if (!config.sparse(i)) {
        keep(layer.gate_up, formats.gate_up(i));
        keep(layer.down, formats.down(i));
        continue;
      }
      const cuda::ExpertFormat here = formats.experts(i);
      layer.experts = r == 0 || here == layer.experts ? here : cuda::ExpertFormat::bf16;
      if (config.layer(i).experts.shared.intermediate == 0) continue;
      keep(layer.shared_up, formats.shared_gate_up(i));
      keep(layer.shared_down, formats.shared_down(i));
    }
  }
  return layers;
}

/// Of a layer's experts that stay quantised, as if each GPU had as many features as the one with
/// most. Units of 64 inputs are kept whole.
std::uint64_t kept_expert_bytes(const ModelConfig& config, int layer, int ranks,
                                cuda::ExpertFormat format) {
  const ExpertSpec& e = config.layer(layer).experts;
  std::int64_t most = 0;
  for (int r = 0; r < ranks; ++r) {
    most = std::max(most, features_of(config, ModelCut{r, ranks}, e.expert.intermediate).count);
  }
  const int features = static_cast<int>(most);
  return static_cast<std::uint64_t>(ranks) * static_cast<std::uint64_t>(e.count) *
         (cuda::expert_bytes(format, 2 * features, config.hidden) +
          cuda::expert_bytes(format, config.hidden, features));
}

/// `widened`: of what is bf16 on GPUs however it is stored.
std::uint64_t bytes_of(const Quantization& q, const TensorView& view, TensorBytes how,
                       bool widened) {
  if (how == TensorBytes::stored || view.shape.size() < 2) return view.bytes;
  if (view.blocks != GgmlType::f32) return blocks_on_gpu(view, widened);
  const bool plain = view.dtype == "F32" || view.dtype == "F16" || view.dtype == "BF16";
  if (plain) return 2 * elements_of(view);
  if (q.method == QuantMethod::nvfp4) return view.dtype == "U8" ? 4 * view.bytes : 0;
  const bool zeros = q.method == QuantMethod::packed && q.bits == 8 && !q.symmetric;
  if (!widened && !zeros) return view.bytes;
  if (view.dtype == "F8_E4M3") return 2 * view.bytes;
  return view.dtype == "I32" ? view.bytes * 16 / static_cast<std::uint64_t>(q.bits) : view.bytes;
}

/// Of an expert's tensor on a GPU, where its layer's experts have this format; the matrices of
/// those that stay quantised are counted as a whole.
std::uint64_t expert_on_gpu(const Quantization& q, const TensorView& view, const std::string& name,
                            cuda::ExpertFormat format) {
  const bool kept = format != cuda::ExpertFormat::bf16 && !name.ends_with("_bias");
  if (kept) return 0;
  if (view.dtype == "U8" && q.method == QuantMethod::none) return widened_mxfp4(view, name);
  return bytes_of(q, view, TensorBytes::on_gpu, /*widened=*/true);
}

/// Which part of a layer the rest of a tensor's name says.
bool is_part(std::string_view rest, const std::string& name) {
  return !name.empty() && rest.starts_with(name + ".");
}

/// Whether a tensor of a layer, not of its experts, becomes bf16 on GPUs if it is quantised.
bool is_widened(std::string_view rest, const TensorNames& n, const KeptLayer& layer) {
  const auto any = [rest](std::initializer_list<std::string> names) {
    return std::any_of(names.begin(), names.end(),
                       [rest](const std::string& name) { return is_part(rest, name); });
  };
  if (any({n.qkv, n.q, n.k, n.v, n.q_a, n.kv_a})) return !layer.qkv;
  if (any({n.q_b})) return !layer.q_b;
  if (any({n.o})) return !layer.o;
  if (any({n.gate_up, n.gate, n.up})) return !layer.gate_up;
  if (any({n.down})) return !layer.down;
  if (any({n.shared + n.shared_down})) return !layer.shared_down;
  if (!n.shared.empty() && rest.starts_with(n.shared)) return !layer.shared_up;
  return is_part(rest, n.kv_b);
}

bool is_expert(std::string_view rest, const TensorNames& names) {
  return !names.experts.empty() && rest.starts_with(names.experts) && !is_part(rest, names.router);
}

void add_tensor(const ModelConfig& config, std::string_view rest, bool vector, std::uint64_t bytes,
                TensorBytes how, RankWeights& out) {
  const TensorNames& n = config.names;
  const bool latent = config.latent.rank > 0 && (is_part(rest, n.q_a) || is_part(rest, n.kv_a));
  if (is_expert(rest, n)) {
    (how != TensorBytes::stored ? out.cut : out.experts) += bytes;  // by features on GPUs
  } else if (vector || latent || is_part(rest, n.router) || is_part(rest, n.shared_gate)) {
    out.repeated += bytes;
  } else if (is_part(rest, n.k) || is_part(rest, n.v)) {
    out.kv += bytes;
  } else if (is_part(rest, n.qkv)) {
    const auto all = static_cast<std::uint64_t>(config.heads + 2 * config.kv_heads);
    const std::uint64_t kv = bytes * 2 * static_cast<std::uint64_t>(config.kv_heads) / all;
    out.kv += kv;
    out.cut += bytes - kv;
  } else {
    out.cut += bytes;
  }
}

/// The layer's number and what is behind it, of "N.rest"; -1: it is none.
int layer_of(std::string_view& name) {
  int layer = 0;
  std::size_t digits = 0;
  while (digits < name.size() && digits < 6 && name[digits] >= '0' && name[digits] <= '9') {
    layer = layer * 10 + (name[digits++] - '0');
  }
  if (digits == 0 || digits == name.size() || name[digits] != '.') return -1;
  name.remove_prefix(digits + 1);
  return layer;
}

/// Bytes of a sequence of `tokens` tokens in a pool with so many of the heads.
std::uint64_t pool_bytes(const ModelConfig& config, const KvPlan& plan, KvDtype dtype, int heads,
                         std::uint64_t tokens) {
  KvGeometry g;
  g.dtype = dtype;
  g.layers = plan.layers_in_block;
  g.kv_heads = static_cast<std::uint32_t>(heads);
  g.head_dim = static_cast<std::uint32_t>(config.pool_dim());
  const TableShape shape(g.tokens_per_block, plan.groups);
  return shape.live_blocks(static_cast<std::uint32_t>(tokens)) * kv_block_bytes(g).value_or(0);
}

/// What one device, or the host, has to hold.
struct Need {
  std::string where;
  std::uint64_t weights = 0;
  std::uint64_t own = 0;
  std::uint64_t may = 0;         // that may be taken
  std::uint64_t pool_limit = 0;  // for the pool alone; 0: none
  std::string pool_limit_what;
};

class Fit {
 public:
  Fit(const FitQuestion& q, const MachineMemory& machine) : q_(q), machine_(machine) {
    context_ = static_cast<std::uint64_t>(q.config.max_context);
    if (q.max_context > 0) context_ = std::min<std::uint64_t>(context_, q.max_context);
  }

  FitAnswer answer() {
    on_cpus();
    if (!machine_.gpus.empty()) on_gpus();
    return std::move(out_);
  }

 private:
  using PoolOf = std::function<std::uint64_t(std::uint64_t tokens)>;

  /// Ranks on CPUs share the host's memory, and one pool: more of them cost what they repeat.
  void on_cpus() {
    const RankWeights stored = rank_weights(q_.config, q_.checkpoint, TensorBytes::stored);
    const WeightPlan plan = plan_weights(q_.config, q_.checkpoint, WeightChoice::stored);
    const KvPlan groups = kv_plan_of(q_.config, kDefaultTokensPerBlock);
    const PoolOf pool = [this, groups](std::uint64_t tokens) {
      return pool_bytes(q_.config, groups, KvDtype::f32, q_.config.pool_heads(), tokens);
    };
    for (int ranks = 1; ranks <= std::min<int>(kMaxRanks, static_cast<int>(machine_.cores));
         ++ranks) {
      if (!can_cut(q_.config, ranks).ok()) continue;
      Need need;
      need.where = "on CPUs, " + count_of(ranks);
      // In memory weights may have another type than stored; ranks repeat the same share of them.
      const double more = static_cast<double>(stored.of_all(ranks)) /
                          static_cast<double>(std::max<std::uint64_t>(stored.of_all(1), 1));
      need.weights = static_cast<std::uint64_t>(static_cast<double>(plan.bytes) * more);
      need.own = plan.loading_bytes + static_cast<std::uint64_t>(ranks) * kOwnOnCpus;
      need.may = taken_of(machine_.host);
      need.pool_limit = machine_.shared;
      need.pool_limit_what = "/dev/shm";
      tell(need, pool);
    }
  }

  /// Each rank on a GPU of its own, with its heads of the pool; the fullest of them decides.
  void on_gpus() {
    try {
      check_gpu_limits(q_.config);
    } catch (const ModelError& e) {
      out_.lines.push_back("note     " + q_.name + " on GPUs: " + e.what());
      return;
    }
    const KvPlan groups = kv_plan_of(q_.config, kDefaultTokensPerBlock);
    std::vector<std::uint64_t> free = machine_.gpus;
    std::sort(free.rbegin(), free.rend());
    const int most = std::min<int>(kMaxRanks, static_cast<int>(free.size()));
    for (int ranks = 1; ranks <= most; ++ranks) {
      if (!shared_by_gpus(ranks)) continue;
      const int heads = static_cast<int>(ModelCut{0, ranks}.kv_heads(q_.config).count);
      Need need;
      need.where = "on GPUs, " + count_of(ranks) + (ranks > 1 ? ", each" : "");
      need.weights =
          rank_weights(q_.config, q_.checkpoint, TensorBytes::on_gpu, ranks).of_largest(ranks);
      need.own = kOwnOnGpu + expanded_keys(q_.config, ranks);
      need.may = taken_of(free[static_cast<std::size_t>(ranks) - 1]);
      tell(need, [this, heads, groups](std::uint64_t tokens) {
        return pool_bytes(q_.config, groups, KvDtype::bf16, heads, tokens);
      });
    }
  }

  /// Heads that do not divide are passed over; whatever else speaks against it is told, once.
  bool shared_by_gpus(int ranks) {
    if (!can_cut(q_.config, ranks).ok()) return false;
    try {
      check_gpu_ranks(q_.config, {{0, ranks}, /*by_outputs=*/false});
      return true;
    } catch (const ModelError& e) {
      const std::string line = "note     " + q_.name + " on GPUs: " + e.what();
      if (out_.lines.back() != line) out_.lines.push_back(line);
      return false;
    }
  }
  static std::string count_of(int ranks) {
    return std::to_string(ranks) + (ranks == 1 ? " rank" : " ranks");
  }
  std::uint64_t taken_of(std::uint64_t free) const {
    return static_cast<std::uint64_t>(machine_.fraction * static_cast<double>(free));
  }

  void tell(const Need& need, const PoolOf& pool_of) {
    const std::uint64_t used = need.weights + need.own;
    const std::uint64_t pool = pool_of(context_);
    const bool room = used + pool <= need.may;
    const bool limit = need.pool_limit == 0 || pool <= need.pool_limit;
    out_.somewhere = out_.somewhere || (room && limit);
    std::string line = (room && limit ? "ok       " : "note     ") + q_.name + " " + need.where +
                       ": weights " + gib(need.weights) + " + KV of " + std::to_string(context_) +
                       " tokens " + gib(pool) + " + " + gib(need.own) + " of its own; ";
    if (room && limit) {
      out_.lines.push_back(line + gib(need.may) + " may be taken");
      return;
    }
    line += room ? "only " + gib(need.pool_limit) + " are free in " + need.pool_limit_what
                 : "only " + gib(need.may) + " may be taken";
    const std::uint64_t fits = longest(need, used, pool_of);
    line += fits > 0 ? "; --max_context " + std::to_string(fits) + " would fit" : "";
    out_.lines.push_back(line);
  }

  /// The longest context, in steps of 256 tokens, whose pool fits; 0: not even that.
  std::uint64_t longest(const Need& need, std::uint64_t used, const PoolOf& pool_of) const {
    if (used >= need.may) return 0;
    std::uint64_t left = need.may - used;
    if (need.pool_limit > 0) left = std::min(left, need.pool_limit);
    constexpr std::uint64_t kStep = 256;
    const std::uint64_t steps = left / std::max<std::uint64_t>(pool_of(kStep), 1);
    return std::min(steps * kStep, context_);
  }

  const FitQuestion& q_;
  const MachineMemory& machine_;
  std::uint64_t context_ = 0;
  FitAnswer out_;
};

}  // namespace

std::uint64_t RankWeights::of_largest(int ranks) const {
  const auto n = static_cast<std::uint64_t>(ranks);
  return repeated + divided(cut, n) + divided(kv, std::min(n, kv_heads)) +
         divided(experts, expert_count) * divided(expert_count, n);
}

std::uint64_t RankWeights::of_all(int ranks) const {
  const auto n = static_cast<std::uint64_t>(ranks);
  return n * repeated + cut + kv * std::max<std::uint64_t>(n / kv_heads, 1) + experts;
}

RankWeights rank_weights(const ModelConfig& config, const Checkpoint& checkpoint, TensorBytes how,
                         int ranks) {
  RankWeights out;
  out.kv_heads = static_cast<std::uint64_t>(std::max(config.kv_heads, 1));
  out.expert_count = static_cast<std::uint64_t>(std::max(config.experts().count, 1));
  const TensorNames& names = config.names;
  const std::string root = decoder_root(names, checkpoint);
  const std::string layers = root + "layers.";
  const std::string head = head_name(names, checkpoint);
  const bool stored = how == TensorBytes::stored;
  std::vector<KeptLayer> kept;
  if (!stored) kept = kept_layers(config, checkpoint, ranks);
  for (const auto& [name, view] : checkpoint.tensors()) {
    std::string_view rest(name);
    if (name.starts_with(layers)) {
      rest.remove_prefix(layers.size());
      const int layer = layer_of(rest);
      if (layer < 0 || layer >= config.layers) continue;  // of a part that is not served
      const bool expert = is_expert(rest, names);
      const KeptLayer here = stored ? KeptLayer() : kept[static_cast<std::size_t>(layer)];
      const std::uint64_t bytes =
          expert && !stored
              ? expert_on_gpu(config.quantization, view, name, here.experts)
              : bytes_of(config.quantization, view, how, is_widened(rest, names, here));
      add_tensor(config, rest, view.shape.size() == 1, bytes, how, out);
      continue;
    }
    const bool table = name.starts_with(root + names.embedding);
    const std::uint64_t bytes = bytes_of(config.quantization, view, how, table);
    if (is_part(rest, root + names.embedding)) {
      (stored ? out.cut : out.repeated) += bytes;  // each GPU has all of it
    } else if (is_part(rest, head) && !config.tied_embeddings) {
      out.cut += bytes;
    } else if (is_part(rest, root + names.final_norm)) {
      out.repeated += bytes;
    }
  }
  for (std::size_t i = 0; i < kept.size(); ++i) {
    if (kept[i].experts == cuda::ExpertFormat::bf16) continue;
    out.cut += kept_expert_bytes(config, static_cast<int>(i), ranks, kept[i].experts);
  }
  return out;
}

FitAnswer fit_model(const FitQuestion& question, const MachineMemory& machine) {
  return Fit(question, machine).answer();
}

}  // namespace baton
