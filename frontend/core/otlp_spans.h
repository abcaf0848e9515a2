// Where a request's time went, as spans of OpenTelemetry: the JSON of an OTLP export
// (ExportTraceServiceRequest). Names are those of its semantic conventions for HTTP servers and for
// generative AI; what these have none for begins with "baton.". Pure.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "ipc/timing.h"

namespace baton {

/// What a request's span tells beside where its time went. Noted when it is opened.
struct SpanFacts {
  std::array<std::uint8_t, 16> trace{};
  std::array<std::uint8_t, 8> parent{};  // the client's span; all zero: it named none
  std::string state;                     // the client's tracestate
  std::string client;                    // its address
  std::string model;                     // that it is for; empty: the one of the process
  bool generates = false;                // it was refused otherwise, before that
  bool stream = false;
  std::uint32_t max_tokens = 0;
  float temperature = 0;
  float top_p = 1;
  std::int32_t top_k = 0;
  std::string error;  // HttpError::log of an error's reply
  std::string route;  // a path as routes have it ("/mii/:name"); empty: none took the request
};

struct FinishedRequest {
  ExplainedRequest request;
  SpanFacts facts;
};

/// Of the process that sends them.
struct SpanSource {
  std::string service;
  std::string model;
  std::string version;
  std::string front_end;
  std::string instance;  // one life of it
  std::string host;
  std::int32_t pid = 0;
};

/// `random` gives 64 random bits, for the ids of spans. `spans`: gets the number of them.
std::string otlp_json(const std::vector<FinishedRequest>& requests, const SpanSource& source,
                      const std::function<std::uint64_t()>& random, std::size_t* spans = nullptr);

}  // namespace baton
