// baton-bench-client: loads a front end with streamed completions and reports tokens a second, time
// to first token (TTFT) and time between tokens (ITL). One thread, one epoll: it shares the cores
// with what it measures. Times are taken where the bytes leave the socket; --log keeps all of them.
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "bench/sse_reader.h"
#include "ipc/process.h"
#include "planning/trace_file.h"

namespace baton {
namespace {

struct Options {
  std::string host = "127.0.0.1";
  std::string port = "8000";
  std::string path = "/v1/completions";
  std::string model;
  std::string prompt = "What is Baton?";
  std::string json_file;
  std::string arrivals_file;
  std::string trace_file;
  std::string log_file;
  Token id_low = 10;  // of a trace's prompts
  Token id_high = 4000;
  int prompt_words = 0;
  int streams = 1;
  int requests = 1;
  int tokens = 128;
  int warmup = 0;
  double rate = 0;
  double temperature = 0;
  double timeout_s = 300;
  std::uint64_t seed = 1;
};

struct Stream {
  UniqueFd fd;
  SseReader reader;
  std::string request;
  std::size_t written = 0;
  std::size_t index = 0;  // of the request
  TimeNs started = 0;     // due, if that was earlier
  TimeNs sent = 0;
  TimeNs last = 0;
  std::vector<TimeNs> events;  // for the log
  bool measured = false;
};

struct Totals {
  std::uint64_t completed = 0, failed = 0, tokens = 0, events = 0;
  std::vector<float> ttft_ms, itl_ms, e2e_ms;
  std::vector<TimeNs> arrivals;  // of each event, if asked for
  std::string first_error;
  TimeNs begin = 0, end = 0;
};

double percentile(std::vector<float>& values, double p) {
  if (values.empty()) return 0;
  const auto at = static_cast<std::size_t>(p * static_cast<double>(values.size() - 1) + 0.5);
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(at), values.end());
  return values[at];
}

class Bench {
 public:
  explicit Bench(Options options)
      : o_(std::move(options)), epoll_(epoll_create1(EPOLL_CLOEXEC)), random_(o_.seed) {}

  int run();

 private:
  bool resolve();
  bool load_trace();
  std::string body(std::size_t index);
  void start(std::size_t slot, TimeNs due);
  void on_event(std::size_t slot, std::uint32_t events);
  void read(std::size_t slot);
  void write(std::size_t slot);
  void finish(std::size_t slot, const std::string& error);
  TimeNs next_due() const;
  void start_due();
  int wait(std::array<epoll_event, 256>& events);
  void log(const Stream& stream, const std::string& error);
  void report();

  Options o_;
  UniqueFd epoll_;
  sockaddr_storage address_{};
  socklen_t address_size_ = 0;
  std::vector<Stream> streams_;
  std::vector<std::size_t> idle_;
  std::mt19937_64 random_;
  std::vector<TraceRequest> trace_;  // empty: requests by the options
  std::vector<Token> prompt_;
  std::ofstream log_;
  Totals totals_;
  int started_ = 0;
  int ended_ = 0;
  TimeNs now_ = 0;
  TimeNs begin_ = 0;
  TimeNs next_arrival_ = 0;
};

bool Bench::resolve() {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(o_.host.c_str(), o_.port.c_str(), &hints, &found) != 0) return false;
  std::memcpy(&address_, found->ai_addr, found->ai_addrlen);
  address_size_ = found->ai_addrlen;
  freeaddrinfo(found);
  return true;
}

