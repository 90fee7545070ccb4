// Attention over a cache in eight bits: the scores, and the weighted sums of values. The softmax
// between them is computed in float32 (attention.h).
//
// Queries, and the weights of the keys between two corrections of the softmax, become whole
// numbers of 16 bits, with a scale for each row. So products are whole numbers, whose sums do not
// depend on their order, and the cache is read as it is:
//
//     score     scale of the query * scale of the key * (query codes . key codes)
//     values    scale of the weights * sum over keys of codes of (weight * scale of the value)
//               times value codes
//
// Rounding to 16 bits changes less than bfloat16 would, and far less than the cache does.
#pragma once

#include <algorithm>
#include <limits>
#include <vector>

#include "buffers.h"
#include "kv_cache.h"
#include "quantised.h"

namespace trioserve {

// sums += x times codes, for R rows and V vectors of outputs.
//
//   x: R rows, `stride` codes apart; 2 * num_steps of each are read
//   w: `width` outputs lie side by side, two inputs of each
template <int R, int V>
inline void multiply_codes(const std::int16_t* x, std::ptrdiff_t stride, const std::int8_t* w,
                           int width, int num_steps, Ints (&sums)[R][V]) {
  // Few rows have too few sums to keep the multipliers busy, so some steps get sums of their own.
  constexpr int kOthers = R * V < 4 ? 4 / (R * V) - 1 : 0;
  auto add = [&](int step, Ints(&to)[R][V]) {
    Ints codes[V];
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) {
      codes[v] = widen_bytes(w + 2 * (static_cast<std::ptrdiff_t>(step) * width + v * Vec::kLanes));
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      int pair;
      std::memcpy(&pair, x + r * stride + 2 * step, sizeof pair);
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v) to[r][v] = add_products(to[r][v], codes[v], Ints::all(pair));
    }
  };
  int step = 0;
  if constexpr (kOthers > 0) {
    Ints others[kOthers][R][V];
    for (auto& each : others) clear(each);
    for (; step + kOthers < num_steps; step += kOthers + 1) {
      add(step, sums);
#pragma GCC unroll 4
      for (int i = 0; i < kOthers; ++i) add(step + 1 + i, others[i]);
    }
    for (auto& each : others) {
      for (int r = 0; r < R; ++r) {
        for (int v = 0; v < V; ++v) sums[r][v] = sums[r][v] + each[r][v];
      }
    }
  }
  for (; step < num_steps; ++step) add(step, sums);
}

// The operands of one tile of queries (attention.h).
class Int8Operands {
 public:
  // Takes the queries of the products that follow.
  //
  //   num_keys: between two corrections of the softmax, at most
  void gather(const AttentionShape& shape, int num_keys, const float* const* queries,
              int num_rows) {
    shape_ = shape;
    num_rows_ = num_rows;
    stride_ = round_up(num_keys, Vec::kLanes) + Vec::kLanes;
    fit(queries_, static_cast<std::ptrdiff_t>(num_rows) * shape.key_dim);
    fit(query_scales_, num_rows);
    fit(weights_, num_rows * stride_);
    fit(weight_scales_, num_rows);
    fit(value_scales_, stride_);
    if (shape.values_in_keys) fit(halves_, 2L * num_rows * shape.row_width());
    for (int r = 0; r < num_rows; ++r) {
      query_scales_[r] = round(queries[r], shape.key_dim, &queries_[r * shape.key_dim]);
      if (shape.values_in_keys) spread(r);
    }
  }

  // scores = q K^T for the keys of blocks [begin, end), rows `stride` apart
  //
  //   find_head(block): where its keys and values begin
  template <class FindHead>
  void score(const FindHead& find_head, int begin, int end, float* scores, std::ptrdiff_t stride) {
    if (shape_.values_in_keys) return score_rows(find_head, begin, end, scores, stride);
    for_rows([&](int r, auto constant) {
      constexpr int R = decltype(constant)::value;
      for (int block = begin; block < end; ++block) {
        const std::int8_t* head = find_head(block);
        const float* scales = shape_.key_scales(head);
        float* to = scores + r * stride + (block - begin) * shape_.block_size;
        // The padding behind a block's scores is overwritten by the next block's.
        for (int t = 0; t < shape_.block_size; t += Vec::kLanes) {
          Ints sums[R][1];
          clear(sums);
          multiply_codes<R, 1>(&queries_[r * shape_.key_dim], shape_.key_dim, head + 2 * t,
                               shape_.token_width(), shape_.key_dim / 2, sums);
          const Vec scale = Vec::load(scales + t);
          for (int i = 0; i < R; ++i) {
            (sums[i][0].to_float() * (scale * Vec::all(query_scales_[r + i])))
                .store(to + t + i * stride);
          }
        }
      }
    });
  }

  // sums += p V for blocks [begin, end); the weights p are changed, and are 0 up to a whole vector
  // behind the keys.
  template <class FindHead>
  void add_values(const FindHead& find_head, int begin, int end, float* weights,
                  std::ptrdiff_t weights_stride, float* sums, std::ptrdiff_t sums_stride) {
    const int num_keys = (end - begin) * shape_.block_size;
    for (int block = begin; block < end; ++block) {
      std::copy_n(shape_.value_scales(find_head(block)), shape_.block_size,
                  &value_scales_[(block - begin) * shape_.block_size]);
    }
    for (int r = 0; r < num_rows_; ++r) {
      weight_scales_[r] = weigh(weights + r * weights_stride, num_keys, &weights_[r * stride_]);
    }
    for_rows([&](int r, auto constant) {
      constexpr int R = decltype(constant)::value;
      const int width = shape_.value_width();
      int d = 0;
      for (; d + kBlock <= width; d += kBlock) {
        add_columns<R, kVecs>(find_head, begin, end, r, d, sums + r * sums_stride + d, sums_stride);
      }
      for (; d < width; d += Vec::kLanes) {
        add_columns<R, 1>(find_head, begin, end, r, d, sums + r * sums_stride + d, sums_stride);
      }
    });
  }

