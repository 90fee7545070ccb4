// Packs a matrix for products; packed.h and quantised.h draw the layouts.
#pragma once

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "linear.h"
#include "stored.h"

namespace trioserve {

// The rows of one or several sources, one after the other.
class SourceRows {
 public:
  SourceRows(const SourceSpec* sources, int num_sources, int num_inputs)
      : sources_(sources), num_sources_(num_sources), num_inputs_(num_inputs) {}

  // Reads a row as codes, in their own order; false if its numbers are not quantised.
  bool read_codes(int output, CodedRow& to) const {
    const auto [source, row] = find(output);
    if (source.kind <= kBF16) return false;
    if (source.kind >= kStoredInt8) {
      read_stored(source, row, to);
    } else {
      trioserve::read_codes(static_cast<SourceKind>(source.kind),
                            source.rows + row * source.row_bytes, num_inputs_, to);
    }
    return true;
  }

  // Reads a row as numbers, num_inputs of them.
  void read_numbers(int output, CodedRow& scratch, float* to) const {
    const auto [source, row] = find(output);
    if (read_codes(output, scratch)) return scratch.read_numbers(num_inputs_, source.columns, to);
    const std::uint8_t* bytes = source.rows + row * source.row_bytes;
    if (source.kind == kF32) {
      std::memcpy(to, bytes, sizeof(float) * static_cast<std::size_t>(num_inputs_));
      return;
    }
    for (int i = 0; i < num_inputs_; ++i) {
      std::uint16_t half;
      std::memcpy(&half, bytes + 2 * i, sizeof half);
      to[i] = source.kind == kF16 ? widen_half(half) : widen(half);
    }
  }

 private:
  // A source, and the place of a row in it.
  struct Place {
    const SourceSpec& source;
    std::int64_t row;
  };

  Place find(int output) const {
    const SourceSpec* source = sources_;
    while (source < sources_ + num_sources_ - 1 && output >= source->num_outputs) {
      output -= source++->num_outputs;
    }
    return {*source, source->order ? source->order[output] : output};
  }

