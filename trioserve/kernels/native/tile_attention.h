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
// place, 16 dimensions at a time, which stay in the nearest cache. Keys that are latents lie in
// the layout of values, and are turned.
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
  // for 16, in which vectors compute about three. Latents are turned first, which takes as long
  // as the tiles themselves.
  static bool suit(const AttentionShape& shape, int num_rows) {
    const int fewest = shape.values_in_keys ? 24 : 8;
    // Behind keys there must be numbers for a tile that ends there (find_keys).
    const bool has_room = shape.values_in_keys || shape.value_width() >= kTileInputs;
    return has_tiles && has_room && num_rows >= fewest && shape.block_size % kTileRows == 0 &&
           shape.value_width() % kTileRows == 0;
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
    if (shape.values_in_keys) fit(keys_, kTileRows * queries_stride_);
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
  void score(const FindHead& find_head, int begin, int end, TileRows<float> scores) {
    const TileRows<const Bfloat16> queries{queries_.data(), queries_stride_};
    const int num_steps = static_cast<int>(queries_stride_) / kTileInputs;
    for (int block = begin; block < end; ++block) {
      const Bfloat16* head = find_head(block);
      for (int t = 0; t < shape_.block_size; t += kTileRows, scores.first += kTileRows) {
        multiply_tall<false>(queries, num_rows_, find_keys(head, t), num_steps, scores);
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
          std::copy_n(from + t * shape_.row_width(), kTilePair, to);
        }
      }
      multiply_tall<true>({weights_.data(), weights_stride_}, num_rows_,
                          {values_.data(), kTilePair}, num_steps, sums);
    }
  }

 private:
  // Tiles of the keys of kTileRows tokens. Behind the last dimension queries are 0, and tiles
  // have finite numbers: those of the values, or of earlier keys.
  TileRows<const Bfloat16> find_keys(const Bfloat16* head, int first_token) {
    if (!shape_.values_in_keys) return {head + 2 * first_token, 2 * shape_.token_width()};
    turn(head + first_token * shape_.row_width());
    return {keys_.data(), kTilePair};
  }

  // Pairs of tokens become pairs of dimensions.
  void turn(const Bfloat16* latents) {
    const std::ptrdiff_t width = shape_.row_width();
    Bfloat16* to = keys_.data();
    for (int d = 0; d < shape_.key_dim; d += 2) {
      for (int t = 0; t < kTileRows; t += 2, to += 4) {
        std::uint64_t numbers;  // two dimensions of two tokens
        std::memcpy(&numbers, latents + t * width + 2 * d, sizeof numbers);
        // The two in the middle change places.
        numbers = (numbers & 0xffff00000000ffff) | (numbers & 0xffff0000) << 16 |
                  (numbers >> 16 & 0xffff0000);
        std::memcpy(to, &numbers, sizeof numbers);
      }
    }
  }

  AttentionShape shape_{};
  int num_rows_ = 0;
  std::ptrdiff_t queries_stride_ = 0, weights_stride_ = 0;
  std::vector<Bfloat16> queries_, keys_, weights_, values_;
};

}  // namespace trioserve

#endif
