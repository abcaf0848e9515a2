// The "decoder" of a tokenizer.json: how tokens become text.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ipc/status.h"
#include "text/tokenizer/piece_table.h"

namespace baton {

/// ByteLevel; Metaspace; or, in a Sequence and in this order, Replace of strings, ByteFallback,
/// Fuse, Strip of one leading space. Where one byte of a ByteFallback run is no part of a
/// character, every byte of the run becomes U+FFFD (InvalidBytes::run). A stream therefore holds a
/// run back until its end, but at most kMaxHeldRun bytes (text/text_stream.h).
class TokenDecoder {
 public:
  static Result<TokenDecoder> parse(const nlohmann::json& spec, const std::string& where);

  const DecodingRule& rule() const { return rule_; }

  struct Piece {
    PieceKind kind = PieceKind::text;
    std::string bytes;
    bool space = false;  // see PieceTable::add
  };
  Piece piece(std::string_view token) const;

 private:
  Status add(const nlohmann::json& spec, const std::string& where);

  /// How far a Sequence has come: steps out of order would mean something else.
  enum class Stage : std::uint8_t { replace, byte_fallback, fuse, strip, whole };
  Stage stage_ = Stage::replace;
  bool empty_ = true;
  bool byte_level_ = false;
  bool byte_fallback_ = false;
  std::vector<std::pair<std::string, std::string>> replaced_;  // pattern, content
  std::string metaspace_;                                      // its symbol
  DecodingRule rule_;
};

}  // namespace baton
