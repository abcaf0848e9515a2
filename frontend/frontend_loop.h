// The front end's one loop: tokens from the scheduler to the clients' sockets without a thread
// between.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "frontend/core/generation.h"
#include "frontend/core/heap_trim.h"
#include "frontend/core/metrics.h"
#include "frontend/core/rendered_reply.h"
#include "frontend/core/request_explainer.h"
#include "frontend/core/request_table.h"
#include "frontend/http/health.h"
#include "frontend/http/http_servers.h"
#include "frontend/http/index_page.h"
#include "frontend/http/jobs.h"
#include "frontend/http/key_meter.h"
#include "frontend/http/otlp_exporter.h"
#include "frontend/http/routes.h"
#include "frontend/http/stream_writer.h"
#include "frontend/late_models.h"
#include "frontend/model_link.h"
#include "frontend/succession/journal.h"
#include "frontend/succession/replay.h"
#include "frontend/succession/reply_records.h"
#include "ipc/process.h"
#include "ipc/timing_ring.h"
#include "ipc/trace_ring.h"

namespace baton {

struct LoopOptions {
  FrontendIdentity identity;
  RequestTableLimits table;
  WriterLimits writer;
  std::string address;       // host:port of the first one that was bound
  PageFacts page;            // what of a page's facts never changes
  std::shared_ptr<KeyBook> keys = std::make_shared<KeyBook>();  // open(): everybody is served
  std::string keys_file;  // where they come from, and are read again on SIGHUP; empty: nowhere
  bool salt_by_key = false;  // requests of different keys share no cached blocks
  TimeNs drain = 8 * kSecond;
  /// A stream of server-sent events that had nothing to send for so long gets a comment, looked for
  /// once a second. 0: never.
  TimeNs sse_keepalive = 15 * kSecond;
  std::string timing_file;  // where ended requests' times are kept; empty: nowhere
  std::string trace_dir;    // run_dir, whose traces the loop tells what it does; empty: none
  std::size_t max_reply_bytes = kMaxReplyBytes;
  /// What a successor needs of each reply is written there; it outlives the loop. null: nothing is.
  Journal* journal = nullptr;
  /// Of a successor: what its predecessor had noted; incarnation 0: there was none.
  FrontendPlace place = {};
  /// Gets spans of requests; it outlives the loop. null: nobody wants them.
  OtlpExporter* spans = nullptr;
  /// Loads what could not be loaded at the start; it outlives the loop. null: nobody does.
  LateModels* late = nullptr;
  /// Called about once a second: looks after the twin.
  std::function<void()> each_second = {};
  /// Gives the heap's free memory back to the kernel, on some thread.
  std::function<void()> trim_heap = {};
};

/// Owns what every request needs on its way back; lives on one thread.
class FrontendLoop {
 public:
  /// `models`: one or more, in the order that the routes have them in.
  FrontendLoop(LoopOptions options, std::vector<LinkOptions> models, HttpServers& http,
               JobQueue& jobs, SharedFacts& facts);

  /// Goes on with a reply of a predecessor, before run(). Its records must be in the journal
  /// already.
  void adopt(const std::shared_ptr<ClientConnection>& connection, ReplayedReply replayed);
  /// The same of a reply whose bytes are all made.
  void adopt(const std::shared_ptr<ClientConnection>& connection, std::string unsent,
             bool keep_alive);
  /// Ends it, since it cannot go on: with an error if its client has no byte of it, else by the end
  /// of the connection.
  void adopt_lost(const std::shared_ptr<ClientConnection>& connection, bool begun,
                  const std::string& why);
  /// For the metrics: how many of them go on, and how many could not.
  void took_over(std::size_t replies, std::size_t lost) {
    replies_taken_over_ = replies;
    replies_lost_ = lost;
  }
  /// How run() ends when it is told to leave everything to a successor: the process is to end at
  /// once then, without closing anything.
  static constexpr int kHandedOver = -1;

  /// Until a signal has been followed by the drain, the scheduler refuses this process for good, or
  /// it is told to leave everything to a successor. Returns the exit code, or kHandedOver.
  int run(SignalFd& signals, AliveFile& alive);

 private:
  /// Of the choice of a reply that ended last, as in StreamEnd.
  struct LastEnd {
    std::uint64_t counter = 0;
    std::uint32_t n = 0;
    TimeNs submitted = 0;
    std::uint32_t attempts = 0;
    bool told = true;
    std::optional<RequestTiming> timing;
  };
  /// The reply that a connection waits for.
  struct Reply {
    RenderedReply rendered;
    const char* route = "";
    std::size_t model = 0;
    std::shared_ptr<ClientConnection> connection;
    std::uint64_t cookie() const { return connection->kept.cookie(); }
    bool dirty = false;                   // in dirty_
    TimeNs sent = 0;                      // the client's last bytes; before them, its request
    std::vector<std::uint64_t> counters;  // of its choices, in their order
    PhaseTimes times;
    FrontendMarks marks;
    std::optional<LastEnd> last_end;
    std::unique_ptr<SpanFacts> span = {};  // null: nobody is told of it
    const ReplyFrame& frame() const { return rendered.frame(); }
  };
  /// One choice: an open request of the table.
  struct Choice {
    std::uint64_t connection = 0;
    std::uint32_t index = 0;
    TimeNs last_token = 0;
  };
  using Replies = std::unordered_map<std::uint64_t, Reply>;

