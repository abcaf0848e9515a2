// POST /v1/responses, OpenAI's newer API, without what it keeps between requests: `store` counts as
// false, and previous_response_id is refused. Pure.
#pragma once

#include <string_view>

#include "frontend/core/served_model.h"

namespace baton {

ParseOutcome parse_response(std::string_view body, const RequestContext& context,
                            const ServedModel& model);

}  // namespace baton
