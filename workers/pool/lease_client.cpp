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

Lease lease_of(const PoolRequest& request, const KvGeometry& geometry, std::uint32_t host_blocks,
               const std::string& weights) {
  Lease lease;
  lease.worker = request.worker;
  lease.incarnation = request.incarnation;
  lease.allocation = request.allocation;
  lease.key = {geometry.model_fingerprint,
               weights,
               static_cast<std::uint32_t>(geometry.dtype),
               geometry.layers,
               geometry.kv_heads,
               geometry.head_dim,
               geometry.tokens_per_block,
               geometry.block_bytes,
               kKvLayoutVersion};
  lease.blocks = geometry.blocks;
  lease.host_blocks = host_blocks;
  lease.planned = request.pool_blocks == 0 && request.pool_mib == 0;
  return lease;
}

Result<UniqueFd> reach_memory_process(const std::string& socket, TimeNs patience) {
  const TimeNs end = now_ns() + patience;
  for (;;) {
    auto fd = connect_packets(socket);
    if (fd.ok() || !is_there(socket) || now_ns() >= end) return fd;
    std::this_thread::sleep_for(kTryAgain);
  }
}

namespace {

/// One message, and its answer.
template <typename M>
Result<Leased> exchange(const UniqueFd& link, const M& message, TimeNs patience) {
  const auto failed = [](const char* what) { return Status(ErrorCode::unavailable, what); };
  std::string bytes;
  encode(message, bytes);
  if (!send_packet(link.get(), bytes)) return failed("the memory process takes no message");
  switch (receive_packet(link.get(), patience, bytes)) {
    case Received::nothing:
      return failed("the memory process has not answered in time");
    case Received::closed:
      return failed("the memory process has died");
    case Received::packet:
      break;
  }
  auto answer = decode_from_memory(bytes);
  if (!answer.ok()) return answer.status();
  auto* leased = std::get_if<Leased>(&answer.value());
  if (leased == nullptr) return failed("the memory process has answered something else");
  if (leased->allocation == 0) return Status(ErrorCode::unavailable, leased->why);
  return std::move(*leased);
}

}  // namespace

Result<LeasedPool> lease_pool(const std::string& socket, const Lease& lease,
                              const LeaseWaits& waits) {
  auto fd = reach_memory_process(socket, waits.connect);
  if (!fd.ok()) return fd.status();
  auto leased = exchange(fd.value(), lease, waits.answer);
  if (!leased.ok()) return leased.status();
  return LeasedPool{std::move(leased).value(), std::move(fd).value()};
}

std::string keeper_of(const std::string& handle) {
  const std::size_t at = handle.find('@');
  if (at == std::string::npos || handle.find('/', at) != std::string::npos) return "";
  return handle.substr(at + 1);
}

Result<UniqueFd> hold_mapping(const std::string& socket, const std::string& handle) {
  auto fd = connect_packets(socket);
  if (!fd.ok()) return fd;
  PoolMapped message;
  message.handle = handle;
  const auto held = exchange(fd.value(), message, LeaseWaits().connect);
  if (!held.ok()) return held.status();
  return fd;
}

}  // namespace baton
