// What a CudaExecutor does beside its own work where its worker has several ranks.
#include <spdlog/spdlog.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "ipc/spoiled.h"
#include "workers/execute/cuda_executor.h"
#include "workers/execute/gpu_kernels.h"
#include "workers/execute/rank_process.h"
#include "workers/execute/upload_places.h"
#include "workers/model/gpu_cut.h"

namespace baton {

namespace {

/// Of a start: weights are read, kernels are timed, memory is leased.
constexpr TimeNs kStartPatience = 120 * kSecond;
/// For all ranks to have read their weights from a slow disk.
constexpr TimeNs kReadingPatience = 3600 * kSecond;
/// What the start of a step says where all ranks shall go on.
const std::string kGo = "go";
constexpr std::size_t kMostWordBytes = 4096;
constexpr std::size_t kMostChoicesBytes = std::size_t{16} << 20U;

/// The others' mappings of them lie elsewhere.
std::vector<GpuRankStep::PoolName> pools_named(const RunStep& step, const PoolNumbers& pools) {
  std::vector<GpuRankStep::PoolName> named;
  for (const BatchRow& row : step.rows) {
    for (const TablePart& part : row.before) {
      if (std::any_of(named.begin(), named.end(), [&](const GpuRankStep::PoolName& name) {
            return name.allocation == part.allocation;
          }))
        continue;
      const auto found = pools.find(part.allocation);
      if (!found) throw std::logic_error("a row names a pool that is not mapped");
      if (found->number > 0) named.push_back({part.allocation, found->number});
    }
  }
  return named;
}

}  // namespace

RankGroupOptions CudaExecutor::Options::group_options() const {
  RankGroupOptions group;
  group.run_dir = run_dir;
  group.worker = name;
  group.rank = rank;
  group.ranks = ranks;
  group.collective.patience = kStartPatience;
  return group;
}

/// Rank 0 waits for all others, which come to it. Before anything is read, so that all read at a
/// time.
void CudaExecutor::meet_ranks(const ModelConfig& whole) {
  check_gpu_ranks(whole, options_.cut());
  if (options_.ranks == 1) return;
  group_ = options_.rank == 0 ? &ranks_.lead(options_.group_options()) : options_.joined;
}

/// All weights are there. Ranks other than 0 wait for it without an end, so it comes when all of
/// them are ready.
cuda::RankExchange* CudaExecutor::meet_devices(int hidden) {
  std::string go = kGo;
  if (options_.rank == 0) {
    ranks_.wait_loaded(kReadingPatience);
  } else {
    group_->tell(RankState::loaded);
  }
  group_->collective().broadcast(go, kMostWordBytes);
  exchange_ = std::make_unique<GpuExchange>(*group_, options_.rank, hidden, device_);
  return &exchange_->exchange();
}

/// How others map the pools of all ranks, in their order. From here on steps come.
std::vector<PoolRank> CudaExecutor::gather_handles() {
  if (group_ == nullptr) return {PoolRank{device_.uuid, pool_->handle()}};
  Collective& all = group_->collective();
  const std::vector<std::string> uuids = all.all_gather(device_.uuid);
  const std::vector<std::string> handles = all.all_gather(pool_->handle());
  std::vector<PoolRank> ranks;
  for (std::size_t rank = 0; rank < uuids.size(); ++rank) {
    ranks.push_back({uuids[rank], handles[rank]});
  }
  all.set_patience(options_.rank_timeout);
  if (options_.rank == 0) ranks_.watch();
  return ranks;
}

/// Ranks compute some things all of them, the router's choice of experts for one, and must get the
/// same bits: so they take the kernels that rank 0 has found quickest, or none.
void CudaExecutor::choose_kernels_alike() {
  const std::string key = "of rank 0";
  std::string text;
  if (options_.rank == 0) {
    choose_kernels(*decoder_,
                   {options_.run_dir, device_, decoder_->options(), options_.tokens_per_block},
                   stream_->get());
    text = cuda::to_text(key, decoder_->choices());
  }
  group_->collective().broadcast(text, kMostChoicesBytes);
  if (options_.rank == 0) return;
  const auto choices = cuda::from_text(key, text);
  if (!choices || !decoder_->take(*choices)) {
    throw std::runtime_error("this rank cannot compute with the kernels that rank 0 has chosen");
  }
}

/// All ranks have as many blocks, and keep an older pool only if all of them do: the scheduler's
/// books are about all heads of a block.
Result<GpuPool> CudaExecutor::make_pool(const PoolRequest& request, GpuPoolRequest gpu) {
  if (group_ == nullptr) return make_gpu_pool(request, gpu);
  Collective& all = group_->collective();
  PoolRequest own = request;
  own.worker = options_.process_name();
  if (options_.rank == 0) {
    own.worker = options_.name;
    group_->offer_pool({encode_pool_offer(request), request.pool_blocks, request.allocation});
  }
  gpu.agree_on_blocks = [&all](std::uint32_t blocks) {
    const std::vector<std::uint64_t> each = all.all_gather(std::uint64_t{blocks});
    return static_cast<std::uint32_t>(*std::min_element(each.begin(), each.end()));
  };
  // A rank's pool is kept beside that pool of rank 0 with which it was made, no other.
  const std::string type = gpu.weights;
  gpu.lease_in_order = [&all, this,
                        type](const std::function<Result<GpuPool>(std::string)>& lease) {
    std::string first;
    if (options_.rank == 0) {
      Result<GpuPool> made = Status(ErrorCode::unavailable, "");
      try {
        made = lease(type + ", " + std::to_string(options_.ranks) + " ranks");
      } catch (const cuda::CudaError& e) {  // the others wait for a word
        made = Status(ErrorCode::unavailable, e.what());
      }
      first = made.ok() ? std::to_string(made.value().allocation) : "";
      all.broadcast(first, kMostWordBytes);
      return made;
    }
    all.broadcast(first, kMostWordBytes);
    return lease(type + ", rank " + std::to_string(options_.rank) + " of " +
                 std::to_string(options_.ranks) + " with " + first);
  };
  auto made = make_gpu_pool(own, gpu);
  const std::vector<std::uint64_t> kept =
      all.all_gather(!made.ok() ? std::uint64_t{2} : std::uint64_t{made.value().kept ? 1U : 0U});
  // The scheduler hears of one lease: it outlives the worker if all of them do.
  const std::vector<std::uint64_t> leased =
      all.all_gather(made.ok() && made.value().lease ? std::uint64_t{1} : std::uint64_t{0});
  for (std::size_t rank = 0; rank < kept.size(); ++rank) {
    if (leased[rank] == 0 && made.ok()) made.value().lease = UniqueFd();
    if (kept[rank] == 2) {
      return Status(ErrorCode::unavailable, "rank " + std::to_string(rank) + " has no pool");
    }
    if (!made.ok() || kept[rank] == kept[0]) continue;
    mark_pool_spoiled(options_.run_dir, own.worker);
    throw std::runtime_error("the pool of rank " + std::to_string(rank) +
                             " was not kept: what the others have kept is given up");
  }
  return made;
}

/// Rank 0 packs pieces for other devices into the steps of all ranks. Its room is made when the
/// pool is, not when it is first needed: then a rank without any could only end.
bool CudaExecutor::all_have_room_to_travel() {
  const std::uint64_t own = options_.elastic && travel_->has_workspace() ? 1 : 0;
  const std::vector<std::uint64_t> each = group_->collective().all_gather(own);
  return std::find(each.begin(), each.end(), std::uint64_t{0}) == each.end();
}

/// What was packed for this device is handed to the others; it lies in the same places there.
void CudaExecutor::hand_on(const RunStep& step, int padded, const GpuStepPacker::Packed& packed,
                           const std::byte* inputs) {
  GpuRankStep told;
  told.copies = step.copies;
  told.padded = padded;
  told.batch = packed.batch;
  told.base = inputs_.data();
  told.awaits = !step.waits.empty();
  told.travel = packed.travel;
  if (!step.rows.empty()) told.chunks = packer_->chunks();
  if (step.reads_in_place) told.pools = pools_named(step, *pools_);
  told.inputs = inputs;
  told.input_bytes = packed.bytes;
  encode_gpu_step(told, step_bytes_);
  try {
    group_->collective().broadcast(step_bytes_, kMostStepBytes);
  } catch (const RankLost& lost) {
    ranks_.tell_lost(lost.what());
    throw;
  }
}

/// Puts into the upload how far this rank's mappings lie from its own pool, for this device and for
/// those that hold them, and into `travel` which devices these are and where the upload lies here.
/// Throws std::logic_error where a pool is not there: rank 0 names what all ranks have mapped.
void CudaExecutor::find_pools(const GpuRankStep& step, cuda::TravelWork& travel,
                              std::byte* inputs) const {
  if (step.pools.empty()) return;
  const auto here = [&](const std::int64_t* table) {
    return reinterpret_cast<std::int64_t*>(inputs +
                                           (reinterpret_cast<const std::byte*>(table) - step.base));
  };
  for (cuda::TravelPart& part : travel.parts) part.device = nullptr;
  for (const GpuRankStep::PoolName& pool : step.pools) {
    const auto found = pools_->find(pool.allocation);
    if (!found) throw std::logic_error("a step of rank 0 reads a pool that is not mapped here");
    here(step.batch.pool_offsets)[pool.number] = pool_elements(found->offset);
    for (cuda::TravelPart& part : travel.parts) {
      if (part.pool != pool.number) continue;
      part.device = travel_->device(found->held.device);
      here(part.pool_offsets)[pool.number] = pool_elements(found->held.offset);
    }
  }
  for (cuda::TravelPart& part : travel.parts) {
    if (part.device == nullptr) part.pool_offsets = step.batch.pool_offsets;
    part = moved(part, step.base, inputs_.data());
  }
  move_upload(travel.merges, step.base, inputs_.data());
}

void CudaExecutor::follow(const std::string& step_bytes) {
  GpuRankStep step;
  if (const Status status = decode_gpu_step(step_bytes, step); !status.ok()) {
    throw std::logic_error(status.message());
  }
  const int index = oldest_;
  oldest_ = (oldest_ + 1) % kSteps;
  follow_on(step, index);
}

}  // namespace baton
