#include "workers/execute/cpu_rank.h"

#include <spdlog/spdlog.h>
#include <unistd.h>

#include <memory>
#include <span>
#include <stdexcept>
#include <thread>
#include <utility>

#include "workers/execute/rank_pulls.h"
#include "workers/execute/rank_step.h"
#include "workers/pool/host_pool.h"
#include "workers/protocol/worker_core.h"

namespace baton {

namespace {

class CpuRank final : public RankWork {
 public:
  CpuRank(CpuExecutor::Options options, int rank) : options_(std::move(options)), rank_(rank) {}

  void load(RankGroup& group, std::atomic<int>& percent) override {
    group_ = &group;
    const ModelFiles files(options_.model_folder, options_.weights, options_.activations,
                           {options_.run_dir, options_.threads});
    const WeightPlan plan = plan_weights(files.config, files.checkpoint, options_.weights);
    CpuModelAsk ask = options_.model_ask(rank_, &group.collective());
    ask.process += "." + std::to_string(rank_);
    model_ = load_cpu_model(ask, files, ask_for_weights(ask, files, plan), percent);
    spdlog::info("weights: {} MiB ({} MiB read)", model_.model->weight_bytes() >> 20U,
                 model_.model->bytes_read() >> 20U);
    LayerHooks hooks;
    hooks.before_attention = [this](std::uint32_t) {  // as rank 0, which waits for other workers
      if (step_.awaits()) group_->collective().barrier();
    };
    model_.model->set_layer_hooks(std::move(hooks));
  }

  void take_pool(const PoolOffer& offer) override {
    const KvGeometry g = model_.model->kv_geometry(offer.blocks, options_.tokens_per_block);
    // Its pages are there: rank 0 has touched them.
    auto pool = KvPool::open(offer.handle, offer.allocation, g, PoolPart::device, ShmOptions{});
    if (!pool.ok()) throw std::runtime_error("the pool: " + pool.status().message());
    pool_ = std::move(pool).value();
    window_ = std::make_shared<PoolWindow>(
        offer.allocation, std::span(pool_.data(), g.block_bytes * g.blocks), g.block_bytes);
    std::thread([this] { read_pools(); }).detach();  // the process ends by _exit(), whatever runs
  }

  void run_step(const std::string& bytes) override {
    Status status = step_.decode(bytes);
    if (!status.ok()) throw std::logic_error(status.message());
    KvPoolView view{pool_.data(), pool_.geometry()};
    std::span<const StepRow> rows = step_.rows();
    if (step_.reads_in_place()) {
      rows = step_.rows_in(*window_);
      view.base = window_->base();
      view.geometry.blocks = window_->ids();
    }
    status = model_.model->check(rows, view);
    if (!status.ok()) throw std::logic_error(status.message());
    model_.model->forward(rows, view);
  }

  bool has_own_pool() const override { return false; }

 private:
  /// Maps what rank 0 maps for rows that read in place. It writes nowhere.
  void read_pools() {
    try {
      HostBlockReader reader(pool_, window_);
      follow_pulls(reader, group_->pulls());
    } catch (const RankLost& lost) {  // the thread of the steps ends this process
      Collective::abort(group_->memory(), lost.rank(), lost.silent());
    } catch (const std::exception& e) {
      spdlog::error("mapping other pools: {}", e.what());
      group_->fail(e.what());
      spdlog::default_logger()->flush();
      ::_exit(kExitFault);
    }
  }

  const CpuExecutor::Options options_;
  const int rank_;
  RankGroup* group_ = nullptr;
  CpuModel model_;
  KvPool pool_;
  std::shared_ptr<PoolWindow> window_;  // other pools beside the own one
  RankStep step_;
};

}  // namespace

std::unique_ptr<RankWork> make_cpu_rank(const CpuExecutor::Options& options, int rank) {
  return std::make_unique<CpuRank>(options, rank);
}

}  // namespace baton
