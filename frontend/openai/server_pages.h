// What routers ask a server before they send it requests, by SGLang's paths and names: who it is,
// what it serves and how much it has to do. Pure.
#pragma once

#include <variant>

#include "frontend/core/dialect.h"

namespace baton {

/// {"served_model_name", "version", "dp_size", "context_length", "max_running_requests",
/// "max_total_num_tokens"}; null for what no scheduler has said yet.
std::variant<Answer, HttpError> server_info_page(const PageFacts& facts, const ServedModel& model);

/// {"model_path": the model's name, "is_generation": true, "preferred_sampling_params": null}
std::variant<Answer, HttpError> model_info_page(const PageFacts& facts, const ServedModel& model);

/// A list of one: {"rid", "dp_rank", "num_reqs", "num_waiting_reqs", "num_tokens"}, of the whole
/// cluster.
std::variant<Answer, HttpError> load_page(const PageFacts& facts, const ServedModel& model);

}  // namespace baton
