// A scheduler of a few lines for tests with real worker processes: binds the real socket, starts
// baton-worker, and says what a test tells it to.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <deque>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "ipc/codec.h"
#include "ipc/process.h"
#include "ipc/shm_region.h"
#include "ipc/zmq_channel.h"

namespace baton::test {

/// A worker process; killed when the test ends, whatever its state.
class WorkerProcess {
 public:
  WorkerProcess(const std::string& config, const std::string& name, const std::string& log) {
    const char* build = std::getenv("BATON_BUILD_DIR");
    const std::string program = std::string(build ? build : "build/cpu") + "/bin/baton-worker";
    pid_ = fork();
    if (pid_ == 0) {
      const int fd = open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
      dup2(fd, 1);
      dup2(fd, 2);
      execl(program.c_str(), program.c_str(), "--config", config.c_str(), "--name", name.c_str(),
            nullptr);
      _exit(127);
    }
  }
  ~WorkerProcess() {
    if (pid_ > 0) {
      ::kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
  }
  WorkerProcess(const WorkerProcess&) = delete;
  WorkerProcess& operator=(const WorkerProcess&) = delete;

  pid_t pid() const { return pid_; }
  void signal(int number) const { ::kill(pid_, number); }
  /// The wait status, or nothing after `seconds`.
  std::optional<int> wait(double seconds) {
    for (const TimeNs end = now_ns() + static_cast<TimeNs>(seconds * 1e9); now_ns() < end;) {
      int status = 0;
      if (waitpid(pid_, &status, WNOHANG) == pid_) {
        pid_ = -1;
        return status;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return std::nullopt;
  }
  /// Exit code, or -1 if it does not exit by itself.
  int exit_code(double seconds = 5) {
    const auto status = wait(seconds);
    return status && WIFEXITED(*status) ? WEXITSTATUS(*status) : -1;
  }

 private:
  pid_t pid_ = -1;
};

class FakeScheduler {
 public:
  struct Peer {
    std::string address;
    Register identity;
    Hello hello;
    Term term = 0;
  };

  /// `worker_keys`: YAML lines for the defaults of all workers, indented by two. `model`: a folder.
  explicit FakeScheduler(const std::string& worker_keys, bool listen_now = true,
                         const std::string& model = "") {
    char name[] = "/tmp/baton-worker-test-XXXXXX";
    dir_ = mkdtemp(name);
    std::ofstream yaml(dir_ + "/config.yaml");
    if (!model.empty()) yaml << "model: " << model << "\n";
    yaml
        << "run_dir: " << run_dir() << "\nworker:\n"
        << worker_keys
        << "workers:\n  - name: prefill0\n    role: prefill\n  - name: decode0\n    role: decode\n";
    yaml.close();
    if (listen_now) listen();
  }
  ~FakeScheduler() {
    if (testing::Test::HasFailure()) {
      std::ifstream log(dir_ + "/log");
      std::cerr << log.rdbuf();
    }
    unlink_dead_regions(run_dir());  // of workers that were killed last
    std::filesystem::remove_all(dir_);
  }
  std::string run_dir() const { return dir_ + "/run"; }

  void listen() {
    auto lock = LockFile::acquire(run_dir() + "/scheduler.lock");
    ASSERT_TRUE(lock.ok()) << lock.status().message();
    lock_.emplace(std::move(lock).value());
    auto server = bind_server(*lock_, run_dir() + "/workers.sock");
    ASSERT_TRUE(server.ok()) << server.status().message();
    server_ = std::move(server).value();
  }

  std::unique_ptr<WorkerProcess> start(const std::string& name) {
    return std::make_unique<WorkerProcess>(dir_ + "/config.yaml", name, dir_ + "/log");
  }

  template <typename M>
  void send(const std::string& name, const M& message) {
    send_bytes(name, encode(message));
  }
  void send_bytes(const std::string& name, const std::string& bytes) {
    ASSERT_EQ(server_->send(peers[name].address, bytes), SendResult::ok);
  }

  /// The next message of type M from that worker; others before it are dropped.
  template <typename M>
  std::optional<M> expect(const std::string& name, double seconds = 5) {
    return expect_if<M>(
        name, [](const M&) { return true; }, seconds);
  }
  template <typename M, typename F>
  std::optional<M> expect_if(const std::string& name, F&& good, double seconds = 5) {
    const TimeNs end = now_ns() + static_cast<TimeNs>(seconds * 1e9);
    do {
      auto& queue = inbox_[name];
      while (!queue.empty()) {
        WorkerMessage m = std::move(queue.front());
        queue.pop_front();
        if (const M* wanted = std::get_if<M>(&m); wanted != nullptr && good(*wanted))
          return *wanted;
      }
      receive(end - now_ns());
    } while (now_ns() < end);
    return std::nullopt;
  }

  /// Takes a fresh worker, or one that registered again, into a term.
  void join(const std::string& name, double seconds = 5) {
    const auto reg = expect<Register>(name, seconds);
    ASSERT_TRUE(reg.has_value()) << name << " does not register";
    peers[name].identity = *reg;
    send(name, Registered{epoch, reg->incarnation});
    welcome(name, seconds);
  }
  void welcome(const std::string& name, double seconds = 5) {
    Peer& peer = peers[name];
    const std::uint64_t last =
        peer.hello.incarnation == peer.identity.incarnation ? peer.hello.hello_id : 0;
    const auto hello = expect_if<Hello>(
        name, [&](const Hello& h) { return h.hello_id > last; }, seconds);
    ASSERT_TRUE(hello.has_value()) << name << " does not say hello";
    peer.hello = *hello;
    peer.term = ++last_term;
    send(name, Welcome{epoch, peer.term, hello->hello_id});
    const auto in_term = expect_if<WorkerHeartbeat>(
        name, [&](const WorkerHeartbeat& b) { return b.term == peer.term; }, seconds);
    ASSERT_TRUE(in_term.has_value()) << name << " does not begin its term";
  }

  StepPlan plan(const std::string& name, StepId step) {
    StepPlan p;
    p.term = peers[name].term;
    p.step = step;
    return p;
  }
  Pull pull(PullId pull_id, const std::string& from, const std::string& to,
            std::vector<BlockId> source, std::vector<BlockId> target) {
    const Peer& exporter = peers[from];
    Pull p;
    p.term = peers[to].term;
    p.pull_id = pull_id;
    p.allocation = exporter.hello.allocation;
    p.ranks = exporter.hello.ranks;
    p.exporter_pid = exporter.identity.pid;
    p.exporter_pid_start = exporter.identity.pid_start;
    p.exporter_blocks = exporter.hello.blocks;
    p.exporter_host_handle = exporter.hello.host_handle;
    p.exporter_host_blocks = exporter.hello.host_blocks;
    p.from = std::move(source);
    p.to = std::move(target);
    return p;
  }

  Epoch epoch = 7;
  Term last_term = 100;
  std::map<std::string, Peer> peers;

 private:
  void receive(TimeNs timeout) {
    Poller poller;
    poller.add(*server_);
    poller.wait(std::max<TimeNs>(timeout, 0));
    std::string from;
    std::string bytes;
    while (server_->receive(from, bytes)) {
      auto message = decode_worker_message(bytes);
      ASSERT_TRUE(message.ok()) << message.status().message();
      const std::string name = from.substr(0, from.find('#'));
      peers[name].address = from;
      inbox_[name].push_back(std::move(message).value());
    }
  }

  std::string dir_;
  std::optional<LockFile> lock_;
  std::unique_ptr<ServerChannel> server_;
  std::map<std::string, std::deque<WorkerMessage>> inbox_;
};

}  // namespace baton::test
