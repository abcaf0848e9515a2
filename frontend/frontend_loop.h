// The front end's one loop: tokens from the scheduler to the clients' sockets without a thread between.
#pragma once

#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <unordered_map>
#include <vector>

#include "frontend/generation.h"
#include "frontend/health.h"
#include "frontend/http_server.h"
#include "frontend/jobs.h"
#include "frontend/metrics.h"
#include "frontend/request_table.h"
#include "frontend/routes.h"
#include "frontend/scheduler_client.h"
#include "frontend/stream_writer.h"
#include "frontend/text_stream.h"
#include "ipc/process.h"

namespace baton {

struct LoopOptions {
  FrontendIdentity identity;
  RequestTableLimits table;
  WriterLimits writer;
  std::string model_name;
  std::string address;  // host:port that was bound
  TimeNs drain = 8 * kSecond;
};

/// Owns what every request needs on its way back; lives on one thread.
class FrontendLoop {
 public:
  FrontendLoop(LoopOptions options, std::unique_ptr<ClientChannel> channel, HttpServer& http,
               JobQueue& jobs, SharedFacts& facts, std::shared_ptr<const Tokenizer> tokenizer);

  /// Until a signal has been followed by the drain, or the scheduler refuses this process for good.
  /// Returns the exit code.
  int run(SignalFd& signals, AliveFile& alive);

 private:
  struct Stream {
    std::uint64_t connection = 0;
    ReplyFrame frame;
    const char* route = "";
    std::unique_ptr<ReplyWriter> reply;
    TextStream text;
    HttpHeaders headers;
    bool streaming = false;
    bool begun = false;  // the head is out
    bool dirty = false;  // in dirty_
    std::uint32_t prompt_tokens = 0;
    std::uint32_t tokens = 0;
    TimeNs received = 0;
    TimeNs first_token = 0;
    TimeNs last_token = 0;
    std::string head;    // bytes before the body, not yet sent
    std::string events;  // body bytes of this round
  };
  using Streams = std::unordered_map<std::uint64_t, Stream>;

  void round();
  void take_jobs();
  void take_messages();
  void take_drops();
  void each_second();
  void act(TableOutput& out);
  void deliver(const Delivery& delivery, const std::vector<Token>& tokens);
  void end_stream(Streams::iterator at, const Ending& ending, std::uint32_t retry_after_s);
  std::string final_bytes(Stream& stream, const Ending& ending, std::uint32_t retry_after_s,
                          int* status);
  void flush_streams();

  void handle(Job& job, Interim&);
  void handle(Job& job, HttpReply& reply);
  void handle(Job& job, LiveRequest& request);
  void handle(Job& job, Generation& generation);
  void reply_now(Job& job, HttpReply reply);
  void refuse(Job& job, const Status& status);
  HttpReply live_reply(const LiveRequest& request);
  MetricsView metrics_view() const;

  void begin_drain();
  bool drained();
  void leave();

  const LoopOptions options_;
  RequestTable table_;
  SchedulerClient client_;
  HttpServer& http_;
  JobQueue& jobs_;
  SharedFacts& facts_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  StreamWriter writer_;
  Metrics metrics_;
  std::mt19937_64 seeds_;

  TimeNs now_ = 0;
  TimeNs last_second_ = 0;
  TimeNs drain_until_ = 0;  // 0: not draining
  bool gave_up_ = false;    // the drain's time is over
  std::string refused_;
  Streams streams_;
  std::unordered_map<std::uint64_t, std::uint64_t> by_connection_;  // -> counter
  std::vector<std::uint64_t> dirty_;
  TableOutput out_;
  TableOutput follow_;  // what finishing a stream inside act() leads to
  std::vector<Job> batch_;
  std::string scratch_;
};

}  // namespace baton
