// One reply as the bytes that its client gets: head, chunks, events, the last chunk. A function of
// the request, the facts and the events in their order. When they come, and how many together,
// changes nothing: each event makes a chunk of its own. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "frontend/core/open_reply.h"
#include "frontend/core/reply_facts.h"
#include "frontend/http/http_reply.h"

namespace baton {

class RenderedReply {
 public:
  /// Takes the writer, the headers and the type out of `request`. `tokenizer` must outlive the
  /// reply.
  RenderedReply(const Tokenizer& tokenizer, ParsedRequest& request, ReplyFrame frame,
                ReplyFacts facts);

  /// What happened at `time`; not before the last event's. True: a stop string matched, and the
  /// choice wants no more tokens.
  bool apply(const ReplyEvent& event, TimeNs time);

  /// The bytes of all events since the last call.
  std::string take_bytes() { return std::exchange(bytes_, {}); }
  /// The same, left where they are.
  std::string_view bytes() const { return bytes_; }
  /// About how many bytes wait: of a stream for take_bytes(), else of all that came.
  std::size_t held() const { return streaming_ ? bytes_.size() : open_.held(); }

  /// Its last byte is made: every choice has ended, or it has failed.
  bool over() const { return over_; }
  /// The status that the client sees, once it is over.
  int status() const { return status_; }
  /// The connection may be used again after it.
  bool keep_alive() const { return frame_.keep_alive; }

  bool streaming() const { return streaming_; }
  /// A stream of server-sent events, which may have comments between them.
  bool takes_comments() const { return streaming_ && content_type_.empty(); }
  /// ReplyTimed would be told. A stream that did not ask is spared the record.
  bool tells_timing() const { return !streaming_ || timing_wanted_; }
  const ReplyFrame& frame() const { return frame_; }
  const ReplyFacts& facts() const { return facts_; }
  std::uint32_t tokens(std::uint32_t choice) const { return open_.tokens(choice); }
  bool begun(std::uint32_t choice) const { return open_.begun(choice); }
  bool ended(std::uint32_t choice) const { return open_.ended(choice); }
  Usage usage() const { return open_.usage(); }

 private:
  void handle(const ChoiceBegins& event);
  void handle(const TokenCame& event);
  void handle(const ChoiceEnds& event);
  void handle(const ClientProbed& event);
  void handle(const ReplyFails& event);
  void handle(const ReplyTimed& event);
  void handle(const PromptGotOn& event);
  void handle(const StreamIdled& event);
  void begin_stream();
  void add_events();
  ReplyFrame frame_now() const;
  void write_failure(const Status& status, std::uint32_t retry_after_s);

  OpenReply open_;
  ReplyFrame frame_;
  ReplyFacts facts_;
  HttpHeaders headers_;
  std::string content_type_;  // empty: the usual one
  bool streaming_ = false;
  bool timing_wanted_ = false;
  bool begun_ = false;  // the head of a stream is written
  bool over_ = false;
  bool stopped_ = false;  // by the last token
  int status_ = 200;
  TimeNs now_ = 0;
  std::string bytes_;
};

}  // namespace baton
