// Attention whose heads share one latent a token.
//
//     hidden -> queries, or their inputs -> norm -> queries
//            -> latent -> norm; shared key
//     query of a head     [own numbers | shared numbers] -> [W_key^T own | rotary(shared)]
//     key of all heads    [latent | rotary(shared key)], whose first numbers are the values
//     output of a head    W_value (weighted sum of latents)
//
// So no key or value of a head is ever computed.
// Source: DeepSeek-AI 2024 (DeepSeek-V2), section 2.1.2.
#pragma once

#include <vector>

#include "matrix.h"
#include "norm.h"

namespace trioserve {

// The layer reads one row of numbers for each token:
//
//     queries of all heads, or num_query_inputs numbers that `queries` reads | latent | shared key
struct LatentSpec {
  MatrixSpec queries;        // of normalized inputs; null if the layer's inputs have queries
  const MatrixSpec* absorb;  // (num_heads): own_dim inputs, rank outputs
  const MatrixSpec* expand;  // (num_heads): rank inputs
  const float* query_norm;   // (num_query_inputs,)
  const float* latent_norm;  // (rank,)
  std::int32_t num_query_inputs;
  std::int32_t own_dim, shared_dim;  // numbers of a head of queries
  float epsilon;
};

class LatentProducts {
 public:
  // Turns the inputs of a layer, (num_tokens, size), into queries of latents, without their
  // shared numbers.
  //
  //   shrink: gives what adapters add to the product of queries, from its rows
  template <class Shrink>
  void absorb(Pool& pool, OperandBuffer& buffer, const LatentSpec& spec, int num_heads,
              float* inputs, std::ptrdiff_t size, int num_tokens, Shrink&& shrink) {
    num_heads_ = num_heads;
    rank_ = spec.absorb->num_outputs;
    width_ = rank_ + spec.shared_dim;
    const int head = spec.own_dim + spec.shared_dim;
    own_ = inputs;
    stride_ = size;
    if (spec.queries.weights) {
      run_tokens(pool, num_tokens, [&](std::ptrdiff_t token) {
        float* row = inputs + token * size;
        normalize(row, spec.query_norm, spec.num_query_inputs, spec.epsilon, row);
      });
      stride_ = num_heads * head;
      fit(heads_, num_tokens * stride_ + 2);
      own_ = heads_.data();
      const Rows x{inputs, size, num_tokens};
      const Addition addition = shrink(x);
      multiply(pool, buffer, x,
               [&](int row, int first, int count, const float* values) {
                 std::copy_n(values, count, &heads_[row * stride_ + first]);
               },
               spec.queries, addition);
    }
    fit(queries_, static_cast<std::ptrdiff_t>(num_tokens) * num_heads * width_);
    fit(mixed_, static_cast<std::ptrdiff_t>(num_tokens) * num_heads * rank_ + 2);
    for (int h = 0; h < num_heads; ++h) {
      multiply(pool, buffer, {own_ + h * head, stride_, num_tokens},
               [&](int row, int first, int count, const float* values) {
                 std::copy_n(values, count, query(row, h) + first);
               },
               spec.absorb[h]);
    }
  }

  // (rank + shared_dim,)
  float* query(std::ptrdiff_t token, int head) {
    return &queries_[(token * num_heads_ + head) * width_];
  }
  // Copies the shared numbers of a query behind the absorbed ones.
  void add_shared(const LatentSpec& spec, std::ptrdiff_t token, int head) {
    const int size = spec.own_dim + spec.shared_dim;
    std::copy_n(own_ + token * stride_ + head * size + spec.own_dim, spec.shared_dim,
                query(token, head) + rank_);
  }
  // (num_tokens, num_heads, rank), for the outputs of attention
  float* mixed() { return mixed_.data(); }

  // Turns sums of latents into the outputs of heads, which follow each other.
  void expand(Pool& pool, OperandBuffer& buffer, const LatentSpec& spec, int num_tokens, float* to,
              std::ptrdiff_t to_stride) {
    for (int h = 0; h < num_heads_; ++h) {
      const int dim = spec.expand[h].num_outputs;
      multiply(pool, buffer, {&mixed_[h * rank_], num_heads_ * rank_, num_tokens},
               [&](int row, int first, int count, const float* values) {
                 std::copy_n(values, count, to + row * to_stride + h * dim + first);
               },
               spec.expand[h]);
    }
  }

 private:
  int num_heads_ = 0, rank_ = 0, width_ = 0;
  const float* own_ = nullptr;
  std::ptrdiff_t stride_ = 0;
  std::vector<float> heads_, queries_, mixed_;
};

}  // namespace trioserve
