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
//
// In eight bits, the numbers of a token, head and side are whole multiples of a scale of their
// own, which lie behind the values of the head:
//
//     head 0: keys, values, scales of keys, scales of values | head 1: ...
//
// Source: Kwon et al. 2023 (PagedAttention).
#pragma once

#include <algorithm>
#include <cmath>

#include "packed.h"

namespace trioserve {

// The format of a cache in eight bits; no matrix of weights has it.
struct Int8CacheFormat {
  using Weight = std::int8_t;
  using Operand = float;
  static constexpr int kInputs = 2;
};

template <class Format>
constexpr bool kHasScales = std::is_same_v<Format, Int8CacheFormat>;

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
  // Numbers of one head's keys, of its keys and values, of these with scales, and of a block.
  int keys_size() const { return values_in_keys ? 0 : token_width() * key_dim; }
  int numbers_size() const { return keys_size() + row_width() * round_up(block_size, 2); }
  template <class Format>
  int head_size() const {
    // Four of such numbers are as long as a scale.
    return numbers_size() + (kHasScales<Format> ? num_sides() * 4 * token_width() : 0);
  }
  template <class Format>
  std::ptrdiff_t block_numbers() const {
    return static_cast<std::ptrdiff_t>(head_size<Format>()) * num_kv_heads;
  }
  // Values within keys have the keys' scales.
  int num_sides() const { return values_in_keys ? 1 : 2; }
  // The scales of a head's keys, token_width() of them, and behind them those of its values.
  float* key_scales(std::int8_t* head) const {
    return reinterpret_cast<float*>(head + numbers_size());
  }
  const float* key_scales(const std::int8_t* head) const {
    return reinterpret_cast<const float*>(head + numbers_size());
  }
  const float* value_scales(const std::int8_t* head) const {
    return key_scales(head) + (num_sides() - 1) * token_width();
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

// Turns numbers into whole multiples of a scale. trioserve/model/attention/kv_cache.py has the
// same rule.
class Codes {
 public:
  Codes(const float* numbers, int size) : numbers_(numbers) {
    float peak = 0.0f;
    for (int i = 0; i < size; ++i) peak = std::max(peak, std::fabs(finite(i)));
    scale_ = peak / 127.0f;
    // Below this, the inverse would overflow.
    inverse_ = peak > 1e-30f ? 127.0f / peak : 0.0f;
  }
  float scale() const { return scale_; }
  std::int8_t operator()(int i) const {
    return static_cast<std::int8_t>(std::nearbyint(finite(i) * inverse_));
  }

 private:
  // Invariant: as in write_cache.
  float finite(int i) const { return std::isfinite(numbers_[i]) ? numbers_[i] : 0.0f; }

  const float* numbers_;
  float scale_, inverse_;
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
  Weight* head =
      cache + block * shape.block_numbers<Format>() + kv_head * shape.head_size<Format>();
  Weight* values = head + shape.keys_size() +
                   offset / kInputs * kInputs * shape.row_width() + offset % kInputs;
  if (shape.values_in_keys) value = key;
  const int size = shape.values_in_keys ? shape.key_dim : shape.value_dim;
  auto store = [&](const auto& keys, const auto& kept) {
    for (int d = 0; d < shape.key_dim && !shape.values_in_keys; ++d) {
      head[(d / kInputs * shape.token_width() + offset) * kInputs + d % kInputs] = keys(d);
    }
    for (int d = 0; d < size; ++d) values[d * kInputs] = kept(d);
  };
  if constexpr (kHasScales<Format>) {
    const Codes keys(key, shape.key_dim), kept(value, size);
    float* scales = shape.key_scales(head) + offset;
    scales[0] = keys.scale();
    scales[(shape.num_sides() - 1) * shape.token_width()] = kept.scale();
    store(keys, kept);
  } else {
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
    store([&](int d) { return convert(key[d]); }, [&](int d) { return convert(value[d]); });
  }
}

}  // namespace trioserve
