// baton-worker: one device, one KV pool. Wiring only.
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <memory>
#include <utility>

#include "configs/config.h"
#include "configs/process_log.h"
#include "ipc/process.h"
#include "ipc/spin.h"
#include "ipc/spoiled.h"
#include "ipc/zmq_channel.h"
#include "workers/execute/make_executor.h"
#include "workers/worker_loop.h"

namespace {

/// Says why this process ends, also to the supervisor; returns the exit status.
int refuse(const baton::Config& config, const baton::Status& status) {
  spdlog::error("{}", status.message());
  baton::leave_reason(config.run_dir, config.self.process_name(), status.message());
  return baton::kExitUsage;
}

}  // namespace

int main(int argc, char** argv) {
  using namespace baton;
  const Loaded loaded = load_config(Program::worker, argc, argv);
  if (!loaded.config) return loaded.exit_code;
  const Config& config = *loaded.config;

  start_process_log(config, config.self.process_name());

  SignalFd signals;  // before any thread
  if (config.self.rank > 0) {
    if (const Status status = ensure_private_directory(config.run_dir); !status.ok()) {
      return refuse(config, status);
    }
    const auto code = run_rank(config, signals);
    return code.ok() ? code.value() : refuse(config, code.status());
  }
  mark_pool_on_fault(config.run_dir, config.self.name);
  stay_awake_for(config.awake_ms * kMillisecond);
  auto executor = make_executor(config);
  if (const Status status = ensure_private_directory(config.run_dir); !status.ok()) {
    return refuse(config, status);
  }
  if (!executor.ok()) return refuse(config, executor.status());
  const Incarnation incarnation = new_incarnation(config.run_dir);
  auto channel =
      connect_client(config.workers_socket(), make_routing_id(config.self.name, incarnation));
  if (!channel.ok()) return refuse(config, channel.status());
  spdlog::info("baton-worker {} starts: {} on {}, pid {}", build_version(),
               to_string(config.self.role), config.self.device, getpid());
  WorkerLoop loop(config, std::move(channel).value(), signals, *executor.value(), incarnation);
  const int code = loop.run();
  spdlog::default_logger()->flush();
  _exit(code);  // a step or a pull may still run: nothing is taken away from under it
}
