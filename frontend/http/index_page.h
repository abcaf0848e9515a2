// What GET / answers: what this is, its routes, and a curl line for each.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace baton {

struct IndexFacts {
  /// A dialect of the port.
  struct Door {
    std::string name;
    std::vector<std::string> routes;  // "POST /generate"
  };
  std::string model;          // or the names of several
  std::string example_model;  // that the examples ask; empty: `model`
  std::string version;
  std::string address;  // host:port as the client called it (the Host header), or the bind
  bool ready = false;
  std::string state;              // one sentence for a person, e.g. "2 workers ready"
  std::uint32_t max_context = 0;  // 0: not known yet
  std::vector<Door> doors;
};

struct IndexPage {
  std::string content_type;
  std::string body;
};

/// HTML when the Accept header asks for text/html, plain text otherwise (curl). All facts are
/// escaped.
IndexPage index_page(const IndexFacts& facts, std::string_view accept);

}  // namespace baton
