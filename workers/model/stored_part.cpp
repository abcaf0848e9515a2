#include "workers/model/stored_part.h"

#include <algorithm>
#include <string>

#include "workers/model/error.h"

namespace baton {

namespace {

constexpr std::int64_t kNumbersOfWord = 8;  // of a word
constexpr std::int64_t kWordBytes = 4;

std::size_t size(std::int64_t n) { return static_cast<std::size_t>(n); }

[[noreturn]] void cannot_part(const std::string& what) {
  throw ModelError("worker.ranks: " + what + " cannot be parted between ranks");
}

/// Rows and columns of a row-major matrix with `width` elements a row.
StoredRows of_matrix(const std::byte* data, std::int64_t width, std::int64_t element_bytes,
                     const Slice& rows, const Slice& columns) {
  const std::int64_t pitch = width * element_bytes;
  return {data + rows.first * pitch + columns.first * element_bytes,
          size(columns.count * element_bytes), size(pitch), size(rows.count)};
}

/// In units of so many.
Slice in_units(const Slice& slice, std::int64_t unit, const char* what) {
  if (slice.first % unit != 0 || slice.count % unit != 0) cannot_part(what);
  return {slice.first / unit, slice.count / unit};
}

/// The groups of some inputs, if no other input is in one of them; else all groups.
Slice groups_of(const std::vector<std::int32_t>& all, const Slice& columns, std::int64_t groups) {
  const auto first = all.begin() + columns.first;
  const auto last = all.begin() + columns.end();
  const auto [least, most] = std::minmax_element(first, last);
  const auto within = [least = *least, most = *most](std::int32_t group) {
    return group >= least && group <= most;
  };
  if (std::any_of(all.begin(), first, within) || std::any_of(last, all.end(), within)) {
    return {0, groups};
  }
  return {*least, *most - *least + 1};
}

StoredPart part_of(const Int4Weight& w, bool gptq, const Slice& rows, const Slice& columns) {
  StoredPart part;
  const Slice out_words = in_units(rows, kNumbersOfWord, "eight outputs of a 4-bit layer");
  if (gptq) {
    const Slice in_words = in_units(columns, kNumbersOfWord, "eight inputs of a 4-bit layer");
    part.weights = of_matrix(w.weights, w.out, kWordBytes, in_words, rows);
  } else {
    part.weights = of_matrix(w.weights, w.out / kNumbersOfWord, kWordBytes, columns, out_words);
  }
  part.group.assign(w.group.begin() + columns.first, w.group.begin() + columns.end());
  const Slice groups = groups_of(w.group, columns, w.scales.rows);
  for (std::int32_t& group : part.group) group -= static_cast<std::int32_t>(groups.first);
  part.zeros = of_matrix(w.zeros, w.out / kNumbersOfWord, kWordBytes, groups, out_words);
  part.scales = of_matrix(w.scales.data, w.out, cpu::element_bytes(w.scales.type), groups, rows);
  return part;
}

/// The blocks that `slice` lies in; the size of one comes out as it is for the part.
Slice blocks_of(const Slice& slice, std::int64_t& block, const char* what) {
  const Slice blocks{slice.first / block, (slice.end() - 1) / block - slice.first / block + 1};
  if (blocks.count == 1) {
    block = slice.count;
  } else if (slice.first % block != 0) {
    cannot_part(what);
  }
  return blocks;
}

StoredPart part_of(const Fp8Weight& w, const Slice& rows, const Slice& columns) {
  StoredPart part;
  part.weights = of_matrix(w.weights, w.in, 1, rows, columns);
  part.block_rows = w.block_rows;
  part.block_columns = w.block_columns;
  const Slice scale_rows = blocks_of(rows, part.block_rows, "outputs with one scale");
  const Slice scale_columns = blocks_of(columns, part.block_columns, "inputs with one scale");
  part.scales = of_matrix(w.scales.data, w.scales.columns, cpu::element_bytes(w.scales.type),
                          scale_rows, scale_columns);
  part.scale_columns = scale_columns.count;
  return part;
}

}  // namespace

StoredPart stored_part(const LinearSource& layer, QuantMethod method, const Slice& rows,
                       const Slice& columns) {
  StoredPart part = layer.int4 ? part_of(*layer.int4, method == QuantMethod::gptq, rows, columns)
                               : part_of(*layer.fp8, rows, columns);
  part.scale_type = (layer.int4 ? layer.int4->scales : layer.fp8->scales).type;
  part.out = rows.count;
  part.in = columns.count;
  return part;
}

}  // namespace baton
