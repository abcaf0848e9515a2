// baton-bench-hops: what two hops of bare ZeroMQ cost on this machine, with nothing of Baton in
// them. One round trip between two processes over ipc://, ROUTER here and DEALER there, as between
// the scheduler and its peers; both sleep in a blocking receive. tools/bench_pair.py divides the
// figures of the control path by it.
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>
#include <zmq.hpp>

#include "baton_version.h"

namespace {

using Clock = std::chrono::steady_clock;

constexpr int kTimeoutMs = 20'000;  // of any receive: neither side waits for ever for a dead one
constexpr int kWarmup = 200;

struct Options {
  int count = 5000;
  int pause_ms = 0;
  int bytes = 128;
  std::string json_file;
};

/// A folder of its own for the socket.
class Folder {
 public:
  Folder() {
    if (::mkdtemp(path_.data()) == nullptr)
      throw std::runtime_error("no folder can be made in /tmp");
  }
  ~Folder() {
    ::unlink((path_ + "/socket").c_str());
    ::rmdir(path_.c_str());
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  std::string address() const { return "ipc://" + path_ + "/socket"; }

 private:
  std::string path_ = "/tmp/baton-hops-XXXXXX";
};

zmq::socket_t make_socket(zmq::context_t& context, zmq::socket_type type) {
  zmq::socket_t socket(context, type);
  socket.set(zmq::sockopt::linger, 1000);
  socket.set(zmq::sockopt::rcvtimeo, kTimeoutMs);
  socket.set(zmq::sockopt::sndtimeo, kTimeoutMs);
  return socket;
}

/// The other process: sends back what comes, until nothing or an empty message does.
int echo(const std::string& address) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  zmq::context_t context(1);
  zmq::socket_t socket = make_socket(context, zmq::socket_type::dealer);
  socket.connect(address);
  socket.send(zmq::str_buffer("here"), zmq::send_flags::none);
  zmq::message_t message;
  while (socket.recv(message) && message.size() > 0) socket.send(message, zmq::send_flags::none);
  return 0;
}

void receive(zmq::socket_t& socket, zmq::message_t& peer, zmq::message_t& message) {
  if (!socket.recv(peer) || !socket.recv(message))
    throw std::runtime_error("the other process does not answer");
}

/// Microseconds of each round trip, ascending.
std::vector<double> round_trips(const Options& o, const std::string& address) {
  zmq::context_t context(1);
  zmq::socket_t socket = make_socket(context, zmq::socket_type::router);
  socket.bind(address);
  zmq::message_t peer;
  zmq::message_t message;
  receive(socket, peer, message);
  const std::string name = peer.to_string();
  const std::string content(static_cast<std::size_t>(o.bytes), 'x');
  std::vector<double> times;
  for (int i = 0; i < kWarmup + o.count; ++i) {
    if (o.pause_ms > 0 && i >= kWarmup)
      std::this_thread::sleep_for(std::chrono::milliseconds(o.pause_ms));
    const auto start = Clock::now();
    socket.send(zmq::buffer(name), zmq::send_flags::sndmore);
    socket.send(zmq::buffer(content), zmq::send_flags::none);
    receive(socket, peer, message);
    const std::chrono::duration<double, std::micro> time = Clock::now() - start;
    if (i >= kWarmup) times.push_back(time.count());
  }
  socket.send(zmq::buffer(name), zmq::send_flags::sndmore);
  socket.send(zmq::message_t(), zmq::send_flags::none);
  std::sort(times.begin(), times.end());
  return times;
}

int measure(const Options& o) {
  const Folder folder;
  const pid_t child = ::fork();  // before either side has a thread of libzmq
  if (child < 0) throw std::runtime_error("no second process can be started");
  if (child == 0) ::_exit(echo(folder.address()));
  const std::vector<double> times = round_trips(o, folder.address());
  ::waitpid(child, nullptr, 0);
  const double median = times[times.size() / 2];
  const double p99 = times[times.size() * 99 / 100];
  std::printf(
      "bare ZeroMQ round trip, 2 hops of %d bytes, %d ms between: median %.1f us, p99 %.1f us, "
      "least %.1f us\n",
      o.bytes, o.pause_ms, median, p99, times.front());
  if (o.json_file.empty()) return 0;
  std::ofstream file(o.json_file);
  file << nlohmann::json{{"median_us", median}, {"p99_us", p99}, {"least_us", times.front()}}
       << '\n';
  return file.flush() ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  Options o;
  CLI::App app{"Round trips of bare ZeroMQ between two processes over ipc://: two hops each."};
  app.add_option("--count", o.count, "round trips that count")
      ->check(CLI::Range(10, 1'000'000))
      ->capture_default_str();
  app.add_option("--pause-ms", o.pause_ms, "sleep before each")
      ->check(CLI::Range(0, 1000))
      ->capture_default_str();
  app.add_option("--bytes", o.bytes, "of a message")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  app.add_option("--json", o.json_file, "also write the numbers to this file");
  app.set_version_flag("--version", "baton-bench-hops " BATON_VERSION " (" BATON_COMMIT ")");
  CLI11_PARSE(app, argc, argv);
  try {
    return measure(o);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "baton-bench-hops: %s\n", error.what());
    return 1;
  }
}
