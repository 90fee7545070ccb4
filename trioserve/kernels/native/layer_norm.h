// Layer norm.
// Source: Ba, Kiros and Hinton 2016, equation 4.
#pragma once

#include <cmath>

#include "vec.h"

namespace trioserve {

// x = (x - mean(x)) / sqrt(variance(x) + epsilon) * weight + bias
inline void normalize_layer(float* x, const float* weight, const float* bias, int size,
                            float epsilon) {
  const int whole = size / Vec::kLanes * Vec::kLanes;
  Vec sums = Vec::zero(), squares = Vec::zero();
  float rest = 0.0f;
  for (int i = 0; i < whole; i += Vec::kLanes) sums = sums + Vec::load(x + i);
  for (int i = whole; i < size; ++i) rest += x[i];
  const float mean = (sums.sum() + rest) / static_cast<float>(size);
  rest = 0.0f;
  // The mean is taken off before squaring: large means would leave few digits otherwise.
  for (int i = 0; i < whole; i += Vec::kLanes) {
    Vec part = Vec::load(x + i) - Vec::all(mean);
    squares = Vec::fma(part, part, squares);
  }
  for (int i = whole; i < size; ++i) rest += (x[i] - mean) * (x[i] - mean);
  const float variance = (squares.sum() + rest) / static_cast<float>(size);
  const float factor = 1.0f / std::sqrt(variance + epsilon);
  for (int i = 0; i < whole; i += Vec::kLanes) {
    Vec part = (Vec::load(x + i) - Vec::all(mean)) * Vec::all(factor);
    Vec::fma(part, Vec::load(weight + i), Vec::load(bias + i)).store(x + i);
  }
  for (int i = whole; i < size; ++i) x[i] = (x[i] - mean) * factor * weight[i] + bias[i];
}

}  // namespace trioserve
