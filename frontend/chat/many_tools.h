// Forced calls with so many tools that a grammar of all their schemas would be too large.
#pragma once

#include <string>

namespace baton {

/// `grammar`: a structural tag of forced_calls(). The same, but each list of tags is one tag: a
/// regular expression of the functions' names, and any object as arguments. As it is, where its
/// tags have not one shape.
std::string names_only(const std::string& grammar);

}  // namespace baton
