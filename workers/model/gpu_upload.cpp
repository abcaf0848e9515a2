#include "workers/model/gpu_upload.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <thread>

#include "workers/cpu/finite.h"
#include "workers/cuda/layer/experts_load.h"
#include "workers/model/error.h"
#include "workers/model/finite.h"
#include "workers/model/gpu_pack.h"

namespace baton {
namespace {

using cpu::ElementType;
using cpu::MatrixSource;
using cuda::Bf16;
using cuda::QuantizedPart;

constexpr std::size_t kStagingBytes = 16 << 20;  // a thread has two of them
constexpr int kThreads = 6;
constexpr std::size_t kAlign = 256;
constexpr std::size_t kRawBytes = std::size_t{1} << 30;  // of all threads

std::size_t aligned(std::size_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

std::size_t size(std::int64_t n) { return static_cast<std::size_t>(n); }

/// On the device, for the kernel behind the copies.
std::size_t raw_bytes(const StoredPart& part) {
  return aligned(part.weights.all()) + aligned(part.zeros.all()) + aligned(part.scales.all()) +
         aligned(part.group.size() * sizeof(std::int32_t));
}

/// For messages: file and tensor.
std::string name_of(const LinearSource& source) {
  if (source.lazy) return source.lazy->name;
  if (source.blocks) return source.blocks->name;
  return source.fp8 ? source.fp8->name : source.int4 ? source.int4->scales.name : source.plain.name;
}

QuantizedPart::ScaleType scale_type(ElementType type) {
  if (type == ElementType::f32) return QuantizedPart::ScaleType::f32;
  return type == ElementType::f16 ? QuantizedPart::ScaleType::f16 : QuantizedPart::ScaleType::bf16;
}

}  // namespace

Bf16 to_bf16(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  if (std::isnan(x)) return {static_cast<std::uint16_t>((bits >> 16) | 0x40)};
  return {static_cast<std::uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16)};
}

/// What one thread works with: a stream, two page-locked buffers in turns, room for a layer's
/// stored tensors.
class GpuUpload::Lane {
 public:
  explicit Lane(std::size_t raw_bytes)
      : raw(raw_bytes > 0 ? cuda::DeviceMemory(raw_bytes) : cuda::DeviceMemory()) {}

  cuda::OwnedStream stream;
  cuda::DeviceMemory raw;

  /// The next buffer, free to be written. Its copy must be queued before the next call.
  std::byte* buffer() {
    if (used_) sent_[turn_].record(stream.get());
    used_ = true;
    turn_ ^= 1;
    sent_[turn_].synchronize();
    return staging_[turn_].data();
  }
  /// Densely.
  void copy(std::byte* to, const StoredRows& rows) {
    const bool dense = rows.bytes == rows.pitch;
    const std::size_t width = dense ? rows.all() : rows.bytes;
    const std::size_t count = dense ? 1 : rows.count;
    std::size_t used = 0;  // of the buffer
    std::byte* place = nullptr;
    const auto send = [&] {
      if (used > 0) cuda::copy_to_device(to, place, used, stream.get());
      to += used;
      used = 0;
    };
    for (std::size_t row = 0; row < count; ++row) {
      for (std::size_t at = 0; at < width;) {
        if (used == kStagingBytes) send();
        if (used == 0) place = buffer();
        const std::size_t n = std::min(kStagingBytes - used, width - at);
        std::memcpy(place + used, rows.from + row * rows.pitch + at, n);
        used += n;
        at += n;
      }
    }
    send();
  }