 private:
  template <class Body>
  void for_rows(const Body& body) {
    for (int r = 0; r < num_rows_; r += kMaxRows) {
      with_rows(std::min(kMaxRows, num_rows_ - r), [&](auto constant) { body(r, constant); });
    }
  }

  // As score, where a token's numbers lie side by side, in the layout of values.
  template <class FindHead>
  void score_rows(const FindHead& find_head, int begin, int end, float* scores,
                  std::ptrdiff_t stride) {
    for_rows([&](int r, auto constant) {
      constexpr int R = decltype(constant)::value;
      for (int block = begin; block < end; ++block) {
        const std::int8_t* head = find_head(block);
        const float* scales = shape_.key_scales(head);
        float* to = scores + r * stride + (block - begin) * shape_.block_size;
        // The second of a last pair may be padding; the next block overwrites its score.
        for (int t = 0; t < shape_.block_size; t += 2) {
          Ints sums[R][2];
          clear(sums);
          multiply_pair<R>(r, head + static_cast<std::ptrdiff_t>(t) * shape_.row_width(), sums);
          for (int i = 0; i < R; ++i) {
            for (int k = 0; k < 2; ++k) {
              to[i * stride + t + k] =
                  sums[i][k].to_float().sum() * (scales[t + k] * query_scales_[r + i]);
            }
          }
        }
      }
    });
  }

  // sums += queries times two tokens, lane by lane
  template <int R>
  void multiply_pair(int r, const std::int8_t* pair, Ints (&sums)[R][2]) {
    const int width = shape_.row_width();
    for (int d = 0; d < width; d += Vec::kLanes) {
      const Ints codes = widen_bytes(pair + 2 * d);
#pragma GCC unroll 16
      for (int i = 0; i < R; ++i) {
        const std::uint32_t* query = &halves_[static_cast<std::ptrdiff_t>(2 * (r + i)) * width + d];
        sums[i][0] = add_products(sums[i][0], codes, Ints::load(query));
        sums[i][1] = add_products(sums[i][1], codes, Ints::load(query + width));
      }
    }
  }

  // Puts the codes of a query beside zeros, for the first and the second token of a pair.
  void spread(int r) {
    const int width = shape_.row_width();
    std::uint32_t* to = &halves_[static_cast<std::ptrdiff_t>(2 * r) * width];
    std::fill_n(to, 2 * width, 0);
    for (int d = 0; d < shape_.key_dim; ++d) {
      const auto code = static_cast<std::uint16_t>(queries_[r * shape_.key_dim + d]);
      to[d] = code;
      to[width + d] = static_cast<std::uint32_t>(code) << 16;
    }
  }

  // The largest code of numbers whose products with those of the cache, so many of them, can be
  // added up in 32 bits.
  static float largest_code(int size) {
    return static_cast<float>(std::min(32767, std::numeric_limits<std::int32_t>::max() / 128 / size));
  }

  // Rounds a query, and returns its scale.
  static float round(const float* numbers, int size, std::int16_t* codes) {
    InputGroup group;
    quantise_row(numbers, size, size, size, codes, &group, largest_code(size));
    return group.scale;
  }

  // Rounds weights times the scales of values, and returns their scale. They are not negative. If
  // one is not a number, neither is their total (attention.h).
  float weigh(float* weights, int num_keys, std::int16_t* codes) const {
    Vec peaks = Vec::zero();
    for (int i = 0; i < num_keys; i += Vec::kLanes) {
      const Vec product = Vec::load(weights + i) * Vec::load(&value_scales_[i]);
      product.store(weights + i);
      peaks = Vec::max(product, peaks);
    }
    const float peak = peaks.largest(), largest = largest_code(num_keys);
    const Vec factor = Vec::all(peak > 1e-30f ? largest / peak : 0.0f);
    for (int i = 0; i < num_keys; i += Vec::kLanes) {
      store_rounded(Vec::load(weights + i) * factor, codes + i);
    }
    return peak / largest;
  }

  template <int R, int V, class FindHead>
  void add_columns(const FindHead& find_head, int begin, int end, int r, int d, float* sums,
                   std::ptrdiff_t sums_stride) {
    const int size = shape_.block_size, width = shape_.row_width();
    Ints totals[R][V];
    clear(totals);
    for (int block = begin; block < end; ++block) {
      multiply_codes<R, V>(&weights_[r * stride_ + (block - begin) * size], stride_,
                           find_head(block) + shape_.keys_size() + 2 * d, width, (size + 1) / 2,
                           totals);
    }
    for (int i = 0; i < R; ++i) {
      const Vec scale = Vec::all(weight_scales_[r + i]);
      for (int v = 0; v < V; ++v) {
        float* to = sums + i * sums_stride + v * Vec::kLanes;
        Vec::fma(totals[i][v].to_float(), scale, Vec::load(to)).store(to);
      }
    }
  }

  AttentionShape shape_{};
  int num_rows_ = 0;
  std::ptrdiff_t stride_ = 0;
  std::vector<std::int16_t> queries_, weights_;
  std::vector<std::uint32_t> halves_;
  std::vector<float> query_scales_, weight_scales_, value_scales_;
};

}  // namespace trioserve
