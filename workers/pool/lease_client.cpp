#include "workers/pool/lease_client.h"

#include <unistd.h>

#include <chrono>
#include <thread>
#include <utility>
#include <variant>

#include "ipc/codec.h"
#include "ipc/packet_socket.h"

namespace baton {

namespace {

constexpr auto kTryAgain = std::chrono::milliseconds(50);

/// Nobody has ever listened there, or somebody who may come back.
bool is_there(const std::string& socket) { return ::access(socket.c_str(), F_OK) == 0; }

}  // namespace

Result<UniqueFd> reach_memory_process(const std::string& socket, TimeNs patience) {
  const TimeNs end = now_ns() + patience;
  for (;;) {
    auto fd = connect_packets(socket);
    if (fd.ok() || !is_there(socket) || now_ns() >= end) return fd;
    std::this_thread::sleep_for(kTryAgain);
  }
}

Result<LeasedPool> lease_pool(const std::string& socket, const Lease& lease,
                              const LeaseWaits& waits) {
  auto fd = reach_memory_process(socket, waits.connect);
  if (!fd.ok()) return fd.status();
  const auto failed = [](const char* what) { return Status(ErrorCode::unavailable, what); };
  std::string bytes;
  encode(lease, bytes);
  if (!send_packet(fd.value().get(), bytes)) return failed("the memory process takes no message");
  switch (receive_packet(fd.value().get(), waits.answer, bytes)) {
    case Received::nothing:
      return failed("the memory process has not answered in time");
    case Received::closed:
      return failed("the memory process has died");
    case Received::packet:
      break;
  }
  auto message = decode_from_memory(bytes);
  if (!message.ok()) return message.status();
  Leased& leased = std::get<Leased>(message.value());
  if (leased.allocation == 0) return Status(ErrorCode::unavailable, leased.why);
  return LeasedPool{std::move(leased), std::move(fd).value()};
}

}  // namespace baton
