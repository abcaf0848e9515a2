// A checkpoint's header: refused, or every tensor lies inside the file.
#include "workers/model/safetensors.h"

#include "tests/fuzz/fuzz.h"
#include "workers/model/error.h"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto* file = reinterpret_cast<const std::byte*>(data);
  try {
    for (const auto& [name, tensor] : baton::parse_safetensors(file, size, "fuzz")) {
      baton::fuzz::require(
          tensor.data >= file && tensor.bytes <= size && tensor.data + tensor.bytes <= file + size,
          "a tensor lies inside its file");
    }
  } catch (const baton::ModelError&) {
  }
  return 0;
}
