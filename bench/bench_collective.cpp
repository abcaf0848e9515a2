// baton-bench-collective [bytes] [rounds]: how long an exchange between two processes takes that
// both look for (awake). Prints the quantiles of one all_gather of so many bytes a rank, and of a
// bare barrier, in microseconds.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "workers/collective/collective.h"

namespace {

using baton::Collective;

struct Sizes {
  std::int64_t floats;
  int rounds;
};

/// Times of each round, as rank 0 sees them.
std::vector<double> exchange(Collective& c, const Sizes& sizes, bool bare) {
  const baton::ColumnRange ranges[] = {{0, sizes.floats}, {sizes.floats, sizes.floats}};
  std::vector<float> data(static_cast<std::size_t>(2 * sizes.floats), 1.0F);
  std::vector<double> times;
  for (int i = 0; i < sizes.rounds; ++i) {
    const baton::TimeNs began = baton::now_ns();
    if (bare) {
      c.barrier();
    } else {
      c.gather_columns(data.data(), 1, 2 * sizes.floats, ranges);
    }
    times.push_back(static_cast<double>(baton::now_ns() - began) / 1e3);
  }
  std::sort(times.begin(), times.end());
  return times;
}

void show(const char* what, const std::vector<double>& times) {
  const auto at = [&](double share) {
    return times[static_cast<std::size_t>(share * static_cast<double>(times.size() - 1))];
  };
  std::printf("%s: p10 %.2f, p50 %.2f, p90 %.2f, p99 %.2f us\n", what, at(0.1), at(0.5), at(0.9),
              at(0.99));
}

}  // namespace

int main(int argc, char** argv) {
  const Sizes sizes{(argc > 1 ? std::atol(argv[1]) : 4096) / 4,
                    argc > 2 ? std::atoi(argv[2]) : 100'000};
  if (sizes.floats < 1 || sizes.rounds < 1) return 2;
  const auto memory = baton::ExchangeMemory::create(2);
  if (!memory.ok()) {
    std::fprintf(stderr, "%s\n", memory.status().message().c_str());
    return 1;
  }
  const pid_t pid = ::fork();
  Collective c(memory.value(), pid == 0 ? 1 : 0);
  const auto gathered = exchange(c, sizes, false);
  const auto bare = exchange(c, sizes, true);
  if (pid == 0) ::_exit(0);
  ::waitpid(pid, nullptr, 0);
  std::printf("%ld bytes a rank, %d rounds\n", static_cast<long>(sizes.floats * 4), sizes.rounds);
  show("gather", gathered);
  show("barrier", bare);
  return 0;
}