  /// What happens to a reply; its bytes wait in it until flush_replies() or end_reply().
  bool apply(Reply& reply, const ReplyEvent& event);
  void keep_whole(ClientConnection& connection, bool keep_alive, std::string_view bytes);
  void note_attempts(const TableOutput& out);
  void note_place();
  ReplyPlace place_of(const ClientConnection& connection) const;

  void round();
  void take_jobs();
  void take_messages();
  void take_messages(ModelLink& link);
  void learn_context(std::size_t model);
  void take_drops();
  void tell_watchers();
  void take_turn_of_trials(ModelLink& link);
  void look_after(std::size_t model);
  void load_late();
  void take_late();
  void each_second();
  /// Carries out what a link's table wants, which leaves `out` and `follow` empty.
  void act(ModelLink& link);
  void act(ModelLink& link, TableOutput& out);
  void deliver(const Delivery& delivery, const TableOutput& out, LogprobReader& logprobs);
  void tell_progress(const ProgressTold& told);
  void note_token_times(Reply& reply, Choice& choice, const Delivery& delivery);
  void end_choice(StreamEnd& end);
  void end_reply(Replies::iterator at, FinishReason reason, const Status& status,
                 std::uint32_t retry_after_s);
  void abandon(Reply& reply, TableOutput& out);
  void tell_timing(Reply& reply);
  void explain_later(Reply& reply, const std::string& end, int status);
  void keep_times();
  std::unique_ptr<SpanFacts> open_span(const ReplyFrame& frame, const char* route,
                                       const ClientConnection& connection,
                                       const ParsedRequest* request);
  void tell_refusal(const Job& job, const HttpReply& reply);
  void keep(EndedRequest ended);
  void look_for_trace();
  void trace_request(const Reply& reply);
  void trace_first_token(const Reply& reply);
  void trace_end(const Reply& reply, const std::string& end, int status);
  void trace_refusal(const Job& job, int status);
  void mark_dirty(std::uint64_t connection, Reply& reply);
  void flush_replies();
  void keep_streams_alive();

  void take_turns();
  void probe(ClientConnection& connection);

  void handle(Job& job, Interim&);
  void handle(Job& /*job*/, Pending&) {}
  void handle(Job& job, HttpReply& reply);
  void handle(Job& job, LiveRequest& request);
  void handle(Job& job, Watch&);
  void handle(Job& job, Generation& generation);
  void reply_now(Job& job, HttpReply reply);
  void warn_of_ignored(const Job& job, const ParsedRequest& request);
  /// What a head says of the moment.
  ReplyFrame& stamped(ReplyFrame& frame) const;
  void refuse(Job& job, const Status& status, std::uint32_t retry_after_s = 0);
  void refuse(Job& job, HttpError error);
  bool admit_key(Job& job, const ParsedRequest& parsed, std::vector<NewRequest>& requests);
  void reload_keys();
  void forget(Replies::iterator at);
  HttpReply live_reply(const Job& job, const LiveRequest& request);
  Health health_of(const ModelLink& link) const;
  Health model_health(const ModelLink& link) const;  // whatever else is wrong with this process
  Health health(HealthOf asked = HealthOf::able) const;
  HttpReply health_reply(const LiveRequest& request) const;
  std::string exposed_metrics(const ClientConnection& scrape) const;
  HttpReply page_reply(const Job& job, const LiveRequest& request);
  IndexFacts index_facts(const LiveRequest& request) const;
  MetricsView metrics_view(const ModelLink& link) const;
  /// Of one model, or of all together.
  LoadReport load_report(const ModelLink* of = nullptr) const;
  std::uint32_t max_context(std::size_t model) const {
    return facts_.max_context[model].load(std::memory_order_relaxed);
  }

  void begin_drain();
  bool drained();
  void leave();

  ModelLink& link_of(const Reply& reply) { return *links_[reply.model]; }
  /// Where numbers go that are of no model: its text tells them (Metrics::Among).
  Metrics& process_metrics() { return links_.front()->metrics; }
  std::string names() const;
  std::size_t room() const;
  std::size_t share_left(const ModelLink& link) const;
  std::size_t open_count() const;
  std::uint64_t next_counter() const;
  bool watched() const;

  const LoopOptions options_;
  HttpServers& http_;
  JobQueue& jobs_;
  SharedFacts& facts_;
  KeyMeter& meter_;
  StreamWriter writer_;
  std::vector<std::unique_ptr<ModelLink>> links_;
  std::mt19937_64 seeds_;

  TimeNs now_ = 0;
  TimeNs last_second_ = 0;
  TimeNs drain_until_ = 0;  // 0: not draining
  bool gave_up_ = false;    // the drain's time is over
  std::string refused_;
  Replies replies_;                                    // by connection
  std::unordered_map<std::uint64_t, Choice> choices_;  // by counter; those that have not ended
  std::vector<std::uint64_t> dirty_;                   // connections
  std::vector<Job> batch_;
  std::uint64_t unkept_ = 0;  // replies that the journal had no room for
  std::uint64_t replies_taken_over_ = 0;
  std::uint64_t replies_lost_ = 0;
  std::optional<TimingRing> ring_;
  Tracer tracer_;
  RequestExplainer explainer_;
  HeapTrim heap_;
  std::string record_;  // of the journal, while it is made
  std::vector<std::function<void()>> at_start_;  // what clients of a predecessor are owed at once
  std::set<std::string> ignored_fields_;  // those that the log has named; bounded
};

}  // namespace baton
