// Products of many rows by tiles: bfloat16 weights here, quantised weights in tile_groups.h.
#pragma once

#include "tile_groups.h"

#if defined(TRIOSERVE_TILES)

namespace trioserve {

// Formats whose products tiles compute: all but float32.
template <class Format>
constexpr bool kTakesTiles = !std::is_same_v<typename Format::Weight, float> &&
                             // Numbers beyond 127 want tiles of bytes without a sign.
                             !std::is_same_v<Format, Iq4Inputs16Format>;

// Vectors are as fast for fewer rows, because both wait for the weights. Tiles of four bits
// are unpacked, and operands of 16 bits have two products.
template <class Format>
constexpr int kFewestTileRows =
    std::is_same_v<Format, Bfloat16Format> || std::is_same_v<Format, Int8Format> ? 4 : 8;

// Rows of bfloat16 operands, with zeros up to the next multiple of kTileInputs, and memory for
// the next multiple of kTileRows.
struct TileOperands {
  const Bfloat16* first;
  std::ptrdiff_t stride;
  int num_rows;
};

// sums = the rows of a piece times one block, kBlock numbers a row.
inline void multiply_tiles(const Matrix<Bfloat16Format>& matrix, const TileOperands& x,
                           int block, const Piece& piece, float* sums) {
  // Inputs whose weights stay in the nearest cache.
  constexpr int kInputs = 512;
  const Bfloat16* weights = matrix.weights + block * matrix.block_size();
  std::fill_n(sums, round_up(piece.last_row - piece.first_row, kTileRows) * kBlock, 0.0f);
  alignas(64) Bfloat16 padded[kInputs * kBlock];
  for (int input = 0; input < matrix.num_inputs; input += kInputs) {
    const int rest = std::min(kInputs, matrix.num_inputs - input);
    const int num_steps = (rest + kTileInputs - 1) / kTileInputs;
    const Bfloat16* tiles = weights + static_cast<std::ptrdiff_t>(input) * kBlock;
    if (rest < num_steps * kTileInputs) {
      const int count = round_up(rest, 2) * kBlock;
      std::copy_n(tiles, count, padded);
      std::fill(padded + count, padded + num_steps * kTileInputs * kBlock, 0);
      tiles = padded;
    }
    for (int row = piece.first_row; row < piece.last_row; row += 2 * kTileRows) {
      add_tiles(x.first + row * x.stride + input, x.stride, piece.last_row - row, tiles,
                num_steps, sums + (row - piece.first_row) * kBlock);
    }
  }
}

// As multiply in linear.h.
template <class Rows, class Finish, class Format, class... Matrices>
void multiply_by_tiles(Pool& pool, const Rows& x, Finish&& finish,
                       const Matrix<Format>& matrix, const Matrices&... others) {
  // So many rows share the weights in the nearest cache.
  constexpr int kPieceRows = 256;
  constexpr int kCount = 1 + sizeof...(others);
  const std::ptrdiff_t block_bytes = matrix.block_size() * sizeof(typename Format::Weight);
  Pieces pieces(matrix.num_blocks(), x.num_rows, 2 * kTileRows, block_bytes * kCount,
                pool.num_threads(), kPieceRows);
  pool.run(pieces.count(), [&](int i, int) {
    const Piece piece = pieces[i];
    if constexpr (Format::kIsQuantised) shape_tiles(shape_groups(matrix.group_size));
    alignas(64) float values[kCount][kPieceRows][kBlock];
    for (int block = piece.first_block; block < piece.last_block; ++block) {
      int place = 0;
      multiply_tiles(matrix, x, block, piece, values[place][0]);
      (multiply_tiles(others, x, block, piece, values[++place][0]), ...);
      const int first = block * kBlock;
      finish(piece.first_row, piece.last_row - piece.first_row, first,
             std::min(kBlock, matrix.num_outputs - first), values[0][0], values[kCount - 1][0]);
    }
    if constexpr (Format::kIsQuantised) shape_tiles();
  });
}

}  // namespace trioserve

#endif
