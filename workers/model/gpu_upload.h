// Brings a checkpoint's tensors to the current device: page cache -> page-locked memory -> GPU, by
// several threads, with the conversions on the way. Jobs are collected first and then run together.
// Formats that are decoded on the host (whole numbers with scales) are so by the same threads.
#pragma once

#include <atomic>
#include <cstddef>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <vector>

#include "workers/cuda/device.h"
#include "workers/cuda/linear/linear.h"
#include "workers/cuda/linear/quantized_load.h"
#include "workers/cuda/types.h"
#include "workers/model/checkpoint_reader.h"
#include "workers/model/gpu_format.h"
#include "workers/model/stored_part.h"

namespace baton {

/// To nearest, ties to even; NaN stays NaN.
cuda::Bf16 to_bf16(float x);

/// Some rows and columns of a layer that the host decodes, and which rows of a matrix they become.
struct DecodedPart {
  LinearSource source;
  Slice rows;
  Slice columns;
  cuda::PartRows at;
};

class GpuUpload {
 public:
  explicit GpuUpload(const Quantization& quantization) : quantization_(quantization) {}

  /// A plain matrix becomes bf16 at `to`, all of it densely, or interleaved: every eight rows are
  /// followed by room for eight of another matrix. What owns its memory is kept until the jobs have
  /// run, as everything here is that does not lie in the checkpoint.
  void plain(const cpu::MatrixSource& source, const cuda::Bf16* to, bool interleaved);
  /// Some columns of a plain matrix, densely.
  void columns(const cpu::MatrixSource& source, const Slice& columns, const cuda::Bf16* to);
  /// A short vector; kept until the jobs have run.
  void vector(const std::vector<float>& values, const cuda::Bf16* to);
  /// Some rows and columns of a quantised layer become rows of a quantised matrix, whose memory is
  /// zeroed and whose order of inputs is there already, ...
  void packed(const StoredPart& source, cuda::PartRows rows, const cuda::QuantizedWeight& to);
  /// ... or of a matrix in bf16.
  void dequantized(const StoredPart& source, cuda::PartRows rows, const cuda::Bf16* to);
  /// Layers that become whole numbers on the host become all of a quantised matrix, ...
  void whole(std::vector<DecodedPart> parts, const cuda::LinearWeight& to);
  /// ... or any quantised layer rows of a matrix in bf16, rounded once.
  void widened(const DecodedPart& part, const cuda::Bf16* to);

  /// Rows and columns of a matrix of one expert in MXFP4, which has so many columns in all, into
  /// memory that is zeroed. Where rows of gate and up alternate, `rows` has whole pairs; columns are
  /// in blocks of 32.
  void mxfp4(const Mxfp4Weight& source, std::int64_t all_columns, const Slice& rows,
             const Slice& columns, const std::byte* to);

  /// `percent` rises to 99. Takes up to 1 GiB of the device on the way (a thread one layer's stored
  /// tensors), and of the host a thread one layer's whole numbers. No jobs are left then. Throws
  /// ModelError or CudaError.
  void run(int ordinal, std::atomic<int>& percent);
  /// Host memory that is kept for jobs to come.
  std::uint64_t held_bytes() const { return held_bytes_; }

 private:
  /// Some rows of a plain matrix: `group_elements` at a time land `pitch_bytes` apart, or all of
  /// them densely.
  struct PlainJob {
    const std::byte* from = nullptr;
    cpu::ElementType type = cpu::ElementType::bf16;
    std::size_t elements = 0;
    std::byte* to = nullptr;
    std::size_t group_elements = 0;  // 0: dense
    std::size_t pitch_bytes = 0;
    std::string name = {};  // for messages: file and tensor
    std::size_t first = 0;  // of the tensor's elements
    /// Of columns: so many elements of each row, whose next one is so many behind; 0: all of them.
    std::size_t row = 0;
    std::size_t source_row = 0;
  };
  struct QuantizedJob {
    StoredPart source;
    cuda::PartRows rows;
    cuda::QuantizedWeight to;
    cuda::Bf16* dequantized = nullptr;  // not null: there instead
  };
  struct WholeJob {
    std::vector<DecodedPart> parts;
    cuda::LinearWeight to;
  };
  struct WideJob {
    DecodedPart part;
    cuda::Bf16* to = nullptr;
  };
  struct Mxfp4Job {
    StoredRows codes, scales;
    int out = 0, in = 0;
    bool alternating = false;
    std::string name;  // for messages
    std::byte* to = nullptr;
  };
  class Lane;

  void keep(const std::shared_ptr<const void>& owner, std::uint64_t bytes);
  std::size_t jobs() const {
    return whole_.size() + wide_.size() + quantized_.size() + mxfp4_.size() + plain_.size();
  }
  void do_job(std::size_t index, Lane& lane, int* bad) const;
  void do_whole(const WholeJob& job, Lane& lane) const;
  void do_wide(const WideJob& job, Lane& lane) const;
  void work(int ordinal, std::atomic<int>& percent, int* bad);
  void do_plain(const PlainJob& job, Lane& lane) const;
  static void convert(const PlainJob& job, std::size_t first, std::size_t n, cuda::Bf16* to);
  void do_quantized(const QuantizedJob& job, Lane& lane, int* bad) const;
  static void do_mxfp4(const Mxfp4Job& job, Lane& lane, int* bad);
  std::size_t largest_raw() const;

  Quantization quantization_;
  std::vector<PlainJob> plain_;
  std::vector<QuantizedJob> quantized_;
  std::vector<WholeJob> whole_;
  std::vector<WideJob> wide_;
  std::vector<Mxfp4Job> mxfp4_;
  std::deque<std::vector<float>> kept_;
  std::vector<std::shared_ptr<const void>> owners_;
  std::uint64_t held_bytes_ = 0;
  std::atomic<std::size_t> next_{0};
  std::atomic<std::size_t> done_{0};
  std::mutex mutex_;
  std::exception_ptr failure_;
};

}  // namespace baton
