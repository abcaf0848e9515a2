// [name(key=value, ...), ...] with Python literals, as Llama 3.2, Llama 4 and OLMo 3 write calls.
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "frontend/chat/calls/call_reader.h"
#include "frontend/chat/json_scanner.h"
#include "frontend/http/sse.h"
#include "text/tokenizer/unicode.h"

namespace baton {
namespace {

constexpr int kMaxDepth = 32;

bool is_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || (c >= '0' && c <= '9');
}

/// Reads literals as JSON. Every function returns false where the text is something else.
class Literals {
 public:
  explicit Literals(std::string_view text) : text_(text) {}

  bool calls(std::vector<FoundCall>& found) {
    if (!take('[')) return false;
    do {
      FoundCall call;
      if (!name(call.name, true) || !take('(')) return false;
      call.arguments = "{";
      while (!take(')')) {
        std::string key;
        if (call.arguments.size() > 1) {
          if (!take(',')) return false;
          if (take(')')) break;
          call.arguments += ',';
        }
        if (!name(key, false) || !take('=')) return false;
        call.arguments += json_string(key) + ":";
        if (!value(call.arguments, 0)) return false;
      }
      call.arguments += '}';
      found.push_back(std::move(call));
    } while (take(','));
    return take(']') && skip() == text_.size();
  }

 private:
  std::size_t skip() {
    while (at_ < text_.size() &&
           (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\t' || text_[at_] == '\r')) {
      ++at_;
    }
    return at_;
  }
  bool take(char c) {
    if (skip() == text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  bool name(std::string& out, bool dotted) {
    const std::size_t begin = skip();
    while (at_ < text_.size() &&
           (is_letter(text_[at_]) || (dotted && (text_[at_] == '.' || text_[at_] == '-')))) {
      ++at_;
    }
    out = text_.substr(begin, at_ - begin);
    return !out.empty();
  }

  bool value(std::string& out, int depth) {
    if (depth > kMaxDepth || skip() == text_.size()) return false;
    const char c = text_[at_];
    if (c == '"' || c == '\'') return string(out);
    if (c == '[' || c == '(') return list(out, c == '[' ? ']' : ')', depth);
    if (c == '{') return object(out, depth);
    if (c == '-' || c == '+' || (c >= '0' && c <= '9') || c == '.') return number(out);
    std::string word;
    if (!name(word, false)) return false;
    if (word == "True" || word == "true")
      out += "true";
    else if (word == "False" || word == "false")
      out += "false";
    else if (word == "None" || word == "null")
      out += "null";
    else
      return false;
    return true;
  }

  bool list(std::string& out, char close, int depth) {
    ++at_;
    out += '[';
    for (bool first = true; !take(close); first = false) {
      if (!first) {
        if (!take(',')) return false;
        if (take(close)) break;
        out += ',';
      }
      if (!value(out, depth + 1)) return false;
    }
    out += ']';
    return true;
  }

  bool object(std::string& out, int depth) {
    ++at_;
    out += '{';
    for (bool first = true; !take('}'); first = false) {
      if (!first) {
        if (!take(',')) return false;
        if (take('}')) break;
        out += ',';
      }
      if (skip() == text_.size() || (text_[at_] != '"' && text_[at_] != '\'')) return false;
      if (!string(out) || !take(':')) return false;
      out += ':';
      if (!value(out, depth + 1)) return false;
    }
    out += '}';
    return true;
  }

  /// As JSON has numbers: Python's 1_000, .5 and 5. are none.
  bool number(std::string& out) {
    JsonScanner scanner;
    scanner.feed('[');
    std::string digits;
    while (at_ < text_.size()) {
      const char c = text_[at_];
      const bool part =
          (c >= '0' && c <= '9') || c == '-' || c == '+' || c == '.' || c == 'e' || c == 'E';
      if (!part) break;
      if (!scanner.feed(c)) return false;
      digits += c;
      ++at_;
    }
    if (!scanner.feed(']')) return false;
    out += digits;
    return true;
  }

  bool string(std::string& out) {
    const char quote = text_[at_++];
    std::string value;
    while (at_ < text_.size() && text_[at_] != quote) {
      const char c = text_[at_++];
      if (c != '\\') {
        value += c;
      } else if (!escape(value)) {
        return false;
      }
    }
    if (at_ == text_.size()) return false;
    ++at_;
    out += json_string(value);
    return true;
  }

  bool escape(std::string& value) {
    if (at_ == text_.size()) return false;
    const char c = text_[at_++];
    switch (c) {
      case 'n':
        value += '\n';
        return true;
      case 't':
        value += '\t';
        return true;
      case 'r':
        value += '\r';
        return true;
      case 'b':
        value += '\b';
        return true;
      case 'f':
        value += '\f';
        return true;
      case '\\':
      case '\'':
      case '"':
      case '/':
        value += c;
        return true;
      case 'x':
        return code(value, 2);
      case 'u':
        return code(value, 4);
      case 'U':
        return code(value, 8);
      default:  // Python keeps the backslash
        value += '\\';
        value += c;
        return true;
    }
  }

  bool hex(std::size_t digits, std::uint32_t& code) {
    code = 0;
    if (text_.size() - at_ < digits) return false;
    for (std::size_t i = 0; i < digits; ++i) {
      const char c = text_[at_ + i];
      const int digit = c >= '0' && c <= '9'   ? c - '0'
                        : c >= 'a' && c <= 'f' ? c - 'a' + 10
                        : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                               : -1;
      if (digit < 0) return false;
      code = code * 16 + static_cast<std::uint32_t>(digit);
    }
    at_ += digits;
    return true;
  }
  /// A pair of surrogates, as JSON writes them, is one character; a lone one is none.
  bool code(std::string& value, std::size_t digits) {
    std::uint32_t code = 0;
    if (!hex(digits, code)) return false;
    if (code >= 0xD800 && code < 0xDC00 && text_.substr(at_).starts_with("\\u")) {
      at_ += 2;
      std::uint32_t low = 0;
      if (!hex(4, low) || low < 0xDC00 || low > 0xDFFF) return false;
      code = 0x10000 + ((code - 0xD800) << 10U) + (low - 0xDC00);
    }
    if (code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) return false;
    append_utf8(value, code);
    return true;
  }

  std::string_view text_;
  std::size_t at_ = 0;
};

}  // namespace

std::optional<std::vector<FoundCall>> read_python_calls(std::string_view text) {
  std::vector<FoundCall> found;
  if (!Literals(text).calls(found)) return std::nullopt;
  return found;
}

}  // namespace baton
