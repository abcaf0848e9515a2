#include "workers/execute/gpu_rank.h"

#include <spdlog/spdlog.h>
#include <unistd.h>

#include <stdexcept>
#include <thread>
#include <utility>

#include "ipc/spoiled.h"
#include "workers/execute/rank_pulls.h"
#include "workers/model/error.h"
#include "workers/protocol/worker_core.h"

namespace baton {

namespace {

class GpuRank final : public RankWork {
 public:
  explicit GpuRank(CudaExecutor::Options options) : options_(std::move(options)) {}

  void load(RankGroup& group, std::atomic<int>& percent) override {
    group_ = &group;
    options_.joined = &group;
    executor_ = std::make_unique<CudaExecutor>(options_);
    const auto shape = executor_->load(percent);
    if (shape.ok()) return;
    if (shape.status().code() == ErrorCode::invalid_argument) {
      throw ModelError(shape.status().message());
    }
    throw std::runtime_error(shape.status().message());
  }

  void take_pool(const PoolOffer& offer) override {
    PoolRequest request;
    request.run_dir = options_.run_dir;
    request.pid = ::getpid();
    if (const Status status = decode_pool_offer(offer, request); !status.ok()) {
      throw std::logic_error(status.message());
    }
    auto pool = executor_->allocate(request);
    if (!pool.ok()) throw std::runtime_error(pool.status().message());
    pool_ = std::move(pool).value();
    group_->collective().set_look([this] { executor_->look_at_device(); });
    std::thread([this] { read_pools(); }).detach();  // the process ends by _exit(), whatever runs
  }

  void run_step(const std::string& bytes) override { executor_->follow(bytes); }
  bool has_own_pool() const override { return true; }

 private:
  void read_pools() {
    try {
      const auto reader = executor_->block_reader();
      follow_pulls(*reader, group_->pulls());
    } catch (const RankLost& lost) {  // the thread of the steps ends this process
      Collective::abort(group_->memory(), lost.rank(), lost.silent());
    } catch (const std::exception& e) {
      // A device's failure is told to whoever asks first: it may be a step's, which may have
      // written anywhere.
      spdlog::error("a pull: {}", e.what());
      mark_pool_spoiled(options_.run_dir, options_.process_name());
      mark_pool_spoiled(options_.run_dir, options_.name, group_->pid_of(0));
      group_->fail(e.what());
      spdlog::default_logger()->flush();
      ::_exit(kExitFault);
    }
  }

  CudaExecutor::Options options_;
  RankGroup* group_ = nullptr;
  std::unique_ptr<CudaExecutor> executor_;
  PoolExport pool_;  // its lease
};

}  // namespace

std::unique_ptr<RankWork> make_gpu_rank(const CudaExecutor::Options& options) {
  return std::make_unique<GpuRank>(options);
}

}  // namespace baton