 private:
  cuda::PinnedMemory staging_[2] = {cuda::PinnedMemory(kStagingBytes),
                                    cuda::PinnedMemory(kStagingBytes)};
  cuda::OwnedEvent sent_[2];
  int turn_ = 0;
  bool used_ = false;
};

void GpuUpload::keep(const std::shared_ptr<const void>& owner, std::uint64_t bytes) {
  if (owner == nullptr) return;
  owners_.push_back(owner);
  held_bytes_ += bytes;
}

void GpuUpload::plain(const MatrixSource& source, const Bf16* to, bool interleaved) {
  keep(source.owner, size(source.rows * source.columns * cpu::element_bytes(source.type)));
  const auto total = size(source.rows * source.columns);
  const std::size_t group = interleaved ? size(8 * source.columns) : 0;
  const std::size_t pitch = 2 * group * sizeof(Bf16);
  std::size_t part = kStagingBytes / sizeof(Bf16);
  if (group != 0) part = std::max<std::size_t>(part / group, 1) * group;
  for (std::size_t at = 0; at < total; at += part) {
    const std::size_t n = std::min(part, total - at);
    auto* target = reinterpret_cast<std::byte*>(const_cast<Bf16*>(to));
    target += group == 0 ? at * sizeof(Bf16) : at / group * pitch;
    plain_.push_back({source.data + at * size(cpu::element_bytes(source.type)), source.type, n,
                      target, group, pitch, source.name, at});
  }
}

void GpuUpload::columns(const MatrixSource& source, const Slice& columns, const Bf16* to) {
  keep(source.owner, size(source.rows * source.columns * cpu::element_bytes(source.type)));
  const std::size_t row = size(columns.count);
  const std::size_t source_row = size(source.columns);
  const std::size_t rows_each = std::max<std::size_t>(kStagingBytes / sizeof(Bf16) / row, 1);
  for (std::size_t r = 0; r < size(source.rows); r += rows_each) {
    const std::size_t first = r * source_row + size(columns.first);
    const std::size_t n = std::min(rows_each, size(source.rows) - r);
    auto* target = reinterpret_cast<std::byte*>(const_cast<Bf16*>(to) + r * row);
    plain_.push_back({source.data + first * size(cpu::element_bytes(source.type)), source.type,
                      n * row, target, 0, 0, source.name, first, row, source_row});
  }
}

void GpuUpload::vector(const std::vector<float>& values, const Bf16* to) {
  if (values.empty()) return;
  kept_.push_back(values);
  const std::vector<float>& v = kept_.back();
  plain({reinterpret_cast<const std::byte*>(v.data()), ElementType::f32, 1,
         static_cast<std::int64_t>(v.size())},
        to, false);
}

void GpuUpload::packed(const StoredPart& source, cuda::PartRows rows,
                       const cuda::QuantizedWeight& to) {
  quantized_.push_back({source, rows, to, nullptr});
}

void GpuUpload::dequantized(const StoredPart& source, cuda::PartRows rows, const Bf16* to) {
  quantized_.push_back({source, rows, {}, const_cast<Bf16*>(to)});
}

void GpuUpload::whole(std::vector<DecodedPart> parts, const cuda::LinearWeight& to) {
  whole_.push_back({std::move(parts), to});
}

void GpuUpload::widened(const DecodedPart& part, const Bf16* to) {
  wide_.push_back({part, const_cast<Bf16*>(to)});
}

void GpuUpload::mxfp4(const Mxfp4Weight& source, std::int64_t all_columns, const Slice& rows,
                      const Slice& columns, const std::byte* to) {
  // Two codes a byte, one scale for a block.
  const auto part = [&](const std::byte* from, std::int64_t numbers) {
    const std::int64_t pitch = all_columns / numbers;
    return StoredRows{from + rows.first * pitch + columns.first / numbers,
                      size(columns.count / numbers), size(pitch), size(rows.count)};
  };
  mxfp4_.push_back({part(source.codes, 2), part(source.scales, cuda::kMxfp4Inputs),
                    static_cast<int>(rows.count), static_cast<int>(columns.count),
                    source.alternating, source.name, const_cast<std::byte*>(to)});
}

std::size_t GpuUpload::largest_raw() const {
  std::size_t largest = 0;
  for (const QuantizedJob& job : quantized_) largest = std::max(largest, raw_bytes(job.source));
  for (const Mxfp4Job& job : mxfp4_) {
    largest = std::max(largest, aligned(job.codes.all()) + aligned(job.scales.all()));
  }
  return largest;
}

void GpuUpload::run(int ordinal, std::atomic<int>& percent) {
  const std::size_t largest = std::max<std::size_t>(largest_raw(), 1);
  const auto fit = static_cast<int>(std::clamp<std::size_t>(kRawBytes / largest, 1, kThreads));
  const int n = std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 1, fit);
  const cuda::DeviceMemory bad(sizeof(int));
  const cuda::OwnedStream stream;
  cuda::fill_bytes(bad.data(), 0, sizeof(int), stream.get());
  stream.synchronize();
  std::vector<std::thread> threads;
  for (int i = 0; i < n; ++i) threads.emplace_back([&] { work(ordinal, percent, bad.as<int>()); });
  for (std::thread& thread : threads) thread.join();
  if (failure_) std::rethrow_exception(failure_);
  int found = 0;
  cuda::copy_to_host(&found, bad.data(), sizeof found, stream.get());
  stream.synchronize();
  if (found == cuda::kBadMxfp4Scale) {
    throw ModelError(mxfp4_.front().name +
                     " (or another expert's): a scale above 2 is not served on device cuda");
  }
  if (found != 0) throw ModelError("a weight of an FP8 layer is not a number");
  whole_.clear();
  wide_.clear();
  quantized_.clear();
  mxfp4_.clear();
  plain_.clear();
  kept_.clear();
  owners_.clear();
  held_bytes_ = 0;
  next_ = 0;
  done_ = 0;
}

