// How long the ranks of a worker take for what they do together on GPUs: sums with the norm behind
// them by both protocols, gathers of logits, broadcasts of tokens; beside NCCL's all-reduce where
// its library is named. Medians of calls that follow each other in a graph.
#include "bench/bench_gpu_rank_group.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <functional>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "bench/bench_gpu_nccl.h"

namespace {

using namespace baton::cuda;

constexpr int kReplays = 10;  // the first warms up
constexpr std::chrono::seconds kPatience{30};
constexpr int kMostRows = 2048;
constexpr float kEps = 1e-5F;
constexpr std::size_t kMostDirect = 4 << 20;  // bytes of a sum that is tried so

struct Options {
  int ranks = 2;
  int devices = 0;
  int hidden = 8192;
  int vocab = 128256;
  int calls = 100;
  std::string nccl;
};

/// What each rank has on its device.
struct Memory {
  Memory(const LocalRank& rank, std::size_t bytes) {
    set_device(rank.device);
    const OwnedStream stream;
    for (DeviceMemory* m : {&partial, &x, &y, &weight}) {
      *m = DeviceMemory(bytes);
      fill_normal(m->as<Bf16>(), bytes / sizeof(Bf16), 0.01F, 5, stream.get());
    }
    stream.synchronize();
  }
  DeviceMemory partial, x, y, weight;
};

using Call = std::function<void(LocalRank&, Memory&)>;

class Bench {
 public:
  Bench(const Options& options, std::size_t bytes) : options_(options) {
    const std::unique_ptr<LocalRanks> any = group(0, 0);
    for (int r = 0; r < options.ranks; ++r) memories_.emplace_back((*any)[r], bytes);
  }

  std::unique_ptr<LocalRanks> group(std::size_t direct_bytes, int cluster) const {
    RankExchangeOptions exchange;
    exchange.ranks = options_.ranks;
    exchange.hidden = options_.hidden;
    exchange.direct_bytes = direct_bytes * static_cast<std::size_t>(options_.ranks - 1);
    exchange.cluster = cluster;
    return std::make_unique<LocalRanks>(exchange, options_.devices);
  }

  /// Median microseconds of a call, on rank 0.
  double time(LocalRanks& ranks, const Call& call) {
    std::vector<Graph> graphs(memories_.size());
    ranks.each([&](LocalRank& rank) {
      const auto r = static_cast<std::size_t>(rank.rank);
      call(rank, memories_[r]);
      graphs[r] = Graph::record(rank.stream->get(), [&] {
        for (int i = 0; i < options_.calls; ++i) call(rank, memories_[r]);
      });
    });
    set_device(ranks[0].device);
    const OwnedEvent begin(/*timing=*/true);
    const OwnedEvent end(/*timing=*/true);
    std::vector<float> times;
    for (int i = 0; i < kReplays; ++i) {
      ranks.each([&](LocalRank& rank) {
        const Graph& graph = graphs[static_cast<std::size_t>(rank.rank)];
        const Stream stream = rank.stream->get();
        graph.launch(stream);  // the ranks find each other
        if (rank.rank == 0) begin.record(stream);
        graph.launch(stream);
        if (rank.rank == 0) end.record(stream);
      });
      if (!ranks.finish(kPatience)) throw CudaError("the ranks wait in vain");
      if (i > 0) times.push_back(OwnedEvent::microseconds(begin, end));
    }
    std::nth_element(times.begin(), times.begin() + kReplays / 2, times.end());
    return static_cast<double>(times[kReplays / 2]) / options_.calls;
  }

  double sum(LocalRanks& ranks, int rows, int hidden, bool norm) {
    return time(ranks, [&](LocalRank& rank, Memory& m) {
      rank.exchange->add_reduced(m.partial.as<Bf16>(), m.x.as<Bf16>(),
                                 norm ? m.weight.as<Bf16>() : nullptr, kEps, rows, hidden,
                                 m.y.as<Bf16>(), rank.stream->get());
    });
  }

