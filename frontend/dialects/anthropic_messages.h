// "system" and "messages" of Anthropic's API as messages of the OpenAI API. Pure.
#pragma once

#include "frontend/openai/translation.h"

namespace baton::anthropic {

struct MessageOptions {
  bool templated = false;            // the model's template may do something with tools
  bool drop_billing_header = false;  // as in RequestContext
};

/// Takes both fields. `ordered`: the body. Blocks of tools that this server does not run, and parts
/// of results that are no text, are left out by name.
OrderedJson read_messages(FieldReader& fields, const OrderedJson& ordered,
                          const MessageOptions& options);

}  // namespace baton::anthropic
