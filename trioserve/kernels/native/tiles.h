// Tiles, the registers of AMX: 16 rows of 64 bytes each.
//
// A product adds 32 inputs of up to 32 rows and kBlock outputs at a time:
//
//     tiles 0 and 1    sums of the rows 0 to 15, 16 outputs each
//     tiles 2 and 3    sums of the rows 16 to 31
//     tiles 4 and 5    inputs of the rows 0 to 15 and 16 to 31
//     tiles 6 and 7    weights of 16 outputs each
//
// A packed block of bfloat16 weights holds such tiles already: a row of one is a pair of
// inputs of 16 outputs. Only AVX-512 has two of them side by side, so without it the tiles 1,
// 3 and 7 are not used. Only tests use tiles without it: they replace the instructions.
#pragma once

#include "packed.h"
#include "tile_scope.h"

namespace trioserve {

constexpr int kTileRows = 16;
constexpr int kTileInputs = 32;

#if defined(TRIOSERVE_TILES)

// sums += x times a block, for 1 to 32 rows. All rows of a tile are read, so there must be
// memory for the next multiple of kTileRows; what it holds does not matter.
//
//   x: rows, `stride` numbers apart; w: num_steps tiles of inputs; sums: kBlock a row
TRIOSERVE_TILES inline void add_tiles(const Bfloat16* x, std::ptrdiff_t stride, int num_rows,
                                      const Bfloat16* w, int num_steps, float* sums) {
  constexpr bool kIsWide = kBlock == 32;
  constexpr std::ptrdiff_t kSumBytes = kBlock * sizeof(float), kWeightBytes = kBlock * kStepBytes;
  const std::ptrdiff_t row_bytes = stride * sizeof(Bfloat16);
  const bool is_tall = num_rows > kTileRows;
  float* lower = sums + kTileRows * kBlock;
  // GCC's loads of tiles do not tell the compiler that they read memory.
  asm volatile("" ::: "memory");
  _tile_loadd(0, sums, kSumBytes);
  if constexpr (kIsWide) _tile_loadd(1, sums + 16, kSumBytes);
  if (is_tall) {
    _tile_loadd(2, lower, kSumBytes);
    if constexpr (kIsWide) _tile_loadd(3, lower + 16, kSumBytes);
  }
  for (int step = 0; step < num_steps; ++step) {
    _tile_loadd(4, x, row_bytes);
    _tile_loadd(6, w, kWeightBytes);
    _tile_dpbf16ps(0, 4, 6);
    if constexpr (kIsWide) {
      _tile_loadd(7, w + 32, kWeightBytes);
      _tile_dpbf16ps(1, 4, 7);
    }
    if (is_tall) {
      _tile_loadd(5, x + kTileRows * stride, row_bytes);
      _tile_dpbf16ps(2, 5, 6);
      if constexpr (kIsWide) _tile_dpbf16ps(3, 5, 7);
    }
    x += kTileInputs;
    w += kTileInputs * kBlock;
  }
  _tile_stored(0, sums, kSumBytes);
  if constexpr (kIsWide) _tile_stored(1, sums + 16, kSumBytes);
  if (is_tall) {
    _tile_stored(2, lower, kSumBytes);
    if constexpr (kIsWide) _tile_stored(3, lower + 16, kSumBytes);
  }
}

#endif

}  // namespace trioserve
