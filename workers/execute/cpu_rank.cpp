#include "workers/execute/cpu_rank.h"

#include <spdlog/spdlog.h>

#include <stdexcept>
#include <utility>

#include "ipc/shm_region.h"
#include "workers/execute/rank_step.h"

namespace baton {

namespace {

class CpuRank final : public RankWork {
 public:
  CpuRank(CpuExecutor::Options options, int rank) : options_(std::move(options)), rank_(rank) {}

  void load(RankGroup& group, std::atomic<int>& percent) override {
    const ModelFiles files(options_.model_folder, options_.weights);
    const WeightPlan plan = plan_weights(files.config, files.checkpoint, options_.weights);
    CpuModelAsk ask = options_.model_ask(rank_, &group.collective());
    ask.process += "." + std::to_string(rank_);
    model_ = load_cpu_model(ask, files, ask_for_weights(ask, files, plan), percent);
    spdlog::info("weights: {} MiB ({} MiB read)", model_.model->weight_bytes() >> 20U,
                 model_.model->bytes_read() >> 20U);
  }

  void take_pool(const PoolOffer& offer) override {
    view_.geometry = model_.model->kv_geometry(offer.blocks, options_.tokens_per_block);
    auto region = ShmRegion::open_writable(offer.handle, kv_pool_bytes(view_.geometry).value_or(0));
    if (!region.ok()) throw std::runtime_error("the pool: " + region.status().message());
    pool_ = std::move(region).value();
    view_.base = pool_.writable_data();
  }

  void run_step(const std::string& bytes) override {
    Status status = step_.decode(bytes);
    if (status.ok()) status = model_.model->check(step_.rows(), view_);
    if (!status.ok()) throw std::logic_error(status.message());
    model_.model->forward(step_.rows(), view_);
  }

  bool has_own_pool() const override { return false; }

 private:
  const CpuExecutor::Options options_;
  const int rank_;
  CpuModel model_;
  ShmRegion pool_;
  KvPoolView view_;
  RankStep step_;
};

}  // namespace

std::unique_ptr<RankWork> make_cpu_rank(const CpuExecutor::Options& options, int rank) {
  return std::make_unique<CpuRank>(options, rank);
}

}  // namespace baton
