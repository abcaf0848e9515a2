// What timing chose at a start, as plain values and as a file: the next process on the same device
// takes it instead of timing again. Plain C++, tested without a GPU.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace baton::cuda {

/// One matrix's shape at one range of row counts, as linear.cpp tells them apart.
struct LinearChoice {
  int in = 0;
  int out = 0;
  int output = 0;  // LinearOutput
  int format = 0;  // WeightFormat
  int groups = 0;
  int rows = 0;                              // timed at; serves up to these
  std::string kernel = {};                   // LinearKernel::name, or cublasLt
  int variant = 0;                           // of the kernel
  std::array<std::uint64_t, 8> algorithm{};  // of cuBLASLt, as it lies in memory
  double us = 0;
  bool operator==(const LinearChoice&) const = default;
};

/// Steps of up to so many rows are run as chains or not; in order, and more rows are not.
struct ChainChoice {
  int rows = 0;
  bool chained = false;
  double chained_us = 0;  // a layer
  double single_us = 0;
  bool operator==(const ChainChoice&) const = default;
};

struct KernelChoices {
  std::vector<LinearChoice> linears;  // those of a shape in order of rows
  std::vector<ChainChoice> chains;
  bool operator==(const KernelChoices&) const = default;
};

/// The file's text. `key` is one line with everything that the choices follow from.
std::string to_text(const std::string& key, const KernelChoices& choices);

/// Nothing for a text of another key, another version, or of no sense.
std::optional<KernelChoices> from_text(const std::string& key, const std::string& text);

/// The file's name: two keys share one by a chance of 2^-64, and from_text() tells them apart.
std::string choices_file_name(const std::string& key);

}  // namespace baton::cuda
