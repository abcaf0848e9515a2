// Timings of attention: all layers of a model from one CUDA graph, each layer's keys and values
// elsewhere in a pool that no cache holds. Runs with BATON_GPU_BENCH=1 only.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string_view>

#include "tests/gpu/attention_fixture.h"

namespace baton::cuda {
namespace {

constexpr int kTokens = 16;

struct Geometry {
  HeadShape shape;
  int layers;
  std::int64_t part() const {
    return static_cast<std::int64_t>(kTokens) * shape.head_dim * shape.kv_heads;
  }
  KvLayerView view(Bf16* pool, int layer) const {
    return {pool,
            2 * part() * layer,
            part(),
            static_cast<std::int64_t>(kTokens) * shape.head_dim,
            2 * part() * layers,
            kTokens};
  }
  int width() const { return (shape.heads + 2 * shape.kv_heads) * shape.head_dim; }
};

constexpr Geometry k8b{{32, 8, 128}, 32};
constexpr Geometry k06b{{16, 8, 128}, 28};
constexpr Geometry kGemma12b{{16, 8, 256}, 48};

/// The pool, its random blocks and everything else a case needs; made once.
struct Bench {
  static constexpr std::size_t kPool = std::size_t{36} << 30;  // bytes
  static constexpr int kRows = 8192;
  DeviceArray<std::byte> pool{kPool};
  DeviceArray<std::uint16_t> qkv{static_cast<std::size_t>(kRows) * 48 * 128};
  DeviceArray<std::uint16_t> out{static_cast<std::size_t>(kRows) * 32 * 128};
  cudaStream_t stream = nullptr;

  Bench() {
    check(cudaStreamCreate(&stream), "stream");
    std::mt19937 rng(3);
    std::normal_distribution<float> normal;
    std::vector<std::uint16_t> some(8 << 20);
    for (auto& x : some) x = to_bf16(normal(rng));
    const std::size_t first = some.size() * 2;
    check(cudaMemcpy(pool.data(), some.data(), first, cudaMemcpyHostToDevice), "copy");
    for (std::size_t done = first; done < kPool; done *= 2) {
      check(cudaMemcpy(pool.data() + done, pool.data(), std::min(done, kPool - done),
                       cudaMemcpyDeviceToDevice),
            "copy");
    }
    const std::size_t bytes = static_cast<std::size_t>(kRows) * 48 * 128 * 2;
    check(cudaMemcpy(qkv.data(), pool.data() + 1000, bytes, cudaMemcpyDeviceToDevice), "copy");
  }

  /// Median milliseconds of a graph of what `queue` queues.
  double time(const std::function<void()>& queue) {
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
    queue();
    check(cudaStreamEndCapture(stream, &graph), "capture");
    check(cudaGraphInstantiate(&exec, graph, 0), "graph");
    cudaEvent_t begin, end;
    check(cudaEventCreate(&begin), "event");
    check(cudaEventCreate(&end), "event");
    std::vector<float> times;
    for (int i = 0; i < 10; ++i) {
      float ms = 0;
      check(cudaEventRecord(begin, stream), "event");
      check(cudaGraphLaunch(exec, stream), "graph");
      check(cudaEventRecord(end, stream), "event");
      check(cudaStreamSynchronize(stream), "graph");
      check(cudaEventElapsedTime(&ms, begin, end), "event");
      if (i >= 3) times.push_back(ms);
    }
    cudaGraphExecDestroy(exec);
    cudaGraphDestroy(graph);
    cudaEventDestroy(begin);
    cudaEventDestroy(end);
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
  }
};

/// Rows with block tables of random blocks, none twice.
struct Rows {
  std::vector<AttentionRow> rows;
  std::vector<std::int32_t> table;
  std::int64_t keys = 0;

