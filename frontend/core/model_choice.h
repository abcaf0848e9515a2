// Which of the served models a request is for. Pure; the same when a request comes and when a
// successor reads it again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "frontend/core/generation.h"
#include "frontend/core/served_model.h"

namespace baton {

/// Where a route's requests say which model they are for.
enum class ModelNamed : std::uint8_t {
  nowhere,  // the first one serves them
  in_body,  // "model"
  by_tag,   // "model", or the older "name"; ":latest" behind it means nothing (Ollama)
  in_path,  // its last part
};

/// In the order of the configuration; never empty.
using ServedModels = std::vector<ServedModel>;

/// "small, big".
std::string names_of(const ServedModels& models);

/// 404, with the names that there are.
HttpError no_such_model(std::string_view name, const ServedModels& models);

/// The model that `name` is of, or its number past the last one.
std::size_t find_model(std::string_view name, const ServedModels& models);

/// Whether two processes mean the same by an entry of `models`: the entry's name, the model's
/// folder and how many tokens it has. Never 0; for an empty `entry` 0.
std::uint64_t model_identity(std::string_view entry, std::string_view folder,
                             std::uint32_t vocabulary);

/// Index of the model that a request is for. Of one model always 0, whatever the request names: its
/// dialect says what is wrong with that, as it does of a body that is none. Of several: an error
/// when the request names none, or one that there is not; where it may name any
/// (RequestContext::any_model), the first one stands for both.
std::variant<std::size_t, HttpError> choose_model(const ServedModels& models, ModelNamed where,
                                                  const RequestContext& context,
                                                  std::string_view body);

}  // namespace baton
