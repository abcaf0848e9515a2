// What a front end reads of each model that it serves.
#pragma once

#include <functional>

#include "configs/config.h"
#include "frontend/core/model_choice.h"
#include "ipc/status.h"

namespace baton {

/// One of them.
Result<ServedModel> load_model(const Config& config);

/// Tokenizers, chat templates and tasks, in the order of the configuration. Calls `alive` after
/// each: several may take seconds. One that cannot be loaded says why (ServedModel::fault), so that
/// it takes no other down; an error only where none can.
Result<ServedModels> load_models(const Config& config, const std::function<void()>& alive);

}  // namespace baton
