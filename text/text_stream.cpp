#include "text/text_stream.h"

#include <algorithm>
#include <utility>

#include "ipc/utf8.h"

namespace baton {

TextStream::TextStream(const Tokenizer& tokenizer, TextStreamOptions options)
    : tokenizer_(tokenizer), options_(std::move(options)), matcher_(options_.stop) {
  at_start_ = !options_.continues_text && tokenizer.decoding().leading_space != LeadingSpace::keep;
}

TextStream::Output TextStream::feed(std::span<const Token> tokens) {
  out_.clear();
  for (const Token id : tokens) {
    if (stopped_) break;
    ++n_;
    append_piece(id);
    if (matcher_.empty()) {
      out_ += fresh_;
    } else {
      match_fresh();
    }
    fresh_.clear();
  }
  return {out_, stopped_, n_};
}

TextStream::Output TextStream::flush() {
  out_.clear();
  if (!stopped_) {
    drop_unfinished();
    out_ += held_;
    out_ += fresh_;
  }
  held_.clear();
  fresh_.clear();
  return {out_, stopped_, n_};
}

// Moves the text of one token through the matcher: to out_ what is safe, to held_ what may still
// become a stop string.
void TextStream::match_fresh() {
  std::size_t taken = 0;
  for (;;) {
    const StopMatcher::Match match = matcher_.feed(std::string_view(fresh_).substr(taken));
    if (match.length == 0) break;
    taken += match.end;
    if (n_ < options_.min_tokens) continue;
    held_.append(fresh_, 0, taken);
    if (!options_.include_stop_in_output) held_.resize(held_.size() - match.length);
    out_ += held_;
    held_.clear();
    unfinished_size_ = 0;
    stopped_ = true;
    which_ = match.which;
    return;
  }
  held_ += fresh_;
  const std::size_t safe = held_.size() - matcher_.pending();
  out_.append(held_, 0, safe);
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
  std::string_view text = tokenizer_.token_bytes(id);
  if (at_start_) text = at_start(id, text);
  if (kind != PieceKind::bytes) {
    drop_unfinished();
    broken_ = false;
  }
  append_bytes(text);
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
  broken_ = tokenizer_.decoding().invalid == InvalidBytes::run;
  const bool each = tokenizer_.decoding().invalid != InvalidBytes::prefix;
  for (std::size_t i = 0; i < (each ? bytes : 1); ++i) fresh_ += kReplacementCharacter;
}

void TextStream::drop_unfinished() {
  if (unfinished_size_ > 0) append_replacement(unfinished_size_);
  unfinished_size_ = 0;
}

}  // namespace baton
