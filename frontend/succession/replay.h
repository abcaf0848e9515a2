// From a journal back to a reply: its request is read again as when it came, its events are
// rendered from the first byte on, and what the client has already is left out. Pure.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "frontend/core/rendered_reply.h"
#include "frontend/core/served_model.h"
#include "frontend/http/request_facts.h"
#include "frontend/succession/journal.h"
#include "frontend/succession/reply_records.h"

namespace baton {

/// What reading a request again needs; as it was when the request came.
struct ReplaySetup {
  const ServedModel& model;
  std::vector<const Dialect*> dialects;  // of the port
  const Cors& cors;
  IntakeSettings settings;
  FramingLimits framing;
};

/// The reply as it was before its first event. Its grammar, if it has one, was tried when it came.
/// An error says why the request makes none now.
Result<std::unique_ptr<RenderedReply>> rebuild_reply(const ReplyOpening& opening,
                                                     const ReplaySetup& setup);

struct ReplayedReply {
  std::unique_ptr<RenderedReply> reply;  // as it was after its last recorded event
  std::string unsent;                    // what of those events' bytes the client does not have
};

/// `written`: bytes that the connection was ever sent, as its socket tells. An error: the reply
/// cannot go on.
Result<ReplayedReply> replay(const JournaledReply& journaled, std::uint64_t written,
                             const ReplaySetup& setup);

}  // namespace baton
