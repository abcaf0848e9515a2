// baton-memory: keeps the KV pools of this host's workers on CPUs, so that they outlive them.
// Wiring only.
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include "configs/config.h"
#include "ipc/packet_socket.h"
#include "ipc/process.h"
#include "memory/memory_loop.h"

int main(int argc, char** argv) {
  using namespace baton;
  const Loaded loaded = load_config(Program::tool, argc, argv);
  if (!loaded.config) return loaded.exit_code;
  const Config& config = *loaded.config;
  spdlog::set_default_logger(spdlog::stderr_color_mt("memory"));
  spdlog::set_pattern(log_pattern("memory"));
  spdlog::set_level(spdlog::level::from_str(config.log_level));
  spdlog::flush_on(spdlog::level::info);
  const auto fail = [](const Status& status) {
    spdlog::error("{}", status.message());
    return 1;
  };

  SignalFd signals;
  auto lock = LockFile::acquire(config.memory_lock());
  if (!lock.ok()) return fail(lock.status());
  auto listening = listen_packets(lock.value(), config.memory_socket());
  if (!listening.ok()) return fail(listening.status());
  spdlog::info("baton-memory {} listens in {}", build_version(), config.run_dir);
  mark_up(config.run_dir, "memory");
  MemoryLoop(config.run_dir, std::move(listening).value()).run(signals);
  return 0;
}
