// The product of rows with a packed matrix, y = x W^T.
#pragma once

#include <algorithm>

#include "inputs16.h"
#include "pool.h"

namespace trioserve {

// A packed matrix; packed.h and quantised.h draw the layouts.
template <class Format>
struct Matrix {
  const typename Format::Weight* weights;
  int num_outputs;
  int num_inputs;
  int group_size = 0;  // of quantised weights

  int num_blocks() const { return (num_outputs + kBlock - 1) / kBlock; }
  int num_steps() const { return (num_inputs + Format::kInputs - 1) / Format::kInputs; }
  int num_groups() const { return (num_inputs + group_size - 1) / group_size; }
  // In weights, which are bytes if the format is quantised.
  std::ptrdiff_t block_size() const {
    if constexpr (Format::kIsQuantised) {
      return num_groups() * group_bytes<Format>(group_size);
    } else {
      return static_cast<std::ptrdiff_t>(num_steps()) * Format::kInputs * kBlock;
    }
  }
  std::ptrdiff_t size() const { return block_size() * num_blocks(); }
};

// Rows of operands. The numbers between num_inputs and the next multiple of
// Format::kInputs are read and multiplied by 0, so they must be finite.
template <class Format>
struct Operands {
  const typename Format::Operand* first;
  std::ptrdiff_t stride;
  int num_rows;
  const InputGroup* groups = nullptr;  // (num_rows, num_groups) if operands are int8
};

// Blocks [first_block, last_block) times rows [first_row, last_row) of a product.
struct Piece {
  int first_block, last_block, first_row, last_row;
  // Begins the piece that this thread will probably take next.
  int next_block;
};

// How a product is cut into pieces for the threads: groups of blocks times groups of rows.
struct Pieces {
  int num_blocks, num_rows, num_threads;
  int blocks, rows;              // of one piece
  int block_groups, row_groups;  // of all

  // tile_rows: rows that are multiplied at once; most_rows: of one piece
  Pieces(int num_blocks, int num_rows, int tile_rows, std::ptrdiff_t block_bytes,
         int num_threads, int most_rows = 8 * kMaxRows)
      : num_blocks(num_blocks), num_rows(num_rows), num_threads(num_threads) {
    // A piece's rows are read again for every block, so they should stay in L2. One piece
    // takes about a microsecond at least, and each thread gets several.
    row_groups = (num_rows + most_rows - 1) / most_rows;
    rows = round_up((num_rows + row_groups - 1) / row_groups, tile_rows);
    row_groups = (num_rows + rows - 1) / rows;
    int most = static_cast<int>(std::max<std::ptrdiff_t>(1, kPieceBytes / block_bytes));
    int fair = std::max(1, num_blocks * row_groups / (4 * num_threads));
    blocks = std::min(most, fair);
    block_groups = (num_blocks + blocks - 1) / blocks;
  }
  int count() const { return block_groups * row_groups; }

  Piece operator[](int i) const {
    Piece piece;
    piece.first_block = i / row_groups * blocks;
    piece.last_block = std::min(piece.first_block + blocks, num_blocks);
    piece.first_row = i % row_groups * rows;
    piece.last_row = std::min(piece.first_row + rows, num_rows);
    piece.next_block = std::min((i + num_threads) / row_groups * blocks, num_blocks - 1);
    return piece;
  }

  static constexpr std::ptrdiff_t kPieceBytes = 128 * 1024;
};

// Computes rows [row, row + num_rows) of one block into `out`, kBlock numbers a row.
template <class Format>
inline void multiply_rows(const Matrix<Format>& matrix, const Operands<Format>& x, int block,
                          int row, int num_rows, Ahead ahead, float* out) {
  const auto* weights = matrix.weights + block * matrix.block_size();
  with_rows<kMaxRows>(num_rows, [&](auto constant) {
    constexpr int R = decltype(constant)::value;
    Vec sums[R][kVecs];
    clear(sums);
    const auto* first = x.first + row * x.stride;
    if constexpr (Format::kIsQuantised) {
      const int num_groups = matrix.num_groups();
      multiply_groups<Format, R, kVecs>(first, x.stride, x.groups + row * num_groups, num_groups,
                                        matrix.group_size, weights, sums, ahead);
    } else {
      multiply_block<Format, R, kVecs>(first, x.stride, weights, kBlock, matrix.num_steps(),
                                       sums, ahead);
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < kVecs; ++v) {
        sums[r][v].store(out + r * kBlock + v * Vec::kLanes);
      }
    }
  });
}

