// The paged cache of keys and values.
//
// A block of the cache holds block_size tokens of one layer. Each head's keys and values lie
// in it as matrices packed for products (packed.h):
//
//     block | head 0: keys, values | head 1: keys, values | ...
//
//     keys    tokens are the outputs, dimensions the inputs:  q K^T gives a score a token
//     values  dimensions are the outputs, tokens the inputs:  p V gives a number a dimension
//
// Both are padded with zeros to whole vectors of outputs, and values to whole steps of
// tokens.
//
// If values are the first numbers of keys, as latents are, a head has keys alone, in the
// layout of values: the product with queries adds up the numbers of a token (attention.h).
// Source: Kwon et al. 2023 (PagedAttention).
#pragma once

#include <cmath>

#include "packed.h"

namespace trioserve {

struct AttentionShape {
  int num_heads;
  int num_kv_heads;
  int key_dim;  // a multiple of 2
  int value_dim;
  int block_size;  // tokens
  float scaling;
  float softcap;       // 0: none
  int window;          // keys that a query sees, with its own; 0: all
  const float* sinks;  // num_heads numbers, or null
  int table = 0;       // which of a row's tables names the blocks
  bool joins_images = false;  // the tokens of an image see each other
  bool values_in_keys = false;  // values are the first numbers of keys

  bool has_sizes_of(const AttentionShape& other) const {
    return num_heads == other.num_heads && num_kv_heads == other.num_kv_heads &&
           key_dim == other.key_dim && value_dim == other.value_dim &&
           values_in_keys == other.values_in_keys;
  }
  int group_size() const { return num_heads / num_kv_heads; }
  // The numbers of outputs, with padding.
  int token_width() const { return round_up(block_size, Vec::kLanes); }
  int value_width() const { return round_up(value_dim, Vec::kLanes); }
  // The numbers of a token in the layout of values.
  int row_width() const {
    return values_in_keys ? round_up(key_dim, Vec::kLanes) : value_width();
  }
  // Numbers of one head's keys, of its keys and values, and of a whole block.
  int keys_size() const { return values_in_keys ? 0 : token_width() * key_dim; }
  int head_size() const { return keys_size() + row_width() * round_up(block_size, 2); }
  std::ptrdiff_t block_numbers() const {
    return static_cast<std::ptrdiff_t>(head_size()) * num_kv_heads;
  }
};

// Tokens of one sequence that a step computes.
struct StepRow {
  int first_token;  // among the step's tokens
  int num_tokens;
  int start;  // the position of the first
  const std::int64_t* tables[2];  // of most layers, and of windowed ones
  int num_keys = 0;  // seen by all of them; 0: each sees the keys up to its own
  // The end of the keys that each of them sees, in layers that join images; or null.
  const std::int32_t* ends = nullptr;

  // Invariant: ends rise from token to token, and lie within the row.
  int find_end(const AttentionShape& shape, int token) const {
    if (shape.joins_images && ends) return ends[token];
    return num_keys ? num_keys : start + token + 1;
  }
  int count_keys() const { return num_keys ? num_keys : start + num_tokens; }
};

// Stores one token's keys and values of one head; if values are in keys, the keys.
template <class Format>
inline void write_cache(typename Format::Weight* cache, const AttentionShape& shape,
                        const StepRow& row, int token, int kv_head, const float* key,
                        const float* value) {
  using Weight = typename Format::Weight;
  constexpr int kInputs = Format::kInputs;
  int position = row.start + token;
  int offset = position % shape.block_size;
  const std::int64_t block = row.tables[shape.table][position / shape.block_size];
  Weight* head = cache + block * shape.block_numbers() + kv_head * shape.head_size();
  auto convert = [](float number) {
    // Invariant: all numbers in the cache are finite. A masked key or value is multiplied
    // by 0, and 0 times infinity would be NaN, in the next sequence of this block.
    if (!std::isfinite(number)) number = 0.0f;
    if constexpr (sizeof(Weight) == sizeof(float)) {
      return number;
    } else {
      Weight half = narrow(number);
      // The largest numbers round up to infinity.
      return (half & 0x7fff) == 0x7f80 ? static_cast<Weight>(half - 1) : half;
    }
  };
  for (int d = 0; d < shape.key_dim && !shape.values_in_keys; ++d) {
    head[(d / kInputs * shape.token_width() + offset) * kInputs + d % kInputs] = convert(key[d]);
  }
  Weight* values = head + shape.keys_size() +
                   offset / kInputs * kInputs * shape.row_width() + offset % kInputs;
  const float* kept = shape.values_in_keys ? key : value;
  const int size = shape.values_in_keys ? shape.key_dim : shape.value_dim;
  for (int d = 0; d < size; ++d) values[d * kInputs] = convert(kept[d]);
}

}  // namespace trioserve
