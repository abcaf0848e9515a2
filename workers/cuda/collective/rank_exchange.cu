// Which protocol and how many CTAs a call gets; the exchange buffer's first contents.
#include "workers/cuda/collective/rank_exchange.h"

#include <algorithm>
#include <string>

#include "workers/cuda/collective/rank_kernels.h"
#include "workers/cuda/collective/rank_wait.cuh"
#include "workers/cuda/current_device.h"
#include "workers/cuda/launch.cuh"
#include "workers/cuda/layer/rowwise.h"

namespace baton::cuda {

/// What a gather moves, in words of 32 bits.
struct RankExchange::Words {
  const std::uint32_t* part;
  std::uint32_t* all;
  bool to_all;
};

namespace {

constexpr int kInitThreads = 256;

[[noreturn]] void refuse(const std::string& what) { throw CudaError("ranks: " + what); }

void check_options(const RankExchangeOptions& o) {
  if (o.ranks < 1 || o.ranks > kMaxRanks || o.rank < 0 || o.rank >= o.ranks) {
    refuse("rank " + std::to_string(o.rank) + " of " + std::to_string(o.ranks) + "; there may be " +
           std::to_string(kMaxRanks));
  }
  if (o.hidden < 8 || o.hidden > 16384 || o.hidden % 8 != 0) {
    refuse("rows of " + std::to_string(o.hidden) + " elements");
  }
  if (o.staged_bytes < 128 * kChannels) refuse("less than 8 KiB in a staged round");
}

/// Numbers that no call has, so that nothing seems to have come.
__global__ void __launch_bounds__(kInitThreads)
    init_kernel(std::byte* buffer, RankLayout layout, int peers, std::uint32_t first_call) {
  const std::size_t first = blockIdx.x * kInitThreads + threadIdx.x;
  const std::size_t stride = std::size_t{gridDim.x} * kInitThreads;
  const std::uint32_t none = first_call - 1;
  if (first == 0) {
    *reinterpret_cast<RankControl*>(buffer) = RankControl{};
    reinterpret_cast<RankControl*>(buffer)->call = first_call;
    for (std::uint32_t& round : reinterpret_cast<RankControl*>(buffer)->round) round = first_call;
  }
  auto* const flags = reinterpret_cast<std::uint32_t*>(buffer + layout.flags);
  const std::size_t flag_words = (layout.direct - layout.flags) / sizeof(std::uint32_t);
  for (std::size_t i = first; i < flag_words; i += stride) flags[i] = none;
  auto* const units = reinterpret_cast<RankUnit*>(buffer + layout.direct);  // and tokens
  const std::size_t unit_count = 2 * static_cast<std::size_t>(peers) * (1 + layout.region_units);
  for (std::size_t i = first; i < unit_count; i += stride) store_unit(units + i, {0, 0}, none);
}

}  // namespace

std::size_t RankExchange::buffer_bytes(const RankExchangeOptions& options) {
  check_options(options);
  return RankLayout::of(options).bytes;
}

void RankExchange::init(std::byte* own_buffer, const RankExchangeOptions& options, Stream stream) {
  check_options(options);
  init_kernel<<<128, kInitThreads, 0, stream>>>(own_buffer, RankLayout::of(options),
                                                options.ranks - 1, options.first_call);
  check(cudaGetLastError(), "init of the ranks' exchange");
}

RankExchange::RankExchange(const RankExchangeOptions& options, std::vector<std::byte*> buffers,
                           const std::uint32_t* abort_word)
    : options_(options) {
  check_options(options);
  if (buffers.size() != static_cast<std::size_t>(options.ranks)) {
    refuse(std::to_string(buffers.size()) + " buffers of " + std::to_string(options.ranks));
  }
  link_.rank = options.rank;
  link_.ranks = options.ranks;
  link_.layout = RankLayout::of(options);
  std::copy(buffers.begin(), buffers.end(), link_.buffer);
  link_.abort_word = abort_word;
  link_.pause = options.pause;
  link_.one_generation = options.generations == 1;
  link_.early_release = options.ranks_of_device == 1;

  direct_clusters_ = resident_direct_sums(options.ranks, options.hidden);
  direct_ctas_ = resident_direct_gathers();
  if (options.ranks_of_device > 1) share_device();
  const int staged = resident_staged(options.ranks);
  if (staged < staged_ctas_ * options.ranks_of_device || direct_ctas_ < 1 ||
      direct_clusters_[0] < 1) {
    refuse("the device has no place for their kernels");
  }
}

/// Several ranks of a device leave half of its places to other kernels. And all ranks but one,
/// which wait for that one, leave multiprocessors without any of their CTAs: a multiprocessor
/// divides its memory between cache and shared memory when it is empty, so a kernel that wants
/// another division than what waits there gets no place beside it, however much room there is.
/// (Four ranks, 45 rows of a sum without a norm: 135 CTAs on 132 multiprocessors, and the fourth
/// rank's next kernel never began.)
void RankExchange::share_device() {
  const int ranks = options_.ranks_of_device;
  const int own = multiprocessors() / ranks;
  for (std::size_t i = 0; i < direct_clusters_.size(); ++i)
    direct_clusters_[i] = std::min(direct_clusters_[i] / (2 * ranks), own >> i);
  direct_ctas_ = std::min(direct_ctas_ / (2 * ranks), own);
  staged_ctas_ = std::clamp(own, 1, kChannels);
}

void RankExchange::add_reduced(const Bf16* partial, Bf16* x, const Bf16* weight, float eps,
                               int rows, int hidden, Bf16* y, Stream stream) {
  RankSum sum;
  sum.partial = partial;
  sum.x = x;
  sum.weight = weight;
  sum.y = y;
  sum.eps = eps;
  sum.rows = rows;
  sum.hidden = hidden;
  sum_up(sum, stream);
}

void RankExchange::reduce(const Bf16* partial, Bf16* sum, int rows, int hidden, Stream stream) {
  RankSum call;
  call.partial = partial;
  call.x = sum;
  call.adds = false;
  call.rows = rows;
  call.hidden = hidden;
  sum_up(call, stream);
}

void RankExchange::check_row(int hidden) const {
  if (hidden < 8 || hidden % 8 != 0 || hidden > options_.hidden) {
    refuse("rows of " + std::to_string(hidden) + " elements");
  }
}

void RankExchange::sum_up(const RankSum& call, Stream stream) {
  if (call.rows <= 0) return;
  check_row(call.hidden);
  RankSum sum = call;
  sum.link = link_;
  const int units = sum.hidden / 4;
  if (options_.ranks > 1 && static_cast<std::size_t>(sum.rows) * static_cast<std::size_t>(units) >
                                link_.layout.region_units) {
    launch_staged_sum(sum, staged_ctas_, stream);
    if (sum.weight != nullptr) {
      rms_norm(sum.x, sum.weight, sum.eps, sum.rows, sum.hidden, sum.y, stream);
    }
    return;
  }
  // As many CTAs as give each thread one unit of a row, if that many are resident.
  int index = 0;
  while (index < 3 && (options_.cluster == 0 ? units > kDirectThreads << index
                                             : options_.cluster > 1 << index)) {
    ++index;
  }
  while (index > 0 && direct_clusters_[static_cast<std::size_t>(index)] < 1) --index;
  launch_direct_sum(sum, std::min(sum.rows, direct_clusters_[static_cast<std::size_t>(index)]),
                    1 << index, stream);
}

void RankExchange::gather_words(const Words& words, const std::vector<int>& columns, int rows,
                                Stream stream) {
  if (rows <= 0) return;
  if (columns.size() != static_cast<std::size_t>(options_.ranks)) refuse("columns of other ranks");
  RankGather gather;
  gather.link = link_;
  gather.part = words.part;
  gather.all = words.to_all || options_.rank == 0 ? words.all : nullptr;
  gather.to_all = words.to_all;
  gather.in_place = words.part == words.all;
  gather.rows = rows;
  std::int64_t most = 0;
  for (std::size_t r = 0; r < columns.size(); ++r) {
    gather.columns[r] = columns[r];
    gather.offset[r] = gather.total;
    gather.total += columns[r];
    most = std::max(most, std::int64_t{rows} * columns[r]);
  }
  if (most > 0x7FFFFFFF) refuse("a gather of 2^31 words");
  const std::size_t units = (static_cast<std::size_t>(most) + 1) / 2;
  if (options_.ranks > 1 && units > link_.layout.region_units) {
    launch_staged_gather(gather, staged_ctas_, stream);
  } else {
    launch_direct_gather(gather, direct_ctas_, stream);
  }
}

void RankExchange::gather_to_first(const float* part, const std::vector<int>& columns, int rows,
                                   float* all, Stream stream) {
  gather_words(
      {reinterpret_cast<const std::uint32_t*>(part), reinterpret_cast<std::uint32_t*>(all), false},
      columns, rows, stream);
}

void RankExchange::broadcast_from_first(std::int32_t* data, int n, Stream stream) {
  if (n <= 0) return;
  std::vector<int> columns(static_cast<std::size_t>(options_.ranks));
  columns[0] = n;
  auto* const words = reinterpret_cast<std::uint32_t*>(data);
  gather_words({words, words, true}, columns, 1, stream);
}

void RankExchange::gather(const Bf16* part, const std::vector<int>& columns, int rows, Bf16* all,
                          Stream stream) {
  std::vector<int> words = columns;
  for (int& n : words) {
    if (n % 2 != 0) refuse("a gather of an odd number of columns");
    n /= 2;
  }
  gather_words(
      {reinterpret_cast<const std::uint32_t*>(part), reinterpret_cast<std::uint32_t*>(all), true},
      words, rows, stream);
}

void RankExchange::gather(const float* part, const std::vector<int>& columns, int rows, float* all,
                          Stream stream) {
  gather_words(
      {reinterpret_cast<const std::uint32_t*>(part), reinterpret_cast<std::uint32_t*>(all), true},
      columns, rows, stream);
}

}  // namespace baton::cuda
