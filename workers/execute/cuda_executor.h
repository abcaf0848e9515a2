// The CUDA backend as an Executor: two steps may be on the device at a time, decode steps are
// replayed as graphs. What the device's sampler lacks is done on the host (GpuHostRows), and rows
// with a grammar are drawn when the forward pass has ended (GpuLateRows); such a row's token is not
// in device memory in time, so the worker's core begins no step behind it before it is known.
//
// Of a worker of several ranks each process has one of these. Rank 0's is the worker's executor:
// what it launches, the others follow().
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "workers/cuda/device.h"
#include "workers/cuda/step_timer.h"
#include "workers/execute/executor.h"
#include "workers/execute/gpu_pool.h"
#include "workers/execute/gpu_progress.h"
#include "workers/execute/gpu_ranks.h"
#include "workers/execute/gpu_step.h"
#include "workers/execute/gpu_travel.h"
#include "workers/execute/led_ranks.h"
#include "workers/model/gpu_decoder.h"
#include "workers/pool/cuda_copies.h"
#include "workers/pool/cuda_pool.h"
#include "workers/pool/pool_numbers.h"
#include "workers/sampling/gpu_host_rows.h"
#include "workers/sampling/gpu_late_rows.h"

namespace baton {

class CudaExecutor final : public Executor {
 public:
  struct Options {
    std::string model_folder;
    std::string gpu = "0";       // ordinal, UUID, or auto: by the two numbers below
    int index = 0;               // of this worker among those of the host that say auto
    int count = 1;               // how many they are
    bool dummy_weights = false;  // random ones, from config.json alone
    bool deterministic = false;
    GpuDecoder::Options::Chain chain = GpuDecoder::Options::Chain::if_quicker;
    std::uint32_t tokens_per_block = 16;
    bool kv_groups = true;  // layers that see equally far share blocks, which windows give back
    bool elastic = false;   // prompts may lie in several workers' pools
    std::uint32_t max_context = 0;    // positions served; 0: those that the model allows
    std::uint32_t in_place_keys = 0;  // on other GPUs; of a step that has more, queries go there
    std::uint32_t max_step_tokens =
        0;  // tokens of one step at most; the workspace is made for so many
    std::uint32_t max_decode_rows =
        0;                         // graphs are recorded up to so many rows, no more than tokens
    double memory_fraction = 0.9;  // of the GPU's memory that this process may take, all in all
    bool time_steps = false;       // on the device, for StepOutput
    bool wants_mps = false;        // set up for MPS; without it there is a warning
    std::vector<std::string>
        neighbours;       // other workers on this host's GPUs whose pools have host parts
    std::string run_dir;  // where memory processes listen, and kernel choices are kept
    std::string name;     // of this worker
    int rank = 0;         // of its `ranks` processes
    int ranks = 1;
    TimeNs rank_timeout = 5 * kSecond;  // for a rank that does not come to a step
    RankGroup* joined = nullptr;        // of ranks other than 0: their group, which outlives this

    std::string process_name() const {
      return ranks > 1 ? name + "." + std::to_string(rank) : name;
    }
    RankGroupOptions group_options() const;
    GpuCut cut() const { return {{rank, ranks}, deterministic}; }
  };
  explicit CudaExecutor(Options options);
  ~CudaExecutor() override;

  Result<ModelShape> load(std::atomic<int>& percent) override;
  Result<PoolExport> allocate(const PoolRequest& request) override;
  std::unique_ptr<BlockReader> block_reader() override;
  /// Only Hopper has a kernel that gathers prompts' keys first.
  bool reads_in_place() const override { return device_.major == 9; }
  void begin_term(Term term) override { progress_.begin_term(term); }
  void lacks_rows(Term term, StepId step) override { progress_.lacks_rows(term, step); }
  int steps_at_once() const override { return kSteps; }
  void launch(const RunStep& step) override;
  bool finished() override;
  void collect(StepOutput& output) override;
  bool prepare_grammar(std::uint64_t key, GrammarKind kind, const std::string& text,
                       bool awaited) override {
    grammars_->prepare(key, kind, text, awaited);
    return true;
  }
  void on_grammar(OnGrammar tell) override { on_grammar_ = std::move(tell); }
  void on_lost(OnLost tell) override { ranks_.on_lost(std::move(tell)); }
  void leaving(bool in_order) override { ranks_.leaving(in_order); }
  /// Decode steps are then queued kernel by kernel, not as graphs.
  Status dump_activations(ActivationDump dump) override;
  /// Ranks other than 0, while no step comes: throws CudaError if the device has failed since.
  void look_at_device() const;
  /// Ranks other than 0: launches what rank 0 has launched.
  void follow(const std::string& step_bytes);

