#include "workers/sampling/gpu_host_rows.h"

#include <algorithm>

namespace baton {

namespace {

/// Page-locked: 64 lines of a vocabulary of 128 thousand.
constexpr std::size_t kBytes = std::size_t{32} << 20U;

}  // namespace

GpuHostRows::GpuHostRows(std::uint32_t vocab, RowSamplingPool& sampling,
                         const cuda::OwnedStream& stream)
    : vocab_(vocab),
      sampling_(sampling),
      stream_(stream),
      capacity_(std::max<std::size_t>(1, kBytes / (vocab_ * sizeof(float)))),
      memory_(capacity_ * vocab_ * sizeof(float)) {
  held_.reserve(capacity_);
}

void GpuHostRows::begin(const RunStep& step) {
  step_ = &step;
  held_.clear();
  done_ = {};
}

void GpuHostRows::copy(LogitsLine line, const float* logits) {
  if (held_.size() == capacity_) {
    stream_.synchronize();
    finish_held();
  }
  cuda::copy_to_host(memory_.data() + held_.size() * vocab_ * sizeof(float), logits,
                     vocab_ * sizeof(float), stream_.get());
  held_.push_back(line);
}

void GpuHostRows::finish_held() {
  if (held_.empty()) return;
  done_.tokens.resize(step_->rows.size(), kNoToken);
  const std::span<float> logits(reinterpret_cast<float*>(memory_.data()), held_.size() * vocab_);
  sampling_.finish(*step_, held_, logits, done_);
  held_.clear();
}

const StepOutput& GpuHostRows::finish() {
  finish_held();
  return done_;
}

}  // namespace baton
