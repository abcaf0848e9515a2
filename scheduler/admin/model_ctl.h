// Which schedulers a command of baton-ctl is for, where several models are served.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "ipc/status.h"

namespace baton {

/// Where a model's scheduler is asked.
struct ModelSocket {
  std::string model;  ///< its entry of `models`; empty: the one model
  std::string admin_socket;
};

/// Those of `all` that --model means: the one called `model`, or without it all of them. An error
/// names what there is.
Result<std::vector<ModelSocket>> choose_models(const std::vector<ModelSocket>& all,
                                               const std::string& model);

/// Those of `models` that a command goes to: all if it shows and changes nothing, else the one
/// whose process it names. The error says that one is to be named.
Result<std::vector<ModelSocket>> asked_models(const std::vector<std::string>& words,
                                              const std::vector<ModelSocket>& models);

/// A command about a worker ("set worker", "wait worker") with the worker's full name: where it
/// lacks the model's, that of the model that it goes to. The line that is sent.
std::string with_full_name(const std::vector<std::string>& words, const std::string& model);

/// Sends a command to each scheduler, and makes one text of the answers: each under its model's
/// name, or, where `json` was asked for, one object by those names. `ask` answers nothing where a
/// scheduler does not. Returns the exit code.
int ask_models(const std::vector<ModelSocket>& models, bool json,
               const std::function<std::optional<std::string>(const ModelSocket&)>& ask,
               std::string& text);

}  // namespace baton
