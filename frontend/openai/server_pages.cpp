#include "frontend/openai/server_pages.h"

#include <cstdint>
#include <string>

#include "frontend/http/sse.h"

namespace baton {
namespace {

std::string known(std::uint64_t value) { return value == 0 ? "null" : std::to_string(value); }

}  // namespace

// There is no "model_path" here: a router would look for a tokenizer under it, in files or on the
// network.
std::variant<Answer, HttpError> server_info_page(const PageFacts& facts, const ServedModel& model) {
  return Answer{"{\"served_model_name\":" + json_string(model.name) +
                ",\"version\":" + json_string(facts.version) +
                ",\"dp_size\":1,\"context_length\":" + known(facts.max_context) +
                ",\"max_running_requests\":" + known(facts.max_batch) +
                ",\"max_total_num_tokens\":" + known(facts.pool_tokens) + "}"};
}

std::variant<Answer, HttpError> model_info_page(const PageFacts& /*facts*/,
                                                const ServedModel& model) {
  return Answer{"{\"model_path\":" + json_string(model.name) +
                ",\"is_generation\":true,\"preferred_sampling_params\":null}"};
}

std::variant<Answer, HttpError> load_page(const PageFacts& facts, const ServedModel& /*model*/) {
  return Answer{"[{\"rid\":null,\"dp_rank\":0,\"num_reqs\":" + std::to_string(facts.running) +
                ",\"num_waiting_reqs\":" + std::to_string(facts.waiting) +
                ",\"num_tokens\":" + std::to_string(facts.used_tokens) + "}]"};
}

}  // namespace baton
