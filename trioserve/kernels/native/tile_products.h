// Products of many rows by tiles: of bfloat16 weights, and of quantised weights that are
// unpacked to bfloat16, a part of a block at a time, which stays in the cache.
//
// The inputs of quantised weights are not quantised here. So such a product is closer to the
// numbers than the same product by vectors. To scale the sums of bytes of each group would
// take longer than tiles of bfloat16 numbers do.
#pragma once

#include "linear.h"
#include "tiles.h"

#if defined(TRIOSERVE_TILES)

namespace trioserve {

// Formats whose products tiles may compute. The others promise more than 8 bits of an input.
template <class Format>
constexpr bool kTakesTiles = std::is_same_v<Format, Bfloat16Format> ||
                             std::is_same_v<Format, Int8Format> ||
                             std::is_same_v<Format, Int4Format>;

// Vectors are as fast for fewer rows, because both wait for the weights.
constexpr int kFewestTileRows = 4;

// Bits of the float32 numbers a and b, rounded to bfloat16, side by side in each lane.
inline Ints narrow_pairs(Vec a, Vec b) {
  auto round = [](Vec x) {
    Ints bits = bits_of(x);
    return bits + (bits >> 16 & Ints::all(1)) + Ints::all(0x7fff);
  };
  return round(a) >> 16 | (round(b) & Ints::all(static_cast<int>(0xffff0000)));
}

// A block of a matrix as tiles of bfloat16 numbers, kInputs inputs at a time.
template <class Format>
class TileBlock {
 public:
  static constexpr int kInputs = 512;

  TileBlock(const Matrix<Format>& matrix, int block)
      : matrix_(matrix), weights_(matrix.weights + block * matrix.block_size()) {}

  // Returns `num_steps` tiles from the first of some inputs, a multiple of kInputs. Inputs
  // beyond the matrix are 0.
  const Bfloat16* read(int first_input, int num_steps) {
    const int end = std::min(matrix_.num_inputs, first_input + num_steps * kTileInputs);
    const int count = round_up(end - first_input, 2);
    if constexpr (!Format::kIsQuantised) {
      const Bfloat16* from = weights_ + static_cast<std::ptrdiff_t>(first_input) * kBlock;
      if (count == num_steps * kTileInputs) return from;
      std::copy_n(from, count * kBlock, tiles_);
    } else {
      // A group may begin before these inputs, and end after them.
      const int size = matrix_.group_size;
      for (int group = first_input / size; group * size < end; ++group) {
        unpack(group, first_input, end);
      }
    }
    std::fill(tiles_ + count * kBlock, tiles_ + num_steps * kTileInputs * kBlock, 0);
    return tiles_;
  }

 private:
  void unpack(int group, int first_input, int end) {
    const int size = matrix_.group_size, begin = group * size;
    const std::uint8_t* from = weights_ + group * group_bytes<Format>(size);
    const auto* scales = reinterpret_cast<const Float16*>(from);
    const std::uint8_t* codes = from + 2 * kBlock * sizeof(Float16);
    for (int i = std::max(begin, first_input); i < std::min(begin + size, end); i += 2) {
      const int step = (i - begin) / Format::kInputs, place = (i - begin) % Format::kInputs;
      const std::uint8_t* bytes = codes + step * kBlock * kStepBytes;
      Bfloat16* to = tiles_ + (i - first_input) * kBlock;
      for (int v = 0; v < kVecs; ++v) {
        const int lane = v * Vec::kLanes;
        const Vec scale = load_halves(scales + lane), minimum = load_halves(scales + kBlock + lane);
        const Ints both = Ints::load(bytes + lane * kStepBytes);
        Vec first = Vec::fma(scale, code_of(both, place), minimum);
        Vec second = Vec::fma(scale, code_of(both, place + 1), minimum);
        narrow_pairs(first, second).store(to + lane * 2);
      }
    }
  }

  // The code of one of the inputs of a step.
  static Vec code_of(Ints step, int place) {
    const Ints moved = step >> (8 * Format::byte_of(place) + 4 * Format::is_upper_half(place));
    if constexpr (Format::kInputs == 8) {
      return (moved & Ints::all(15)).to_float();
    } else {
      // The sign's bit counts as -128.
      return ((moved & Ints::all(255)) ^ Ints::all(128)).to_float() - Vec::all(128.0f);
    }
  }

  const Matrix<Format>& matrix_;
  const typename Format::Weight* weights_;
  alignas(64) Bfloat16 tiles_[kInputs * kBlock];
};

// Rows of bfloat16 operands, with zeros up to the next multiple of kTileInputs, and memory for
// the next multiple of kTileRows.
struct TileOperands {
  const Bfloat16* first;
  std::ptrdiff_t stride;
  int num_rows;
};

// sums = the rows of a piece times one block, kBlock numbers a row.
template <class Format>
void multiply_tiles(const Matrix<Format>& matrix, const TileOperands& x, int block,
                    const Piece& piece, float* sums) {
  using Block = TileBlock<Format>;
  Block weights(matrix, block);
  std::fill_n(sums, round_up(piece.last_row - piece.first_row, kTileRows) * kBlock, 0.0f);
  for (int input = 0; input < matrix.num_inputs; input += Block::kInputs) {
    const int rest = std::min(Block::kInputs, matrix.num_inputs - input);
    const int num_steps = (rest + kTileInputs - 1) / kTileInputs;
    const Bfloat16* tiles = weights.read(input, num_steps);
    for (int row = piece.first_row; row < piece.last_row; row += 2 * kTileRows) {
      add_tiles(x.first + row * x.stride + input, x.stride, piece.last_row - row, tiles,
                num_steps, sums + (row - piece.first_row) * kBlock);
    }
  }
}

// As multiply in linear.h.
template <class Format, class Finish, class... Matrices>
void multiply_by_tiles(Pool& pool, const TileOperands& x, Finish&& finish,
                       const Matrix<Format>& matrix, const Matrices&... others) {
  // So many rows share what was unpacked.
  constexpr int kPieceRows = 256;
  constexpr int kCount = 1 + sizeof...(others);
  const std::ptrdiff_t block_bytes = matrix.block_size() * sizeof(typename Format::Weight);
  Pieces pieces(matrix.num_blocks(), x.num_rows, 2 * kTileRows, block_bytes * kCount,
                pool.num_threads(), kPieceRows);
  pool.run(pieces.count(), [&](int i, int) {
    const Piece piece = pieces[i];
    alignas(64) float values[kCount][kPieceRows][kBlock];
    for (int block = piece.first_block; block < piece.last_block; ++block) {
      int place = 0;
      multiply_tiles(matrix, x, block, piece, values[place][0]);
      (multiply_tiles(others, x, block, piece, values[++place][0]), ...);
      const int first = block * kBlock;
      finish(piece.first_row, piece.last_row - piece.first_row, first,
             std::min(kBlock, matrix.num_outputs - first), values[0][0], values[kCount - 1][0]);
    }
  });
}

}  // namespace trioserve

#endif
