// From a journal back to a reply: its request is read again as when it came, its events are
// rendered from the first byte on, and what the client has already is left out. Pure.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "frontend/core/rendered_reply.h"
#include "frontend/core/request_table.h"
#include "frontend/core/served_model.h"
#include "frontend/http/api_keys.h"
#include "frontend/http/request_facts.h"
#include "frontend/succession/journal.h"
#include "frontend/succession/reply_records.h"

namespace baton {

/// What reading a request again needs; as it was when the request came.
struct ReplaySetup {
  const ServedModels& models;
  std::vector<const Dialect*> dialects;  // of the port
  const Cors& cors;
  IntakeSettings settings;
  FramingLimits framing;
  const ApiKeys* keys = nullptr;  // null: none are wanted
  std::vector<std::uint64_t> known = {};  // models by identity, as the predecessor had them
};

/// One of the scheduler's requests that make a reply.
struct ReplayedRequest {
  NewRequest request;
  std::uint32_t attempt = 0;          // the last that was sent; 0: none was
  std::vector<Token> generated = {};  // that the reply has; of a beam search none
  std::uint32_t stopped_at = 0;       // tokens until its stop string matched; 0: none did
  bool ended = false;                 // nobody waits for more of it
};

/// A reply as it was after its last recorded event.
struct ReplayedReply {
  std::unique_ptr<RenderedReply> reply;
  std::string unsent;  // what of those events' bytes the client does not have
  const char* route = "";
  std::size_t model = 0;  // which of those that are served
  std::uint64_t first_counter = 0;
  std::uint32_t choices_each = 1;  // that a request makes
  std::vector<ReplayedRequest> requests;
};

/// The reply as it was before its first event, and the requests that make it. Its grammar, if it
/// has one, was tried when it came. An error says why the request makes none now.
Result<ReplayedReply> rebuild_reply(const ReplyOpening& opening, std::string_view request,
                                    const ReplaySetup& setup);

/// `records`: of the reply, its opening the first of them. `request`: as the client sent it, head
/// and body. `written`: bytes that the connection was ever sent, as its socket tells. An error: the
/// reply cannot go on.
Result<ReplayedReply> replay(const ReplyOpening& opening, const std::vector<std::string>& records,
                             std::string_view request, std::uint64_t written,
                             const ReplaySetup& setup);

/// What of a whole reply the client does not have. An error: it has something else.
Result<std::string> unsent_of(const WholeReply& whole, std::uint64_t written);

}  // namespace baton
