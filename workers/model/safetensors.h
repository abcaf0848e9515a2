// The tensors of a model: safetensors files, or a GGUF file; mapped and never trusted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ipc/files.h"
#include "text/gguf/gguf_file.h"

namespace baton {

/// One tensor inside a mapped file. Valid as long as its Checkpoint.
struct TensorView {
  std::string dtype;                // as written: "F32", "BF16", ...
  std::vector<std::int64_t> shape;  // row-major
  const std::byte* data = nullptr;
  std::uint64_t bytes = 0;
  std::string file;          // its path
  std::uint64_t offset = 0;  // of the data, among all of the file's
  /// Not f32: a quantised type of GGUF files, whose blocks lie along the last dimension.
  GgmlType blocks = GgmlType::f32;
  /// Not 0: so many rows are a head's, and its halves alternate: rows 0, d / 2, 1, d / 2 + 1, ...
  int pair_rows = 0;
};

/// Checks everything that a header says about a file of `file_bytes` bytes that starts with the 8
/// bytes of the header length: lengths, JSON, types, shapes, offsets (inside the file, aligned to
/// the element, no overlap, no hole). Returns the tensors with `data` pointing into `file`. Throws
/// ModelError that names the file and, where there is one, the tensor.
std::map<std::string, TensorView> parse_safetensors(const std::byte* file, std::uint64_t file_bytes,
                                                    const std::string& name);

/// All tensors of a model folder: model.safetensors, or the shards that
/// model.safetensors.index.json names, or else the one gptq_model*.safetensors. Or of a GGUF file.
class Checkpoint {
 public:
  /// Throws ModelError.
  explicit Checkpoint(const std::string& folder);
  ~Checkpoint();
  Checkpoint(const Checkpoint&) = delete;
  Checkpoint& operator=(const Checkpoint&) = delete;

  /// Null if there is none of that name.
  const TensorView* find(const std::string& name) const;
  const std::map<std::string, TensorView>& tensors() const { return tensors_; }
  const std::string& folder() const { return folder_; }
  /// The paths of the files that have its tensors, and what they were when they were opened.
  const std::vector<std::pair<std::string, FileStamp>>& files() const { return files_; }
  /// Of the files' names, sizes and times: another one when a file was written anew.
  std::uint64_t stamp() const { return stamp_; }

 private:
  struct Mapping;
  void add_file(const std::string& path, const std::vector<std::string>* expected);
  void add_shards(const std::string& index_path);
  void add_gguf(const std::string& path);

  std::string folder_;
  std::uint64_t stamp_ = 0;
  std::vector<std::pair<std::string, FileStamp>> files_;
  std::vector<std::unique_ptr<Mapping>> mappings_;
  std::shared_ptr<const GgufFile> gguf_;
  std::map<std::string, TensorView> tensors_;
};

}  // namespace baton
