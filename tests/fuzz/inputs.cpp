// A dead process's journal of inputs: whatever it holds is read within its bounds, and what the
// kernel says of a connection never makes more of it than is there.
#include <algorithm>
#include <span>
#include <vector>

#include "frontend/succession/input_journal.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  // Slots are written to when deaths are counted, in words: so they lie as they do in a memfd.
  std::vector<std::uint64_t> words(size / 8 + 1);
  const auto memory = std::as_writable_bytes(std::span(words)).first(size);
  std::copy_n(reinterpret_cast<const std::byte*>(data), size, memory.begin());
  auto inputs = baton::read_inputs(memory);
  if (!inputs.ok()) return 0;
  baton::count_deaths(memory, inputs.value());
  std::size_t copied = 0;
  for (baton::InheritedInput& input : inputs.value()) {
    copied += input.bytes.size();
    baton::fuzz::require(input.fault.empty() || input.bytes.empty(), "a fault gives no bytes");
    if (!input.fault.empty()) continue;
    baton::fuzz::require(input.counted <= input.bytes.size(), "what is counted is there");
    const std::size_t known = input.bytes.size();
    const bool settled = input.settle(input.base + size % (known + 2));
    baton::fuzz::require(!settled || input.bytes.size() <= known, "settling adds nothing");
  }
  baton::fuzz::require(copied <= size, "no more comes out than is there");
  return 0;
}
