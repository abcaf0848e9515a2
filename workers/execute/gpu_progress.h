// How a GPU worker tells the layers of its steps and waits for those of others (layer_progress.h).
//
// Both happen on the host. A layer is told by a callback on the step's stream, once its keys and
// values are written. Whoever needs another's layer waits for it before that layer's attention is
// queued: kernels never wait for another worker. A layer of a long chunk takes a millisecond or
// more, callback and wait some ten microseconds.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "workers/cuda/types.h"
#include "workers/pool/layer_progress.h"

namespace baton {

class GpuProgress {
 public:
  struct Tell {
    LayerProgress* to = nullptr;
    Term term = 0;
    StepId step = 0;
    std::uint32_t layers = 0;
    const std::atomic<std::uint32_t>* void_if = nullptr;
  };
  /// One step on its way to the device and on it; reused when it has been collected.
  struct OfStep {
    const RunStep* step = nullptr;
    int layers = 0;     // of the model
    bool each = false;  // every layer is told, not the last one alone
    Awaited awaited;
    std::vector<Tell> tells;  // what callbacks point at
  };

  /// As LayerProgress::create().
  void create(const PoolRequest& request) { progress_.create(request); }
  const std::string& handle() const { return progress_.handle(); }
  bool tells() const { return !handle().empty(); }
  void begin_term(Term term) { progress_.begin_term(term); }
  void lacks_rows(Term term, StepId step) { progress_.lacks_rows(term, step); }

  /// As LayerProgress::while_waiting().
  void while_waiting(std::function<void()> tell) { progress_.while_waiting(std::move(tell)); }
  /// Nothing is told any more once this is not 0: kernels no longer wait for other ranks then, and
  /// what they compute is void.
  void void_if(const std::atomic<std::uint32_t>& aborted) { void_if_ = &aborted; }

  void begin(OfStep& of, const RunStep& step, int layers);
  /// Before the attention of the last of layers 0 .. layers - 1 is queued: until what its rows read
  /// elsewhere is written.
  void await(OfStep& of, std::uint32_t layers) { progress_.await(*of.step, layers, of.awaited); }
  /// All that writes the keys and values of layers 0 .. layers - 1 is queued on `stream`, or is
  /// done before what is queued there last: has them told behind it. Throws CudaError.
  void tell(OfStep& of, std::uint32_t layers, cuda::Stream stream);

 private:
  LayerProgress progress_;
  const std::atomic<std::uint32_t>* void_if_ = nullptr;
};

}  // namespace baton
