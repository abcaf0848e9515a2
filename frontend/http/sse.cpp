#include "frontend/http/sse.h"

#include "ipc/utf8.h"

namespace baton {
namespace {

constexpr char kHex[] = "0123456789abcdef";

bool is_plain(unsigned char byte) {
  return byte >= 0x20 && byte < 0x80 && byte != '"' && byte != '\\';
}

void append_special(std::string& out, char byte) {
  switch (byte) {
    case '"':
      out += "\\\"";
      return;
    case '\\':
      out += "\\\\";
      return;
    case '\n':
      out += "\\n";
      return;
    case '\r':
      out += "\\r";
      return;
    case '\t':
      out += "\\t";
      return;
    case '\b':
      out += "\\b";
      return;
    case '\f':
      out += "\\f";
      return;
    default: {
      const auto value = static_cast<unsigned char>(byte);
      out += "\\u00";
      out.push_back(kHex[value >> 4U]);
      out.push_back(kHex[value & 0xFU]);
    }
  }
}

}  // namespace

void append_json_escaped(std::string& out, std::string_view text) {
  std::size_t i = 0;
  while (i < text.size()) {
    std::size_t end = i;
    while (end < text.size() && is_plain(static_cast<unsigned char>(text[end]))) ++end;
    out.append(text.substr(i, end - i));
    i = end;
    if (i == text.size()) return;
    if (static_cast<unsigned char>(text[i]) < 0x80) {
      append_special(out, text[i++]);
      continue;
    }
    const Utf8Scan scan = scan_utf8(text.substr(i));
    if (scan.state == Utf8State::valid) {
      out.append(text.substr(i, scan.length));
      i += scan.length;
    } else {
      out += kReplacementCharacter;
      ++i;
    }
  }
}

std::string json_string(std::string_view text) {
  std::string out;
  out.reserve(text.size() + 2);
  out.push_back('"');
  append_json_escaped(out, text);
  out.push_back('"');
  return out;
}

std::string sse_event(std::string_view data) {
  std::string out;
  out.reserve(data.size() + 8);
  out += "data: ";
  out += data;
  out += "\n\n";
  return out;
}

}  // namespace baton
