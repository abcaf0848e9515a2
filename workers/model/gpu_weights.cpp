#include "workers/model/gpu_weights.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>

#include "workers/model/gpu_limits.h"

namespace baton {
namespace {

using cpu::ElementType;
using cpu::MatrixSource;
using cuda::Bf16;
using cuda::LinearWeight;

constexpr std::size_t kAlign = 256;
constexpr std::size_t kStagingBytes = 16 << 20;  // a thread has two of them
constexpr int kThreads = 6;

/// To nearest, ties to even; NaN stays NaN.
Bf16 to_bf16(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  if (std::isnan(x)) return {static_cast<std::uint16_t>((bits >> 16) | 0x40)};
  return {static_cast<std::uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16)};
}

/// Hands out places in one allocation; without memory it only counts.
class Places {
 public:
  explicit Places(std::byte* base) : base_(base) {}
  Bf16* take(std::size_t elements) {
    const std::size_t at = used_;
    used_ += (elements * sizeof(Bf16) + kAlign - 1) / kAlign * kAlign;
    return base_ == nullptr ? nullptr : reinterpret_cast<Bf16*>(base_ + at);
  }
  LinearWeight matrix(std::int64_t out, std::int64_t in) {
    return {take(static_cast<std::size_t>(out * in)), static_cast<int>(out), static_cast<int>(in)};
  }
  std::size_t used() const { return used_; }

 private:
  std::byte* base_;
  std::size_t used_ = 0;
};

/// The same walk plans the size, and gives every tensor its place.
void place(const ModelConfig& c, Places& places, GpuWeights& w) {
  const auto hidden = static_cast<std::size_t>(c.hidden);
  const auto head_dim = static_cast<std::size_t>(c.head_dim);
  w.embedding = places.take(static_cast<std::size_t>(c.vocab) * hidden);
  w.layers.resize(static_cast<std::size_t>(c.layers));
  for (GpuLayer& l : w.layers) {
    l.input_norm = places.take(hidden);
    l.qkv = places.matrix(c.qkv_columns(), c.hidden);
    if (c.qkv_bias) l.qkv_bias = places.take(static_cast<std::size_t>(c.qkv_columns()));
    if (c.qk_norm) l.q_norm = places.take(head_dim);
    if (c.qk_norm) l.k_norm = places.take(head_dim);
    l.o = places.matrix(c.hidden, std::int64_t{c.heads} * c.head_dim);
    l.post_norm = places.take(hidden);
    l.gate_up = places.matrix(2 * std::int64_t{c.intermediate}, c.hidden);
    l.down = places.matrix(c.hidden, c.intermediate);
  }
  w.final_norm = places.take(hidden);
  w.lm_head = {w.embedding, c.vocab, c.hidden};
  if (!c.tied_embeddings) w.lm_head = places.matrix(c.vocab, c.hidden);
}

GpuWeights allocate(const ModelConfig& c) {
  GpuWeights w;
  w.memory = cuda::DeviceMemory(gpu_weight_bytes(c));
  Places places(w.memory.data());
  place(c, places, w);
  return w;
}

/// Some rows of a matrix on their way: `group_rows` rows at a time land `pitch` bytes apart (gate and
/// up interleave), or all of them densely.
struct Job {
  const std::byte* from = nullptr;
  ElementType type = ElementType::bf16;
  std::size_t elements = 0;
  std::byte* to = nullptr;
  std::size_t group_elements = 0;  // 0: dense
  std::size_t pitch_bytes = 0;
};

class Jobs {
 public:
  void dense(const MatrixSource& source, const Bf16* to) { add(source, to, 0, 0); }
  /// Every eight rows of the source are followed by room for eight of the other matrix.
  void interleaved(const MatrixSource& source, const Bf16* to) {
    const auto group = static_cast<std::size_t>(8 * source.columns);
    add(source, to, group, 2 * group * sizeof(Bf16));
  }
  /// A short vector; kept until the jobs have run.
  void vector(const std::vector<float>& values, const Bf16* to) {
    if (values.empty()) return;
    kept_.push_back(values);
    const std::vector<float>& v = kept_.back();
    add({reinterpret_cast<const std::byte*>(v.data()), ElementType::f32, 1,
         static_cast<std::int64_t>(v.size())},
        to, 0, 0);
  }
  void run(int ordinal, std::atomic<int>& percent);

 private:
  void add(const MatrixSource& source, const Bf16* to, std::size_t group, std::size_t pitch);
  void work(int ordinal, std::atomic<int>& percent);

  std::vector<Job> jobs_;
  std::deque<std::vector<float>> kept_;
  std::atomic<std::size_t> next_{0};
  std::atomic<std::size_t> done_{0};
  std::mutex mutex_;
  std::exception_ptr failure_;
};

void Jobs::add(const MatrixSource& source, const Bf16* to, std::size_t group, std::size_t pitch) {
  const auto total = static_cast<std::size_t>(source.rows * source.columns);
  std::size_t part = kStagingBytes / sizeof(Bf16);
  if (group != 0) part = std::max<std::size_t>(part / group, 1) * group;
  for (std::size_t at = 0; at < total; at += part) {
    const std::size_t n = std::min(part, total - at);
    auto* target = reinterpret_cast<std::byte*>(const_cast<Bf16*>(to));
    target += group == 0 ? at * sizeof(Bf16) : at / group * pitch;
    jobs_.push_back({source.data + at * static_cast<std::size_t>(cpu::element_bytes(source.type)),
                     source.type, n, target, group, pitch});
  }
}

void Jobs::run(int ordinal, std::atomic<int>& percent) {
  std::vector<std::thread> threads;
  const int n = std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 1, kThreads);
  for (int i = 0; i < n; ++i) threads.emplace_back([&] { work(ordinal, percent); });
  for (std::thread& thread : threads) thread.join();
  if (failure_) std::rethrow_exception(failure_);
}