  Rows(const Geometry& g, const std::vector<std::pair<int, int>>& positions) {
    int first_row = 0;
    for (const auto& [position, n] : positions) {
      const int blocks = (position + n + kTokens - 1) / kTokens;
      rows.push_back({first_row, n, position, static_cast<int>(table.size()), blocks});
      table.resize(table.size() + blocks);
      first_row += n;
      keys += position + n;
    }
    const std::size_t all = Bench::kPool / (4 * g.part() * g.layers);
    std::vector<std::int32_t> ids(all);
    std::iota(ids.begin(), ids.end(), 0);
    std::shuffle(ids.begin(), ids.end(), std::mt19937(5));
    if (table.size() > all) throw std::logic_error("pool too small");
    std::copy_n(ids.begin(), table.size(), table.begin());
  }
};

double time_decode(Bench& b, const Geometry& g, const Rows& rows, DecodeAttention::Options options,
                   bool padded = false) {
  options.shape = g.shape;
  options.max_rows = static_cast<int>(rows.rows.size());
  const DecodeAttention attention(options);
  DecodePlan plan;
  attention.plan(rows.rows, plan);
  const auto planned = static_cast<std::int32_t>(plan.items.size());
  const int launched = padded ? attention.max_items() : static_cast<int>(plan.items.size());
  plan.items.resize(launched);
  const DeviceArray<DecodeItem> items{std::span<const DecodeItem>(plan.items)};
  const DeviceArray<std::int32_t> count{std::span<const std::int32_t>(&planned, 1)};
  const DeviceArray<std::int32_t> table{std::span<const std::int32_t>(rows.table)};
  DeviceArray<std::byte> workspace(attention.workspace_bytes());
  workspace.fill(0);
  return b.time([&] {
    for (int layer = 0; layer < g.layers; ++layer) {
      attention.run(reinterpret_cast<Bf16*>(b.qkv.data()), reinterpret_cast<Bf16*>(b.out.data()),
                    g.view(reinterpret_cast<Bf16*>(b.pool.data()), layer), table.data(),
                    {items.data(), count.data(), plan.rows, launched}, 0.088F, workspace.data(),
                    b.stream);
    }
  });
}

/// With BATON_GPU_BENCH=pieces also pieces of several lengths.
void bench_decode(Bench& b, const char* name, const Geometry& g,
                  const std::vector<std::pair<int, int>>& positions) {
  const Rows rows(g, positions);
  const double gb =
      static_cast<double>(rows.keys) * 4 * g.shape.kv_heads * g.shape.head_dim * g.layers / 1e9;
  DecodeAttention::Options options;
  std::printf("%-24s", name);
  const auto print = [&](const char* kernel, double ms) {
    std::printf(" %s %7.3f ms %6.2f us/layer %5.2f TB/s;", kernel, ms, ms * 1e3 / g.layers,
                gb / ms);
  };
  print("as planned", time_decode(b, g, rows, options));
  print("padded", time_decode(b, g, rows, options, true));
  if (std::string_view(std::getenv("BATON_GPU_BENCH")) == "pieces") {
    for (int piece : {64, 128, 256, 512, 1024, 65536}) {
      options.piece_keys = piece;
      std::printf(" %d: %.3f", piece, time_decode(b, g, rows, options));
    }
  }
  std::printf("\n");
  std::fflush(stdout);
}

void bench_prefill(Bench& b, const char* name, const Geometry& g,
                   const std::vector<std::pair<int, int>>& positions) {
  const Rows rows(g, positions);
  std::printf("%-24s", name);
  for (const char* kernel : {"dense", "paged", "fa2"}) {
    if (g.shape.head_dim > 128 && *kernel != 'f') continue;
    PrefillAttention::Options options;
    options.shape = g.shape;
    options.max_rows = Bench::kRows;
    options.max_chunks = 16;
    options.max_table = static_cast<int>(rows.table.size());
    options.hopper = *kernel != 'f';
    options.gather_pairs = *kernel == 'd' ? 0 : -1;
    const PrefillAttention attention(options);
    const DeviceArray<std::byte> floats(attention.float_workspace_bytes());
    const DeviceArray<std::byte> ints(attention.int_workspace_bytes());
    const DeviceArray<std::byte> pinned(attention.int_workspace_bytes(), true);
    const DeviceArray<std::int32_t> table{std::span<const std::int32_t>(rows.table)};
    const auto plan = attention.make_plan();
    attention.plan(rows.rows, *plan, floats.data(), ints.data(), pinned.data(), b.stream);
    check(cudaStreamSynchronize(b.stream), "plan");
    const double ms = b.time([&] {
      for (int layer = 0; layer < g.layers; ++layer) {
        attention.run(
            *plan, reinterpret_cast<Bf16*>(b.qkv.data()), reinterpret_cast<Bf16*>(b.out.data()),
            g.view(reinterpret_cast<Bf16*>(b.pool.data()), layer), table.data(), 0.088F, b.stream);
      }
    });
    std::printf(" %s %7.2f ms", kernel, ms);
  }
  std::printf("\n");
}

TEST(AttentionBench, Table) {
  if (std::getenv("BATON_GPU_BENCH") == nullptr) GTEST_SKIP() << "set BATON_GPU_BENCH=1";
  Bench b;
  const auto rows = [](int n, int keys) {
    return std::vector<std::pair<int, int>>(n, {keys - 1, 1});
  };
  bench_decode(b, "8B 128 x 512", k8b, rows(128, 512));
  bench_decode(b, "8B 256 x 512", k8b, rows(256, 512));
  bench_decode(b, "8B 64 x 2048", k8b, rows(64, 2048));
  bench_decode(b, "8B 128 x 1024", k8b, rows(128, 1024));
  bench_decode(b, "8B 256 x 1024", k8b, rows(256, 1024));
  bench_decode(b, "8B 32 x 4096", k8b, rows(32, 4096));
  std::mt19937 rng(11);
  std::vector<std::pair<int, int>> ragged;
  for (int i = 0; i < 128; ++i) ragged.emplace_back(rng() % 1900 + 100, 1);
  bench_decode(b, "8B 128 x 100..2000", k8b, ragged);
  ragged.clear();
  for (int i = 0; i < 256; ++i) ragged.emplace_back(rng() % 1900 + 100, 1);
  bench_decode(b, "8B 256 x 100..2000", k8b, ragged);
  ragged.resize(32);
  bench_decode(b, "8B 32 x 100..2000", k8b, ragged);
  bench_decode(b, "8B 32 x 512", k8b, rows(32, 512));
  bench_decode(b, "8B 16 x 512", k8b, rows(16, 512));
  bench_decode(b, "8B 16 x 1024", k8b, rows(16, 1024));
  bench_decode(b, "8B 256 x 64", k8b, rows(256, 64));
  auto mixed = rows(63, 512);
  mixed.emplace_back(16383, 1);
  bench_decode(b, "8B 63 x 512, 1 x 16384", k8b, mixed);
  bench_decode(b, "8B 8 x 2048", k8b, rows(8, 2048));
  bench_decode(b, "8B 4 x 2048", k8b, rows(4, 2048));
  bench_decode(b, "8B 1 x 512", k8b, rows(1, 512));
  bench_decode(b, "8B 1 x 2048", k8b, rows(1, 2048));
  bench_decode(b, "8B 1 x 16384", k8b, rows(1, 16384));
  bench_decode(b, "0.6B 256 x 512", k06b, rows(256, 512));
  bench_decode(b, "0.6B 128 x 512", k06b, rows(128, 512));
  bench_decode(b, "0.6B 32 x 512", k06b, rows(32, 512));
  bench_decode(b, "0.6B 1 x 512", k06b, rows(1, 512));
  bench_decode(b, "Gemma 12B 1 x 512", kGemma12b, rows(1, 512));
  bench_decode(b, "Gemma 12B 1 x 4096", kGemma12b, rows(1, 4096));
  bench_decode(b, "Gemma 12B 8 x 512", kGemma12b, rows(8, 512));
  bench_decode(b, "Gemma 12B 64 x 512", kGemma12b, rows(64, 512));
  if (std::string_view(std::getenv("BATON_GPU_BENCH")) == "decode") return;
  bench_prefill(b, "8B prompt 512", k8b, {{0, 512}});
  bench_prefill(b, "8B prompt 1024", k8b, {{0, 1024}});
  bench_prefill(b, "8B 512 at 1024", k8b, {{1024, 512}});
  bench_prefill(b, "8B 128 at 8192", k8b, {{8192, 128}});
  bench_prefill(b, "8B 2048 at 32768", k8b, {{32768, 2048}});
  bench_prefill(b, "8B prompt 2048", k8b, {{0, 2048}});
  bench_prefill(b, "8B prompt 8192", k8b, {{0, 8192}});
  bench_prefill(b, "8B 512 at 8192", k8b, {{8192, 512}});
  bench_prefill(b, "Gemma 12B prompt 2048", kGemma12b, {{0, 2048}});
  bench_prefill(b, "8B prompts 4 x 2048", k8b, {{0, 2048}, {0, 2048}, {0, 2048}, {0, 2048}});
}

}  // namespace
}  // namespace baton::cuda
