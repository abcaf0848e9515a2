#include "scheduler/admin/kv_publisher.h"

#include <utility>
#include <vector>

#include "scheduler/admin/kv_events.h"

namespace baton {

Result<KvPublisher> KvPublisher::bind(const Config& config) {
  auto socket = bind_publisher(config.scheduler.kv_events, config.scheduler.kv_events_replay);
  if (!socket.ok()) return socket.status();
  return KvPublisher(config, std::move(socket).value());
}

KvPublisher::KvPublisher(const Config& config, std::unique_ptr<Publisher> socket)
    : socket_(std::move(socket)),
      pod_(config.scheduler.kv_events_pod),
      model_(config.model_name),
      arrays_(config.scheduler.kv_events_arrays) {}

std::string KvPublisher::topic(const std::string& worker) const {
  constexpr std::string_view kName = "{worker}";
  std::string pod = pod_;
  if (const std::size_t at = pod.find(kName); at != std::string::npos)
    pod.replace(at, kName.size(), worker);
  return "kv@" + pod + "@" + model_;
}

void KvPublisher::publish(State& state, TimeNs wall) {
  for (WorkerIndex i = 0; i < state.workers.size(); ++i) {
    Store& store = state.workers[i].store;
    if (!store.log || store.log->empty()) continue;
    const std::vector<CacheEvent> events = store.log->take();
    const KvEventFormat format{arrays_, store.tokens_per_block(), i};
    socket_->publish(topic(state.workers[i].name()),
                     encode_kv_events(static_cast<double>(wall) * 1e-9, events, format));
  }
  socket_->serve_subscribers();
  socket_->serve_replays();
}

}  // namespace baton
