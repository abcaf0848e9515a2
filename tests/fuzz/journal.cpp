// A dead process's journal: whatever it holds is read within its bounds, and what its records name
// can be rendered.
#include <string>
#include <vector>

#include "frontend/succession/journal.h"
#include "frontend/succession/reply_records.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string bytes(baton::fuzz::text_of(data, size));
  const auto contents = baton::read_journal(std::as_bytes(std::span(bytes)));
  if (!contents.ok()) return 0;
  std::size_t copied = 0;
  for (const baton::JournaledReply& reply : contents.value().replies) {
    baton::fuzz::require(reply.records.empty() == !reply.fault.empty(),
                         "a reply has records or a fault");
    for (const std::string& record : reply.records) copied += record.size();
    if (!reply.fault.empty()) continue;
    const auto opening = baton::decode_opening(reply.records.front());
    if (opening.ok()) {
      const auto* of_model = std::get_if<baton::ReplyOpening>(&opening.value());
      const auto* whole = std::get_if<baton::WholeReply>(&opening.value());
      const auto again = baton::decode_opening(
          of_model != nullptr ? baton::encode_opening(*of_model)
                              : baton::encode_whole(whole->place, whole->keep_alive, whole->bytes));
      baton::fuzz::require(again.ok() && again.value() == opening.value(),
                           "an opening that is good stays what it is");
    }
    baton::DecodedEvent decoded;
    const baton::EventBounds bounds{4, 4, 600};
    for (const std::string& record : reply.records) {
      if (!decoded.decode(record, bounds).ok()) continue;
      std::string encoded;
      if (decoded.attempt) {
        baton::encode_attempt(*decoded.attempt, encoded);
        if (decoded.time != 0) continue;  // of an attempt it means nothing
      } else {
        baton::encode_event(decoded.event, decoded.time, decoded.bytes, encoded);
      }
      baton::fuzz::require(encoded == record, "an event that is good stays what it is");
    }
  }
  baton::fuzz::require(copied <= size, "no more comes out than is there");
  return 0;
}
