#include "workers/execute/gpu_ranks.h"

#include <cstring>
#include <sstream>
#include <stdexcept>
#include <type_traits>
#include <utility>

#include "workers/execute/raw_bytes.h"
#include "workers/execute/upload_places.h"
#include "workers/pool/pool_ids.h"

namespace baton {

namespace {

/// The host's page with the word that ends all waits.
constexpr std::size_t kPage = 4096;

struct StepHead {
  std::uint32_t copies = 0;
  std::uint32_t chunks = 0;
  std::uint64_t pools = 0;
  std::uint64_t parts = 0;  // of what travels
  std::uint64_t input_bytes = 0;
  std::int32_t padded = 0;
  std::int32_t travelling_rows = 0;
  const cuda::DecodeItem* merges = nullptr;
  std::uint32_t awaits = 0;
  const std::byte* base = nullptr;
  GpuBatch batch;
};
static_assert(std::is_trivially_copyable_v<StepHead>);

template <typename T>
const char* take(const char* from, std::size_t count, std::vector<T>& to) {
  to.resize(count);
  std::memcpy(to.data(), from, count * sizeof(T));
  return from + count * sizeof(T);
}

}  // namespace

GpuExchange::GpuExchange(RankGroup& group, int rank, int hidden, const cuda::DeviceInfo& device) {
  Collective& all = group.collective();
  uuids_ = all.all_gather(device.uuid);
  for (const std::string& name : all.all_gather(device.name)) {
    if (name != device.name) {
      throw std::runtime_error("the ranks of a worker need GPUs of one kind, not " + device.name +
                               " and " + name);
    }
  }
  if (device.mps) throw std::runtime_error("several ranks are not served under MPS yet");
  for (int other = 0; other < rank; ++other) {
    if (uuids_[static_cast<std::size_t>(other)] != device.uuid) continue;
    throw std::runtime_error("ranks " + std::to_string(other) + " and " + std::to_string(rank) +
                             " are on the same GPU, " + device.uuid);
  }
  cuda::RankExchangeOptions options;
  options.rank = rank;
  options.ranks = group.ranks();
  options.hidden = hidden;
  own_ = cuda::DeviceMemory(cuda::RankExchange::buffer_bytes(options));
  const cuda::OwnedStream stream;
  cuda::RankExchange::init(own_.data(), options, stream.get());
  stream.synchronize();
  const std::vector<std::string> handles = all.all_gather(cuda::export_memory(own_));
  std::vector<std::byte*> buffers;
  for (int other = 0; other < group.ranks(); ++other) {
    if (other == rank) {
      buffers.push_back(own_.data());
      continue;
    }
    try {
      others_.push_back(
          cuda::DeviceMemory::import(handles[static_cast<std::size_t>(other)], own_.bytes()));
    } catch (const cuda::CudaError& e) {
      throw std::runtime_error("GPU " + device.uuid + " does not reach the memory of rank " +
                               std::to_string(other) + "'s, " +
                               uuids_[static_cast<std::size_t>(other)] + ": " + e.what());
    }
    buffers.push_back(others_.back().data());
  }
  const auto* head = reinterpret_cast<const std::byte*>(&group.memory().head());
  const auto* word = reinterpret_cast<const std::byte*>(&group.memory().head().aborted);
  static_assert(offsetof(ExchangeHead, aborted) + sizeof(std::uint32_t) <= kPage);
  abort_word_ = cuda::RegisteredMemory(head, kPage, /*read_only=*/false);
  const auto* on_device =
      reinterpret_cast<const std::uint32_t*>(abort_word_.device_data() + (word - head));
  exchange_ = std::make_unique<cuda::RankExchange>(options, std::move(buffers), on_device);
  all.barrier();
}

std::string encode_pool_offer(const PoolRequest& request) {
  return std::to_string(request.allocation) + " " + std::to_string(request.incarnation) + " " +
         std::to_string(request.pool_mib);
}

Status decode_pool_offer(const PoolOffer& offer, PoolRequest& request) {
  std::istringstream text(offer.handle);
  text >> request.allocation >> request.incarnation >> request.pool_mib;
  if (!text) return invalid("an offer of a pool that cannot be read");
  request.pool_blocks = offer.blocks;
  return {};
}

void encode_gpu_step(const GpuRankStep& step, std::string& bytes) {
  bytes.clear();
  StepHead head;
  head.copies = static_cast<std::uint32_t>(step.copies.size());
  head.chunks = static_cast<std::uint32_t>(step.chunks.size());
  head.pools = step.pools.size();
  head.parts = step.travel.parts.size();
  head.merges = step.travel.merges;
  head.travelling_rows = step.travel.rows;
  head.awaits = step.awaits ? 1 : 0;
  head.input_bytes = step.input_bytes;
  head.padded = step.padded;
  head.base = step.base;
  head.batch = step.batch;
  put(bytes, &head, 1);
  put(bytes, step.copies.data(), step.copies.size());
  put(bytes, step.chunks.data(), step.chunks.size());
  put(bytes, step.pools.data(), step.pools.size());
  put(bytes, step.travel.parts.data(), step.travel.parts.size());
  put(bytes, step.inputs, step.input_bytes);
}

Status decode_gpu_step(const std::string& bytes, GpuRankStep& step) {
  const auto bad = [] { return invalid("a step of rank 0 that cannot be read"); };
  StepHead head;
  if (bytes.size() < sizeof head) return bad();
  std::memcpy(&head, bytes.data(), sizeof head);
  if (head.pools > kMostPools || head.parts > kMostPools || head.awaits > 1) return bad();
  const std::size_t lists = std::size_t{head.copies} * sizeof(CopyOp) +
                            std::size_t{head.chunks} * sizeof(cuda::AttentionRow) +
                            head.pools * sizeof(GpuRankStep::PoolName) +
                            head.parts * sizeof(cuda::TravelPart);
  if (bytes.size() - sizeof head != lists + head.input_bytes) return bad();
  const char* at = bytes.data() + sizeof head;
  at = take(at, head.copies, step.copies);
  at = take(at, head.chunks, step.chunks);
  at = take(at, head.pools, step.pools);
  at = take(at, head.parts, step.travel.parts);
  step.travel.merges = head.merges;
  step.travel.rows = head.travelling_rows;
  step.awaits = head.awaits == 1;
  step.inputs = reinterpret_cast<const std::byte*>(at);
  step.input_bytes = head.input_bytes;
  step.padded = head.padded;
  step.base = head.base;
  step.batch = head.batch;
  return {};
}

GpuBatch moved(const GpuBatch& batch, const std::byte* from, const std::byte* to) {
  GpuBatch result = batch;
  const auto move = [&]<typename T>(const T*& address) { move_upload(address, from, to); };
  move(result.tokens);
  move(result.positions);
  move(result.slots);
  move(result.block_table);
  move(result.table_shifts);
  move(result.pool_offsets);
  move(result.singles.items);
  move(result.singles.n_items);
  move(result.near_singles.items);
  move(result.near_singles.n_items);
  move(result.wanted_rows);
  move(result.samples);
  move(result.words);
  result.chunks = nullptr;
  result.near_chunks = nullptr;
  return result;
}

}  // namespace baton