 private:
  static constexpr int kSteps = 2;
  /// What a step on the device keeps on the host until it is collected.
  struct Lane;

  void choose_device();
  ModelShape load_model(std::atomic<int>& percent);
  void meet_ranks(const ModelConfig& whole);
  cuda::RankExchange* meet_devices(int hidden);
  std::vector<PoolRank> gather_handles();
  void choose_kernels_alike();
  Result<PoolExport> allocate_now(const PoolRequest& request);
  Result<GpuPool> make_pool(const PoolRequest& request, GpuPoolRequest gpu);
  bool all_have_room_to_travel();
  void hand_on(const RunStep& step, int padded, const GpuStepPacker::Packed& packed,
               const std::byte* inputs);
  void follow_on(const GpuRankStep& step, int index);
  void find_pools(const GpuRankStep& step, cuda::TravelWork& travel, std::byte* inputs) const;
  void before_attention(Lane& lane, int layer);
  void wait_for_end(const Lane& lane);
  bool overdue(const Lane& lane) const;
  void record_graphs();
  void plan_graphs();
  cuda::Graph record_graph(const GpuBatch& batch);
  int graph_rows(int rows) const;
  GpuStepPacker::Packed pack(const RunStep& step, int padded, Lane& lane);
  void launch_rows(const RunStep& step, Lane& lane);
  void queue_rows(GpuBatch batch, int padded, std::span<const cuda::AttentionRow> chunks,
                  Lane& lane, const GpuDecoder::LogitsUse& use);
  void fetch_results(Lane& lane);
  void show_logits(const float* logits, int rows);

  Options options_;  // with memory_fraction divided among the workers of one GPU
  cuda::DeviceInfo device_;
  std::string memory_socket_;  // of this GPU's memory process
  std::string weights_name_;   // what most of the weights are kept in
  UniqueFd weights_link_;      // says that this process uses shared weights
  KvGeometry shape_;
  int all_kv_heads_ = 0;        // of the model; shape_ has this rank's
  LedRanks ranks_;              // rank 0's
  RankGroup* group_ = nullptr;  // null: there are no other ranks
  std::unique_ptr<GpuExchange> exchange_;
  std::string step_bytes_;  // reused
  std::unique_ptr<cuda::OwnedStream> stream_;
  std::unique_ptr<GpuDecoder> decoder_;
  std::unique_ptr<CudaPool> pool_;
  std::shared_ptr<PoolNumbers> pools_;      // that rows may name blocks of
  std::shared_ptr<HolderDevices> holders_;  // on which some of them lie
  std::unique_ptr<GpuTravel> travel_;
  ResolvedRows resolved_;  // of the step that is being launched
  std::unique_ptr<CudaCopies> copies_;
  std::unique_ptr<GpuStepPacker> packer_;
  std::unique_ptr<GpuLateRows> late_rows_;
  OnGrammar on_grammar_;
  std::unique_ptr<GrammarMasks> grammars_;
  MaskOfRow mask_of_row_;
  std::unique_ptr<RowSamplingPool> sampling_;  // of rows that the host finishes
  cuda::DeviceMemory inputs_;                  // the step's upload; ordered by the stream
  /// By number of rows; an empty one is recorded behind the first step of so many.
  std::map<int, cuda::Graph> graphs_;
  GpuProgress progress_;
  std::unique_ptr<Lane> lanes_[kSteps];
  std::unique_ptr<cuda::StepTimer> timer_;  // if options_.time_steps
  ActivationDump dump_;
  int oldest_ = 0;
  int n_launched_ = 0;
};

}  // namespace baton
