#include "memory/memory_loop.h"

#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "ipc/codec.h"
#include "ipc/packet_socket.h"
#include "ipc/spoiled.h"

namespace baton {

namespace {

/// NAME.alive is touched, and idle pools are looked at, this often at least.
constexpr TimeNs kLookEvery = 500 * kMillisecond;
/// More than there can be workers: whoever connects again and again finds the door closed.
constexpr std::size_t kMostTenants = 1024;
/// Entries of a report: what a packet holds.
constexpr std::size_t kMostReported = 200;
// What entries are called: MemoryEntry::what.
const std::string kPool = "pool:";
const std::string kWeights = "weights:";

}  // namespace

MemoryLoop::MemoryLoop(const std::string& run_dir, UniqueFd listening)
    : run_dir_(run_dir),
      listening_(std::move(listening)),
      alive_(run_dir, "memory"),
      tracer_(run_dir, "memory"),
      pools_(std::make_unique<SegmentStore>(run_dir)) {}

MemoryLoop::MemoryLoop(const std::string& run_dir, const std::string& name, UniqueFd listening,
                       DeviceAllocator& device)
    : run_dir_(run_dir),
      listening_(std::move(listening)),
      alive_(run_dir, name),
      tracer_(run_dir, name),
      pools_(std::make_unique<DeviceStore>(run_dir, name, device)),
      weights_(name, device) {}

void MemoryLoop::run(SignalFd& signals) {
  while (!signals.requested()) {
    wait(signals);
    alive_.touch(now_);
    tracer_.look(now_);
    // Deaths first: who asks has often waited for one.
    take_deaths();
    accept();
    take_messages();
    for (const KeptPool& pool : leases_.expire(now_)) {
      spdlog::info("the pool of {} is given up: nobody has come back for it", pool.worker);
      pools_->drop(pool);
    }
    weights_.expire(now_);
  }
  for (const auto& [worker, pool] : leases_.pools()) pools_->drop(pool);
}

void MemoryLoop::wait(SignalFd& signals) {
  poller_.clear();
  listening_index_ = poller_.add_fd(listening_.get());
  poller_.add_fd(signals.fd());
  for (Tenant& tenant : tenants_) tenant.polled = poller_.add_fd(tenant.fd.get());
  for (Holder& holder : holders_) holder.polled = poller_.add_fd(holder.pidfd.get());
  poller_.wait(kLookEvery);
  now_ = now_ns();
}

void MemoryLoop::take_deaths() {
  std::erase_if(holders_, [&](const Holder& holder) {
    if (!poller_.ready(holder.polled)) return false;
    const bool spoiled = has_spoiled_mark(run_dir_, holder.worker, holder.pid, holder.start);
    leases_.ended(holder.worker, holder.incarnation, spoiled, now_);
    tracer_.add(
        {.kind = TraceKind::kept, .at = now_, .args = {static_cast<std::uint64_t>(holder.pid)}},
        holder.worker);
    spdlog::info("{}, process {}, has ended{}: its pool waits for the next one", holder.worker,
                 holder.pid, spoiled ? " of a fault" : "");
    return true;
  });
}

/// All are heard before any is answered: what one says is often what another one waits for.
void MemoryLoop::take_messages() {
  for (Tenant& tenant : tenants_) {
    const bool heard = tenant.polled != 0 && poller_.ready(tenant.polled);
    if (heard && !take_message(tenant)) lose(tenant);
  }
  for (Tenant& tenant : tenants_) {
    const bool told = tenant.lost || ((!tenant.lease || answer_lease(tenant)) &&
                                      (!tenant.weights || answer_weights(tenant)));
    if (!told) lose(tenant);
  }
  std::erase_if(tenants_, [](const Tenant& tenant) { return tenant.lost; });
}

void MemoryLoop::lose(Tenant& tenant) {
  tenant.lost = true;
  weights_.gone(tenant.link, now_);
  pools_->unmap(tenant.link);
}

void MemoryLoop::accept() {
  if (!poller_.ready(listening_index_)) return;
  while (auto peer = accept_packets(listening_.get())) {
    if (tenants_.size() < kMostTenants)
      tenants_.push_back(Tenant{++links_, std::move(peer->fd), peer->pid});
  }
}

/// False: it is gone, or speaks another language.
bool MemoryLoop::take_message(Tenant& tenant) {
  std::string bytes;
  UniqueFd carried;
  switch (receive_packet(tenant.fd.get(), 0, bytes, &carried)) {
    case Received::closed:
      return false;
    case Received::nothing:
      return true;
    case Received::packet:
      break;
  }
  auto message = decode_to_memory(bytes);
  if (!message.ok()) {
    spdlog::warn("message of process {} dropped: {}", tenant.pid, message.status().message());
    return false;
  }
  if (auto* lease = std::get_if<Lease>(&message.value())) {
    tenant.lease = std::move(*lease);
  } else if (auto* ask = std::get_if<WeightsAsk>(&message.value())) {
    tenant.weights = std::move(*ask);
  } else if (auto* sealed = std::get_if<WeightsSealed>(&message.value())) {
    return take(tenant, *sealed, std::move(carried));
  } else if (auto* command = std::get_if<MemoryCommand>(&message.value())) {
    return take(tenant, *command);
  } else if (auto* mapped = std::get_if<PoolMapped>(&message.value())) {
    Leased answer;
    answer.allocation = pools_->map(mapped->handle, tenant.link);
    if (answer.allocation == 0) answer.why = "the pool has been given up";
    return send_packet(tenant.fd.get(), encode(answer));
  }
  return true;
}

/// As all that take or answer, false: it cannot be told.
bool MemoryLoop::take(Tenant& tenant, const WeightsSealed& sealed, UniqueFd packed) {
  return send_packet(tenant.fd.get(),
                     encode(weights_.take(tenant.link, sealed, std::move(packed), now_)));
}

bool MemoryLoop::answer_weights(Tenant& tenant) {
  const WeightsAsk& ask = *tenant.weights;
  // Of another model: its lease would be a fresh one, and until then it takes the weights' room.
  if (const auto pool = leases_.outdated(ask.worker, ask.key.model_fingerprint)) {
    spdlog::info("the pool of {} is given up: it has another model now", ask.worker);
    pools_->drop(*pool);
  }
  const auto answer = weights_.ask({tenant.link, tenant.pid}, ask, now_);
  if (!answer) return true;
  tenant.weights.reset();
  return send_packet(tenant.fd.get(), encode(answer->message), answer->fd);
}

bool MemoryLoop::take(Tenant& tenant, const MemoryCommand& command) {
  std::string error;
  if (!command.drop.empty()) {
    error = drop(command.drop);
    spdlog::info("asked to drop {}: {}", command.drop, error.empty() ? "done" : error);
  }
  MemoryReport answer = report();
  answer.error = std::move(error);
  return send_packet(tenant.fd.get(), encode(answer));
}

bool MemoryLoop::answer_lease(Tenant& tenant) {
  const Lease lease = *tenant.lease;
  Leased message;
  // Opened while the asker is connected, so it is the asker's, and not that of a later process.
  UniqueFd pidfd(tenant.pid > 0 ? open_pidfd(tenant.pid) : -1);
  if (!pidfd) {
    message.why = "the memory process cannot watch process " + std::to_string(tenant.pid);
  } else {
    LeaseAnswer answer = leases_.ask(lease, now_);
    if (answer.ruling == Ruling::wait) return true;
    if (answer.ruling == Ruling::lease && answer.pool.kept && !pools_->exists(answer.pool)) {
      leases_.forget(lease.worker);
      answer = leases_.ask(lease, now_);
      answer.why = "its memory is gone";
    }
    message = give(answer);
    if (message.allocation == 0) {
      if (answer.ruling == Ruling::lease) leases_.forget(lease.worker);
    } else {
      const bool known = std::any_of(holders_.begin(), holders_.end(), [&](const Holder& h) {
        return h.worker == lease.worker && h.incarnation == lease.incarnation;
      });
      if (!known)
        holders_.push_back({lease.worker, lease.incarnation, tenant.pid, pid_start_time(tenant.pid),
                            std::move(pidfd), 0});
    }
  }
  spdlog::info("lease for {}, process {}: {} blocks{}{}", lease.worker, tenant.pid, message.blocks,
               message.allocation == 0 ? ", refused"
               : message.kept          ? ", kept"
                                       : ", fresh",
               message.why.empty() ? "" : ": " + message.why);
  if (message.allocation != 0) {
    tracer_.add({.kind = TraceKind::lease,
                 .at = now_,
                 .took = now_ns() - now_,
                 .args = {message.blocks, message.kept ? 1U : 0U}},
                lease.worker);
  }
  tenant.lease.reset();
  return send_packet(tenant.fd.get(), encode(message));
}

Leased MemoryLoop::give(const LeaseAnswer& answer) {
  Leased message;
  message.why = answer.why;
  if (answer.ruling != Ruling::lease) return message;
  const KeptPool& pool = answer.pool;
  if (!pool.kept && !pools_->exists(pool)) {  // it does if its holder asks again
    if (const Status made = make(pool); !made.ok()) {
      message.why = made.message();
      return message;
    }
  }
  message.allocation = pool.allocation;
  message.device_handle = pools_->handle(pool, false);
  if (pool.host_blocks > 0) message.host_handle = pools_->handle(pool, true);
  message.blocks = pool.blocks;
  message.host_blocks = pool.host_blocks;
  message.kept = pool.kept;
  return message;
}

/// Weights that nobody uses make room.
Status MemoryLoop::make(const KeptPool& pool) {
  Status made = pools_->make(pool);
  if (!made.ok() && weights_.drop_unused(now_)) made = pools_->make(pool);
  return made;
}

MemoryReport MemoryLoop::report() const {
  MemoryReport report;
  report.pid = ::getpid();
  for (const auto& [worker, pool] : leases_.pools()) {
    MemoryEntry entry;
    entry.what = kPool + worker;
    entry.state = pool.held ? "held" : pool.spoiled ? "spoiled" : "waits";
    entry.workers = {worker};
    for (const Holder& holder : holders_) {
      if (holder.worker == worker && holder.incarnation == pool.holder)
        entry.pids.push_back(holder.pid);
    }
    entry.bytes = pools_->bytes(pool);
    entry.since_ns = now_ - pool.since;
    report.entries.push_back(std::move(entry));
  }
  const auto pid_of = [&](LinkNumber link) {
    const auto tenant = std::find_if(tenants_.begin(), tenants_.end(),
                                     [&](const Tenant& t) { return t.link == link; });
    return tenant == tenants_.end() ? 0 : tenant->pid;
  };
  weights_.report(now_, pid_of, report.entries);
  if (report.entries.size() > kMostReported) {
    report.left_out = static_cast<std::uint32_t>(report.entries.size() - kMostReported);
    report.entries.resize(kMostReported);
  }
  return report;
}

/// Empty: it is given back. Otherwise why not.
std::string MemoryLoop::drop(const std::string& what) {
  if (what.starts_with(kWeights)) return weights_.drop(what.substr(kWeights.size()));
  if (!what.starts_with(kPool)) return "it is neither pool:NAME nor weights:NUMBER";
  const auto pool = leases_.drop(what.substr(kPool.size()));
  if (!pool.ok()) return pool.status().message();
  pools_->drop(pool.value());
  return "";
}

}  // namespace baton
