// The first half of a feed-forward network: activation(x G^T) * (x U^T).
#pragma once

#include "activation.h"
#include "matrix.h"

namespace trioserve {

//   gate, up: of the same format and shape; without a gate, activation(x U^T)
//   gate_scale: factor of gates before the activation
//   to: (x.num_rows, row_stride(up.num_outputs))
//   gate_addition, up_addition: of adapters
inline void multiply_gated(Pool& pool, OperandBuffer& buffer, const Rows& x,
                           Activation activation, float gate_scale, const MatrixSpec& gate,
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
                 activate(activation, Vec::load(ups + i)).store(product + i);
               }
               put(row, first, count, product);
             },
              {to, stride}},
             up, up_addition);
    return;
  }
  const Vec scale = Vec::all(gate_scale);
  multiply(pool, buffer, x,
           {[&](int row, int first, int count, const float* gates, const float* ups) {
             float product[kBlock];
             for (int i = 0; i < kBlock; i += Vec::kLanes) {
               (activate(activation, Vec::load(gates + i) * scale) * Vec::load(ups + i))
                   .store(product + i);
             }
             put(row, first, count, product);
           },
            {to, stride}},
           gate, up, gate_addition, up_addition);
}

}  // namespace trioserve
