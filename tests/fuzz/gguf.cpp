// The head of a GGUF file: refused, or every tensor lies inside the file; and what becomes of it is
// made or refused.
#include "text/gguf/gguf_file.h"

#include "tests/fuzz/fuzz.h"
#include "text/gguf/gguf_folder.h"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto head = baton::GgufHead::parse({reinterpret_cast<const char*>(data), size}, "fuzz");
  if (!head.ok()) return 0;
  for (const auto& [name, tensor] : head.value().tensors()) {
    baton::fuzz::require(tensor.offset <= size && tensor.bytes <= size - tensor.offset,
                         "a tensor lies inside its file");
  }
  static_cast<void>(baton::gguf_config(head.value(), "fuzz").ok());
  static_cast<void>(baton::gguf_tokenizer_json(head.value(), "fuzz").ok());
  static_cast<void>(baton::gguf_tokenizer_model(head.value(), "fuzz").ok());
  static_cast<void>(baton::gguf_tokenizer_config(head.value(), "fuzz").ok());
  return 0;
}
