// One reply on its way: the choices of one HTTP request, each made by a request of its own in the
// table, written into one body. Pure: tokens in, bytes out.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "frontend/core/generation.h"
#include "frontend/core/request_table.h"
#include "text/text_stream.h"

namespace baton {

/// About how many bytes one reply, or what one moment adds to a stream, may have. Log probabilities
/// and many choices make megabytes out of a small request, and the front end holds all of a reply.
inline constexpr std::size_t kMaxReplyBytes = std::size_t{64} << 20;

/// Of a vector's value in a reply: as JSON about 11.
inline constexpr std::size_t kVectorValueBytes = 12;

/// The requests that make up a reply: choice `i` of prompt `p` is entry p * choices + i, its index
/// in the reply. (A beam search is one request for all choices of its prompt: entry p.) Its seed is
/// the request's plus i (modulo 2^64), so that choice 0 is what the request gives with one choice,
/// and choice i what it gives alone with the seed i higher. vLLM derives its seeds in the same way.
std::vector<NewRequest> fan_out(const ParsedRequest& request, TimeNs deadline);

class OpenReply {
 public:
  /// Takes the writer out of `request`. `tokenizer` must outlive the reply.
  OpenReply(const Tokenizer& tokenizer, ParsedRequest& request);

  /// Before the first token of a choice; `prompt` as in ReplyWriter::begin, `cached_tokens` of its
  /// prompt were found in a prefix cache.
  void begin(std::uint32_t choice, const Logprobs* prompt, std::uint32_t cached_tokens = 0);
  /// How far a choice's prompt is, before begin(); PromptProgress::total is filled in.
  void progress(PromptProgress progress);
  /// When what follows came (monotonic).
  void set_time(TimeNs now) { now_ = now; }
  /// One more token. True: a stop string matched, and the choice ends with this token.
  bool take(std::uint32_t choice, Token token, const LogprobReader::Entry* logprobs);
  /// The choice is over; `reason` is stop or length, `score` and `lifetime` as in Ending.
  void end(std::uint32_t choice, FinishReason reason, std::optional<float> score = {},
           const std::vector<TimeNs>& lifetime = {});
  /// Where its time went, before the last choice ends.
  void set_timing(const ToldTiming& timing) { timing_ = timing; }
  /// The whole body, or the last events of a stream. Every choice has ended.
  std::string finish();
  std::string fail(const Status& status) { return writer_->fail(status); }

  /// Events of a stream since the last call.
  std::string take_events();

  /// About how many bytes wait to be told: of a stream since take_events(), else of all that came.
  std::size_t held() const { return held_; }

  /// Tokens that a choice has, stop token or string included.
  std::uint32_t tokens(std::uint32_t choice) const { return choices_[choice].tokens; }
  /// begin(), end() was called for the choice.
  bool begun(std::uint32_t choice) const { return choices_[choice].begun; }
  bool ended(std::uint32_t choice) const { return choices_[choice].ended; }
  Usage usage() const;
  bool all_ended() const { return ended_ == choices_.size(); }

 private:
  struct Choice {
    TextStream text;
    std::uint32_t tokens = 0;
    std::uint32_t reasoning_tokens = 0;
    std::uint32_t cached_tokens = 0;
    bool begun = false;
    bool ended = false;
    Token stop_token = -1;
    std::uint32_t max_tokens = 0;
    std::uint32_t prompt_tokens = 0;
  };

  std::unique_ptr<ReplyWriter> writer_;
  std::vector<Choice> choices_;
  std::vector<Token> stop_ids_;  // ascending
  std::vector<Token> told_stop_ids_;
  std::uint32_t min_tokens_ = 0;
  std::uint32_t prompt_tokens_ = 0;
  std::size_t choices_each_ = 1;  // of a prompt
  bool include_stop_ = false;
  bool prompt_only_ = false;
  bool echo_ = false;
  bool stream_ = false;
  std::size_t held_ = 0;
  std::size_t ended_ = 0;
  std::string events_;
  TimeNs now_ = 0;
  std::optional<ToldTiming> timing_;
};

}  // namespace baton
