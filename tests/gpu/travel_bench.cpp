// A decode row's attention over two and more GPUs: all keys at home, read over the link, or
// attended to where they lie. Pools of random numbers, chunks of 2,048 tokens dealt out in turns.
// Runs with BATON_GPU_BENCH=1 only; of the layers each has keys of its own that no cache holds.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <vector>

#include "tests/gpu/travel_step.h"

namespace baton::cuda {
namespace {

constexpr int kTokens = 16;
constexpr int kChunkBlocks = 128;
constexpr int kLayers = 8;  // that are timed
constexpr int kModel = 32;  // that an 8B has
constexpr HeadShape kShape{32, 8, 128};

struct Pools {
  std::vector<std::unique_ptr<DeviceArray<std::uint16_t>>> arrays;  // by device
  KvLayerView view;

  Pools(int devices, std::int64_t blocks) {
    view.head_stride = std::int64_t{kTokens} * kShape.head_dim;
    view.part_stride = view.head_stride * kShape.kv_heads;
    view.block_stride = 2 * view.part_stride * kLayers;
    view.tokens_per_block = kTokens;
    for (int d = 0; d < devices; ++d) {
      const OnDevice on(d);
      const auto n = static_cast<std::size_t>(blocks * view.block_stride);
      arrays.push_back(array_on<std::uint16_t>(d, n));
      const OwnedStream stream;
      fill_normal(reinterpret_cast<Bf16*>(arrays.back()->data()), n, 1, 7 + d, stream.get());
      stream.synchronize();
    }
  }
  KvLayerView layer(int i) const {
    KvLayerView kv = view;
    kv.pool = reinterpret_cast<Bf16*>(arrays[0]->data());
    kv.layer_offset = 2 * view.part_stride * i;
    return kv;
  }
  std::vector<std::int64_t> offsets() const {
    std::vector<std::int64_t> offsets;
    for (const auto& array : arrays) offsets.push_back(array->data() - arrays[0]->data());
    return offsets;
  }
};

/// Chunks of one sequence, in turns over so many pools.
std::vector<std::int32_t> table_over(int pools, int blocks) {
  std::vector<std::int32_t> table;
  std::vector<std::int32_t> used(static_cast<std::size_t>(pools), 0);
  for (int i = 0; i < blocks; ++i) {
    const int pool = i / kChunkBlocks % pools;
    table.push_back(pool << kPoolBlockBits | used[static_cast<std::size_t>(pool)]++);
  }
  return table;
}

/// Median microseconds of a layer.
double time_layers(const std::function<void(int layer, Stream stream)>& queue) {
  const OwnedStream stream;
  const OwnedEvent begin(/*timing=*/true), end(/*timing=*/true);
  std::vector<float> times;
  for (int turn = 0; turn < 13; ++turn) {
    begin.record(stream.get());
    for (int layer = 0; layer < kLayers; ++layer) queue(layer, stream.get());
    end.record(stream.get());
    stream.synchronize();
    if (turn >= 3) times.push_back(OwnedEvent::microseconds(begin, end) / kLayers);
  }
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

void time_case(int devices, int keys, const std::vector<const OtherDevice*>& others) {
  const int blocks = (keys + kTokens - 1) / kTokens;
  const bool at_home = keys <= 140'000;  // all of a longer one has no room there
  const Pools pools(devices, at_home ? blocks : blocks / devices + kChunkBlocks);
  DecodeAttention::Options options;
  options.shape = kShape;
  options.tokens_per_block = kTokens;
  options.max_rows = 1;
  const DecodeAttention attention(options);
  const std::vector<AttentionRow> rows = {{0, 1, keys - 1, 0, blocks}};
  const DeviceArray<std::uint16_t> qkv(
      static_cast<std::size_t>(kShape.heads + 2 * kShape.kv_heads) * kShape.head_dim);
  fill_normal(reinterpret_cast<Bf16*>(qkv.data()), static_cast<std::size_t>(48 * 128), 1, 3,
              nullptr);
  const DeviceArray<std::uint16_t> out(static_cast<std::size_t>(kShape.heads) * kShape.head_dim);
  const auto time = [&](int over, bool travels) {
    SeveralPools several;
    several.device.assign(static_cast<std::size_t>(devices), 0);
    several.offsets.assign(static_cast<std::size_t>(devices), pools.offsets());
    for (int d = 0; travels && d < devices; ++d) several.device[static_cast<std::size_t>(d)] = d;
    const auto table = table_over(over, blocks);
    TravelStep step(attention, kTokens, rows, table, several, others);
    return time_layers([&](int layer, Stream stream) {
      step.attend(reinterpret_cast<const Bf16*>(qkv.data()), reinterpret_cast<Bf16*>(out.data()),
                  pools.layer(layer), 0.088F, stream);
    });
  };
  const double home = at_home ? time(1, false) : 0;
  const double link = time(devices, false);
  const double there = time(devices, true);
  std::printf(
      "%d devices, %7d keys: at home %7.1f us a layer, over the link %7.1f, where they lie %7.1f; "
      "an 8B's token %+.2f ms against the link\n",
      devices, keys, home, link, there, kModel * (there - link) / 1000);
}

TEST(TravelBench, OneRow) {
  if (std::getenv("BATON_GPU_BENCH") == nullptr) GTEST_SKIP() << "BATON_GPU_BENCH is not set";
  std::vector<std::unique_ptr<OtherDevice>> made;
  std::vector<const OtherDevice*> others;
  for (int d = 1; d < device_count(); ++d) {
    enable_peer_access(0, d);
    made.push_back(std::make_unique<OtherDevice>(d, 0, std::size_t{8} << 20));
    others.push_back(made.back().get());
  }
  for (int devices = 2; devices <= device_count(); devices *= 2) {
    const std::vector<const OtherDevice*> some(others.begin(), others.begin() + devices - 1);
    for (const int keys : {4'096, 8'192, 16'384, 64'000, 130'000, 500'000})
      time_case(devices, keys, some);
  }
}

}  // namespace
}  // namespace baton::cuda
