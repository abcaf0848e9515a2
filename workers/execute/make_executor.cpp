#include "workers/execute/make_executor.h"

#include <algorithm>
#include <cstdlib>
#include <string>
#include <thread>
#include <utility>

#include "configs/gpu_memory.h"
#include "text/model_task.h"
#include "workers/execute/fake_model.h"
#include "workers/execute/rank_process.h"
#ifdef BATON_HAVE_CPU_MODEL
#include "workers/execute/cpu_executor.h"
#include "workers/execute/cpu_rank.h"
#endif
#ifdef BATON_HAVE_CUDA
#include "workers/execute/cuda_executor.h"
#include "workers/execute/gpu_rank.h"
#endif

namespace baton {

namespace {

#ifdef BATON_HAVE_CPU_MODEL
CpuExecutor::Options cpu_options(const Config& config) {
  const WorkerConfig& self = config.self;
  CpuExecutor::Options options;
  options.model_folder = config.model;
  options.tokens_per_block = self.tokens_per_block;
  options.kv_groups = self.kv_groups == "auto";
  options.weights = self.dtype == "f32"    ? WeightChoice::f32
                    : self.dtype == "bf16" ? WeightChoice::bf16
                                           : WeightChoice::stored;
  options.activations = self.rounds_activations() ? Activations::int8 : Activations::exact;
  options.max_context = config.max_context;
  options.run_dir = config.run_dir;
  options.memory_socket = config.memory_socket();
  options.name = self.name;
  unsigned processes = self.ranks;
  for (const WorkerConfig& worker : config.neighbours()) {
    if (worker.device == "cpu" && worker.name != self.name) {
      options.neighbours.push_back(worker.name);
      processes += worker.ranks;
    }
  }
  options.ranks = static_cast<int>(self.ranks);
  options.rank_timeout = seconds_to_ns(self.rank_timeout_s);
  options.threads =
      self.threads > 0
          ? static_cast<int>(self.threads)
          : std::clamp(static_cast<int>(std::thread::hardware_concurrency() / processes), 1, 256);
  options.memory.pool_blocks = self.pool_blocks;
  options.memory.pool_mib = self.pool_mib;
  options.memory.host_pool_blocks = self.host_pool_blocks;
  options.memory.host_pool_mib = self.host_pool_mib;
  options.memory.memory_mib = self.memory_mib;
  options.memory.fraction = self.memory_fraction;
  return options;
}
#endif

bool wants_mps(const WorkerConfig& self) {
  return self.mps_thread_percentage > 0 || self.mps_priority != "auto";
}

#ifdef BATON_HAVE_CUDA
/// The driver reads them once, when this process first asks for a device.
void set_mps_share(const WorkerConfig& self) {
  if (self.mps_thread_percentage > 0) {
    ::setenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
             std::to_string(self.mps_thread_percentage).c_str(), 1);
  }
  if (self.mps_priority != "auto") {
    ::setenv("CUDA_MPS_CLIENT_PRIORITY", self.mps_priority == "low" ? "1" : "0", 1);
  }
}
#endif

#ifdef BATON_HAVE_CUDA
Result<CudaExecutor::Options> cuda_options(const Config& config) {
  const WorkerConfig& self = config.self;
  const auto task = find_task(config.model, config.model_task);
  if (!task.ok()) return task.status();
  if (task.value() == ModelTask::embed) {
    return invalid("worker " + self.name +
                   ": embeddings (model_task: embed) are not served on device cuda yet");
  }
  if (self.dtype == "f32") return invalid("worker " + self.name + ": dtype f32 needs device cpu");
  if (self.mps_thread_percentage > 0 && !self.deterministic) {
    // Measured: with 40 or 80 % of an H200 some of its algorithms leave parts of a product
    // unwritten.
    return invalid("worker " + self.name +
                   ": mps_thread_percentage needs deterministic: cuBLAS's products are wrong under "
                   "some shares");
  }
  CudaExecutor::Options options;
  options.model_folder = config.model;
  options.run_dir = config.run_dir;
  options.name = self.name;
  const auto gpus = gpus_of(self);
  if (!gpus.ok()) return gpus.status();
  options.gpu = gpus.value()[self.rank];
  options.rank = static_cast<int>(self.rank);
  options.ranks = static_cast<int>(self.ranks);
  options.rank_timeout = seconds_to_ns(self.rank_timeout_s);
  options.count = 0;
  for (const WorkerConfig& worker : config.neighbours()) {
    if (worker.device != "cuda") continue;
    const bool has_host_part = worker.host_pool_blocks > 0 || worker.host_pool_mib > 0;
    if (has_host_part && worker.name != self.name) options.neighbours.push_back(worker.name);
    if (worker.gpu != "auto") continue;
    if (worker.name == self.name) options.index = options.count;
    options.count += static_cast<int>(worker.ranks);
  }
  options.count = std::max(options.count, 1);
  options.dummy_weights = self.load_format == "dummy";
  options.deterministic = self.deterministic;
  using Chain = GpuDecoder::Options::Chain;
  options.chain = self.layer_kernel == "always"  ? Chain::wherever_possible
                  : self.layer_kernel == "never" ? Chain::never
                                                 : Chain::if_quicker;
  options.tokens_per_block = self.tokens_per_block;
  options.kv_groups = self.kv_groups == "auto";
  options.elastic = config.scheduler.elastic == Elastic::automatic;
  options.max_context = config.max_context;
  options.in_place_keys = self.in_place_keys;
  options.max_step_tokens = largest_step(config.scheduler, self.role);
  options.max_decode_rows =
      std::min(config.scheduler.max_running, config.scheduler.token_budget.of(self.role));
  options.memory_fraction = self.memory_fraction;
  options.time_steps = !self.step_log.empty();
  options.wants_mps = wants_mps(self);
  return options;
}
#endif

#ifndef BATON_HAVE_CUDA
Status no_cuda(const Config& config) {
  return invalid("worker " + config.self.name +
                 ": device cuda is not in this build; `./baton serve --device cuda` builds it");
}
#endif

Result<std::unique_ptr<Executor>> make_cuda_executor(const Config& config) {
#ifdef BATON_HAVE_CUDA
  auto options = cuda_options(config);
  if (!options.ok()) return options.status();
  set_mps_share(config.self);
  return std::unique_ptr<Executor>(std::make_unique<CudaExecutor>(std::move(options).value()));
#else
  return no_cuda(config);
#endif
}

}  // namespace

