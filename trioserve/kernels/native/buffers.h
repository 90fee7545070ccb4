// Memory that a step needs, and the next step finds again.
#pragma once

#include <cstddef>
#include <vector>

#include "vec.h"

namespace trioserve {

// Grows a buffer to `size` numbers at least; it never shrinks.
template <class Number>
void fit(std::vector<Number>& buffer, std::ptrdiff_t size) {
  if (static_cast<std::ptrdiff_t>(buffer.size()) < size) buffer.resize(size);
}

// Distance between rows of `size` numbers that products read.
inline std::ptrdiff_t row_stride(int size) { return round_up(size, 2); }

}  // namespace trioserve
