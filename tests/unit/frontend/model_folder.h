// Small model folders made while the tests run: a sentencepiece model trained on a few lines, with
// turn markers and byte pieces, and the JSON files beside it.
#pragma once

#include <memory>
#include <string>

#include "frontend/core/served_model.h"
#include "text/tokenizer/tokenizer.h"

namespace baton::testing {

struct ModelOptions {
  std::string type = "bpe";  // or unigram
  bool add_dummy_prefix = true;
  bool remove_extra_whitespaces = false;
  bool split_by_whitespace = true;  // false: pieces may hold several words
  std::string more_markers = {};    // ",<a>,<b>"
  bool control_markers = false;     // <|user|>, ... as control symbols instead of user-defined ones
};

/// A folder that is removed at the end.
class ModelFolder {
 public:
  explicit ModelFolder(const ModelOptions& options = {});
  ~ModelFolder();
  ModelFolder(const ModelFolder&) = delete;
  ModelFolder& operator=(const ModelFolder&) = delete;

  const std::string& path() const { return path_; }
  std::string model_path() const { return path_ + "/tokenizer.model"; }
  void write(const std::string& name, const std::string& text) const;

 private:
  std::string path_;
};

/// The tokeniser of a folder; the test fails when it cannot be loaded.
std::unique_ptr<Tokenizer> load_tokenizer(const ModelFolder& folder);

/// A served model "tiny" with a chat format, made once a process.
const ServedModel& tiny_model();

}  // namespace baton::testing
