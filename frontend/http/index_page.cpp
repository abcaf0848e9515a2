#include "frontend/http/index_page.h"

#include "frontend/http/sse.h"

namespace baton {
namespace {

std::string escape_html(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        out.push_back(c);
    }
  }
  return out;
}

/// Only what a host and a port are made of: the Host header is a stranger's text inside a command
/// that a person may copy.
std::string safe_address(std::string_view address) {
  const bool good = !address.empty() && address.size() <= 255 &&
                    address.find_first_not_of(
                        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
                        "0123456789.-:[]") == std::string_view::npos;
  return good ? std::string(address) : "127.0.0.1:8000";
}

/// A name inside a JSON string inside a single-quoted shell word.
std::string shell_json(std::string_view text) {
  std::string out;
  for (const char c : json_string(text)) {
    if (c == '\'') {
      out += "'\\''";
    } else {
      out.push_back(c);
    }
  }
  return out;
}

constexpr const char* kJson = " -H 'Content-Type: application/json' -d ";

/// Lines to copy, for the dialects that have some.
std::string examples(const IndexFacts& facts, std::string_view dialect, const std::string& url) {
  const std::string model =
      shell_json(facts.example_model.empty() ? facts.model : facts.example_model);
  if (dialect == "openai") {
    return "\nA chat, token by token:\n  curl -N " + url + "/v1/chat/completions" + kJson +
           "'{\"model\": " + model +
           ", \"stream\": true, \"messages\": [{\"role\": \"user\", \"content\": \"What is "
           "Baton?\"}]}'\n"
           "\nText that goes on:\n  curl " +
           url + "/v1/completions" + kJson + "'{\"model\": " + model +
           ", \"prompt\": \"Baton is\", \"max_tokens\": 32}'\n";
  }
  if (dialect == "lab") {
    return "\nPrompt and reply in one text (lengths count both):\n  curl " + url + "/generate" +
           kJson +
           "'{\"prompt\": \"你是谁\", \"temperature\": 0.7, \"min_length\": 50, \"max_length\": "
           "500}'\n";
  }
  return "";
}

std::string text_page(const IndexFacts& facts) {
  const std::string url = "http://" + safe_address(facts.address);
  std::string page = "Baton " + facts.version + " serves " + facts.model;
  page += facts.ready ? ", ready" : ", not ready";
  if (!facts.state.empty()) page += ": " + facts.state;
  page += ".\n";
  if (facts.max_context > 0) {
    page +=
        "Context: " + std::to_string(facts.max_context) + " tokens, prompt and reply together.\n";
  }
  for (const IndexFacts::Door& door : facts.doors) page += examples(facts, door.name, url);
  page += "\nSpoken here:\n";
  for (const IndexFacts::Door& door : facts.doors) {
    page += "  " + door.name + "\n";
    for (const std::string& route : door.routes) page += "    " + route + "\n";
  }
  page +=
      "\nOn every port:\n"
      "  GET /health      200 when requests can be served, 503 while loading\n"
      "  GET /metrics     counters for Prometheus\n"
      "  GET /console     a chat, and the processes at work, in a browser\n";
  return page;
}

}  // namespace

IndexPage index_page(const IndexFacts& facts, std::string_view accept) {
  const std::string text = text_page(facts);
  if (accept.find("text/html") == std::string_view::npos) {
    return {"text/plain; charset=utf-8", text};
  }
  return {"text/html; charset=utf-8",
          "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>Baton</title>"
          "</head>\n<body><p><a href=\"/console\">Console: a chat, and the processes at work</a>"
          "</p><pre style=\"white-space: pre-wrap\">" +
              escape_html(text) + "</pre></body></html>\n"};
}

}  // namespace baton
