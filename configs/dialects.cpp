#include "configs/dialects.h"

#include <algorithm>
#include <cstring>

namespace baton {
namespace {

std::string_view next_part(std::string_view& path) {
  const std::size_t end = std::min(path.find('/', 1), path.size());
  const std::string_view part = path.substr(0, end);
  path.remove_prefix(end);
  return part;
}

/// Whether some path of a request fits both.
bool overlap(std::string_view a, std::string_view b) {
  while (!a.empty() && !b.empty()) {
    const std::string_view x = next_part(a);
    const std::string_view y = next_part(b);
    const bool variable = x.substr(0, 2) == "/:" || y.substr(0, 2) == "/:";
    if (x != y && !variable) return false;
  }
  return a.empty() && b.empty();
}

std::optional<DialectClash> clash_of(const DialectFacts& first, const DialectFacts& second) {
  for (const DialectPath& a : first.paths) {
    for (const DialectPath& b : second.paths) {
      if (a.shared && b.shared && std::strcmp(a.path, b.path) == 0) continue;
      if (std::strcmp(a.method, b.method) == 0 && overlap(a.path, b.path)) {
        return DialectClash{first.name, second.name, a.path, b.path, a.method};
      }
    }
  }
  return std::nullopt;
}

}  // namespace

const std::vector<DialectFacts>& dialect_facts() {
  static const std::vector<DialectFacts> kFacts = {
      {"openai",
       "OpenAI's API with vLLM's further fields",
       {{"POST", "/v1/completions"},
        {"POST", "/v1/chat/completions"},
        {"POST", "/v1/completions/render"},
        {"POST", "/v1/chat/completions/render"},
        {"POST", "/tokenize", true},
        {"POST", "/detokenize"},
        {"POST", "/v1/responses"},
        {"POST", "/v1/embeddings"},
        {"POST", "/v1/rerank"},
        {"POST", "/v2/rerank"},
        {"POST", "/rerank"},
        {"POST", "/v1/score"},
        {"POST", "/score"},
        {"GET", "/v1/models"},
        {"GET", "/v1/models/:id"},
        {"GET", "/v1/models/:owner/:id"},
        {"GET", "/server_info"},
        {"GET", "/get_server_info"},
        {"GET", "/model_info"},
        {"GET", "/get_model_info"},
        {"GET", "/get_load"}}},
      {"lab", "the prefill/decode lab's base_app", {{"POST", "/generate"}}},
      {"mindspore",
       "MindSpore's llm-serving",
       {{"POST", "/models/llama2"},
        {"POST", "/models/llama2/generate"},
        {"POST", "/models/llama2/generate_stream"},
        {"POST", "/models/internlm"},
        {"POST", "/models/internlm/generate"},
        {"POST", "/models/internlm/generate_stream"},
        {"GET", "/serving/get_bs"},
        {"GET", "/serving/get_request_numbers"},
        {"GET", "/serving/get_serverd_model_info"}}},
      {"tutorial",
       "LLM-Inference-Deployment-Tutorial",
       {{"POST", "/completion/v1"},
        {"POST", "/completion/v2"},
        {"POST", "/chat_completion/v1"},
        {"GET", "/model_id"}}},
      {"tgi",
       "Hugging Face's text-generation-inference",
       {{"POST", "/"},
        {"POST", "/generate"},
        {"POST", "/generate_stream"},
        {"POST", "/tokenize", true},
        {"POST", "/invocations"},
        {"GET", "/info"}}},
      {"lightllm",
       "LightLLM",
       {{"POST", "/generate"},
        {"POST", "/generate_stream"},
        {"POST", "/tokens"},
        {"POST", "/get_model_name"},
        {"GET", "/get_model_name"},
        {"GET", "/token_load"}}},
      {"mii", "DeepSpeed-MII's RESTful gateway", {{"POST", "/mii/:name"}}},
      {"distserve", "DistServe", {{"POST", "/generate"}}},
      {"energonai", "EnergonAI's generation server", {{"POST", "/generation"}}},
      {"anthropic",
       "Anthropic's Messages API",
       {{"POST", "/v1/messages"}, {"POST", "/v1/messages/count_tokens"}}},
      {"ollama",
       "Ollama",
       {{"POST", "/api/chat"},
        {"POST", "/api/generate"},
        {"POST", "/api/show"},
        {"POST", "/api/embed"},
        {"POST", "/api/embeddings"},
        {"GET", "/api/tags"},
        {"GET", "/api/ps"},
        {"GET", "/api/version"}}},
  };
  return kFacts;
}

const DialectFacts* find_dialect(std::string_view name) {
  for (const DialectFacts& facts : dialect_facts()) {
    if (facts.name == name) return &facts;
  }
  return nullptr;
}

const char* dialect_choices() {
  static const std::string kChoices = [] {
    std::string all;
    for (const DialectFacts& facts : dialect_facts()) {
      all += (all.empty() ? "" : "|") + std::string(facts.name);
    }
    return all;
  }();
  return kChoices.c_str();
}

std::optional<DialectClash> find_clash(const std::vector<std::string>& names) {
  for (std::size_t i = 0; i < names.size(); ++i) {
    for (std::size_t j = i + 1; j < names.size(); ++j) {
      auto clash = clash_of(*find_dialect(names[i]), *find_dialect(names[j]));
      if (clash) return clash;
    }
  }
  return std::nullopt;
}

}  // namespace baton
