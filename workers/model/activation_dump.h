// Debugging: what the parts of a forward pass leave behind.
#pragma once

#include <functional>
#include <string>

namespace baton {

/// Is called after a part of a step with its name and what it left, [rows, columns], rows in the
/// order of the step's tokens. Parts: "embed"; of each layer "layerN.attended" (what goes into its
/// output projection) and "layerN" (the residual stream behind it); "logits". The last layer and
/// the logits have only the rows whose logits are wanted.
using ActivationDump =
    std::function<void(const std::string& part, const float* values, int rows, int columns)>;

}  // namespace baton
