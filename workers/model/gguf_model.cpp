#include "workers/model/gguf_model.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

#include "workers/model/error.h"

namespace baton {
namespace {

const char* const kAngles[] = {"rope_freqs.weight", "rope_factors_long.weight",
                               "rope_factors_short.weight"};

/// The factors of a tensor; empty if there is none.
std::vector<double> factors(const GgufFile& file, const std::string& path, const char* name,
                            int size) {
  const auto it = file.head().tensors().find(name);
  if (it == file.head().tensors().end()) return {};
  const GgufTensor& tensor = it->second;
  const std::string what = path + ": tensor " + name + ": ";
  if (tensor.type != GgmlType::f32 || tensor.shape != std::vector<std::int64_t>{size}) {
    throw ModelError(what + "is not F32 of " + std::to_string(size) + " numbers");
  }
  std::vector<double> found;
  for (int i = 0; i < size; ++i) {
    float value;
    std::memcpy(&value, file.data() + tensor.offset + static_cast<std::size_t>(i) * 4,
                sizeof value);
    if (!std::isfinite(value) || value <= 0) throw ModelError(what + "a factor is not above 0");
    found.push_back(static_cast<double>(value));
  }
  return found;
}

/// Names behind "blk.N.", and those behind "<root>layers.N.".
std::vector<std::pair<std::string, std::string>> layer_names(const TensorNames& n) {
  return {{"attn_norm", n.attention_norm},
          {"attn_q", n.q},
          {"attn_k", n.k},
          {"attn_v", n.v},
          {"attn_qkv", n.qkv},
          {"attn_output", n.o},
          {"attn_q_norm", n.q_norm},
          {"attn_k_norm", n.k_norm},
          {"post_attention_norm", n.attention_after},
          {"ffn_norm", n.mlp_norm},
          {"post_ffw_norm", n.mlp_after},
          {"ffn_gate", n.gate},
          {"ffn_up", n.gate_up.empty() ? n.up : n.gate_up},
          {"ffn_down", n.down},
          {"ffn_gate_inp", n.router}};
}

/// The name in a folder, or "" where it has none.
std::string folder_name(const std::string& name, const TensorNames& n) {
  const std::string& root = n.roots.front();
  if (name == "token_embd.weight") return root + n.embedding + ".weight";
  if (name == "output_norm.weight") return root + n.final_norm + ".weight";
  if (name == "output.weight") return n.head + ".weight";
  if (!name.starts_with("blk.")) return "";
  const std::size_t number_end = name.find('.', 4);
  const std::size_t suffix = name.rfind('.');
  if (number_end == std::string::npos || suffix <= number_end) return "";
  const std::string part = name.substr(number_end + 1, suffix - number_end - 1);
  for (const auto& [from, to] : layer_names(n)) {
    if (part == from && !to.empty()) {
      return root + "layers." + name.substr(4, number_end - 4) + "." + to + name.substr(suffix);
    }
  }
  return "";
}

/// The three tensors of all experts of a layer: the name of one expert's behind its number, or "".
std::string expert_part(const std::string& name, const TensorNames& n) {
  if (name.ends_with(".ffn_gate_exps.weight")) return n.expert_gate;
  if (name.ends_with(".ffn_up_exps.weight")) return n.expert_up;
  if (name.ends_with(".ffn_down_exps.weight")) return n.expert_down;
  return "";
}

TensorView view_of(const GgufFile& file, const std::string& path, const GgufTensor& tensor) {
  TensorView view;
  const GgmlLayout layout = *ggml_layout(static_cast<std::uint32_t>(tensor.type));
  view.dtype = layout.name;
  view.blocks = layout.numbers > 1 ? tensor.type : GgmlType::f32;
  view.shape = tensor.shape;
  view.data = file.data() + tensor.offset;
  view.offset = tensor.offset;
  view.bytes = tensor.bytes;
  view.file = path;
  return view;
}

void add_experts(const TensorView& all, const std::string& prefix, const std::string& part,
                 std::map<std::string, TensorView>& found) {
  const std::int64_t count = all.shape.front();
  for (std::int64_t e = 0; e < count; ++e) {
    TensorView one = all;
    one.shape.erase(one.shape.begin());
    one.bytes = all.bytes / static_cast<std::uint64_t>(count);
    one.data = all.data + one.bytes * static_cast<std::uint64_t>(e);
    one.offset = all.offset + one.bytes * static_cast<std::uint64_t>(e);
    found.emplace(prefix + std::to_string(e) + "." + part + ".weight", std::move(one));
  }
}

}  // namespace

void finish_gguf_config(const GgufFile& file, const std::string& path, ModelConfig& c) {
  c.gguf = true;
  c.norm.offset = false;
  const GgufHead& head = file.head();
  RopeConfig& rope = c.ropes.front();
  const std::string architecture(head.text("general.architecture").value_or(""));
  const double original =
      static_cast<double>(head.count(architecture + ".rope.scaling.original_context_length")
                              .value_or(static_cast<std::uint64_t>(c.max_context)));
  const bool is_long = static_cast<double>(c.max_context) > original;
  std::vector<double> list = factors(file, path, kAngles[0], rope.dims / 2);
  if (list.empty()) list = factors(file, path, kAngles[is_long ? 1 : 2], rope.dims / 2);
  if (list.empty()) return;
  if (rope.type != RopeType::none) {
    throw ModelError(path + ": " + architecture +
                     ".rope.scaling.type: not beside factors of angles");
  }
  rope.type = RopeType::longrope;
  rope.stretch = std::move(list);
  rope.original_context = original;
  rope.factor = static_cast<double>(c.max_context) / original;
  rope.attention_factor = head.number(architecture + ".rope.scaling.attn_factor").value_or(1.0);
  if (!std::isfinite(rope.attention_factor) || rope.attention_factor <= 0) {
    throw ModelError(path + ": " + architecture + ".rope.scaling.attn_factor: is not above 0");
  }
}

std::map<std::string, TensorView> gguf_tensors(const GgufFile& file, const std::string& path,
                                               const ModelConfig& c) {
  const TensorNames& n = c.names;
  const bool pairs = file.head().text("general.architecture") == "llama";
  std::map<std::string, TensorView> found;
  for (const auto& [name, tensor] : file.head().tensors()) {
    if (std::find(std::begin(kAngles), std::end(kAngles), name) != std::end(kAngles)) continue;
    TensorView view = view_of(file, path, tensor);
    const std::string part = expert_part(name, n);
    if (!part.empty() && name.starts_with("blk.") && view.shape.size() == 3) {
      const std::string layer = name.substr(4, name.find('.', 4) - 4);
      add_experts(view, n.roots.front() + "layers." + layer + "." + n.experts, part, found);
      continue;
    }
    // llama.cpp turns pairs of neighbours where Llama's folders turn halves: its converter moves
    // the rows.
    const bool turned = name.ends_with(".attn_q.weight") || name.ends_with(".attn_k.weight") ||
                        name.ends_with(".attn_q.bias") || name.ends_with(".attn_k.bias");
    if (pairs && turned) view.pair_rows = c.head_dim;
    const std::string to = folder_name(name, n);
    found.emplace(to.empty() ? name : to, std::move(view));
  }
  return found;
}

}  // namespace baton
