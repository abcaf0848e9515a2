// The CPU backend as an Executor: LlamaModel, Sampler and the pool in shared memory.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "workers/host_pool.h"
#include "workers/model/llama.h"
#include "workers/sampler.h"

namespace baton {

class CpuExecutor final : public HostExecutor {
 public:
  CpuExecutor(std::string model_folder, int threads, std::uint32_t tokens_per_block);

  Result<ModelShape> load(std::atomic<int>& percent) override;

 private:
  void run_rows(const RunStep& step, StepOutput& output) override;
  void prompt_logprobs(const RunStep& step, const BatchRow& row, const LogitsView& logits, int line,
                       Logprobs& out);

  const std::string model_folder_;
  const int threads_;
  const std::uint32_t tokens_per_block_;
  std::unique_ptr<LlamaModel> model_;
  Sampler sampler_;
  std::vector<StepRow> rows_;  // reused
};

}  // namespace baton
