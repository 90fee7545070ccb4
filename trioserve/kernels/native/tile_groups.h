// Products of many rows with quantised weights by tiles, whose bits are those of quantised.h.
//
// The codes of a group are two tiles, of 16 rows and of 16 outputs, and the product of these is
// whole numbers. Vectors scale the numbers and add them, in the order of quantised.h. So an
// output does not depend on the rows beside it. Operands of 16 bits are two bytes, the upper
// one with a sign, and each has a product:
//
//     group 0                            group 1 ...
//     | upper bytes | lower bytes |      | upper bytes | ...
//
// The byte of an input lies in four as its weight does.
#pragma once

#include "linear.h"
#include "tiles.h"

#if defined(TRIOSERVE_TILES)

namespace trioserve {

constexpr int kTileOutputs = 16;
constexpr int kMaxTileGroup = 64;

// The place of an input's code in a step.
template <class Format>
constexpr int place_of(int input) {
  return 4 * Format::is_upper_half(input) + Format::byte_of(input);
}

// Cuts the codes of a row into bytes, in place.
template <class Format>
void cut_codes(std::int16_t* row, int size, int group_size) {
  for (int begin = 0; begin < size; begin += group_size) {
    std::int16_t codes[kMaxTileGroup];
    std::copy_n(row + begin, group_size, codes);
    auto* upper = reinterpret_cast<std::int8_t*>(row + begin);
    std::int8_t* lower = upper + group_size;
    for (int step = 0; step < group_size; step += Format::kInputs) {
#pragma GCC unroll 8
      for (int i = 0; i < Format::kInputs; ++i) {
        upper[step + place_of<Format>(i)] = static_cast<std::int8_t>(codes[step + i] >> 8);
        lower[step + place_of<Format>(i)] = static_cast<std::int8_t>(codes[step + i]);
      }
    }
  }
}

// The shapes of tiles for groups: 0 and 1 are sums, 2 and 3 operands, and 4 weights.
inline TileShapes shape_groups(int group_size) {
  TileShapes shapes;
  shapes.row_bytes[2] = shapes.row_bytes[3] = static_cast<std::uint16_t>(group_size);
  shapes.rows[4] = static_cast<std::uint8_t>(group_size / kStepBytes);
  return shapes;
}

// The codes of a block as bytes, some groups at a time; scales lie before those of int8.
template <class Format>
class BlockCodes {
 public:
  // Inputs whose codes stay in the nearest cache.
  static constexpr int kInputs = 512;

  // The codes of `count` groups of `size` inputs from `w` on.
  BlockCodes(const std::uint8_t* w, int size, int count) {
    constexpr std::ptrdiff_t kScaleBytes = 2 * kBlock * sizeof(Float16);
    if constexpr (Format::kInputs == 4) {
      first = w + kScaleBytes;
      group_stride = group_bytes<Format>(size);
    } else {
      first = bytes_;
      group_stride = static_cast<std::ptrdiff_t>(size) * kBlock;
      std::uint8_t* to = bytes_;
      const Ints mask = Ints::all(0x0f0f0f0f);
      for (int group = 0; group < count; ++group) {
        w += kScaleBytes;
        for (int i = 0; i < size; i += Format::kInputs) {
          for (int v = 0; v < kVecs; ++v, w += kVecBytes, to += kVecBytes) {
            const Ints both = Ints::load(w);
            Format::decode_bytes(both & mask).store(to);
            Format::decode_bytes(both >> 4 & mask).store(to + kRowBytes);
          }
          to += kRowBytes;
        }
      }
    }
  }

  const std::uint8_t* first;
  std::ptrdiff_t group_stride;
  static constexpr std::ptrdiff_t kRowBytes = kBlock * kStepBytes;

 private:
  static constexpr std::ptrdiff_t kVecBytes = Vec::kLanes * kStepBytes;

