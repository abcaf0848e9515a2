// The only file that includes libcurl.
#include <curl/curl.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <memory>
#include <mutex>
#include <string_view>

#include "frontend/http/otlp_exporter.h"
#include "ipc/process.h"

namespace baton {
namespace {

constexpr std::size_t kMostAnswer = 64U << 10U;
constexpr TimeNs kHurry = kSecond;  // what is left for an answer once the process is to end

std::size_t take_body(char* /*bytes*/, std::size_t size, std::size_t count, void* so_far) {
  auto& total = *static_cast<std::size_t*>(so_far);
  total += size * count;
  return total > kMostAnswer ? 0 : size * count;  // its words mean nothing to us: only bounded
}

std::size_t take_header(char* bytes, std::size_t size, std::size_t count, void* outcome) {
  std::string_view line(bytes, size * count);
  constexpr std::string_view kName = "retry-after:";
  const auto same = [](char a, char b) { return std::tolower(static_cast<unsigned char>(a)) == b; };
  if (line.size() > kName.size() && std::equal(kName.begin(), kName.end(), line.begin(),
                                               [&](char b, char a) { return same(a, b); })) {
    line.remove_prefix(kName.size());
    while (!line.empty() && line.front() == ' ') line.remove_prefix(1);
    unsigned seconds = 0;  // a date is passed over: the usual pause is taken
    std::from_chars(line.data(), line.data() + line.size(), seconds);
    static_cast<PostOutcome*>(outcome)->retry_after = std::min(seconds, 3600U) * kSecond;
  }
  return size * count;
}

struct StopWatch {
  const std::atomic<bool>* stop = nullptr;
  TimeNs since = 0;  // it was first seen set
};

/// Called about once a second, and more often while bytes move. Not 0: give up.
int look(void* watch, curl_off_t, curl_off_t, curl_off_t, curl_off_t) {
  auto& at = *static_cast<StopWatch*>(watch);
  if (!at.stop->load()) return 0;
  if (at.since == 0) at.since = now_ns();
  return now_ns() - at.since > kHurry ? 1 : 0;
}

struct Curl {
  Curl() {
    static std::once_flag once;
    std::call_once(once, [] { curl_global_init(CURL_GLOBAL_DEFAULT); });
    easy.reset(curl_easy_init());
    headers.reset(curl_slist_append(nullptr, "Content-Type: application/json"));
    headers.reset(curl_slist_append(headers.release(), "Expect:"));
  }
  std::unique_ptr<CURL, decltype(&curl_easy_cleanup)> easy{nullptr, curl_easy_cleanup};
  std::unique_ptr<curl_slist, decltype(&curl_slist_free_all)> headers{nullptr, curl_slist_free_all};
};

}  // namespace

PostJson curl_post(const std::string& url, TimeNs timeout) {
  // One connection, which is kept from one body to the next.
  const auto curl = std::make_shared<Curl>();
  return [curl, url, timeout](const std::string& body, const std::atomic<bool>& stop) {
    PostOutcome outcome;
    CURL* easy = curl->easy.get();
    if (easy == nullptr) {
      outcome.error = "libcurl cannot begin";
      return outcome;
    }
    std::size_t answered = 0;
    StopWatch watch{&stop};
    curl_easy_reset(easy);
    curl_easy_setopt(easy, CURLOPT_URL, url.c_str());
    curl_easy_setopt(easy, CURLOPT_POSTFIELDS, body.data());
    curl_easy_setopt(easy, CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(body.size()));
    curl_easy_setopt(easy, CURLOPT_HTTPHEADER, curl->headers.get());
    curl_easy_setopt(easy, CURLOPT_TIMEOUT_MS, static_cast<long>(timeout / kMillisecond));
    curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(easy, CURLOPT_FOLLOWLOCATION, 0L);
    curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(easy, CURLOPT_USERAGENT, "baton");
    curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, take_body);
    curl_easy_setopt(easy, CURLOPT_WRITEDATA, &answered);
    curl_easy_setopt(easy, CURLOPT_HEADERFUNCTION, take_header);
    curl_easy_setopt(easy, CURLOPT_HEADERDATA, &outcome);
    curl_easy_setopt(easy, CURLOPT_NOPROGRESS, 0L);
    curl_easy_setopt(easy, CURLOPT_XFERINFOFUNCTION, look);
    curl_easy_setopt(easy, CURLOPT_XFERINFODATA, &watch);
    const CURLcode done = curl_easy_perform(easy);
    long status = 0;
    curl_easy_getinfo(easy, CURLINFO_RESPONSE_CODE, &status);
    // An answer that is cut off behind its head has been given all the same.
    if (done != CURLE_OK && status == 0) outcome.error = curl_easy_strerror(done);
    if (done == CURLE_OK || done == CURLE_WRITE_ERROR) outcome.status = static_cast<int>(status);
    if (outcome.status == 0 && outcome.error.empty()) outcome.error = curl_easy_strerror(done);
    return outcome;
  };
}

}  // namespace baton
