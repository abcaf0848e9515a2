// Messages between the processes: refused, or the same after another journey.
#include <string>
#include <variant>

#include "ipc/codec.h"
#include "tests/fuzz/fuzz.h"

namespace {

template <typename Decode>
void journey(Decode decode, std::string_view bytes) {
  const auto message = decode(bytes);
  if (!message.ok()) return;
  std::string once, twice;
  std::visit([&](const auto& m) { baton::encode(m, once); }, message.value());
  const auto again = decode(once);
  baton::fuzz::require(again.ok(), "what was read can be sent on");
  std::visit([&](const auto& m) { baton::encode(m, twice); }, again.value());
  baton::fuzz::require(once == twice, "and arrives as it was");
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view bytes = baton::fuzz::text_of(data + 1, size - 1);
  switch (data[0] % 4U) {
    case 0:
      journey(baton::decode_frontend_message, bytes);
      break;
    case 1:
      journey(baton::decode_to_frontend, bytes);
      break;
    case 2:
      journey(baton::decode_worker_message, bytes);
      break;
    default:
      journey(baton::decode_to_worker, bytes);
      break;
  }
  return 0;
}
