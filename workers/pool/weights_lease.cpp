#include "workers/pool/weights_lease.h"

#include <utility>
#include <variant>

#include "ipc/codec.h"
#include "ipc/packet_socket.h"

namespace baton {

namespace {

constexpr TimeNs kTaken = kSecond;

template <typename M>
bool say(const UniqueFd& link, const M& message, int carried = -1) {
  std::string bytes;
  encode(message, bytes);
  return send_packet(link.get(), bytes, carried);
}

/// The error says why nothing came in time.
Result<WeightsGiven> hear(const UniqueFd& link, TimeNs patience, UniqueFd* carried) {
  const auto failed = [](const char* what) { return Status(ErrorCode::unavailable, what); };
  std::string bytes;
  switch (receive_packet(link.get(), patience, bytes, carried)) {
    case Received::nothing:
      return failed("another worker packs them, and has not ended in time");
    case Received::closed:
      return failed("the memory process has died");
    case Received::packet:
      break;
  }
  auto message = decode_from_memory(bytes);
  if (!message.ok()) return message.status();
  auto* given = std::get_if<WeightsGiven>(&message.value());
  if (given == nullptr) return failed("the memory process has answered something else");
  return std::move(*given);
}

}  // namespace

WeightsLease lease_weights(const std::string& socket, const WeightsAsk& ask,
                           const LeaseWaits& waits) {
  const auto own = [](std::string why) {
    WeightsLease lease;
    lease.why = std::move(why);
    return lease;
  };
  if (socket.empty()) return own("no memory process is configured");
  auto link = reach_memory_process(socket, waits.connect);
  if (!link.ok()) return own(link.status().message());
  if (!say(link.value(), ask)) return own("the memory process takes no message");
  UniqueFd carried;
  auto given = hear(link.value(), waits.answer, &carried);
  if (!given.ok()) return own(given.status().message());
  if (!given.value().sealed && !given.value().fill) return own(given.value().why);
  WeightsLease lease;
  lease.fill = given.value().fill;
  lease.device = {given.value().handle, given.value().bytes, given.value().sum};
  if (given.value().sealed && lease.device.handle.empty()) {
    auto memory = SealedMemory::map(std::move(carried));
    if (!memory.ok()) return own(memory.status().message());
    lease.packed = std::make_shared<const SealedMemory>(std::move(memory).value());
  }
  lease.link = std::move(link).value();
  return lease;
}

namespace {

bool give(const WeightsLease& lease, const WeightsSealed& message, int carried) {
  if (!say(lease.link, message, carried)) return false;
  const auto taken = hear(lease.link, kTaken, nullptr);
  return taken.ok() && taken.value().sealed;
}

}  // namespace

bool give_weights(const WeightsLease& lease, const SealedMemory& packed) {
  WeightsSealed message;
  message.bytes = packed.size();
  return give(lease, message, packed.fd());
}

bool give_device_weights(const WeightsLease& lease, std::uint64_t sum) {
  WeightsSealed message;
  message.bytes = lease.device.bytes;
  message.sum = sum;
  return give(lease, message, -1);
}

}  // namespace baton
