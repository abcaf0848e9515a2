// The configuration file: refused with its line, or read.
#include <string>

#include "configs/config.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto config =
      baton::parse_config(std::string(baton::fuzz::text_of(data, size)), "fuzz.yaml");
  if (!config.ok()) {
    baton::fuzz::require(!config.status().message().empty(), "a refusal has its reason");
  }
  return 0;
}
