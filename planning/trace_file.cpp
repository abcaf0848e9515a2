#include "planning/trace_file.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

namespace baton {
namespace {

using Json = nlohmann::json;

constexpr std::size_t kMaxRequests = 1'000'000;
constexpr std::int64_t kMaxTokens = 1 << 20;
constexpr double kMaxMs = 7 * 86'400e3;

/// splitmix64 (Steele, Lea and Flood 2014): a well-mixed number for each number.
std::uint64_t mix(std::uint64_t x) {
  x += 0x9E3779B97F4A7C15ULL;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
  return x ^ (x >> 31);
}

Status read_length(const Json& line, const char* key, std::uint32_t& out) {
  const auto at = line.find(key);
  if (at == line.end() || !at->is_number_integer()) {
    return invalid(std::string(key) + " must be an integer");
  }
  const auto value = at->get<std::int64_t>();
  if (value < 1 || value > kMaxTokens) {
    return invalid(std::string(key) + " must lie between 1 and " + std::to_string(kMaxTokens));
  }
  out = static_cast<std::uint32_t>(value);
  return {};
}

Status read_line(std::string_view text, TraceRequest& request) {
  const Json line = Json::parse(text, nullptr, false);
  if (!line.is_object()) return invalid("not a JSON object");
  const auto at = line.find("timestamp");
  if (at == line.end() || !at->is_number() || !(at->get<double>() >= 0) ||
      at->get<double>() > kMaxMs) {
    return invalid("timestamp must be milliseconds between 0 and a week");
  }
  request.at_ms = at->get<double>();
  Status status = read_length(line, "input_length", request.input_tokens);
  if (status.ok()) status = read_length(line, "output_length", request.output_tokens);
  if (!status.ok()) return status;
  const auto ids = line.find("hash_ids");
  if (ids == line.end()) return {};
  const std::size_t most = (request.input_tokens + kTraceBlockTokens - 1) / kTraceBlockTokens;
  if (!ids->is_array() || ids->size() > most) {
    return invalid("hash_ids must be a list of at most input_length / 512 ids, rounded up");
  }
  for (const Json& id : *ids) {
    if (!id.is_number_integer()) return invalid("hash_ids must be integers");
    request.hash_ids.push_back(id.get<std::int64_t>());
  }
  return {};
}

}  // namespace

Result<std::vector<TraceRequest>> read_trace(std::string_view text) {
  std::vector<TraceRequest> requests;
  for (std::size_t number = 1; !text.empty(); ++number) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    TraceRequest request;
    Status status = read_line(line, request);
    if (status.ok() && !requests.empty() && request.at_ms < requests.back().at_ms) {
      status = invalid("timestamp lies before that of the request before");
    }
    if (status.ok() && requests.size() == kMaxRequests) {
      status = invalid("more than " + std::to_string(kMaxRequests) + " requests");
    }
    if (!status.ok()) return invalid("line " + std::to_string(number) + ": " + status.message());
    requests.push_back(std::move(request));
  }
  if (requests.empty()) return invalid("no request in it");
  return requests;
}

void make_prompt(const TraceRequest& request, std::size_t index, std::uint64_t seed, Token low,
                 Token high, std::vector<Token>& prompt) {
  const auto range = static_cast<std::uint64_t>(high - low);
  prompt.resize(request.input_tokens);
  for (std::size_t i = 0; i < prompt.size(); ++i) {
    const std::size_t block = i / kTraceBlockTokens;
    // Two streams of numbers that never meet: one of each hash id, one of each request.
    const std::uint64_t key = block < request.hash_ids.size()
                                  ? mix(static_cast<std::uint64_t>(request.hash_ids[block])) | 1U
                                  : mix(mix(seed) + index) & ~std::uint64_t{1};
    const std::size_t place = block < request.hash_ids.size() ? i % kTraceBlockTokens : i;
    prompt[i] = low + static_cast<Token>(mix(key + 2 * place) % range);
  }
}

}  // namespace baton