  alignas(64) std::uint8_t bytes_[Format::kInputs == 4 ? 1 : kInputs * kBlock];
};

// sums += the products of `count` groups of 16 rows and 16 outputs.
//
//   x: codes of the first row, `stride` bytes apart; inputs: of each row, `num_groups` apart
//   w: the scales of the first group; codes: of it, codes.group_stride apart
//   sums: kBlock a row
template <class Format>
TRIOSERVE_TILES inline void add_groups(const std::int8_t* x, std::ptrdiff_t stride,
                                       const InputGroup* inputs, int num_groups,
                                       int group_size, int count, const std::uint8_t* w,
                                       const std::uint8_t* codes, std::ptrdiff_t code_stride,
                                       float* sums) {
  constexpr bool kHasLower = sizeof(typename Format::Operand) == 2;
  constexpr int kTileVecs = kTileOutputs / Vec::kLanes;
  alignas(64) std::int32_t upper[kTileRows][kTileOutputs], lower[kTileRows][kTileOutputs];
  Vec total[kTileRows][kTileVecs];
#pragma GCC unroll 16
  for (int r = 0; r < kTileRows; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < kTileVecs; ++v) {
      total[r][v] = Vec::load(sums + r * kBlock + v * Vec::kLanes);
    }
  }
  for (int group = 0; group < count; ++group) {
    // GCC's loads of tiles do not tell the compiler that they read memory.
    asm volatile("" ::: "memory");
    _tile_loadd(4, codes, BlockCodes<Format>::kRowBytes);
    _tile_loadd(2, x, stride);
    _tile_zero(0);
    _tile_dpbssd(0, 2, 4);
    _tile_stored(0, upper, kTileOutputs * sizeof(std::int32_t));
    if constexpr (kHasLower) {
      _tile_loadd(3, x + group_size, stride);
      _tile_zero(1);
      _tile_dpbusd(1, 3, 4);
      _tile_stored(1, lower, kTileOutputs * sizeof(std::int32_t));
    }
    Vec scale[kTileVecs], minimum[kTileVecs];
#pragma GCC unroll 2
    for (int v = 0; v < kTileVecs; ++v) {
      const auto* halves = reinterpret_cast<const Float16*>(w) + v * Vec::kLanes;
      scale[v] = load_halves(halves);
      minimum[v] = load_halves(halves + kBlock);
    }
#pragma GCC unroll 16
    for (int r = 0; r < kTileRows; ++r) {
      const InputGroup& input = inputs[r * num_groups + group];
#pragma GCC unroll 2
      for (int v = 0; v < kTileVecs; ++v) {
        Ints products = Ints::load(upper[r] + v * Vec::kLanes);
        if constexpr (kHasLower) {
          products = (products << 8) + Ints::load(lower[r] + v * Vec::kLanes);
        }
        total[r][v] = Vec::fma(minimum[v], Vec::all(input.sum), total[r][v]);
        total[r][v] = Vec::fma(scale[v] * Vec::all(input.scale), products.to_float(),
                               total[r][v]);
      }
    }
    x += group_size * sizeof(typename Format::Operand);
    w += group_bytes<Format>(group_size);
    codes += code_stride;
  }
#pragma GCC unroll 16
  for (int r = 0; r < kTileRows; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < kTileVecs; ++v) {
      total[r][v].store(sums + r * kBlock + v * Vec::kLanes);
    }
  }
}

// sums = the rows of a piece times one block, kBlock numbers a row. Tiles have the shapes of
// shape_groups.
template <class Format>
void multiply_tiles(const Matrix<Format>& matrix, const Operands<Format>& x, int block,
                    const Piece& piece, float* sums) {
  const int size = matrix.group_size, num_groups = matrix.num_groups();
  const int most = BlockCodes<Format>::kInputs / size;
  const std::uint8_t* w = matrix.weights + block * matrix.block_size();
  const auto* bytes = reinterpret_cast<const std::int8_t*>(x.first);
  const std::ptrdiff_t stride = x.stride * sizeof(typename Format::Operand);
  std::fill_n(sums, round_up(piece.last_row - piece.first_row, kTileRows) * kBlock, 0.0f);
  for (int group = 0; group < num_groups; group += most) {
    const int count = std::min(most, num_groups - group);
    const BlockCodes<Format> codes(w, size, count);
    for (int row = piece.first_row; row < piece.last_row; row += kTileRows) {
      for (int output = 0; output < kBlock; output += kTileOutputs) {
        add_groups<Format>(bytes + row * stride + group * size * sizeof(*x.first), stride,
                           x.groups + row * num_groups + group, num_groups, size, count,
                           w + output * sizeof(Float16), codes.first + output * kStepBytes,
                           codes.group_stride,
                           sums + (row - piece.first_row) * kBlock + output);
      }
    }
    w += count * group_bytes<Format>(size);
  }
}

}  // namespace trioserve

#endif
