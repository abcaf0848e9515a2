// What the build puts into this program: see render_templates_script.cpp.in.
#pragma once

#include <string_view>

namespace baton {

extern const std::string_view kRenderTemplatesScript;  // render_templates.py
extern const char* const kConfiguredPythonPath;

}  // namespace baton
