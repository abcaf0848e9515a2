// What a front end knows of an HTTP dialect: the paths that it owns, how a body becomes a request
// and an answer becomes bytes, and how it says that something is wrong. A dialect is pure: no
// socket, no clock, no scheduler; one object of each serves all threads.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "frontend/core/generation.h"
#include "frontend/core/model_choice.h"
#include "frontend/core/served_model.h"
#include "frontend/http/http_reply.h"

namespace baton {

/// One of the models that a page lists.
struct PageModel {
  const ServedModel* model = nullptr;
  std::uint32_t max_context = 0;  // 0: not known yet
};

/// What a page may tell, as the loop knows it when the page is asked for: of the first model, but
/// for the list of all.
struct PageFacts {
  std::string path;               // as the client wrote it, without a query
  std::string version;            // of this build
  std::int64_t created = 0;       // unix seconds when this server began to serve the model
  std::uint32_t max_context = 0;  // 0: not known yet
  std::uint32_t workers_ready = 0;
  std::uint32_t running = 0;      // requests admitted in the whole cluster and not ended
  std::uint32_t waiting = 0;      // of these, without a place on a worker
  std::uint32_t max_batch = 0;    // sequences that a worker decodes together
  std::uint32_t max_streams = 0;  // choices that this front end serves at once
  std::uint64_t pool_tokens = 0;  // that all KV pools hold together; 0: not known yet
  std::uint64_t used_tokens =
      0;  // of these, in blocks that requests, or steps and pulls in flight, name
  std::vector<PageModel> models = {};  // all that are served; empty: the page's model alone

  std::vector<PageModel> listed(const ServedModel& only) const {
    return models.empty() ? std::vector<PageModel>{{&only, max_context}} : models;
  }
};

/// A body of a POST. Runs on a thread of the HTTP server; the work is bounded by the body's size.
using ParseBody = ParseOutcome (*)(std::string_view body, const RequestContext& context,
                                   const ServedModel& model);
/// A GET that needs no worker; `model` is the first one. Runs on the loop: it may only format.
using MakePage = std::variant<Answer, HttpError> (*)(const PageFacts& facts,
                                                     const ServedModel& model);

struct DialectRoute {
  const char* method;  // GET or POST; HEAD follows GET
  const char* path;    // as the HTTP server's router takes it: "/v1/models/:id"
  std::variant<ParseBody, MakePage> answer;
  ModelNamed names_model = ModelNamed::nowhere;  // of a POST
};

class Dialect {
 public:
  virtual ~Dialect() = default;
  /// As the configuration calls it (configs/dialects.h).
  virtual const char* name() const = 0;
  /// The same paths as configs/dialects.h lists. Of one that two dialects of a port share, the
  /// first one's counts.
  virtual std::vector<DialectRoute> routes() const = 0;
  /// Gives an error the dialect's own body and status. As it comes it has those of the OpenAI API.
  virtual HttpError shape(HttpError error) const { return error; }
};

/// The error as the client of `frame` understands it.
inline HttpError shaped(HttpError error, const ReplyFrame& frame) {
  return frame.dialect == nullptr ? error : frame.dialect->shape(std::move(error));
}

}  // namespace baton
