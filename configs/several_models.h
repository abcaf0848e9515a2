// The list `models` of a configuration: what an entry may say, and what it takes from the top
// level. Private to configs/.
#pragma once

#include <string>
#include <vector>

#include "configs/assignment.h"
#include "configs/config.h"
#include "ipc/status.h"

namespace baton {

/// The keys of an entry beside its name, workers, and the sections scheduler and worker. One front
/// end serves all models: an entry says of it only how this model's text is read and written.
const std::vector<std::string>& entry_top_keys();
const std::vector<std::string>& entry_frontend_keys();

/// As an entry says it; empty: it does not.
std::string entry_name(const YamlContent& entry);

/// Names are there, in order and different; nobody says what only the top level, or only an entry,
/// can say.
Status check_models(const YamlContent& file, const CommandLine& line);

/// What the top level says, without workers: those belong to the models.
YamlContent content_beside(const YamlContent& file);

/// What a file for the model `index` alone would say: the top level, then the entry. An entry with
/// workers has none of the top level's.
YamlContent content_of(const YamlContent& file, std::size_t index);

/// What each entry must have with what it inherits, whichever program asks: a model, and a name
/// that is not `front_end`'s, since names of processes begin with both.
Status check_entries(const YamlContent& file, const std::string& front_end);

/// Names all workers in `config`, whose models are built, and in each model. The error: two models
/// want the same name, socket or file.
Status gather(Config& config);

/// What a process has: the whole, or the entry called `entry`. Schedulers and workers belong to
/// one.
Result<Config> pick(Program who, Config config, const std::string& entry);

}  // namespace baton
