// What the reply of a chat is held to, once its prompt is rendered: calls that are forced or
// strict, and what a reasoning changes about any grammar.
#pragma once

#include <string>

#include "frontend/chat/conversation.h"
#include "frontend/chat/reply_parser.h"
#include "frontend/core/generation.h"
#include "frontend/core/served_model.h"
#include "ipc/status.h"

namespace baton {

struct HeldReply {
  const ForcedChoice& forced;
  const SchemaDefaults& schemas;
  bool ignore_eos = false;
};

/// Sets the grammar of `request`, and feeds the parser with what the reply begins with in any case,
/// which is returned: it belongs behind the prompt. invalid_argument: what is asked for does not
/// fit the model's family.
Result<std::string> hold_reply(const HeldReply& held, const ServedModel& model, ReplyParser& parser,
                               ParsedRequest& request);

}  // namespace baton
