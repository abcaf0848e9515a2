// How far a GPU worker's steps are, layer by layer (docs/adr/0027): told to others in the page of
// step_progress.h, and awaited in theirs.
//
// Both happen on the host. A layer is told by a callback on the step's stream, once its keys and
// values are written. Whoever needs another's layer waits for it before that layer's attention is
// queued: kernels never wait. A layer of a long chunk takes a millisecond or more, callback and
// wait some ten microseconds.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "workers/cuda/types.h"
#include "workers/pool/step_progress.h"
#include "workers/protocol/step_batch.h"

namespace baton {

class GpuProgress {
 public:
  struct Tell {
    GpuProgress* owner = nullptr;
    Term term = 0;
    StepId step = 0;
    std::uint32_t layers = 0;
  };
  /// One step on its way to the device and on it; reused when it has been collected.
  struct OfStep {
    const RunStep* step = nullptr;
    int layers = 0;          // of the model
    bool each = false;       // every layer is told, not the last one alone
    bool in_vain = false;    // it waited for somebody who will never come
    std::uint32_t waited_us = 0;
    std::vector<FailedRow> failed;
    std::vector<Tell> tells;  // what callbacks point at
  };

  /// On failure nothing is told, and nobody waits for this worker.
  void create(const PoolRequest& request);
  const std::string& handle() const { return page_.handle(); }
  bool tells() const { return !page_.handle().empty(); }
  void begin_term(Term term);

  void begin(OfStep& of, const RunStep& step, int layers);
  /// The keys and values of layers 0 .. layers - 1 are queued on `stream`, and the attention of the
  /// last of them is not: waits for what its rows read elsewhere, and has the layer told. Throws
  /// CudaError.
  void queued(OfStep& of, std::uint32_t layers, cuda::Stream stream);

 private:
  void await(OfStep& of, std::uint32_t layers);
  void written(const Tell& tell);
  void failed(const RunStep& step);

  StepProgress page_;
  PeerProgress peers_;
  SpoiledSequences spoiled_;
};

}  // namespace baton
