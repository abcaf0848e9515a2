#include "text/text_stream.h"

#include <algorithm>
#include <utility>

#include "ipc/utf8.h"

namespace baton {

TextStream::TextStream(const Tokenizer& tokenizer, TextStreamOptions options)
    : tokenizer_(tokenizer), options_(std::move(options)), matcher_(options_.stop) {
  at_start_ = !options_.continues_text && tokenizer.decoding().leading_space != LeadingSpace::keep;
}

void TextStream::set_stops(Stops stops) {
  // What is held back is behind the whitespace already.
  if (stops == Stops::behind_space && stops_ == Stops::on && !held_.empty()) return;
  if (stops_ != Stops::on && stops == Stops::on && !matcher_.empty()) {
    matcher_.restore(std::vector<std::uint32_t>(options_.stop.size(), 0));
  }
  stops_ = stops;
}

TextStream::Output TextStream::feed(std::span<const Token> tokens) {
  out_.clear();
  for (const Token id : tokens) {
    if (stopped_) break;
    ++n_;
    append_piece(id);
    match_fresh();
  }
  return {out_, stopped_, n_};
}

TextStream::Output TextStream::flush() {
  out_.clear();
  if (!stopped_) {
    end_run();
    drop_unfinished();
    out_ += held_;
    out_ += fresh_;
  }
  held_.clear();
  fresh_.clear();
  return {out_, stopped_, n_};
}

// Out, unless it belongs to a run that may still turn out invalid.
void TextStream::give(std::string_view text) { (run_.held ? run_.text : out_) += text; }

// Moves the text of one token through the matcher: what is safe goes out, to held_ what may still
// become a stop string.
void TextStream::match_fresh() {
  if (!matcher_.empty() && stops_ == Stops::behind_space) {
    const std::size_t space = std::min(fresh_.find_first_not_of(" \t\r\n\f\v"), fresh_.size());
    give(held_);
    held_.clear();
    give(std::string_view(fresh_).substr(0, space));
    fresh_.erase(0, space);
    if (fresh_.empty()) return;
    set_stops(Stops::on);
  }
  if (matcher_.empty() || stops_ == Stops::off) {
    give(held_);
    held_.clear();
    give(fresh_);
    fresh_.clear();
    return;
  }
  std::size_t taken = 0;
  for (;;) {
    const StopMatcher::Match match = matcher_.feed(std::string_view(fresh_).substr(taken));
    if (match.length == 0) break;
    taken += match.end;
    if (n_ < options_.min_tokens) continue;
    held_.append(fresh_, 0, taken);
    if (!options_.include_stop_in_output) held_.resize(held_.size() - match.length);
    out_ += run_.text;
    out_ += held_;
    held_.clear();
    fresh_.clear();
    unfinished_size_ = 0;
    stopped_ = true;
    which_ = match.which;
    return;
  }
  held_ += fresh_;
  fresh_.clear();
  const std::size_t safe = held_.size() - matcher_.pending();
  give(std::string_view(held_).substr(0, safe));
  held_.erase(0, safe);
}

void TextStream::append_piece(Token id) {
  const DecodingRule& rule = tokenizer_.decoding();
  const PieceKind kind = tokenizer_.kind(id);
  const auto& shown = options_.shown_specials;
  if (kind == PieceKind::special && options_.skip_special_tokens &&
      std::find(shown.begin(), shown.end(), id) == shown.end()) {
    if (rule.special_ends_character) drop_unfinished();
    return;
  }
  const std::string_view bytes = tokenizer_.token_bytes(id);
  if (kind != PieceKind::bytes) {
    end_run();
    drop_unfinished();
  } else if (rule.invalid == InvalidBytes::run) {
    begin_run();
  }
  append_bytes(at_start_ ? at_start(id, bytes) : bytes);
  if (!in_run_) return;
  run_.bytes += bytes.size();
  if (run_.bytes > kMaxHeldRun) release_run();
}

void TextStream::begin_run() {
  if (in_run_) return;
  in_run_ = true;
  run_.held = true;
  run_.bytes = 0;
  run_.before = held_;
  run_.matched = matcher_.state();
}

// What comes next is no byte: the run's characters are text, unless the last one is unfinished.
void TextStream::end_run() {
  if (!in_run_) return;
  drop_unfinished();
  release_run();
  in_run_ = broken_ = false;
}

void TextStream::release_run() {
  out_ += run_.text;
  run_.text.clear();
  run_.held = false;
}

// Every byte of the run so far is replaced, and nothing of its text was ever there.
void TextStream::replace_run() {
  broken_ = true;
  at_start_ = false;
  held_ = run_.before;
  matcher_.restore(run_.matched);
  fresh_.clear();
  run_.text.clear();
  run_.held = false;
  for (std::size_t i = 0; i < run_.bytes; ++i) fresh_ += kReplacementCharacter;
}

// The text of what may be the first piece. sentencepiece's rule: at the very start of a text, a
// piece loses one leading space symbol. With `drop_all` that goes on until some text exists.
std::string_view TextStream::at_start(Token id, std::string_view text) {
  const LeadingSpace leading = tokenizer_.decoding().leading_space;
  const bool space = tokenizer_.begins_with_space(id);
  if (leading == LeadingSpace::drop_in_first) {
    at_start_ = false;
    if (!space) return text;
    first_ = text;
    std::erase(first_, ' ');
    return first_;
  }
  if (space) {
    text.remove_prefix(1);
    if (leading == LeadingSpace::drop_one) at_start_ = false;
  }
  if (!text.empty()) at_start_ = false;
  return text;
}

// Bytes wait until they are a character or cannot become one any more, as the decoding of the whole
// would see them.
void TextStream::append_bytes(std::string_view bytes) {
  if (broken_) return append_replacement(bytes.size());
  while (unfinished_size_ > 0 && !bytes.empty()) {
    unfinished_[unfinished_size_] = bytes.front();
    const std::string_view joined(unfinished_, unfinished_size_ + std::size_t{1});
    const Utf8State state = scan_utf8(joined).state;
    if (state == Utf8State::invalid) {
      drop_unfinished();  // the byte may begin another one
      if (broken_) return append_replacement(bytes.size());
      break;
    }
    bytes.remove_prefix(1);
    ++unfinished_size_;
    if (state == Utf8State::valid) {
      fresh_ += joined;
      unfinished_size_ = 0;
    }
  }
  while (!bytes.empty()) {
    const Utf8Scan scan = scan_utf8(bytes);
    if (scan.state == Utf8State::unfinished) {
      unfinished_size_ = static_cast<std::uint8_t>(bytes.copy(unfinished_, sizeof(unfinished_)));
      return;
    }
    if (scan.state == Utf8State::valid) {
      fresh_ += bytes.substr(0, scan.length);
    } else {
      append_replacement(scan.length);
      if (broken_) return append_replacement(bytes.size() - scan.length);
    }
    bytes.remove_prefix(scan.length);
  }
}

/// For `bytes` bytes that begin a character and are not one.
void TextStream::append_replacement(std::size_t bytes) {
  if (run_.held) replace_run();
  broken_ = in_run_;
  const bool each = tokenizer_.decoding().invalid != InvalidBytes::prefix;
  for (std::size_t i = 0; i < (each ? bytes : 1); ++i) fresh_ += kReplacementCharacter;
}

void TextStream::drop_unfinished() {
  if (unfinished_size_ > 0 && run_.held) {
    replace_run();  // whose bytes these are, too
  } else if (unfinished_size_ > 0) {
    append_replacement(unfinished_size_);
  }
  unfinished_size_ = 0;
}

}  // namespace baton
