// What baton-bench-worker --dump writes.
#pragma once

#include <string>
#include <vector>

#include "ipc/types.h"

namespace baton::bench {

/// The activations of one sequence, gathered step after step.
class ActivationFile {
 public:
  /// As an ActivationDump.
  void add(const std::string& part, const float* values, int rows, int columns);
  /// A safetensors file of F32 tensors [tokens, columns] in the order of the parts, and of
  /// "tokens", I32: those of `tokens` that were computed. Begins anew. Throws std::runtime_error.
  void write(const std::string& path, const std::vector<Token>& tokens);

 private:
  struct Part {
    std::string name;
    std::size_t columns = 0;
    std::vector<float> values;
  };
  std::vector<Part> parts_;
};

}  // namespace baton::bench