  const SourceSpec* sources_;
  int num_sources_, num_inputs_;
};

// Chooses codes of int8 for numbers: the largest magnitude of a group becomes 127.
inline void choose_codes(const std::vector<float>& numbers, int group_size, CodedRow& row) {
  const int size = static_cast<int>(numbers.size());
  row.resize(round_up(size, group_size), group_size);
  std::fill(row.codes.begin(), row.codes.end(), std::int8_t{0});
  std::fill(row.minima.begin(), row.minima.end(), 0.0f);
  for (int begin = 0; begin < size; begin += group_size) {
    const int end = std::min(begin + group_size, size);
    float most = 0.0f;
    for (int i = begin; i < end; ++i) most = std::max(most, std::fabs(numbers[i]));
    // As it will be stored.
    const float scale = widen_half(narrow_half(most / 127.0f));
    row.scales[begin / group_size] = scale;
    for (int i = begin; i < end && scale > 0.0f; ++i) {
      float code = std::nearbyint(std::min(127.0f, std::max(-127.0f, numbers[i] / scale)));
      row.codes[i] = static_cast<std::int8_t>(code);
    }
  }
}

// Returns the codes of one step of one output, as they lie in memory.
template <class Format>
inline std::uint32_t join_codes(const std::int8_t* codes) {
  std::uint32_t step = 0;
#pragma GCC unroll 8
  for (int i = 0; i < Format::kInputs; ++i) {
    const std::uint32_t code = Format::encode(codes[i]);
    step |= code << (8 * Format::byte_of(i) + 4 * Format::is_upper_half(i));
  }
  return step;
}

// Writes one output's codes into its block; a row has whole steps.
template <class Format>
void write_codes(const Matrix<Format>& matrix, const CodedRow& row, int output,
                 std::uint8_t* block) {
  const int group_size = matrix.group_size;
  for (int group = 0; group < matrix.num_groups(); ++group) {
    auto* scales = reinterpret_cast<Float16*>(block);
    // A row's own groups may be larger.
    const int own = group * group_size / row.group_size;
    const Float16 scale = narrow_half(row.scales[own]);
    scales[output] = scale;
    scales[kBlock + output] = narrow_half(row.minima[own] - Format::kOffset * widen_half(scale));
    std::uint8_t* codes = block + 2 * kBlock * sizeof(Float16) + output * 4;
    const int end = std::min((group + 1) * group_size, static_cast<int>(row.codes.size()));
    for (int input = group * group_size; input < end; input += Format::kInputs) {
      const std::uint32_t step = join_codes<Format>(&row.codes[input]);
      std::memcpy(codes, &step, sizeof step);
      codes += kBlock * kStepBytes;
    }
    block += group_bytes<Format>(group_size);
  }
}

// Packs one block.
//
//   to: of the whole matrix, Matrix::size() weights
template <class Format>
void pack_block(const Matrix<Format>& matrix, const SourceRows& rows, int block,
                typename Format::Weight* to) {
  using Weight = typename Format::Weight;
  to += block * matrix.block_size();
  std::fill_n(to, matrix.block_size(), Weight{0});
  std::vector<float> numbers(matrix.num_inputs);
  CodedRow coded;
  const int count = std::min(kBlock, matrix.num_outputs - block * kBlock);
  for (int output = 0; output < count; ++output) {
    const int row = block * kBlock + output;
    if constexpr (Format::kIsQuantised) {
      if (!rows.read_codes(row, coded)) {
        rows.read_numbers(row, coded, numbers.data());
        choose_codes(numbers, matrix.group_size, coded);
      }
      write_codes(matrix, coded, output, to);
    } else {
      rows.read_numbers(row, coded, numbers.data());
      for (int input = 0; input < matrix.num_inputs; ++input) {
        int step = input / Format::kInputs, place = input % Format::kInputs;
        Weight& weight =
            to[(static_cast<std::ptrdiff_t>(step) * kBlock + output) * Format::kInputs + place];
        if constexpr (sizeof(Weight) == sizeof(float)) {
          weight = numbers[input];
        } else {
          weight = narrow(numbers[input]);
        }
      }
    }
  }
}

// Writes rows as numbers, `num_inputs` of them for each.
template <class Number>
void restore_rows(const SourceRows& rows, int begin, int end, int num_inputs, Number* to) {
  CodedRow coded;
  std::vector<float> numbers(num_inputs);
  for (int row = begin; row < end; ++row, to += num_inputs) {
    rows.read_numbers(row, coded, numbers.data());
    convert(numbers.data(), num_inputs, to);
  }
}

// Reads the weights of one block.
//
//   columns: the input that each number belongs to; null if they are in order
//   to: (outputs of the block, num_inputs)
template <class Format>
void unpack_block(const Matrix<Format>& matrix, const std::int32_t* columns, int block,
                  float* to) {
  const auto* weights = matrix.weights + block * matrix.block_size();
  const int count = std::min(kBlock, matrix.num_outputs - block * kBlock);
  for (int output = 0; output < count; ++output, to += matrix.num_inputs) {
    for (int input = 0; input < matrix.num_inputs; ++input) {
      float& number = to[columns ? columns[input] : input];
      if constexpr (Format::kIsQuantised) {
        const int group = input / matrix.group_size, i = input % matrix.group_size;
        const std::uint8_t* begin = weights + group * group_bytes<Format>(matrix.group_size);
        const auto* scales = reinterpret_cast<const Float16*>(begin);
        const int step = i / Format::kInputs, place = i % Format::kInputs;
        const std::uint8_t byte = begin[2 * kBlock * sizeof(Float16) + output * 4 +
                                        step * kBlock * kStepBytes + Format::byte_of(place)];
        int code = static_cast<std::int8_t>(byte);
        if (Format::kInputs == 8) code = Format::is_upper_half(place) ? byte >> 4 : byte & 15;
        number = widen_half(scales[output]) * static_cast<float>(Format::decode(code)) +
              widen_half(scales[kBlock + output]);
      } else {
        const int step = input / Format::kInputs, place = input % Format::kInputs;
        const auto weight =
            weights[(static_cast<std::ptrdiff_t>(step) * kBlock + output) * Format::kInputs +
                    place];
        if constexpr (sizeof(weight) == sizeof(float)) {
          number = weight;
        } else {
          number = widen(weight);
        }
      }
    }
  }
}

}  // namespace trioserve
