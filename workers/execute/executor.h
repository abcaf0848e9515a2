// What a worker needs from a device: load a model, hold a pool, run steps, read other pools. One
// implementation a kind of device; the protocol and the threads know only this.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ipc/kv_layout.h"
#include "ipc/messages.h"
#include "ipc/process.h"
#include "ipc/status.h"
#include "workers/model/activation_dump.h"
#include "workers/pool/kv_pool.h"
#include "workers/protocol/step_batch.h"

namespace baton {

/// What the rest of the product must know of a loaded model. `geometry` has blocks == 0.
struct ModelShape {
  KvGeometry geometry;
  std::uint32_t max_context = 0;  // positions that the model allows
  std::uint32_t vocab_size = 0;
  std::uint32_t max_step_tokens =
      0;  // tokens of one step that there is room for; 0: as many as are planned
  WorkerFacts facts;
  std::vector<std::uint32_t> layer_groups;  // of the geometry's groups, that of each layer
};

/// How others find and map the pool, and its host part if it has one; the fields of Hello.
struct PoolExport {
  KvGeometry geometry;
  std::vector<PoolRank> ranks;
  std::string host_handle;
  std::uint32_t host_blocks = 0;
  float host_block_us = 0;
  std::string progress_handle;  // empty: how far its steps are is told nowhere
  AllocationId allocation = 0;  // that of the request, unless an older pool was kept
  UniqueFd lease;               // as LeasedPool::link; none: the pool ends with this process
};

/// A pool of another worker, mapped for reading. Unmapped by its destructor.
class MappedPool {
 public:
  virtual ~MappedPool() = default;
};

/// Copies blocks of other pools into the own one. Used by the pull thread alone, while steps run.
class BlockReader {
 public:
  virtual ~BlockReader() = default;
  /// Maps the pool that `pull` names, with its host part if it has one; checks the sizes.
  virtual Result<std::unique_ptr<MappedPool>> map(const Pull& pull) = 0;
  /// Copies pull.from[i] onto pull.to[i]; the ids are in range. Every byte is there on return.
  virtual Status copy(MappedPool& exported, const Pull& pull) = 0;
  /// From now on rows may name blocks of `exported`, in place, until it is unmapped.
  virtual Status place(MappedPool& /*exported*/, const Pull& /*pull*/) {
    return invalid("this device's rows read no pool but its own");
  }
  /// Checksums of blocks of the own pool.
  virtual Result<std::vector<std::uint64_t>> sums(const std::vector<BlockId>& blocks) = 0;
};

/// Used by the step thread alone; block_reader() is called after allocate() and outlived by this.
class Executor {
 public:
  virtual ~Executor() = default;
  /// Reads the model. `percent` is set to 0..100 on the way; others read it.
  virtual Result<ModelShape> load(std::atomic<int>& percent) = 0;
  /// After load(). May be tried again after an error.
  virtual Result<PoolExport> allocate(const PoolRequest& request) = 0;
  virtual std::unique_ptr<BlockReader> block_reader() = 0;
  /// Rows may begin with blocks of other pools (BatchRow::before). After load().
  virtual bool reads_in_place() const { return false; }
  /// The worker is in this term from now on; 0: in none. Steps of the term before may still run. On
  /// the I/O thread, after allocate().
  virtual void begin_term(Term /*term*/) {}
  /// Rows of that step of the term are not run: workers that wait for what these were to write are
  /// told so. On the I/O thread, before the step is launched, if it is.
  virtual void lacks_rows(Term /*term*/, StepId /*step*/) {}
  /// How many steps may be launched before the oldest is collected: 1, or 2 where the device takes
  /// the tokens of one step straight into the next.
  virtual int steps_at_once() const { return 1; }
  /// Begins with the copies, then the rows; does not wait for the device. `step` stays valid until
  /// it is collected. May throw: the pool's content is then unknown.
  virtual void launch(const RunStep& step) = 0;
  /// Whether collect() would return at once. Never blocks.
  virtual bool finished() = 0;
  /// Rows with this grammar will come (`awaited`: and wait for it): a device that holds rows to
  /// grammars compiles it, and says so by the function that it was given. False: there is nothing
  /// to wait for. After allocate(), from any thread; does not wait.
  virtual bool prepare_grammar(std::uint64_t /*key*/, GrammarKind /*kind*/,
                               const std::string& /*text*/, bool /*awaited*/) {
    return false;
  }
  /// Before load(). Called on any thread, one at a time: the grammar of that key is ready, or
  /// (later) forgotten.
  using OnGrammar = std::function<void(std::uint64_t key, bool ready)>;
  virtual void on_grammar(OnGrammar /*tell*/) {}
  /// Before load(). Called once, on any thread: a process that this one computes with is gone, and
  /// nothing can be computed any more. Whoever throws for that reason has called it before.
  using OnLost = std::function<void(const std::string& why)>;
  virtual void on_lost(OnLost /*tell*/) {}
  /// This process is about to end; `in_order`: as it was asked to.
  virtual void leaving(bool /*in_order*/) {}
  /// Debugging: later steps show their activations, and wait for each. After allocate(), and not
  /// while a step is launched. Not every backend can.
  virtual Status dump_activations(ActivationDump /*dump*/) {
    return invalid("this backend shows no activations");
  }
  /// Ends the oldest launched step. `output` comes empty, with one kNoToken a row. On return all
  /// its writes are visible to other processes. May throw as launch() does.
  virtual void collect(StepOutput& output) = 0;
};

}  // namespace baton
