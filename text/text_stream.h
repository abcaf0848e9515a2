// Tokens of one choice in, text out: incremental detokenising and stop strings.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ipc/types.h"
#include "text/stop_matcher.h"
#include "text/tokenizer/tokenizer.h"

namespace baton {

/// Bytes of a run of byte tokens that are held back until the run ends (InvalidBytes::run). A
/// longer run is given out as it arrives: an invalid byte then replaces the run from that byte on.
inline constexpr std::size_t kMaxHeldRun = 64;

struct TextStreamOptions {
  std::vector<std::string> stop;  // not empty each, valid UTF-8
  bool include_stop_in_output = false;
  std::uint32_t min_tokens = 0;  // a match that completes earlier is ignored
  /// The text goes on from a prompt that ended in text: a leading space is then part of it.
  bool continues_text = false;
  bool skip_special_tokens = true;    // false: their letters are part of the text
  std::vector<Token> shown_specials;  // a few whose letters are part of it in any case
};

/// What was given out is never taken back and never holds half a character. Without stop strings,
/// the concatenation of all text is the tokenizer's decoding of the whole sequence. Work per
/// token is bounded by its text times the number of stop strings.
class TextStream {
 public:
  /// `tokenizer` must outlive the stream.
  TextStream(const Tokenizer& tokenizer, TextStreamOptions options);

  struct Output {
    std::string_view text;  // new text; valid until the next call
    bool stopped = false;   // a stop string matched (now or earlier); later tokens are ignored
    std::uint32_t n = 0;  // tokens taken since the start; at a match, the one that completed it is
                          // the last that counts
  };

  enum class Stops : std::uint8_t {
    on,
    off,
    behind_space,  // on from the first byte that is no ASCII whitespace
  };
  /// Whether stop strings end the text that comes next; at first they do. What was held back as the
  /// beginning of one comes out with the next text. A match never reaches over such a change.
  void set_stops(Stops stops);

  /// Takes the next tokens. Text that may be the beginning of a stop string is held back; so are
  /// the bytes of an unfinished character, and a short run of byte tokens that may still turn out
  /// invalid. A stop string is found in it all the same.
  Output feed(std::span<const Token> tokens);

  /// The stop string that matched; null: none has.
  const std::string* matched() const { return stopped_ ? &options_.stop[which_] : nullptr; }

  /// The end of the sequence: gives out what was held back (bytes that never became a character as
  /// U+FFFD). Nothing after a match. feed() may not be called again.
  Output flush();

 private:
  /// What an invalid byte in a run of byte tokens takes back.
  struct Run {
    std::size_t bytes = 0;  // of its tokens, but for the one at hand
    bool held = false;      // its text is in `text`; false: there is no run, or it was given out
    std::string text;
    std::string before;  // held_ and the matcher's state before the run
    std::vector<std::uint32_t> matched;
  };

  void append_piece(Token id);
  void begin_run();
  void end_run();
  void release_run();
  void replace_run();
  void match_fresh();
  void give(std::string_view text);
  std::string_view at_start(Token id, std::string_view text);
  void append_bytes(std::string_view bytes);
  void append_replacement(std::size_t bytes);
  void drop_unfinished();

  const Tokenizer& tokenizer_;
  TextStreamOptions options_;
  StopMatcher matcher_;
  std::string fresh_;  // text of the token at hand, before stop strings
  std::string held_;   // a suffix that may be the beginning of a stop string
  std::string first_;  // the first piece without its spaces
  std::string out_;
  char unfinished_[4] = {};
  std::uint8_t unfinished_size_ = 0;
  Run run_;
  bool in_run_ = false;   // of byte tokens (InvalidBytes::run)
  bool broken_ = false;   // a byte of this run belongs to no character
  bool at_start_ = true;  // a leading space may still be dropped
  bool stopped_ = false;
  Stops stops_ = Stops::on;
  std::size_t which_ = 0;  // of options_.stop, when stopped_
  std::uint32_t n_ = 0;
};

}  // namespace baton
