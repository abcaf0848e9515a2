#include "bench/bench_worker_driver.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <stdexcept>
#include <utility>

#include "ipc/process.h"
#include "workers/execute/make_executor.h"

namespace baton::bench {

Driver::Driver(const Config& config, std::uint32_t pool_blocks) {
  auto executor = make_executor(config);
  if (!executor.ok()) throw std::runtime_error(executor.status().message());
  executor_ = std::move(executor).value();
  executor_->on_grammar([this](std::uint64_t /*key*/, bool /*ready*/) {
    grammar_answered_ = true;
    grammar_answered_.notify_one();
  });
  std::atomic<int> percent{0};
  const TimeNs begin = now_ns();
  const auto shape = executor_->load(percent);
  if (!shape.ok()) throw std::runtime_error(shape.status().message());
  vocab = shape.value().vocab_size;
  load_s = 1e-9 * static_cast<double>(now_ns() - begin);
  PoolRequest request;
  request.run_dir = config.run_dir;
  request.worker = "bench";
  request.pid = getpid();
  request.pid_start = pid_start_time(request.pid);
  request.allocation = make_allocation_id("bench", static_cast<Incarnation>(now_ns()));
  request.pool_blocks = pool_blocks;
  const auto pool = executor_->allocate(request);
  if (!pool.ok()) throw std::runtime_error(pool.status().message());
  tokens_per_block = pool.value().geometry.tokens_per_block;
  blocks_ = pool.value().geometry.blocks;
  groups_ = pool.value().geometry.groups.count;
  start_s = 1e-9 * static_cast<double>(now_ns() - begin);
}

void Driver::dump(ActivationDump dump) {
  const Status status = executor_->dump_activations(std::move(dump));
  if (!status.ok()) throw std::runtime_error(status.message());
}

Sequence Driver::make(std::vector<Token> prompt, const SamplingParams& sampling) {
  Sequence s;
  s.id = ++next_id_;
  s.prompt = prompt.size();
  s.tokens = std::move(prompt);
  s.sampling = sampling;
  if (sampling.grammar_kind != GrammarKind::none) {
    grammar_answered_ = false;
    if (executor_->prepare_grammar(1, sampling.grammar_kind, sampling.grammar, /*awaited=*/true))
      grammar_answered_.wait(false);
  }
  return s;
}

void Driver::add(Sequence& s, std::size_t n) {
  const std::size_t end = s.computed + n;
  // Nothing is given back here: each group keeps all of its blocks.
  while (s.blocks.size() / groups_ * tokens_per_block < end || s.blocks.size() % groups_ != 0) {
    // Scattered, as they are in a pool that has been in use; 7919 is prime.
    s.blocks.push_back(static_cast<BlockId>((std::uint64_t{next_block_++} * 7919) % blocks_));
    if (next_block_ > blocks_) throw std::runtime_error("the pool is too small for this run");
  }
  BatchRow row;
  row.sequence = s.id;
  row.tokens = std::span<const Token>(s.tokens).subspan(s.computed, n);
  row.position = static_cast<std::int64_t>(s.computed);
  row.blocks = s.blocks;
  row.sampling = &s.sampling;
  row.n_prompt = static_cast<std::uint32_t>(s.prompt);
  row.n_generated = static_cast<std::uint32_t>(s.tokens.size() - s.prompt);
  row.decode = s.computed >= s.prompt;
  if (s.sampling.prompt_logprobs >= 0 && !row.decode) {
    row.logits = LogitsWanted::all;
    row.next = end < s.tokens.size() ? s.tokens[end] : kNoToken;
  } else if (end == s.tokens.size()) {
    row.logits = LogitsWanted::last;
  }
  if (end == s.tokens.size()) row.from_row = s.pending_row;
  if (row.samples() && s.sampling.needs_history()) {
    row.history = s.tokens;
    next_.run.histories.insert(next_.run.histories.end(), s.tokens.begin(), s.tokens.end());
  }
  next_.run.tokens.insert(next_.run.tokens.end(), row.tokens.begin(), row.tokens.end());
  next_.run.blocks.insert(next_.run.blocks.end(), row.blocks.begin(), row.blocks.end());
  next_.run.rows.push_back(row);
  next_.owners.push_back(&s);
}

void Driver::launch() {
  next_.run.step = ++n_steps_;
  std::size_t token = 0;
  std::size_t block = 0;
  std::size_t history = 0;
  for (std::size_t i = 0; i < next_.run.rows.size(); ++i) {
    BatchRow& row = next_.run.rows[i];
    row.tokens = std::span<const Token>(next_.run.tokens).subspan(token, row.tokens.size());
    row.blocks = std::span<const BlockId>(next_.run.blocks).subspan(block, row.blocks.size());
    row.history = std::span<const Token>(next_.run.histories).subspan(history, row.history.size());
    token += row.tokens.size();
    block += row.blocks.size();
    history += row.history.size();
    Sequence& s = *next_.owners[i];
    s.computed += row.tokens.size();
    s.pending_row = -1;
    if (!row.samples()) continue;
    s.pending_row = static_cast<int>(i);
    s.pending_step = next_.run.step;
    s.tokens.push_back(kNoToken);
  }
  open_.push_back(std::move(next_));
  next_ = {};
  open_.back().launched = now_ns();
  executor_->launch(open_.back().run);
  if (open_.back().run.holds_next_step()) return drain();
  while (static_cast<int>(open_.size()) >= executor_->steps_at_once()) collect();
}

void Driver::drain() {
  while (!open_.empty()) collect();
}

void Driver::collect() {
  Open& step = open_.front();
  output_ = {};
  output_.tokens.assign(step.run.rows.size(), kNoToken);
  executor_->collect(output_);
  const TimeNs end = now_ns();
  step_ms.push_back(1e-6 * static_cast<double>(end - std::max(step.launched, last_end_)));
  last_end_ = end;
  if (!output_.failed.empty()) throw std::runtime_error(output_.failed[0].reason);
  LogprobReader logprobs(output_.logprobs);
  LogprobReader prompt_logprobs(output_.prompt_logprobs);
  for (std::size_t i = 0; i < step.owners.size(); ++i) {
    take_row(step, i, logprobs, prompt_logprobs);
  }
  open_.pop_front();
}

void Driver::take_row(const Open& step, std::size_t i, LogprobReader& logprobs,
                      LogprobReader& prompt_logprobs) {
  const BatchRow& row = step.run.rows[i];
  Sequence& s = *step.owners[i];
  LogprobReader::Entry entry;
  const auto first = static_cast<std::uint32_t>(row.tokens.data() - step.run.tokens.data());
  for (std::uint32_t t = 0; t < row.tokens.size(); ++t) {
    if (!prompt_logprobs.take(first + t, entry)) continue;
    s.prompt_logprobs.push(static_cast<std::uint32_t>(row.position) + t + 1, entry.logprob,
                           entry.top_tokens, entry.top_logprobs);
  }
  if (logprobs.take(static_cast<std::uint32_t>(i), entry)) {
    s.logprobs.push(row.n_generated, entry.logprob, entry.top_tokens, entry.top_logprobs);
  }
  if (!row.samples()) return;
  s.tokens[s.prompt + row.n_generated] = output_.tokens[i];
  if (s.pending_step == step.run.step) s.pending_row = -1;
}

}  // namespace baton::bench
