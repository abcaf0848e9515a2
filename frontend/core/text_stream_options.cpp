#include "frontend/core/text_stream_options.h"

namespace baton {

TextStreamOptions text_stream_options(const Tokenizer& tokenizer, const ParsedRequest& request,
                                      std::span<const Token> prompt) {
  TextStreamOptions options;
  options.stop = request.stop;
  options.include_stop_in_output = request.include_stop_in_output;
  options.shown_specials = request.shown_specials;
  options.min_tokens = request.sampling.min_tokens;
  options.continues_text = !prompt.empty() && !tokenizer.is_special(prompt.back());
  options.skip_special_tokens = request.skip_special_tokens;
  return options;
}

}  // namespace baton