bool Bench::load_trace() {
  std::ifstream file(o_.trace_file, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  auto trace =
      file ? read_trace(text) : Result<std::vector<TraceRequest>>(invalid("cannot be read"));
  if (!trace.ok()) {
    std::fprintf(stderr, "%s: %s\n", o_.trace_file.c_str(), trace.status().message().c_str());
    return false;
  }
  trace_ = std::move(trace).value();
  o_.requests = static_cast<int>(trace_.size());
  o_.streams = o_.requests;  // nobody waits for anybody
  return true;
}

std::string Bench::body(std::size_t index) {
  const auto tokens =
      trace_.empty() ? static_cast<std::uint32_t>(o_.tokens) : trace_[index].output_tokens;
  char numbers[160];
  std::snprintf(numbers, sizeof numbers,
                "\"max_tokens\":%u,\"temperature\":%g,\"ignore_eos\":true,\"stream\":true,"
                "\"stream_options\":{\"include_usage\":true}",
                tokens, o_.temperature);
  const std::string model = o_.model.empty() ? "" : "\"model\":\"" + o_.model + "\",";
  std::string input;
  if (!trace_.empty()) {
    make_prompt(trace_[index], index, o_.seed, o_.id_low, o_.id_high, prompt_);
    input.reserve(8 * prompt_.size() + 16);
    input = "\"prompt\":";
    char separator = '[';
    for (const Token token : prompt_) {
      char digits[16];
      const auto end = std::to_chars(digits, digits + sizeof digits, token).ptr;
      input.append(1, separator).append(digits, end);
      separator = ',';
    }
    input += "],";
  } else {
    std::string prompt = o_.prompt;
    for (int i = 0; i < o_.prompt_words; ++i) prompt += " w" + std::to_string(random_() % 1000);
    input = o_.path.find("chat") == std::string::npos
                ? "\"prompt\":\"" + prompt + "\","
                : "\"messages\":[{\"role\":\"user\",\"content\":\"" + prompt + "\"}],";
  }
  return "{" + model + input + numbers + "}";
}

/// `due`: when the request should have left; its latencies count from there. 0: now.
void Bench::start(std::size_t slot, TimeNs due) {
  Stream& stream = streams_[slot];
  stream = Stream{};
  stream.measured = started_ >= o_.warmup;
  if (started_ == o_.warmup) totals_.begin = now_ns();
  stream.index = static_cast<std::size_t>(started_++);
  const std::string json = body(stream.index);
  stream.request = "POST " + o_.path + " HTTP/1.1\r\nHost: " + o_.host +
                   "\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: " +
                   std::to_string(json.size()) + "\r\n\r\n" + json;
  stream.fd.reset(socket(address_.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  const int one = 1;
  setsockopt(stream.fd.get(), IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  stream.sent = now_ns();
  stream.started = due != 0 ? due : stream.sent;
  if (connect(stream.fd.get(), reinterpret_cast<sockaddr*>(&address_), address_size_) != 0 &&
      errno != EINPROGRESS) {
    finish(slot, std::string("connect: ") + std::strerror(errno));
    return;
  }
  epoll_event event{};
  event.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET;
  event.data.u64 = slot;
  epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, stream.fd.get(), &event);
}

void Bench::write(std::size_t slot) {
  Stream& stream = streams_[slot];
  while (stream.written < stream.request.size()) {
    const ssize_t n = send(stream.fd.get(), stream.request.data() + stream.written,
                           stream.request.size() - stream.written, MSG_NOSIGNAL);
    if (n <= 0) return;
    stream.written += static_cast<std::size_t>(n);
  }
}

void Bench::on_event(std::size_t slot, std::uint32_t events) {
  Stream& stream = streams_[slot];
  if (!stream.measured) return;
  totals_.events += events;
  if (!o_.arrivals_file.empty()) totals_.arrivals.insert(totals_.arrivals.end(), events, now_);
  if (log_.is_open()) stream.events.insert(stream.events.end(), events, now_);
  const TimeNs since = now_ - (stream.last == 0 ? stream.started : stream.last);
  const float ms = static_cast<float>(since) * 1e-6F;
  if (stream.last == 0) {
    totals_.ttft_ms.push_back(ms);
    --events;
  }
  // Events that came together: the first waited, the others did not.
  for (std::uint32_t i = 0; i < events; ++i) {
    totals_.itl_ms.push_back(i == 0 && stream.last != 0 ? ms : 0);
  }
  stream.last = now_;
}

void Bench::read(std::size_t slot) {
  static std::array<char, 65536> buffer;
  Stream& stream = streams_[slot];
  while (stream.fd) {
    const ssize_t n = recv(stream.fd.get(), buffer.data(), buffer.size(), 0);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (n <= 0) {
      finish(slot, n == 0 ? "the connection ended too early" : std::strerror(errno));
      return;
    }
    now_ = now_ns();
    const auto news = stream.reader.feed({buffer.data(), static_cast<std::size_t>(n)});
    if (news.events > 0) on_event(slot, news.events);
    if (news.broken) finish(slot, "not an HTTP reply");
    if (news.ended) {
      // The body of a stream holds an error event, if one came.
      const SseReader& r = stream.reader;
      const bool good = r.status() == 200 && r.done_seen() && r.body().empty();
      finish(slot, good ? "" : std::to_string(r.status()) + " " + r.body());
    }
    if (n < static_cast<ssize_t>(buffer.size())) return;  // edge-triggered, but drained
  }
}

void Bench::finish(std::size_t slot, const std::string& error) {
  Stream& stream = streams_[slot];
  if (stream.measured) {
    if (log_.is_open()) log(stream, error);
    if (error.empty()) {
      ++totals_.completed;
      totals_.tokens += stream.reader.completion_tokens();
      totals_.e2e_ms.push_back(static_cast<float>(now_ns() - stream.started) * 1e-6F);
    } else {
      ++totals_.failed;
      if (totals_.first_error.empty()) totals_.first_error = error;
    }
  }
  totals_.end = now_ns();
  stream.fd.reset();
  idle_.push_back(slot);
  ++ended_;
}

/// A line for people and programs that judge: all times in milliseconds, `at` since the first
/// request was due, the others since this one was.
void Bench::log(const Stream& stream, const std::string& error) {
  const auto ms = [](TimeNs ns) { return std::round(static_cast<double>(ns) * 1e-3) * 1e-3; };
  nlohmann::ordered_json line = {{"request", stream.index}};
  if (!trace_.empty()) {
    line["input"] = trace_[stream.index].input_tokens;
    line["output"] = trace_[stream.index].output_tokens;
  }
  line["at"] = ms(stream.started - begin_);
  line["sent"] = ms(stream.sent - stream.started);
  line["tokens"] = stream.reader.completion_tokens();
  line["error"] = error;
  auto& events = line["events"] = nlohmann::ordered_json::array();
  for (const TimeNs event : stream.events) events.push_back(ms(event - stream.started));
  log_ << line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) << '\n';
}

/// When the next request should leave; 0: as soon as there is a place.
TimeNs Bench::next_due() const {
  if (!trace_.empty()) {
    return begin_ + static_cast<TimeNs>(trace_[static_cast<std::size_t>(started_)].at_ms * 1e6);
  }
  return o_.rate > 0 ? next_arrival_ : 0;
}

void Bench::start_due() {
  while (started_ < o_.requests && !idle_.empty()) {
    const TimeNs due = next_due();
    if (now_ns() < due) return;
    if (o_.rate > 0) {
      std::exponential_distribution<double> gap(o_.rate);
      next_arrival_ += static_cast<TimeNs>(gap(random_) * 1e9);
    }
    const std::size_t slot = idle_.back();
    idle_.pop_back();
    start(slot, due);
  }
}

/// Until something happens, or a request is due.
int Bench::wait(std::array<epoll_event, 256>& events) {
  TimeNs left = kSecond;
  if (started_ < o_.requests && !idle_.empty()) {
    left = std::clamp<TimeNs>(next_due() - now_ns(), 0, kSecond);
  }
  const timespec time{left / kSecond, left % kSecond};
  return epoll_pwait2(epoll_.get(), events.data(), static_cast<int>(events.size()), &time, nullptr);
}

int Bench::run() {
  if (!resolve()) {
    std::fprintf(stderr, "cannot resolve %s:%s\n", o_.host.c_str(), o_.port.c_str());
    return 2;
  }
  if (!o_.trace_file.empty() && !load_trace()) return 2;
  if (!o_.log_file.empty()) {
    log_.open(o_.log_file);
    if (!log_) {
      std::fprintf(stderr, "%s cannot be written\n", o_.log_file.c_str());
      return 2;
    }
  }
  rlimit files{};
  getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;
  setrlimit(RLIMIT_NOFILE, &files);
  streams_.resize(static_cast<std::size_t>(o_.streams));
  for (std::size_t i = streams_.size(); i-- > 0;) idle_.push_back(i);
  totals_.itl_ms.reserve(1 << 20);
  begin_ = next_arrival_ = totals_.begin = now_ns();
  const TimeNs limit = now_ns() + static_cast<TimeNs>(o_.timeout_s * 1e9);
  std::array<epoll_event, 256> events;
  while (ended_ < o_.requests && now_ns() < limit) {
    start_due();
    const int n = wait(events);
    for (int i = 0; i < n; ++i) {
      const auto slot = static_cast<std::size_t>(events[static_cast<std::size_t>(i)].data.u64);
      if (!streams_[slot].fd) continue;
      write(slot);
      if ((events[static_cast<std::size_t>(i)].events & ~EPOLLOUT) != 0) read(slot);
    }
  }
  if (ended_ < o_.requests) std::fprintf(stderr, "gave up after %.0f s\n", o_.timeout_s);
  for (std::size_t i = 0; i < streams_.size(); ++i) {
    if (streams_[i].fd) finish(i, "it had not ended when time was up");
  }
  report();
  return totals_.failed == 0 && ended_ == o_.requests ? 0 : 1;
}

void Bench::report() {
  Totals& t = totals_;
  const double seconds = static_cast<double>(t.end - t.begin) * 1e-9;
  const double rate = seconds > 0 ? static_cast<double>(t.tokens) / seconds : 0;
  std::printf("requests  %llu ok, %llu failed in %.2f s\n",
              static_cast<unsigned long long>(t.completed),
              static_cast<unsigned long long>(t.failed), seconds);
  std::printf("tokens    %llu (%llu events), %.0f tokens/s, %.1f requests/s\n",
              static_cast<unsigned long long>(t.tokens), static_cast<unsigned long long>(t.events),
              rate, static_cast<double>(t.completed) / std::max(seconds, 1e-9));
  std::string json =
      "{\"requests\":" + std::to_string(t.completed) + ",\"failed\":" + std::to_string(t.failed) +
      ",\"seconds\":" + std::to_string(seconds) + ",\"tokens\":" + std::to_string(t.tokens) +
      ",\"events\":" + std::to_string(t.events) + ",\"tokens_per_s\":" + std::to_string(rate);
  std::printf("%-9s %10s %10s %10s %10s   ms\n", "", "p50", "p90", "p99", "max");
  for (auto [name, values] : {std::pair<const char*, std::vector<float>*>{"ttft", &t.ttft_ms},
                              {"itl", &t.itl_ms},
                              {"e2e", &t.e2e_ms}}) {
    std::printf("%-9s", name);
    json += ",\"" + std::string(name) + "_ms\":{";
    bool first = true;
    constexpr std::pair<const char*, double> kPoints[] = {
        {"p50", .5}, {"p90", .9}, {"p99", .99}, {"max", 1.0}};
    for (const auto& [label, p] : kPoints) {
      const double value = percentile(*values, p);
      std::printf(" %10.3f", value);
      json += std::string(first ? "" : ",") + "\"" + label + "\":" + std::to_string(value);
      first = false;
    }
    json += "}";
    std::printf("\n");
  }
  json += "}\n";
  if (!t.first_error.empty()) std::printf("first error: %s\n", t.first_error.c_str());
  if (!o_.json_file.empty()) std::ofstream(o_.json_file) << json;
  if (!o_.arrivals_file.empty()) {
    std::ofstream file(o_.arrivals_file);
    for (const TimeNs arrival : t.arrivals) file << arrival << '\n';
  }
}

}  // namespace
}  // namespace baton

