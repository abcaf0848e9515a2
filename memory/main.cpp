// baton-memory: keeps the KV pools and the weights of this host's workers on CPUs, or of those on
// one GPU (--gpu), so that they outlive them. Wiring only.
#include <spdlog/spdlog.h>

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "configs/config.h"
#include "configs/gpu_memory.h"
#include "configs/process_log.h"
#include "ipc/packet_socket.h"
#include "ipc/process.h"
#include "ipc/shm_region.h"
#include "memory/cuda_allocator.h"
#include "memory/memory_loop.h"

namespace {

using namespace baton;

/// Takes `--gpu G` out of the arguments: no other process has this option.
std::optional<std::string> take_gpu(std::vector<const char*>& args) {
  for (std::size_t i = 1; i + 1 < args.size(); ++i) {
    if (std::string_view(args[i]) != "--gpu") continue;
    std::string gpu = args[i + 1];
    args.erase(args.begin() + static_cast<std::ptrdiff_t>(i),
               args.begin() + static_cast<std::ptrdiff_t>(i) + 2);
    return gpu;
  }
  return std::nullopt;
}

/// A GPU that is not there keeps nothing, and is no reason to start again and again: workers of a
/// configuration for more GPUs share those that there are.
class NoDevice final : public DeviceAllocator {
 public:
  explicit NoDevice(Status why) : why_(std::move(why)) {}
  Result<DeviceBlock> allocate(std::uint64_t /*bytes*/) override { return why_; }
  void free(const DeviceBlock& /*block*/) override {}

 private:
  const Status why_;
};

int run(const Config& config, const std::string& name, const std::optional<std::string>& gpu) {
  const auto fail = [](const Status& status) {
    spdlog::error("{}", status.message());
    return 1;
  };
  SignalFd signals;
  auto lock = LockFile::acquire(config.memory_lock(name));
  if (!lock.ok()) return fail(lock.status());
  // Before the device: its context takes a second, and workers that come meanwhile wait.
  auto listening = listen_packets(lock.value(), config.memory_socket(name));
  if (!listening.ok()) return fail(listening.status());
  unlink_dead_regions(config.run_dir);  // of workers, and of Batons that were killed as a whole
  std::unique_ptr<DeviceAllocator> device;
  if (gpu) {
    auto made = make_cuda_allocator(*gpu);
    if (!made.ok()) {
      // Expected where two workers of a pair share one GPU.
      const bool fewer = made.status().code() == ErrorCode::invalid_argument;
      spdlog::log(fewer ? spdlog::level::info : spdlog::level::warn, "{}: nothing is kept here",
                  made.status().message());
    }
    device = made.ok() ? std::move(made).value() : std::make_unique<NoDevice>(made.status());
  }
  spdlog::info("baton-memory {} listens in {}", build_version(), config.run_dir);
  mark_up(config.run_dir, name);
  if (device) {
    MemoryLoop(config.run_dir, name, std::move(listening).value(), *device).run(signals);
  } else {
    MemoryLoop(config.run_dir, std::move(listening).value()).run(signals);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<const char*> args(argv, argv + argc);
  const auto gpu = take_gpu(args);
  const Loaded loaded = load_config(Program::tool, static_cast<int>(args.size()), args.data());
  if (!loaded.config) return loaded.exit_code;
  const std::string name = gpu ? gpu_memory_name(*gpu) : "memory";
  start_process_log(*loaded.config, name);
  return run(*loaded.config, name, gpu);
}