/// Elements [first, first + n) behind the job's first become bf16 at `to`.
void GpuUpload::convert(const PlainJob& job, std::size_t first, std::size_t n, Bf16* to) {
  const auto count = static_cast<std::int64_t>(n);
  const std::byte* const from = job.from + first * size(cpu::element_bytes(job.type));
  // Here, so that the file is read once: what is looked at is copied from the cache.
  if (const std::int64_t at = cpu::first_not_finite(from, job.type, count); at < count) {
    refuse_element(job.name, static_cast<std::int64_t>(job.first + first) + at,
                   cpu::element(from, job.type, at));
  }
  if (job.type == ElementType::bf16) {
    std::memcpy(to, from, n * sizeof(Bf16));
    return;
  }
  for (std::size_t e = 0; e < n; ++e) {
    to[e] = to_bf16(cpu::element(from, job.type, static_cast<std::int64_t>(e)));
  }
}

void GpuUpload::do_plain(const PlainJob& job, Lane& lane) const {
  const std::size_t bytes = job.elements * sizeof(Bf16);
  std::byte* const place = lane.buffer();
  auto* const to = reinterpret_cast<Bf16*>(place);
  if (job.row == 0) {
    convert(job, 0, job.elements, to);
  } else {
    for (std::size_t r = 0; r < job.elements / job.row; ++r) {
      convert(job, r * job.source_row, job.row, to + r * job.row);
    }
  }
  if (job.group_elements == 0) {
    cuda::copy_to_device(job.to, place, bytes, lane.stream.get());
    return;
  }
  const std::size_t width = job.group_elements * sizeof(Bf16);
  cuda::copy_rows_to_device(job.to, job.pitch_bytes, place, width, width,
                            job.elements / job.group_elements, lane.stream.get());
}

/// The tensors as they are stored, and a kernel behind them.
void GpuUpload::do_quantized(const QuantizedJob& job, Lane& lane, int* bad) const {
  const StoredPart& s = job.source;
  std::byte* place = lane.raw.data();
  const auto bring = [&](const StoredRows& rows) {
    std::byte* const to = place;
    lane.copy(to, rows);
    place += aligned(rows.all());
    return to;
  };
  QuantizedPart part;
  part.out = static_cast<int>(s.out);
  part.in = static_cast<int>(s.in);
  part.scale_type = scale_type(s.scale_type);
  part.scales = bring(s.scales);
  part.weights = bring(s.weights);
  if (quantization_.method == QuantMethod::fp8) {
    part.layout = QuantizedPart::Layout::fp8;
    part.block_rows = static_cast<int>(s.block_rows);
    part.block_columns = static_cast<int>(s.block_columns);
    part.scale_columns = static_cast<int>(s.scale_columns);
  } else {
    const bool gptq = quantization_.method == QuantMethod::gptq;
    part.layout = gptq ? QuantizedPart::Layout::gptq : QuantizedPart::Layout::awq;
    part.zero_offset = quantization_.zero_offset;
    part.zeros = reinterpret_cast<const std::uint32_t*>(bring(s.zeros));
    const std::size_t group = s.group.size() * sizeof(std::int32_t);
    part.group = reinterpret_cast<const std::int32_t*>(
        bring({reinterpret_cast<const std::byte*>(s.group.data()), group, group, 1}));
  }
  if (job.dequantized != nullptr) {
    cuda::dequantize_part(part, job.rows, job.dequantized, lane.stream.get());
  } else {
    cuda::pack_part(part, job.rows, job.to, bad, lane.stream.get());
  }
}

