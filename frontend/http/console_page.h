// frontend/http/console.html as it is, with @NONCE@ where a nonce goes.
#pragma once

#include <string_view>

namespace baton {

extern const std::string_view kConsolePage;

}  // namespace baton
