// A model folder's config.json: refused with a reason, or read.
#include <string>

#include "tests/fuzz/fuzz.h"
#include "workers/model/config.h"
#include "workers/model/error.h"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text(baton::fuzz::text_of(data, size));
  try {
    baton::parse_model_config(text, "", "fuzz");
  } catch (const baton::ModelError&) {
  }
  return 0;
}
