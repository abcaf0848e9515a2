// Copies of JSON that keep the order of an object's keys, which the reader's own values do not: a
// template writes a tool's definition down in the order in which the client sent it.
#pragma once

#include <map>
#include <set>
#include <string>
#include <string_view>

#include "frontend/chat/special_guard.h"

namespace baton {

/// The named members of the object `json`, each as compact JSON with every string and key guarded.
/// `json` was parsed before: what is not valid ends the copy early.
std::map<std::string, std::string> copy_members(std::string_view json,
                                                const std::set<std::string>& names,
                                                const SpecialGuard& guard);

/// All of `json`, in the same way.
std::string copy_json(std::string_view json, const SpecialGuard& guard);

}  // namespace baton