/// One thread: page cache -> page-locked memory -> GPU, two buffers in turns.
void Jobs::work(int ordinal, std::atomic<int>& percent) {
  try {
    cuda::set_device(ordinal);
    const cuda::OwnedStream stream;
    const cuda::PinnedMemory staging[2] = {cuda::PinnedMemory(kStagingBytes),
                                           cuda::PinnedMemory(kStagingBytes)};
    const cuda::OwnedEvent sent[2];
    int turn = 0;
    for (std::size_t i = next_++; i < jobs_.size(); i = next_++, turn ^= 1) {
      const Job& job = jobs_[i];
      sent[turn].synchronize();
      const std::size_t bytes = job.elements * sizeof(Bf16);
      if (job.type == ElementType::bf16) {
        std::memcpy(staging[turn].data(), job.from, bytes);
      } else {
        auto* to = reinterpret_cast<Bf16*>(staging[turn].data());
        for (std::size_t e = 0; e < job.elements; ++e) {
          to[e] = to_bf16(cpu::element(job.from, job.type, static_cast<std::int64_t>(e)));
        }
      }
      if (job.group_elements == 0) {
        cuda::copy_to_device(job.to, staging[turn].data(), bytes, stream.get());
      } else {
        const std::size_t width = job.group_elements * sizeof(Bf16);
        cuda::copy_rows_to_device(job.to, job.pitch_bytes, staging[turn].data(), width, width,
                                  job.elements / job.group_elements, stream.get());
      }
      sent[turn].record(stream.get());
      percent = static_cast<int>(++done_ * 99 / jobs_.size());
    }
    stream.synchronize();
  } catch (...) {
    const std::lock_guard lock(mutex_);
    failure_ = std::current_exception();
    next_ = jobs_.size();
  }
}

}  // namespace

std::uint64_t gpu_weight_bytes(const ModelConfig& config) {
  Places places(nullptr);
  GpuWeights nowhere;
  place(config, places, nowhere);
  return places.used();
}

GpuWeights load_gpu_weights(const ModelConfig& config, const Checkpoint& checkpoint, int ordinal,
                            std::atomic<int>& percent) {
  check_gpu_limits(config);
  GpuWeights w = allocate(config);
  CheckpointReader reader(config, checkpoint);
  Jobs jobs;
  jobs.dense(reader.embedding(), w.embedding);
  for (int i = 0; i < config.layers; ++i) {
    const LayerSource from = reader.layer(i);
    const GpuLayer& to = w.layers[static_cast<std::size_t>(i)];
    jobs.vector(from.input_norm, to.input_norm);
    const Bf16* rows = to.qkv.data;
    for (const MatrixSource* part : {&from.q, &from.k, &from.v}) {
      jobs.dense(*part, rows);
      rows += part->rows * part->columns;
    }
    jobs.vector(from.qkv_bias, to.qkv_bias);
    jobs.vector(from.q_norm, to.q_norm);
    jobs.vector(from.k_norm, to.k_norm);
    jobs.dense(from.o, to.o.data);
    jobs.vector(from.post_norm, to.post_norm);
    jobs.interleaved(from.dense.gate, to.gate_up.data);
    jobs.interleaved(from.dense.up, to.gate_up.data + 8 * from.dense.up.columns);
    jobs.dense(from.dense.down, to.down.data);
  }
  jobs.vector(reader.final_norm(), w.final_norm);
  const MatrixSource head = reader.lm_head();
  if (!config.tied_embeddings) jobs.dense(head, w.lm_head.data);
  reader.expect_all_taken();
  jobs.run(ordinal, percent);
  percent = 100;
  return w;
}

GpuWeights random_gpu_weights(const ModelConfig& config, std::atomic<int>& percent) {
  check_gpu_limits(config);
  GpuWeights w = allocate(config);
  const cuda::OwnedStream stream;
  // About what an initialised model has; the norms are ones, so that activations stay in range.
  cuda::fill_normal(w.memory.as<Bf16>(), w.memory.bytes() / sizeof(Bf16), 0.02F, 1, stream.get());
  const auto ones = [&](const Bf16* to, int n) {
    if (to == nullptr) return;
    const std::vector<Bf16> values(static_cast<std::size_t>(n), to_bf16(1.0F));
    cuda::copy_to_device(const_cast<Bf16*>(to), values.data(), values.size() * sizeof(Bf16),
                         stream.get());
    stream.synchronize();
  };
  for (const GpuLayer& l : w.layers) {
    ones(l.input_norm, config.hidden);
    ones(l.post_norm, config.hidden);
    ones(l.q_norm, config.head_dim);
    ones(l.k_norm, config.head_dim);
  }
  ones(w.final_norm, config.hidden);
  stream.synchronize();
  percent = 100;
  return w;
}

}  // namespace baton
