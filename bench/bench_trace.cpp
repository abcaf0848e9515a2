// What a trace costs its processes: nanoseconds of a look while nobody traces, and of a record
// while somebody does.
//   baton-bench-trace [RECORDS]
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "ipc/process.h"
#include "ipc/trace_ring.h"

namespace {

using namespace baton;

template <typename F>
double ns_each(std::size_t count, F&& f) {
  const TimeNs began = now_ns();
  for (std::size_t i = 0; i < count; ++i) f(i);
  return static_cast<double>(now_ns() - began) / static_cast<double>(count);
}

/// Of several rounds the middle one and the extremes.
template <typename F>
void tell(const char* what, std::size_t count, F&& f) {
  std::vector<double> rounds;
  for (int i = 0; i < 9; ++i) rounds.push_back(ns_each(count, f));
  std::sort(rounds.begin(), rounds.end());
  std::printf("%-28s %7.2f ns (%.2f to %.2f)\n", what, rounds[4], rounds.front(), rounds.back());
}

}  // namespace

int main(int argc, char** argv) {
  const std::size_t count =
      argc > 1 ? static_cast<std::size_t>(std::strtoul(argv[1], nullptr, 10)) : 2'000'000;
  std::string folder = (std::filesystem::temp_directory_path() / "bench-trace-XXXXXX").string();
  if (mkdtemp(folder.data()) == nullptr) return 1;
  {
    Tracer tracer(folder, "bench");
    std::size_t wanted = 0;
    const auto record = [&](std::size_t i) {
      if (!tracer.on()) return;
      ++wanted;
      TraceRecord step{.kind = TraceKind::step, .at = static_cast<TimeNs>(i), .took = 1000};
      step.args = {1, i, i, i};
      tracer.add(step);
    };
    tell("off, where a record would be", count, record);
    tell("off, a round's look", count,
         [&](std::size_t i) { wanted += tracer.look(static_cast<TimeNs>(i)) ? 1 : 0; });
    const auto pages = open_trace_control(folder);
    if (!pages.ok()) return 1;
    TraceControl& control = control_of(pages.value());
    control.layout = kTraceLayout;
    control.session = 1;
    control.until = now_ns() + 600 * kSecond;
    tracer.look(now_ns());
    tell("on, a record", count, record);
    tell("on, a record and its time", count,
         [&](std::size_t) { record(static_cast<std::size_t>(now_ns())); });
    tell("on, a round's look", count, [&](std::size_t) { tracer.look(now_ns()); });
    if (wanted < 18 * count) return 1;
  }
  std::filesystem::remove_all(folder);
  return 0;
}
