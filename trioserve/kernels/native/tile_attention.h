// Attention of many queries by tiles (tiles.h): the scores, and the weighted sums of values.
// The softmax between them is computed by vectors (attention.h).
//
// A product adds 32 inputs of up to 48 rows and 16 outputs at a time:
//
//     tiles 0 to 2    sums of the rows 0 to 15, 16 to 31 and 32 to 47
//     tiles 3 to 5    inputs of the same rows
//     tile 6          weights, a pair of inputs of 16 outputs in a row: keys or values
//
// The cache holds keys as such tiles (kv_cache.h): a row is a pair of dimensions of 16 tokens.
// A row of values is a pair of tokens of 16 dimensions, and a block of 16 tokens is half a
// tile, which takes as long as a whole one. So values of several blocks are copied to one
// place, 16 dimensions at a time, which stay in the nearest cache.
#pragma once

#include <algorithm>
#include <type_traits>
#include <vector>

#include "buffers.h"
#include "kv_cache.h"
#include "tiles.h"

#if defined(TRIOSERVE_TILES)

namespace trioserve {

// Numbers of a row of weights: a pair of inputs of each output.
constexpr int kTilePair = 2 * kTileRows;

// Rows of numbers, `stride` apart.
template <class Number>
struct TileRows {
  Number* first;
  std::ptrdiff_t stride;
};

// sums = x times num_steps tiles, for 1 to 48 rows, or sums += that. There must be memory for
// the next multiple of kTileRows; what it holds does not matter.
template <bool kAdds>
TRIOSERVE_TILES inline void multiply_tall(TileRows<const Bfloat16> x, int num_rows,
                                          TileRows<const Bfloat16> w, int num_steps,
                                          TileRows<float> sums) {
  const std::ptrdiff_t x_bytes = x.stride * sizeof(Bfloat16);
  const std::ptrdiff_t w_bytes = w.stride * sizeof(Bfloat16);
  const std::ptrdiff_t sum_bytes = sums.stride * sizeof(float);
  const std::ptrdiff_t x_tile = kTileRows * x.stride, sum_tile = kTileRows * sums.stride;
  const bool has_second = num_rows > kTileRows, has_third = num_rows > 2 * kTileRows;
  // GCC's loads of tiles do not tell the compiler that they read memory.
  asm volatile("" ::: "memory");
  if constexpr (kAdds) {
    _tile_loadd(0, sums.first, sum_bytes);
    if (has_second) _tile_loadd(1, sums.first + sum_tile, sum_bytes);
    if (has_third) _tile_loadd(2, sums.first + 2 * sum_tile, sum_bytes);
  } else {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
  }
  for (int step = 0; step < num_steps; ++step) {
    _tile_loadd(6, w.first, w_bytes);
    _tile_loadd(3, x.first, x_bytes);
    _tile_dpbf16ps(0, 3, 6);
    if (has_second) {
      _tile_loadd(4, x.first + x_tile, x_bytes);
      _tile_dpbf16ps(1, 4, 6);
    }
    if (has_third) {
      _tile_loadd(5, x.first + 2 * x_tile, x_bytes);
      _tile_dpbf16ps(2, 5, 6);
    }
    w.first += kTileRows * w.stride;
    x.first += kTileInputs;
  }
  _tile_stored(0, sums.first, sum_bytes);
  if (has_second) _tile_stored(1, sums.first + sum_tile, sum_bytes);
  if (has_third) _tile_stored(2, sums.first + 2 * sum_tile, sum_bytes);
}

// The operands of one tile of queries (attention.h).
class AttentionTiles {
 public:
  static constexpr int kRows = 3 * kTileRows;

  // Whether tiles clearly take less time than vectors. Tiles take the same time for one row and
  // for 16, in which vectors compute about three.
  static bool suit(const AttentionShape& shape, int num_rows) {
    constexpr int kFewestRows = 8;
    const int width = shape.value_width();
    return has_tiles && num_rows >= kFewestRows && !shape.values_in_keys &&
           shape.block_size % kTileRows == 0 && width % kTileRows == 0 &&
           // Behind the keys there must be numbers for a tile that ends there (score).
           width >= kTileInputs;
  }

  // Takes the queries of the products that follow.
  //
  //   num_keys: between two corrections of the softmax, at most
  template <class Operand>
  void gather(const AttentionShape& shape, int num_keys, const Operand* const* queries,
              int num_rows) {
    shape_ = shape;
    num_rows_ = num_rows;
    queries_stride_ = round_up(shape.key_dim, kTileInputs);
    weights_stride_ = round_up(num_keys, kTileInputs);
    fit(queries_, kRows * queries_stride_);
    fit(weights_, kRows * weights_stride_);
    fit(values_, kTileRows * weights_stride_);
    for (int r = 0; r < num_rows; ++r) {
      Bfloat16* to = queries_.data() + r * queries_stride_;
      if constexpr (std::is_same_v<Operand, Bfloat16>) {
        std::copy_n(queries[r], shape.key_dim, to);
      } else {
        convert(queries[r], shape.key_dim, to);
      }
    }
  }

  // scores = q K^T for the keys of blocks [begin, end)
  //
  //   find_head(block): where its keys and values begin
  template <class FindHead>
  void score(const FindHead& find_head, int begin, int end, TileRows<float> scores) const {
    const TileRows<const Bfloat16> queries{queries_.data(), queries_stride_};
    const int num_steps = static_cast<int>(queries_stride_) / kTileInputs;
    for (int block = begin; block < end; ++block) {
      // Queries are 0 beyond their dimensions, where a tile reads on into the values, which are
      // finite numbers.
      const Bfloat16* keys = find_head(block);
      for (int t = 0; t < shape_.block_size; t += kTileRows) {
        multiply_tall<false>(queries, num_rows_, {keys + 2 * t, 2 * shape_.token_width()},
                             num_steps, scores);
        scores.first += kTileRows;
      }
    }
  }

  // Where the softmax puts the weights of the keys.
  TileRows<Bfloat16> weights() { return {weights_.data(), weights_stride_}; }

  // sums += p V for blocks [begin, end)
  template <class FindHead>
  void add_values(const FindHead& find_head, int begin, int end, TileRows<float> sums) {
    const int num_keys = (end - begin) * shape_.block_size;
    const int num_steps = (num_keys + kTileInputs - 1) / kTileInputs;
    const int padding = num_steps * kTileInputs - num_keys;
    // The values of the padding are those of earlier keys.
    for (int r = 0; r < num_rows_; ++r) {
      std::fill_n(weights_.data() + r * weights_stride_ + num_keys, padding, 0);
    }
    for (int d = 0; d < shape_.value_width(); d += kTileRows, sums.first += kTileRows) {
      Bfloat16* to = values_.data();
      for (int block = begin; block < end; ++block) {
        const Bfloat16* from = find_head(block) + shape_.keys_size() + 2 * d;
        for (int t = 0; t < shape_.block_size; t += 2, to += kTilePair) {
          std::copy_n(from + t * shape_.value_width(), kTilePair, to);
        }
      }
      multiply_tall<true>({weights_.data(), weights_stride_}, num_rows_,
                          {values_.data(), kTilePair}, num_steps, sums);
    }
  }

 private:
  AttentionShape shape_{};
  int num_rows_ = 0;
  std::ptrdiff_t queries_stride_ = 0, weights_stride_ = 0;
  std::vector<Bfloat16> queries_, weights_, values_;
};

}  // namespace trioserve

#endif
