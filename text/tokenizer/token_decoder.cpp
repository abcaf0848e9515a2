#include "text/tokenizer/token_decoder.h"

#include <nlohmann/json.hpp>

#include "text/tokenizer/bpe.h"
#include "text/tokenizer/spec_object.h"

namespace baton {
namespace {

void replace_all(std::string& text, const std::string& pattern, const std::string& content) {
  for (std::size_t at = text.find(pattern); at != std::string::npos;
       at = text.find(pattern, at + content.size())) {
    text.replace(at, pattern.size(), content);
  }
}

/// "<0x0A>" -> 10; -1 for anything else.
int fallback_byte(std::string_view token) {
  if (token.size() != 6 || token.substr(0, 3) != "<0x" || token[5] != '>') return -1;
  int byte = 0;
  for (const char c : token.substr(3, 2)) {
    const int digit = c >= '0' && c <= '9'   ? c - '0'
                      : c >= 'A' && c <= 'F' ? c - 'A' + 10
                      : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                             : -1;
    if (digit < 0) return -1;
    byte = 16 * byte + digit;
  }
  return byte;
}

}  // namespace

Result<TokenDecoder> TokenDecoder::parse(const nlohmann::json& spec, const std::string& where) {
  TokenDecoder decoder;
  decoder.rule_.special_ends_character = false;
  if (spec.is_null()) return unsupported(where, "a tokenizer without a decoder");
  const bool sequence = spec.is_object() && spec.contains("type") && spec["type"] == "Sequence";
  if (!sequence) {
    if (Status status = decoder.add(spec, where); !status.ok()) return status;
    return decoder;
  }
  SpecObject object(spec, where);
  object.type();
  const nlohmann::json& list = object.list("decoders");
  if (Status status = object.finish(); !status.ok()) return status;
  for (std::size_t i = 0; i < list.size(); ++i) {
    Status status = decoder.add(list[i], where + "[" + std::to_string(i) + "]");
    if (!status.ok()) return status;
  }
  return decoder;
}

Status TokenDecoder::add(const nlohmann::json& spec, const std::string& where) {
  SpecObject object(spec, where);
  const std::string type = object.type();
  Stage stage = Stage::whole;
  if (type == "ByteLevel") {
    for (const char* key : {"add_prefix_space", "trim_offsets", "use_regex"})
      object.flag(key, true);
    byte_level_ = true;
    rule_.invalid = InvalidBytes::prefix;
  } else if (type == "Metaspace") {
    metaspace_ = object.text("replacement");
    object.text("str_rep", "");
    object.flag("split", true);
    const bool prefix = object.flag("add_prefix_space", true);
    const std::string scheme = object.text("prepend_scheme", "always");
    if (scheme != "never" && prefix) rule_.leading_space = LeadingSpace::drop_in_first;
  } else if (type == "Replace") {
    stage = Stage::replace;
    const auto pattern = object.pattern("pattern");
    const std::string content = object.text("content");
    if (pattern.regex || pattern.text.empty()) {
      object.fail(unsupported(where, "a decoder that replaces an expression"));
    }
    replaced_.emplace_back(pattern.text, content);
  } else if (type == "ByteFallback") {
    stage = Stage::byte_fallback;
    byte_fallback_ = true;
    rule_.invalid = InvalidBytes::run;
  } else if (type == "Fuse") {
    stage = Stage::fuse;
  } else if (type == "Strip") {
    stage = Stage::strip;
    const std::string content = object.text("content");
    const bool one = object.number("start") == 1 && object.number("stop") == 0;
    if (object.ok() && (content != " " || !one || stage_ != Stage::fuse)) {
      object.fail(unsupported(where, "Strip of anything but one leading space, behind Fuse,"));
    }
    rule_.leading_space = LeadingSpace::drop_one;
  } else if (object.ok()) {
    return unsupported(where, "the decoder '" + type + "'");
  }
  if (Status status = object.finish(); !status.ok()) return status;
  const bool first_whole = stage == Stage::whole && !empty_;
  if (stage < stage_ || stage_ == Stage::whole || first_whole) {
    return unsupported(where, "'" + type + "' behind the decoders before it");
  }
  stage_ = stage;
  empty_ = false;
  return {};
}

TokenDecoder::Piece TokenDecoder::piece(std::string_view token) const {
  Piece piece;
  piece.bytes = token;
  if (byte_level_) {
    piece.kind = PieceKind::bytes;
    if (!byte_level_bytes(token, piece.bytes)) piece.bytes = token;
    return piece;
  }
  if (!metaspace_.empty()) {
    piece.space = token.find(metaspace_) != std::string_view::npos;
    replace_all(piece.bytes, metaspace_, " ");
    return piece;
  }
  for (const auto& [pattern, content] : replaced_) replace_all(piece.bytes, pattern, content);
  const int byte = byte_fallback_ ? fallback_byte(piece.bytes) : -1;
  if (byte >= 0) {
    piece.kind = PieceKind::bytes;
    piece.bytes.assign(1, static_cast<char>(byte));
  }
  piece.space = rule_.leading_space == LeadingSpace::drop_one && piece.bytes.substr(0, 1) == " ";
  return piece;
}

}  // namespace baton
