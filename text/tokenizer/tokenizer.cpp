#include "text/tokenizer/tokenizer.h"

#include <algorithm>

#include "ipc/utf8.h"
#include "text/gguf/gguf_folder.h"
#include "text/text_stream.h"
#include "text/tokenizer/hf_tokenizer.h"
#include "text/tokenizer/sentencepiece_tokenizer.h"

namespace baton {

// Of a folder with both files, tokenizer.json is what transformers' fast tokenizer reads, and it
// alone knows tokens that were added after the sentencepiece model was trained. A kind of it that
// is not served (a unigram model, say) leaves tokenizer.model, from which such files are converted,
// if that knows all the tokens.
Result<std::unique_ptr<Tokenizer>> Tokenizer::load(const std::string& dir,
                                                   const std::string& which) {
  const bool has_json = which != "tokenizer.model" && has_model_file(dir + "/tokenizer.json");
  const bool has_model = which != "tokenizer.json" && has_model_file(dir + "/tokenizer.model");
  if (!has_json && !has_model) {
    // Of a GGUF file it says why.
    const auto none = read_model_file(dir + "/tokenizer.json", 0);
    if (!none.ok()) return none.status();
    return invalid(dir + (which == "auto" ? ": neither tokenizer.json nor tokenizer.model is there"
                                          : ": " + which + " is not there"));
  }
  const auto named = [](Result<std::unique_ptr<Tokenizer>> made, const char* source) {
    if (made.ok()) made.value()->source_ = source;
    return made;
  };
  if (!has_json) return named(load_sentencepiece_tokenizer(dir), "tokenizer.model");
  auto made = named(load_hf_tokenizer(dir), "tokenizer.json");
  if (made.ok() || made.status().code() != ErrorCode::unavailable || !has_model) return made;
  auto other = named(load_sentencepiece_tokenizer(dir), "tokenizer.model");
  if (other.ok() && hf_tokens_are_below(dir, other.value()->piece_count())) return other;
  return made;
}

std::optional<std::vector<Token>> Tokenizer::encode_parts_within(std::span<const PromptPart> parts,
                                                                 std::size_t limit) const {
  std::vector<Token> ids;
  std::string text;
  bool after_special = false;
  const auto encode_text = [&] {
    if (text.empty()) return true;
    const auto more = encode_plain_within(text, after_special, limit - std::min(limit, ids.size()));
    if (more) ids.insert(ids.end(), more->begin(), more->end());
    text.clear();
    return more.has_value();
  };
  std::string trusted;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (!parts[i].trusted) {
      text += parts[i].text;
      continue;
    }
    trusted += parts[i].text;
    if (i + 1 < parts.size() && parts[i + 1].trusted) continue;
    for (std::string_view rest = trusted; !rest.empty();) {
      std::size_t length = 1;
      const Token special = special_at(rest, &length);
      if (special >= 0) {
        if (!encode_text() || ids.size() >= limit) return std::nullopt;
        ids.push_back(special);
        after_special = true;
      } else {
        text.push_back(rest.front());
      }
      rest.remove_prefix(length);
    }
    trusted.clear();
  }
  if (!encode_text()) return std::nullopt;
  return ids;
}

std::string Tokenizer::token_text(Token id) const {
  std::string text;
  std::string_view bytes = token_bytes(id);
  while (!bytes.empty()) {
    const Utf8Scan scan = scan_utf8(bytes);
    const std::size_t length = scan.state == Utf8State::unfinished ? bytes.size() : scan.length;
    text += scan.state == Utf8State::valid ? bytes.substr(0, length) : kReplacementCharacter;
    bytes.remove_prefix(length);
  }
  return text;
}

std::string Tokenizer::decode(std::span<const Token> ids, bool skip_special_tokens) const {
  TextStreamOptions options;
  options.skip_special_tokens = skip_special_tokens;
  TextStream stream(*this, options);
  std::string text(stream.feed(ids).text);
  text += stream.flush().text;
  return text;
}

}  // namespace baton
