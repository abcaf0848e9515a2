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
    if (row.logits == LogitsWanted::all) {
      prompt_logprobs(step, row, logits, line, output.prompt_logprobs);
      line += static_cast<int>(row.tokens.size()) - 1;
    }
    const std::span<float> values = logits.row(line++);
    if (!row.samples()) continue;
    auto token = sampler_.sample(values, *row.sampling, {row.choice, row.n_generated},
                                 {row.history, row.n_prompt});
    if (!token.ok()) {
      output.failed.push_back({static_cast<std::uint32_t>(i), token.status().message()});
      continue;
    }
    output.tokens[i] = token.value();
    if (row.sampling->logprobs >= 0) {
      sampler_.log_probabilities(values, token.value(), row.sampling->logprobs,
                                 static_cast<std::uint32_t>(i), output.logprobs);
    }
  }
}

/// Of the known tokens that follow each of the row's; their logits begin at `line`.
void CpuExecutor::prompt_logprobs(const RunStep& step, const BatchRow& row,
                                  const LogitsView& logits, int line, Logprobs& out) {
  const auto first = static_cast<std::uint32_t>(row.tokens.data() - step.tokens.data());
  for (std::size_t t = 0; t < row.tokens.size(); ++t) {
    const Token next = t + 1 < row.tokens.size() ? row.tokens[t + 1] : row.next;
    if (next == kNoToken) continue;
    sampler_.log_probabilities(logits.row(line + static_cast<int>(t)), next,
                               row.sampling->prompt_logprobs,
                               first + static_cast<std::uint32_t>(t), out);
  }
}

}  // namespace baton
