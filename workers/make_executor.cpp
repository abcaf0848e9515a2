#include "workers/make_executor.h"

#include "workers/fake_model.h"
#ifdef BATON_HAVE_CPU_MODEL
#include "workers/cpu_executor.h"
#endif

namespace baton {

Result<std::unique_ptr<Executor>> make_executor(const Config& config) {
  const WorkerConfig& self = config.self;
  if (self.device != "cpu") {
    return invalid("worker " + self.name + ": device '" + self.device +
                   "' is not served by this build (cpu)");
  }
  if (self.fake) {
    return std::unique_ptr<Executor>(
        std::make_unique<FakeModel>(config.model, self.tokens_per_block));
  }
  if (config.model.empty()) return invalid("model is not set");
#ifdef BATON_HAVE_CPU_MODEL
  return std::unique_ptr<Executor>(std::make_unique<CpuExecutor>(
      config.model, static_cast<int>(self.threads), self.tokens_per_block));
#else
  return invalid("worker " + self.name + ": this build has no libtorch, so only `fake: true` runs");
#endif
}

}  // namespace baton