// Computes one piece. The matrices begin with the piece's first block.
template <class Format, class Finish, class... Matrices>
void multiply_piece(const Piece& piece, const Operands<Format>& x, Finish&& finish,
                    const Matrix<Format>& matrix, const Matrices&... others) {
  constexpr int kTile = kMaxRows;
  const int num_tiles = (piece.last_row - piece.first_row + kTile - 1) / kTile;
  const int num_blocks = piece.last_block - piece.first_block;
  const std::ptrdiff_t block_bytes = matrix.block_size() * sizeof(typename Format::Weight);
  for (int block = 0; block < num_blocks; ++block) {
    const int next = block + 1 < num_blocks ? block + 1 : piece.next_block - piece.first_block;
    for (int tile = 0; tile < num_tiles; ++tile) {
      // Each tile fetches a part of the next block. A single tile leaves all to the
      // processor, which is faster at it.
      auto look_ahead = [&](const Matrix<Format>& each) {
        const char* begin = reinterpret_cast<const char*>(each.weights);
        if (num_tiles == 1) return Ahead{begin + block * block_bytes, 0};
        return Ahead{begin + next * block_bytes + block_bytes * tile / num_tiles,
                     kBlock * kStepBytes / num_tiles};
      };
      const int row = piece.first_row + tile * kTile;
      const int num_rows = std::min(kTile, piece.last_row - row);
      finish.begin(row, num_rows, (piece.first_block + block) * kBlock);
      alignas(64) float values[1 + sizeof...(others)][kTile][kBlock];
      int place = 0;
      multiply_rows(matrix, x, block, row, num_rows, look_ahead(matrix), values[place][0]);
      (multiply_rows(others, x, block, row, num_rows, look_ahead(others), values[++place][0]),
       ...);
      const int first = (piece.first_block + block) * kBlock;
      const int count = std::min(kBlock, matrix.num_outputs - block * kBlock);
      finish(row, num_rows, first, count, values[0][0], values[sizeof...(others)][0]);
    }
  }
}

// The part of a matrix that begins with a block.
template <class Format>
Matrix<Format> skip_blocks(Matrix<Format> matrix, int num_blocks) {
  matrix.weights += num_blocks * matrix.block_size();
  matrix.num_outputs -= num_blocks * kBlock;
  return matrix;
}

// Multiplies by one or two matrices of the same shape, and gives the results to `finish`:
//
//   finish.begin(first row, rows, first output)    before a tile is computed
//   finish(first row, rows, first output, number of outputs, values, values of the other)
//
// The values of a row are kBlock numbers, of which the first `number of outputs` count.
template <class Format, class Finish, class... Matrices>
void multiply(Pool& pool, const Operands<Format>& x, Finish&& finish,
              const Matrix<Format>& matrix, const Matrices&... others) {
  const std::ptrdiff_t block_bytes = matrix.block_size() * sizeof(typename Format::Weight);
  Pieces pieces(matrix.num_blocks(), x.num_rows, kMaxRows,
                block_bytes * (1 + sizeof...(others)), pool.num_threads());
  pool.run(pieces.count(), [&](int i, int) {
    const Piece piece = pieces[i];
    multiply_piece(piece, x, finish, skip_blocks(matrix, piece.first_block),
                   skip_blocks(others, piece.first_block)...);
  });
}

}  // namespace trioserve
