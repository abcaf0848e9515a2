#include "frontend/index_page.h"

#include "frontend/sse.h"

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

std::string text_page(const IndexFacts& facts) {
  const std::string url = "http://" + safe_address(facts.address);
  const std::string post = "curl " + url;
  const std::string json = " -H 'Content-Type: application/json' -d ";
  std::string page = "Baton " + facts.version + " serves " + facts.model;
  page += facts.ready ? ", ready" : ", not ready";
  if (!facts.state.empty()) page += ": " + facts.state;
  page += ".\n";
  if (facts.max_context > 0) {
    page +=
        "Context: " + std::to_string(facts.max_context) + " tokens, prompt and reply together.\n";
  }
  page += "\nA chat, token by token:\n  curl -N " + url + "/v1/chat/completions" + json +
          "'{\"model\": " + shell_json(facts.model) +
          ", \"stream\": true, \"messages\": [{\"role\": \"user\", \"content\": \"What is "
          "Baton?\"}]}'\n";
  page += "\nText that goes on:\n  " + post + "/v1/completions" + json +
          "'{\"model\": " + shell_json(facts.model) +
          ", \"prompt\": \"Baton is\", \"max_tokens\": 32}'\n";
  page += "\nPrompt and reply in one text (lengths count both):\n  " + post + "/generate" + json +
          "'{\"prompt\": \"你是谁\", \"temperature\": 0.7, \"min_length\": 50, \"max_length\": "
          "500}'\n";
  page +=
      "\nMore:\n  GET /v1/models   the model and its context\n"
      "  GET /health      200 when requests can be served, 503 while loading\n"
      "  GET /metrics     counters for Prometheus\n";
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
          "</head>\n<body><pre style=\"white-space: pre-wrap\">" +
              escape_html(text) + "</pre></body></html>\n"};
}

}  // namespace baton