 private:
  Options options_;
  std::vector<Memory> memories_;
};

void show(double us) { us > 0 ? std::printf("%11.2f", us) : std::printf("%11s", "-"); }

std::string size_text(std::size_t bytes) {
  return bytes >= 1 << 20 ? std::to_string(bytes >> 20) + " MiB"
                          : std::to_string(bytes >> 10) + " KiB";
}

std::vector<std::pair<int, int>> shapes_of(const Options& o) {
  std::vector<std::pair<int, int>> shapes = {{1, o.hidden / 2}};
  for (int rows = 1; rows <= kMostRows; rows *= 2) shapes.emplace_back(rows, o.hidden);
  return shapes;
}

void sums(Bench& bench, const Options& o) {
  const auto direct = bench.group(kMostDirect, 0);
  const auto staged = bench.group(0, 0);
  std::printf("all-reduce, us     direct+norm     direct staged+norm     staged\n");
  for (const auto& [rows, hidden] : shapes_of(o)) {
    const std::size_t n = static_cast<std::size_t>(rows) * static_cast<std::size_t>(hidden);
    std::printf("%5d x %5d %8s", rows, hidden, size_text(n * sizeof(Bf16)).c_str());
    const bool small = n * sizeof(Bf16) <= kMostDirect;
    show(small ? bench.sum(*direct, rows, hidden, true) : 0);
    show(small ? bench.sum(*direct, rows, hidden, false) : 0);
    show(bench.sum(*staged, rows, hidden, true));
    show(bench.sum(*staged, rows, hidden, false));
    std::printf("\n");
    std::fflush(stdout);
  }
}

void sums_of_nccl(Bench& bench, const Options& o) {
  Nccl nccl(o.nccl, o.ranks);
  const auto ranks = bench.group(0, 0);
  std::printf("NCCL's all-reduce, us\n");
  for (const auto& [rows, hidden] : shapes_of(o)) {
    const std::size_t n = static_cast<std::size_t>(rows) * static_cast<std::size_t>(hidden);
    std::printf("%5d x %5d %8s", rows, hidden, size_text(n * sizeof(Bf16)).c_str());
    show(bench.time(*ranks, [&](LocalRank& rank, Memory& m) {
      nccl.all_reduce(rank.rank, m.partial.data(), n, rank.stream->get());
    }));
    std::printf("\n");
    std::fflush(stdout);
  }
}

void clusters(Bench& bench, const Options& o) {
  std::printf("direct with norm, us, CTAs a row:    1          2          4          8\n");
  std::vector<std::unique_ptr<LocalRanks>> groups;
  for (int i = 0; i < 4; ++i) groups.push_back(bench.group(kMostDirect, 1 << i));
  for (const int rows : {1, 4, 16, 64}) {
    std::printf("%5d x %5d               ", rows, o.hidden);
    for (const auto& g : groups) show(bench.sum(*g, rows, o.hidden, true));
    std::printf("\n");
  }
}

/// Smaller rounds overlap better, larger ones meet less often.
void rounds(Bench& bench, const Options& o) {
  std::printf("staged, us, MiB a round:             1          4         16         32\n");
  for (const int rows : {256, kMostRows}) {
    std::printf("%5d x %5d               ", rows, o.hidden);
    for (const std::size_t mib : {1, 4, 16, 32}) {
      RankExchangeOptions exchange;
      exchange.ranks = o.ranks;
      exchange.hidden = o.hidden;
      exchange.direct_bytes = 0;
      exchange.staged_bytes = mib << 20;
      LocalRanks ranks(exchange, o.devices);
      show(bench.sum(ranks, rows, o.hidden, false));
    }
    std::printf("\n");
  }
}

void gathers(Bench& bench, const Options& o) {
  const auto direct = bench.group(kMostDirect, 0);
  const auto staged = bench.group(0, 0);
  std::vector<int> columns(static_cast<std::size_t>(o.ranks), o.vocab / o.ranks / 8 * 8);
  columns[0] = o.vocab - (o.ranks - 1) * columns[1];
  std::printf("                             direct     staged\n");
  for (const int rows : {1, 4, 16, 64}) {
    std::printf("logits %4d x %6d, us  ", rows, o.vocab);
    for (LocalRanks* ranks : {direct.get(), staged.get()}) {
      const bool large =
          static_cast<std::size_t>(rows) * 4 * static_cast<std::size_t>(columns[0]) > kMostDirect;
      show(large && ranks == direct.get() ? 0 : bench.time(*ranks, [&](LocalRank& rank, Memory& m) {
        rank.exchange->gather_to_first(m.partial.as<float>(), columns, rows, m.y.as<float>(),
                                       rank.stream->get());
      }));
    }
    std::printf("\n");
  }
  for (const int n : {1, 64, 256, 8192}) {
    std::printf("broadcast %5d tokens, us", n);
    show(bench.time(*direct, [&](LocalRank& rank, Memory& m) {
      rank.exchange->broadcast_from_first(m.y.as<std::int32_t>(), n, rank.stream->get());
    }));
    std::printf("\n");
  }
}

int run(int argc, char** argv) {
  CLI::App app{"Measures what the ranks of a worker do together on GPUs."};
  Options o;
  app.add_option("--ranks", o.ranks, "Ranks")->check(CLI::Range(2, baton::kMaxRanks));
  app.add_option("--devices", o.devices, "GPUs they are spread over; 0: one each");
  app.add_option("--hidden", o.hidden, "Elements of a row")->check(CLI::Range(16, 16384));
  app.add_option("--vocab", o.vocab, "Columns of logits");
  app.add_option("--calls", o.calls, "Calls in a graph");
  app.add_option("--nccl", o.nccl, "libnccl.so.2, to compare with; needs a GPU for each rank");
  CLI11_PARSE(app, argc, argv);
  if (o.devices == 0) o.devices = o.ranks;
  const std::string missing = LocalRanks::missing(o.devices);
  if (!missing.empty()) throw CudaError("no " + missing);
  std::printf("%d ranks on %d GPUs\n", o.ranks, o.devices);
  const std::size_t bytes =
      std::max(std::size_t{kMostRows} * static_cast<std::size_t>(o.hidden) * 2,
               std::size_t{64} * 4 * static_cast<std::size_t>(o.vocab));
  Bench bench(o, bytes);
  sums(bench, o);
  clusters(bench, o);
  rounds(bench, o);
  gathers(bench, o);
  if (!o.nccl.empty()) sums_of_nccl(bench, o);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& error) {
    std::cerr << "baton-bench-gpu-ranks: " << error.what() << "\n";
    return 1;
  }
}
