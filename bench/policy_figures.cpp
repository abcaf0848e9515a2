#include "bench/policy_figures.h"

#include <algorithm>

namespace baton {

namespace {

double quantile(std::vector<double>& values, double q) {
  if (values.empty()) return 0;
  const auto at = static_cast<std::ptrdiff_t>(q * static_cast<double>(values.size() - 1) + 0.5);
  std::nth_element(values.begin(), values.begin() + at, values.end());
  return values[static_cast<std::size_t>(at)];
}

}  // namespace

VirtualRun play(Settings settings, const std::vector<VirtualWorker>& workers,
                const StepTimes& times, const Requests& requests) {
  settings.max_waiting = static_cast<std::uint32_t>(requests.size());
  VirtualOptions options;
  options.patience = 3600 * kSecond;
  return run_virtual_cluster(settings, workers, times, requests, options);
}

Figures figures_of(const Requests& requests, const VirtualRun& run) {
  const auto ms = [](TimeNs time) { return static_cast<double>(time) / 1e6; };
  Figures f;
  std::vector<double> first, gaps;
  std::size_t tokens = 0;
  TimeNs end = 1;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    const VirtualReply& reply = run.replies[i];
    if (!reply.tokens.empty()) first.push_back(ms(reply.tokens.front() - requests[i].arrival));
    for (std::size_t t = 1; t < reply.tokens.size(); ++t) {
      gaps.push_back(ms(reply.tokens[t] - reply.tokens[t - 1]));
    }
    f.latency_sum += ms(reply.end - requests[i].arrival) / 1e3;
    tokens += reply.tokens.size();
    end = std::max(end, reply.end);
  }
  f.ttft_p50 = quantile(first, 0.5);
  f.ttft_p99 = quantile(first, 0.99);
  f.itl_p50 = quantile(gaps, 0.5);
  f.itl_p99 = quantile(gaps, 0.99);
  f.tokens_per_s = static_cast<double>(tokens) / (ms(end) / 1e3);
  return f;
}

Figures figures_of(const Requests& requests, const VirtualRun& run, const std::string& tenant) {
  Requests own;
  VirtualRun seen;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    if (requests[i].share.tenant != tenant) continue;
    own.push_back(requests[i]);
    seen.replies.push_back(run.replies[i]);
  }
  return figures_of(own, seen);
}

}  // namespace baton
