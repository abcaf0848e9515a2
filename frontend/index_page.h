// What GET / answers: what this is, its routes, and a curl line for each.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace baton {

struct IndexFacts {
  std::string model;
  std::string version;
  std::string address;  // host:port as the client called it (the Host header), or the bind
  bool ready = false;
  std::string state;              // one sentence for a person, e.g. "2 workers ready"
  std::uint32_t max_context = 0;  // 0: not known yet
};

struct IndexPage {
  std::string content_type;
  std::string body;
};

/// HTML when the Accept header asks for text/html, plain text otherwise (curl). All facts are
/// escaped.
IndexPage index_page(const IndexFacts& facts, std::string_view accept);

}  // namespace baton
