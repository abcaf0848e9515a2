#include "workers/cpu_executor.h"

#include <stdexcept>
#include <utility>

#include "workers/model/error.h"

namespace baton {

CpuExecutor::CpuExecutor(std::string model_folder, int threads, std::uint32_t tokens_per_block)
    : model_folder_(std::move(model_folder)),
      threads_(threads),
      tokens_per_block_(tokens_per_block) {}

Result<ModelShape> CpuExecutor::load(std::atomic<int>& percent) {
  LoadOptions options;
  options.threads = threads_;
  try {
    model_ = LlamaModel::load(model_folder_, options, &percent);
  } catch (const ModelError& e) {
    return invalid(e.what());
  }
  percent = 100;
  ModelShape shape;
  shape.geometry = model_->kv_geometry(0, tokens_per_block_);
  shape.max_context = static_cast<std::uint32_t>(model_->config().max_context);
  shape.vocab_size = static_cast<std::uint32_t>(model_->config().vocab);
  set_shape(shape.geometry);
  return shape;
}

void CpuExecutor::run_rows(const RunStep& step, StepOutput& output) {
  rows_.clear();
  for (const BatchRow& row : step.rows) {
    rows_.push_back({row.tokens, row.position, row.blocks, row.logits});
  }
  const KvPoolView view{pool().data(), pool().geometry()};
  // The protocol core has checked every number; this catches a mistake there before it is a wild write.
  if (const Status status = model_->check(rows_, view); !status.ok()) {
    throw std::logic_error(status.message());
  }
  const LogitsView logits = model_->forward(rows_, view);
  int line = 0;
  for (std::size_t i = 0; i < step.rows.size(); ++i) {
    const BatchRow& row = step.rows[i];
    if (row.logits == LogitsWanted::none) continue;
    const std::span<const float> values = logits.row(line++);
    // The workspace is the model's own and not constant; the sampler restores what it masks.
    const std::span<float> scratch{const_cast<float*>(values.data()), values.size()};
    auto token = sampler_.sample(scratch, *row.sampling, {row.choice, row.n_generated});
    if (token.ok()) {
      output.tokens[i] = token.value();
    } else {
      output.failed.push_back({static_cast<std::uint32_t>(i), token.status().message()});
    }
  }
}

}  // namespace baton
