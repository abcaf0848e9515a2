// Parsing and replying as one call, for the tests of the HTTP dialects.
#pragma once

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "frontend/core/served_model.h"
#include "frontend/openai/openai_api.h"
#include "model_folder.h"

namespace baton::testing {

/// Unknown fields are errors here, so that what a test sends is known to be known.
inline RequestContext small_context() {
  RequestContext context;
  context.strict_fields = true;
  context.request_id = "42";
  context.unix_seconds = 1700000000;
  context.max_context = 256;
  context.max_choices = 300;
  context.default_timeout = 600 * kSecond;
  context.max_timeout = 3600 * kSecond;
  return context;
}

inline ParsedRequest good(ParseOutcome outcome) {
  if (const auto* error = std::get_if<HttpError>(&outcome)) {
    throw std::runtime_error("refused: " + error->body);
  }
  return std::move(std::get<ParsedRequest>(outcome));
}

/// The same as a server has it by default: unknown fields are ignored.
inline RequestContext lenient_context() {
  RequestContext context = small_context();
  context.strict_fields = false;
  return context;
}

/// A body of /v1/completions.
inline ParseOutcome completion(const std::string& body) {
  return parse_completion(body, small_context(), tiny_model());
}
inline ParsedRequest good_completion(const std::string& body) { return good(completion(body)); }

inline HttpError bad(const ParseOutcome& outcome, const std::string& what) {
  if (const auto* error = std::get_if<HttpError>(&outcome)) return *error;
  ADD_FAILURE() << "accepted: " << what.substr(0, 200);
  return {};
}

/// The error object of a refused body; checks that it has the four fields.
inline nlohmann::json error_of(const HttpError& error) {
  const auto body = nlohmann::json::parse(error.body);
  EXPECT_EQ(body.size(), 1U);
  const auto object = body.at("error");
  for (const char* key : {"message", "type", "param", "code"}) EXPECT_TRUE(object.contains(key));
  EXPECT_EQ(object.size(), 4U);
  return object;
}

/// One line of a table of refused bodies.
struct Refusal {
  std::string body;
  int status;
  std::string param;    // empty: null
  std::string message;  // part of it
};

template <typename Parse>
void expect_refused(const Refusal& line, Parse parse) {
  const HttpError error = bad(parse(line.body), line.body);
  const auto object = error_of(error);
  EXPECT_EQ(error.status, line.status) << line.body.substr(0, 200);
  EXPECT_EQ(object["param"].is_null() ? "" : object["param"].get<std::string>(), line.param)
      << line.body.substr(0, 200);
  const auto message = object["message"].get<std::string>();
  EXPECT_NE(message.find(line.message), std::string::npos)
      << line.body.substr(0, 200) << "\n  says: " << message;
  EXPECT_LT(message.size(), 600U);
}

}  // namespace baton::testing
