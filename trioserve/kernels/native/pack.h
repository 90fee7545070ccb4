// Packs a matrix for products; packed.h draws the layout.
#pragma once

#include <algorithm>

#include "linear.h"

namespace trioserve {

// Packs blocks [begin, end).
//
//   from: (num_outputs, num_inputs), rows `stride` numbers apart
//   to: of the whole matrix, Matrix::size() numbers
template <class Format>
void pack(const Matrix<Format>& matrix, const typename Format::Weight* from,
          std::ptrdiff_t stride, typename Format::Weight* to, int begin, int end) {
  for (int block = begin; block < end; ++block) {
    auto* packed = to + block * matrix.block_size();
    std::fill_n(packed, matrix.block_size(), typename Format::Weight{0});
    int count = std::min(kBlock, matrix.num_outputs - block * kBlock);
    for (int output = 0; output < count; ++output) {
      const auto* row = from + (static_cast<std::ptrdiff_t>(block) * kBlock + output) * stride;
      for (int input = 0; input < matrix.num_inputs; ++input) {
        int step = input / Format::kInputs, place = input % Format::kInputs;
        packed[(static_cast<std::ptrdiff_t>(step) * kBlock + output) * Format::kInputs + place] =
            row[input];
      }
    }
  }
}

}  // namespace trioserve
