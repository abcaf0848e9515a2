// Requests of strangers: however their bytes are cut into pieces, the same requests come out,
// within the limits.
#include <string>
#include <vector>

#include "frontend/http/http_framing.h"
#include "tests/fuzz/fuzz.h"

namespace {

using baton::FramingLimits;
using baton::RequestReader;
using State = RequestReader::State;

constexpr FramingLimits kLimits{512, 8, 64, 1024};
constexpr std::size_t kMostRequests = 16;

/// One line for each request, and how it ended.
std::vector<std::string> read(std::string_view bytes, std::size_t piece) {
  std::vector<std::string> lines;
  RequestReader reader(kLimits);
  while (!bytes.empty() && lines.size() < kMostRequests) {
    const std::string_view some = bytes.substr(0, piece);
    const std::size_t taken = reader.feed(some);
    baton::fuzz::require(taken <= some.size(), "no more is taken than is there");
    baton::fuzz::require(reader.held() <= kLimits.max_head_bytes + kLimits.max_body_bytes + 1,
                         "memory is bounded");
    bytes.remove_prefix(taken);
    if (reader.state() == State::failed) {
      // Which of several faults is told first may depend on the pieces.
      baton::fuzz::require(reader.fault().status >= 400, "a fault has a status");
      lines.push_back("failed");
      return lines;
    }
    if (reader.state() == State::done) {
      const baton::HttpRequest request = reader.take();
      baton::fuzz::require(request.target.starts_with('/'), "a target begins with a slash");
      baton::fuzz::require(request.minor == 0 || !request.host.empty(), "HTTP/1.1 names a host");
      std::string line = request.method + " " + request.target + " " + request.host +
                         (request.keep_alive ? " keep" : " close") + "\n" + request.body;
      for (const auto& [name, value] : request.headers) line += "\n" + name + ":" + value;
      lines.push_back(line);
    } else {
      baton::fuzz::require(taken > 0, "an unfinished request takes what comes");
    }
  }
  return lines;
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes = baton::fuzz::text_of(data, size);
  const auto whole = read(bytes, SIZE_MAX);
  baton::fuzz::require(read(bytes, 1) == whole, "pieces of one byte say the same");
  baton::fuzz::require(read(bytes, 7) == whole, "pieces of seven bytes say the same");
  return 0;
}
