// The identity of a checkpoint's weights: a digest of every byte of its tensors, kept by the files'
// stamps so that a worker that starts again reads nothing for it.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

#include "workers/model/safetensors.h"

namespace baton {

/// Where digests are kept between starts.
struct DigestCache {
  std::string folder = {};  // a private one; empty: nowhere
  int threads = 0;          // that read; 0: as many as there are processors, at most 8
};

/// A file was written while it was read: what was loaded is neither the old nor the new model.
/// A later start finds it whole.
class ModelChanged : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct ContentDigest {
  std::uint64_t high = 0;
  std::uint64_t low = 0;
  bool cached = false;      // from the cache: nothing was read
  std::uint64_t bytes = 0;  // that were read
  double seconds = 0;       // ... in this time
  bool operator==(const ContentDigest& o) const { return high == o.high && low == o.low; }
};

/// XXH3 (128 bits) over the tensors' names and all of their bytes, in the order of the names. Equal
/// for copies in other folders and for other divisions into shards. Processes that ask for one
/// checkpoint at the same time read it once, if they share a cache. A kept digest counts as long as
/// each file's device, inode, size and both times are as they were; one that cannot be read is
/// computed again. Throws ModelChanged.
ContentDigest content_digest(const Checkpoint& checkpoint, const DigestCache& cache);

/// For a log: "weights known by the digest of ..."
std::string to_text(const ContentDigest& digest);

/// Throws ModelChanged if a file is not the one that was opened any more, or was written since.
void expect_unchanged(const Checkpoint& checkpoint);

}  // namespace baton
