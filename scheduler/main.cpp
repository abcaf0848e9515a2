// baton-scheduler: wiring only.
#include <spdlog/spdlog.h>

#include "configs/config.h"
#include "configs/process_log.h"
#include "ipc/process.h"
#include "ipc/spin.h"
#include "ipc/zmq_channel.h"
#include "scheduler/scheduler_loop.h"

namespace {

int fail(const baton::Status& status) {
  spdlog::error("{}", status.message());
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  baton::Loaded loaded = baton::load_config(baton::Program::scheduler, argc, argv);
  if (!loaded.config) return loaded.exit_code;
  const baton::Config& config = *loaded.config;
  baton::start_process_log(config, config.scheduler_name());
  baton::SignalFd signals;
  baton::stay_awake_for(config.awake_ms * baton::kMillisecond);

  auto lock = baton::LockFile::acquire(config.scheduler_lock());
  if (!lock.ok()) return fail(lock.status());
  auto frontends = baton::bind_server(lock.value(), config.frontends_socket());
  if (!frontends.ok()) return fail(frontends.status());
  auto workers = baton::bind_server(lock.value(), config.workers_socket());
  if (!workers.ok()) return fail(workers.status());

  baton::SchedulerLoop loop(config, *frontends.value(), *workers.value());
  if (const baton::Status status = loop.listen_admin(config.scheduler.admin_socket); !status.ok()) {
    return fail(status);
  }
  if (!config.scheduler.kv_events.empty()) {
    auto publisher = baton::KvPublisher::bind(config);
    if (!publisher.ok()) return fail(publisher.status());
    loop.publish_caches(std::move(publisher).value());
  }
  spdlog::info("baton-scheduler {} listens in {}", baton::build_version(), config.run_dir);
  if (!config.entry.empty() && config.workers.empty()) {
    spdlog::warn("no workers are configured for the model {}", config.entry);
  }
  baton::mark_up(config.run_dir, config.scheduler_name());
  loop.run(signals);
  return 0;
}