Result<std::unique_ptr<Executor>> make_executor(const Config& config) {
  const WorkerConfig& self = config.self;
  if (self.fake) {
    return std::unique_ptr<Executor>(
        std::make_unique<FakeModel>(config.model, self.tokens_per_block));
  }
  if (config.model.empty()) return invalid("model is not set");
  if (self.device == "cuda" && self.activations == "int8") {
    return invalid("worker " + self.name + ": activations int8 needs device cpu");
  }
  if (self.device == "cuda") return make_cuda_executor(config);
  if (self.load_format != "auto") {
    return invalid("worker " + self.name + ": load_format " + self.load_format +
                   " needs device cuda");
  }
  if (wants_mps(self)) {
    return invalid("worker " + self.name +
                   ": mps_thread_percentage and mps_priority need device cuda");
  }
#ifdef BATON_HAVE_CPU_MODEL
  return std::unique_ptr<Executor>(std::make_unique<CpuExecutor>(cpu_options(config)));
#else
  return invalid("worker " + self.name + ": this build has no libtorch, so only `fake: true` runs");
#endif
}

Result<int> run_rank(const Config& config, [[maybe_unused]] SignalFd& signals) {
  if (config.self.device == "cuda") {
#ifdef BATON_HAVE_CUDA
    auto options = cuda_options(config);
    if (!options.ok()) return options.status();
    const RankGroupOptions group = options.value().group_options();
    return run_rank_process(config, group, make_gpu_rank(options.value()), signals);
#else
    return no_cuda(config);
#endif
  }
#ifdef BATON_HAVE_CPU_MODEL
  const CpuExecutor::Options options = cpu_options(config);
  const auto rank = static_cast<int>(config.self.rank);
  return run_rank_process(config, options.group_options(rank), make_cpu_rank(options, rank),
                          signals);
#else
  return invalid("worker " + config.self.name + ": this build has no libtorch, so it has no ranks");
#endif
}

}  // namespace baton
