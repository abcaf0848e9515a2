// Whether a grammar that a stranger wrote can be served: tried in a child process, within limits.
// Used by baton-grammar, which does nothing else.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "ipc/status.h"
#include "ipc/types.h"
#include "text/grammar/grammar_engine.h"

namespace baton {

struct GrammarLimits {
  TimeNs cpu = kSecond;                     // processor time to compile and to begin
  std::size_t memory_bytes = 512U << 20U;   // of address space, besides what the process had before
  std::size_t compiled_bytes = 64U << 20U;  // what a worker would have to keep
};

/// Compiles the grammar in a child of this process and takes its first tokens. ok, with a message:
/// so much of a JSON Schema is not enforced. invalid_argument: it
/// is wrong, matches nothing that the vocabulary can write, or needs too much memory;
/// deadline_exceeded: it needs more than limits.cpu; cancelled: something came over the descriptor
/// `interrupt` meanwhile
/// (-1: nothing does); internal: no child could be started. The process must have one thread.
/// Returns within ten times limits.cpu, on however busy a machine.
Status check_grammar(GrammarEngine& engine, std::span<const Token> eos_ids, GrammarKind kind,
                     const std::string& text, const GrammarLimits& limits, int interrupt = -1);

/// A grammar as a frame, and back; `none` where the frame is no grammar.
std::string grammar_frame(GrammarKind kind, std::string_view text);
GrammarKind grammar_kind_of(std::string_view frame);
inline std::string_view grammar_text_of(std::string_view frame) { return frame.substr(1); }

/// A status as a frame, and back.
std::string status_frame(const Status& status);
Status status_of(std::string_view frame);

}  // namespace baton
