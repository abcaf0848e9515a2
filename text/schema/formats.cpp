#include "text/schema/formats.h"

#include <algorithm>
#include <array>

namespace baton::schema {
namespace {

// clang-format off
const std::string kDate =
    "(?:\\d{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\\d|30)"
    "|02-(?:0[1-9]|1\\d|2[0-8]))"
    "|(?:\\d\\d(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)-02-29)";
const std::string kTime =
    "(?:(?:[01]\\d|2[0-3]):[0-5]\\d:[0-5]\\d(?:\\.\\d+)?(?:[zZ]|[+-](?:[01]\\d|2[0-3]):[0-5]\\d)"
    "|23:59:60(?:\\.\\d+)?(?:[zZ]|[+-]00:00))";
const std::string kByte = "(?:25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)";
const std::string kIpv4 = "(?:" + kByte + "\\.){3}" + kByte;
const std::string kH = "[0-9A-Fa-f]{1,4}";
const std::string kTail = "(?:" + kH + ":" + kH + "|" + kIpv4 + ")";
const std::string kIpv6 =
    "(?:(?:" + kH + ":){6}" + kTail + "|::(?:" + kH + ":){5}" + kTail + "|(?:" + kH + ")?::(?:" + kH + ":){4}" + kTail +
    "|(?:(?:" + kH + ":){0,1}" + kH + ")?::(?:" + kH + ":){3}" + kTail +
    "|(?:(?:" + kH + ":){0,2}" + kH + ")?::(?:" + kH + ":){2}" + kTail +
    "|(?:(?:" + kH + ":){0,3}" + kH + ")?::" + kH + ":" + kTail +
    "|(?:(?:" + kH + ":){0,4}" + kH + ")?::" + kTail +
    "|(?:(?:" + kH + ":){0,5}" + kH + ")?::" + kH + "|(?:(?:" + kH + ":){0,6}" + kH + ")?::)";
const std::string kHex = "%[0-9A-Fa-f]{2}";
const std::string kUcs = "\\u{A0}-\\u{D7FF}\\u{F900}-\\u{FDCF}\\u{FDF0}-\\u{FFEF}\\u{10000}-\\u{EFFFD}";
const std::string kLabel = "[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?";
const std::string kHostname = kLabel + "(?:\\." + kLabel + ")*";
const std::string kAtom = "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+";
const std::string kEmail =
    "(?:" + kAtom + "(?:\\." + kAtom + ")*|\"(?:[ !#-\\[\\]-~]|\\\\[ -~])*\")@(?:" + kHostname +
    "|\\[" + kIpv4 + "\\]|\\[IPv6:" + kIpv6 + "\\])";
const std::string kPointer = "(?:/(?:[^~/]|~[01])*)*";
const std::string kClock = "T(?:\\d+H(?:\\d+M(?:\\d+S)?)?|\\d+M(?:\\d+S)?|\\d+S)";
const std::string kDuration =
    "P(?:\\d+W|(?:\\d+Y(?:\\d+M(?:\\d+D)?)?|\\d+M(?:\\d+D)?|\\d+D)(?:" + kClock + ")?|" + kClock + ")";
const std::string kVariable = "(?:[A-Za-z0-9_]|" + kHex + ")(?:\\.?(?:[A-Za-z0-9_]|" + kHex + "))*(?::[1-9]\\d{0,3}|\\*)?";
const std::string kTemplate =
    "(?:[!#$&(-;=?-\\[\\]_a-z~" + kUcs + "]|" + kHex + "|\\{[+#./;?&=,!@|]?" + kVariable + "(?:," + kVariable + ")*\\})*";
// clang-format on

/// RFC 3986, and with `more` characters RFC 3987.
std::string uri(const std::string& more, bool relative) {
  const std::string open = "A-Za-z0-9._~" + more + "!$&'()*+,;=";
  const std::string pchar = "(?:[" + open + ":@-]|" + kHex + ")";
  const std::string authority = "(?:(?:[" + open + ":-]|" + kHex + ")*@)?(?:\\[" + kIpv6 +
                                "\\]|(?:[" + open + "-]|" + kHex + ")*)(?::\\d*)?";
  const std::string absolute =
      "//" + authority + "(?:/" + pchar + "*)*|/(?:" + pchar + "+(?:/" + pchar + "*)*)?";
  const std::string tail = "(?:\\?(?:" + pchar + "|[/?])*)?(?:#(?:" + pchar + "|[/?])*)?";
  std::string text =
      "[A-Za-z][A-Za-z0-9+.-]*:(?:" + absolute + "|" + pchar + "+(?:/" + pchar + "*)*)?" + tail;
  if (relative) {
    text = "(?:" + text + "|(?:" + absolute + "|(?:[" + open + "@-]|" + kHex + ")+(?:/" + pchar +
           "*)*)?" + tail + ")";
  }
  return text;
}

constexpr std::array<std::string_view, 3> kNotEnforced = {"idn-hostname", "idn-email", "regex"};

}  // namespace

std::optional<Format> format_of(std::string_view name, bool* known) {
  *known = true;
  if (name == "date") return Format{kDate, "", 0};
  if (name == "time") return Format{kTime, "", 0};
  if (name == "date-time") return Format{kDate + "[tT]" + kTime, "", 0};
  if (name == "duration") return Format{kDuration, "", 0};
  if (name == "email") return Format{kEmail, "", 0};
  if (name == "hostname") return Format{kHostname, "(?:^|\\.)..--", 253};
  if (name == "ipv4") return Format{kIpv4, "", 0};
  if (name == "ipv6") return Format{kIpv6, "", 0};
  if (name == "uri") return Format{uri("", false), "", 0};
  if (name == "uri-reference") return Format{uri("", true), "", 0};
  if (name == "iri") return Format{uri(kUcs, false), "", 0};
  if (name == "iri-reference") return Format{uri(kUcs, true), "", 0};
  if (name == "uri-template") return Format{kTemplate, "", 0};
  if (name == "uuid") {
    return Format{"[0-9A-Fa-f]{8}-(?:[0-9A-Fa-f]{4}-){3}[0-9A-Fa-f]{12}", "", 0};
  }
  if (name == "json-pointer") return Format{kPointer, "", 0};
  if (name == "relative-json-pointer") {
    return Format{"(?:0|[1-9]\\d*)(?:#|" + kPointer + ")", "", 0};
  }
  *known = std::find(kNotEnforced.begin(), kNotEnforced.end(), name) != kNotEnforced.end();
  return std::nullopt;
}

}  // namespace baton::schema
