// The first half of a feed-forward network: activation(x G^T) * (x U^T).
#pragma once

#include "activation.h"
#include "matrix.h"

namespace trioserve {

// How gates weigh.
struct Gating {
  Activation activation;
  float scale = 1.0f;  // factor of gates before the activation
  ClampSpec clamp = {};
  const float* gate_bias = nullptr;
  const float* up_bias = nullptr;
};

// Numbers of a tile from place i on, with their biases, of which `count` follow the first.
inline Vec add_bias(const float* values, const float* bias, int first, int i, int count) {
  const Vec numbers = Vec::load(values + i);
  return bias && i < count ? numbers + load_part(bias + first + i, count - i) : numbers;
}

//   gate, up: of the same format and shape; without a gate, activation(x U^T)
//   to: (x.num_rows, row_stride(up.num_outputs))
//   gate_addition, up_addition: of adapters
inline void multiply_gated(Pool& pool, OperandBuffer& buffer, const Rows& x,
                           const Gating& gating, const MatrixSpec& gate,
                           const MatrixSpec& up, float* to,
                           const Addition& gate_addition = {},
                           const Addition& up_addition = {}) {
  const int size = up.num_outputs;
  const std::ptrdiff_t stride = row_stride(size);
  auto put = [&](int row, int first, int count, const float* product) {
    float* place = to + row * stride + first;
    std::copy_n(product, count, place);
    // The number between the last output and the next row.
    if (first + count == size && stride > size) place[count] = 0.0f;
  };
  if (!gate.weights) {
    multiply(pool, buffer, x,
             {[&](int row, int first, int count, const float* ups) {
               float product[kBlock];
               for (int i = 0; i < kBlock; i += Vec::kLanes) {
                 activate(gating.activation, add_bias(ups, gating.up_bias, first, i, count))
                     .store(product + i);
               }
               put(row, first, count, product);
             },
              {to, stride}},
             up, up_addition);
    return;
  }
  const Vec scale = Vec::all(gating.scale);
  const bool is_clamped = gating.clamp.limit > 0.0f;
  multiply(pool, buffer, x,
           {[&](int row, int first, int count, const float* gates, const float* ups) {
             float product[kBlock];
             for (int i = 0; i < kBlock; i += Vec::kLanes) {
               const Vec gate = add_bias(gates, gating.gate_bias, first, i, count) * scale;
               const Vec up = add_bias(ups, gating.up_bias, first, i, count);
               (is_clamped ? weigh_clamped(gating.clamp, gate, up)
                           : activate(gating.activation, gate) * up)
                   .store(product + i);
             }
             put(row, first, count, product);
           },
            {to, stride}},
           gate, up, gate_addition, up_addition);
}

}  // namespace trioserve
