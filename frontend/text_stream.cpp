#include "frontend/text_stream.h"

#include <cstring>
#include <utility>

#include "frontend/utf8.h"

namespace baton {

TextStreamOptions text_stream_options(const Tokenizer& tokenizer, const ParsedRequest& request) {
  TextStreamOptions options;
  options.stop = request.stop;
  options.include_stop_in_output = request.include_stop_in_output;
  options.min_tokens = request.sampling.min_tokens;
  options.continues_text = !request.prompt.empty() && !tokenizer.is_special(request.prompt.back());
  return options;
}

TextStream::TextStream(const Tokenizer& tokenizer, TextStreamOptions options)
    : tokenizer_(tokenizer), options_(std::move(options)), matcher_(options_.stop) {
  at_start_ =
      !options_.continues_text && tokenizer.leading_space() != Tokenizer::LeadingSpace::keep;
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
    return;
  }
  held_ += fresh_;
  const std::size_t safe = held_.size() - matcher_.pending();
  out_.append(held_, 0, safe);
  held_.erase(0, safe);
}

// sentencepiece's rule: at the very start of a text, a piece loses one leading space symbol. With
// `drop_all` that goes on until some text exists.
void TextStream::append_piece(Token id) {
  const PieceKind kind = tokenizer_.kind(id);
  std::string_view text = tokenizer_.piece_text(id);
  if (kind == PieceKind::byte) {
    append_byte(text[0]);
    return;
  }
  drop_unfinished();
  if (at_start_ && tokenizer_.begins_with_space(id)) {
    text.remove_prefix(1);
    if (tokenizer_.leading_space() == Tokenizer::LeadingSpace::drop_one) at_start_ = false;
  }
  if (!text.empty()) at_start_ = false;
  fresh_ += text;
}

// Bytes wait until they are a character or cannot become one any more: then the first is replaced
// and the rest looked at again, as the decoding of the whole would do.
void TextStream::append_byte(char byte) {
  at_start_ = false;
  unfinished_[unfinished_size_++] = byte;
  while (unfinished_size_ > 0) {
    const std::string_view bytes(unfinished_, unfinished_size_);
    const Utf8Scan scan = scan_utf8(bytes);
    if (scan.state == Utf8State::unfinished) return;
    if (scan.state == Utf8State::valid) {
      fresh_.append(bytes.substr(0, scan.length));
    } else {
      fresh_ += kReplacementCharacter;
    }
    unfinished_size_ = static_cast<std::uint8_t>(unfinished_size_ - scan.length);
    std::memmove(unfinished_, unfinished_ + scan.length, unfinished_size_);
  }
}

void TextStream::drop_unfinished() {
  for (; unfinished_size_ > 0; --unfinished_size_) fresh_ += kReplacementCharacter;
}

}  // namespace baton
