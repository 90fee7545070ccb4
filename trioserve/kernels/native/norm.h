// Root mean square norm.
// Source: Zhang and Sennrich 2019, equation 4.
#pragma once

#include <cmath>

#include "vec.h"

namespace trioserve {

// out = x / sqrt(mean(x^2) + epsilon) * weight
inline void normalize(const float* x, const float* weight, int size, float epsilon, float* out) {
  Vec squares = Vec::zero();
  float rest = 0.0f;
  int i = 0;
  for (; i + Vec::kLanes <= size; i += Vec::kLanes) {
    Vec part = Vec::load(x + i);
    squares = Vec::fma(part, part, squares);
  }
  for (int j = i; j < size; ++j) rest += x[j] * x[j];
  float mean = (squares.sum() + rest) / static_cast<float>(size);
  float factor = 1.0f / std::sqrt(mean + epsilon);
  Vec factors = Vec::all(factor);
  int end = i;
  for (i = 0; i < end; i += Vec::kLanes) {
    (Vec::load(x + i) * factors * Vec::load(weight + i)).store(out + i);
  }
  for (; i < size; ++i) out[i] = x[i] * factor * weight[i];
}

}  // namespace trioserve