/// A whole matrix: its layers are decoded, and its tiles are sent as many at a time as a buffer
/// holds.
void GpuUpload::do_whole(const WholeJob& job, Lane& lane) const {
  cpu::ThreadPool alone(1);
  const cuda::QuantizedWeight& q = job.to.quantized;
  std::vector<cpu::GroupedMatrix> made;
  made.reserve(job.parts.size());
  std::vector<WholePart> parts;
  for (const DecodedPart& p : job.parts) {
    made.push_back(grouped_matrix(p.source, quantization_, alone));
    parts.push_back({&made.back(), p.rows, p.columns, p.at});
  }
  const LinearFormat format{q.format, q.groups, q.group_shift};
  const std::size_t words = cuda::weight_words(q.format, cuda::kTileRows, job.to.in);
  const std::size_t scales = cuda::scale_words(cuda::kTileRows, q.groups);
  const std::int64_t tiles = cuda::tiles_of(job.to.out);
  const auto each =
      static_cast<std::int64_t>(kStagingBytes / sizeof(std::uint32_t) / (words + scales));
  if (each == 0) throw ModelError(made.front().name + ": has too many inputs for a buffer");
  for (std::int64_t first = 0; first < tiles; first += each) {
    const Slice some{first, std::min(each, tiles - first)};
    auto* const place = reinterpret_cast<std::uint32_t*>(lane.buffer());
    std::uint32_t* const behind = place + size(some.count) * words;
    pack_tiles(parts, format, job.to.in, some, place, behind);
    const auto send = [&](const std::uint32_t* to, const std::uint32_t* from, std::size_t of_tile) {
      cuda::copy_to_device(const_cast<std::uint32_t*>(to) + size(some.first) * of_tile, from,
                           size(some.count) * of_tile * sizeof(std::uint32_t), lane.stream.get());
    };
    send(q.words, place, words);
    send(q.scales, behind, scales);
  }
}

/// Rows of a layer as fp32, then in bf16, a buffer at a time.
void GpuUpload::do_wide(const WideJob& job, Lane& lane) const {
  constexpr std::int64_t kRows = 8;  // that lie side by side where gate and up take turns
  cpu::ThreadPool alone(1);
  const DecodedPart& part = job.part;
  const std::int64_t all = part.source.columns();
  const std::int64_t width = part.columns.count;
  WideRows rows(part.source, quantization_, alone);
  const auto most = static_cast<std::int64_t>(kStagingBytes / sizeof(Bf16)) / all;
  const std::int64_t each = std::min(most / kRows * kRows, (part.rows.count + 7) / kRows * kRows);
  if (each == 0) throw ModelError("a layer has too many inputs for a buffer");
  std::vector<float> values(size(each * all));
  Bf16* const to = job.to + std::int64_t{part.at.first} * width;
  for (std::int64_t first = 0; first < part.rows.count; first += each) {
    const std::int64_t n = std::min(each, part.rows.count - first);
    rows.read(part.rows.first + first, n, values.data());
    auto* const place = reinterpret_cast<Bf16*>(lane.buffer());
    PlainJob values_of;
    values_of.from = reinterpret_cast<const std::byte*>(values.data());
    values_of.type = ElementType::f32;
    values_of.name = name_of(part.source);
    values_of.first = size((part.rows.first + first) * all);
    for (std::int64_t r = 0; r < n; ++r) {
      convert(values_of, size(r * all + part.columns.first), size(width), place + r * width);
    }
    if (!part.at.interleaved) {
      cuda::copy_to_device(to + first * width, place, size(n * width) * sizeof(Bf16),
                           lane.stream.get());
      continue;
    }
    const std::size_t group = size(kRows * width) * sizeof(Bf16);
    cuda::copy_rows_to_device(to + 2 * first * width, 2 * group, place, group, group,
                              size(n / kRows), lane.stream.get());
  }
}

void GpuUpload::do_mxfp4(const Mxfp4Job& job, Lane& lane, int* bad) {
  std::byte* const scales = lane.raw.data() + aligned(job.codes.all());
  lane.copy(lane.raw.data(), job.codes);
  lane.copy(scales, job.scales);
  cuda::pack_mxfp4({job.out, job.in, lane.raw.data(), scales, job.alternating}, job.to, bad,
                   lane.stream.get());
}

void GpuUpload::do_job(std::size_t index, Lane& lane, int* bad) const {
  if (index < whole_.size()) return do_whole(whole_[index], lane);
  index -= whole_.size();
  if (index < wide_.size()) return do_wide(wide_[index], lane);
  index -= wide_.size();
  if (index < quantized_.size()) return do_quantized(quantized_[index], lane, bad);
  index -= quantized_.size();
  if (index < mxfp4_.size()) return do_mxfp4(mxfp4_[index], lane, bad);
  do_plain(plain_[index - mxfp4_.size()], lane);
}

/// One thread. What takes longest comes first.
void GpuUpload::work(int ordinal, std::atomic<int>& percent, int* bad) {
  const std::size_t jobs = this->jobs();
  try {
    cuda::set_device(ordinal);
    Lane lane(largest_raw());
    for (std::size_t i = next_++; i < jobs; i = next_++) {
      do_job(i, lane, bad);
      percent = static_cast<int>(++done_ * 99 / jobs);
    }
    lane.stream.synchronize();
  } catch (...) {
    const std::lock_guard lock(mutex_);
    failure_ = std::current_exception();
    next_ = jobs;
  }
}

}  // namespace baton
