// The one exception of this folder: a model that cannot be loaded.
#pragma once

#include <stdexcept>

namespace baton {

/// A model folder that cannot be served. The message names the file and the tensor or setting.
/// Thrown while loading only, never by a step.
class ModelError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace baton