int main(int argc, char** argv) {
  baton::Options o;
  bool version = false;
  CLI::App app{"Loads a front end with streamed completions and reports rates and latencies."};
  app.add_option("--host", o.host, "host of the front end")->capture_default_str();
  app.add_option("--port", o.port, "its port")->capture_default_str();
  app.add_option("--path", o.path, "/v1/completions or /v1/chat/completions")
      ->capture_default_str();
  app.add_option("--model", o.model, "model name to send (default: none)");
  app.add_option("--prompt", o.prompt, "prompt; plain text without quotes")->capture_default_str();
  app.add_option("--prompt-words", o.prompt_words, "random words appended to it")
      ->check(CLI::Range(0, 1000000));
  app.add_option("--streams", o.streams, "requests at a time")->check(CLI::Range(1, 100000));
  app.add_option("--requests", o.requests, "requests in all")->check(CLI::Range(1, 100000000));
  app.add_option("--tokens", o.tokens, "max_tokens of each")->check(CLI::Range(1, 1000000));
  app.add_option("--warmup", o.warmup, "first requests that are not counted")
      ->check(CLI::Range(0, 100000000));
  app.add_option("--rate", o.rate,
                 "arrivals a second (Poisson); one that finds no free stream waits, and its wait "
                 "counts; 0: a new one when one ends")
      ->check(CLI::Range(0.0, 1e6));
  app.add_option("--temperature", o.temperature, "")->check(CLI::Range(0.0, 2.0));
  app.add_option("--seed", o.seed, "of arrivals and random words")->capture_default_str();
  app.add_option("--timeout-s", o.timeout_s, "give up after")->check(CLI::Range(0.1, 86400.0));
  app.add_option("--json", o.json_file, "also write the numbers to this file");
  app.add_option("--arrivals", o.arrivals_file,
                 "also write the time of every event (ns of CLOCK_MONOTONIC), one a line");
  app.add_option("--trace", o.trace_file,
                 "requests of this file instead (JSON lines: timestamp, input_length, "
                 "output_length, hash_ids), each at its time, with prompts of token ids");
  app.add_option("--ids-from", o.id_low, "lowest token id of a trace's prompts")
      ->check(CLI::Range(0, 1 << 24))
      ->capture_default_str();
  app.add_option("--ids-below", o.id_high, "and the bound above them")
      ->check(CLI::Range(1, 1 << 24))
      ->capture_default_str();
  app.add_option("--log", o.log_file,
                 "also write a JSON line for each request with the times of all its events");
  app.add_flag("--version", version, "version and commit");
  CLI11_PARSE(app, argc, argv);
  if (version) {
    std::printf("baton-bench-client %s\n", baton::build_version());
    return 0;
  }
  if (!o.trace_file.empty() && (o.rate > 0 || o.path.find("chat") != std::string::npos)) {
    std::fprintf(stderr, "--trace has its own arrivals, and prompts for /v1/completions\n");
    return 2;
  }
  if (o.id_low >= o.id_high) {
    std::fprintf(stderr, "--ids-from must be below --ids-below\n");
    return 2;
  }
  return baton::Bench(o).run();
}
