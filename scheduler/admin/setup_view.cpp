#include "scheduler/admin/setup_view.h"

#include <algorithm>
#include <cstdio>

#include "ipc/kv_layout.h"
#include "scheduler/apply/membership.h"

namespace baton {
namespace {

std::string gib(std::uint64_t bytes) {
  char text[32];
  std::snprintf(text, sizeof text, "%.2f GiB", static_cast<double>(bytes) / (1U << 30U));
  return text;
}

/// Whose weights are the same memory, as the kernel numbers it.
std::string shared_with(const Worker& w, const State& state) {
  const std::uint64_t copy = w.store.offer.facts.weight_copy;
  std::string names;
  for (const Worker& other : state.workers) {
    if (copy == 0 || &other == &w || !other.ready() || other.store.offer.facts.weight_copy != copy)
      continue;
    names += (names.empty() ? "" : ", ") + other.name();
  }
  if (names.empty()) return "";
  return ", " + std::to_string(w.store.offer.facts.weight_bytes >> 20U) + " MiB shared with " +
         names;
}

/// Where layers have windows, how many tokens fit depends on how they are cut into sequences.
std::string tokens_of(const Hello& hello, std::uint32_t blocks) {
  if (hello.windows.empty())
    return std::to_string(std::uint64_t{blocks} * hello.tokens_per_block) + " tokens";
  std::string text = std::to_string(blocks) + " blocks of " +
                     std::to_string(hello.tokens_per_block) + " tokens of " +
                     std::to_string(hello.layers) + " layers";
  for (std::uint32_t g = 0; g < hello.windows.size(); ++g) {
    const auto layers = std::count(hello.layer_groups.begin(), hello.layer_groups.end(), g);
    text += (g == 0 ? "; groups: " : ", ") + std::to_string(layers) + " layers " +
            (hello.windows[g] == 0 ? "that see all"
                                   : "with a window of " + std::to_string(hello.windows[g]));
  }
  return text;
}

void add_worker(const Worker& w, const State& state, std::vector<SetupLine>& lines) {
  const Hello& h = w.store.offer;
  const std::string& name = w.name();
  const bool cpu = w.peer.identity.device == "cpu";
  std::string device = std::string(to_string(w.role())) + " on " + w.peer.identity.device;
  if (h.facts.threads > 0) {
    device +=
        ", " + std::to_string(h.facts.threads) + (h.facts.threads == 1 ? " thread" : " threads");
  }
  const bool ranks = h.ranks.size() > 1;
  if (ranks) device += " each of " + std::to_string(h.ranks.size()) + " ranks";
  const std::string also = ranks ? ", --worker.ranks" : "";
  lines.push_back(
      {name, device, (cpu ? "--device, --worker.threads" : "--device, --worker.gpu") + also});
  lines.push_back({name + " weights",
                   h.facts.weights + ", " + gib(h.facts.weight_bytes) +
                       (ranks ? " of rank 0" : "") + shared_with(w, state),
                   h.facts.weights.find("activations") == std::string::npos
                       ? "--worker.dtype"
                       : "--worker.dtype, --worker.activations"});
  std::string pool = to_string(static_cast<KvDtype>(h.dtype)) + std::string(", ") +
                     gib(h.block_bytes * h.blocks) + ": " + tokens_of(h, h.blocks);
  if (h.facts.free_bytes > 0) pool += "; " + gib(h.facts.free_bytes) + " were free";
  lines.push_back({name + " KV pool", pool,
                   cpu ? "--worker.pool_mib, --worker.memory_mib"
                       : "--worker.pool_mib, --worker.memory_fraction"});
  if (h.host_blocks == 0) return;
  char copy[48];
  std::snprintf(copy, sizeof copy, "; a block in %.1f us", static_cast<double>(h.host_block_us));
  lines.push_back({name + " host part",
                   gib(h.block_bytes * h.host_blocks) + ": " + tokens_of(h, h.host_blocks) + copy,
                   "--worker.host_pool_mib, --scheduler.swap"});
}

}  // namespace

std::vector<SetupLine> setup_lines(const State& state) {
  std::vector<SetupLine> lines;
  const std::uint32_t served = max_context(state);
  std::uint32_t allowed = 0;
  for (const Worker& w : state.workers) {
    if (w.ready()) allowed = std::max(allowed, w.store.offer.max_context);
  }
  std::string context = std::to_string(served) + " tokens";
  if (served < allowed) {
    context += ", of " + std::to_string(allowed) + ": the smallest KV pool holds no more";
  }
  lines.push_back({"context", context, "--max_context"});
  for (const Frontend& f : state.frontends) {
    if (!f.alive) continue;
    // FrontendHello::task: the task, and how its tokens are drawn where a request does not say.
    const std::size_t end = f.identity.task.find("; ");
    lines.push_back({"task", f.identity.task.substr(0, end), "--model_task"});
    if (end != std::string::npos) {
      lines.push_back({"sampling", f.identity.task.substr(end + 2) + " (generation_config.json)",
                       "--frontend.generation_config"});
    }
    lines.push_back({"tokenizer", f.identity.tokenizer, "--frontend.tokenizer"});
    lines.push_back({"chat template", f.identity.chat_template, "--frontend.chat_template"});
    break;  // all front ends read the same folder
  }
  for (const Worker& w : state.workers) {
    if (w.ready()) add_worker(w, state, lines);
  }
  return lines;
}

}  // namespace baton
