// The instructions of tiles, number by number, for processors that have none.
//
// Source: Intel's Software Developer's Manual, volume 2, LDTILECFG to TILEZERO.
#pragma once

#include <immintrin.h>

#include <cassert>
#include <cstdint>
#include <cstring>

#undef _tile_loadd
#undef _tile_stored
#undef _tile_dpbf16ps
#undef _tile_dpbssd
#undef _tile_dpbusd
#undef _tile_zero
#define _tile_loadconfig stand_in::load_config
#define _tile_release stand_in::release
#define _tile_loadd stand_in::load
#define _tile_stored stand_in::store
#define _tile_dpbf16ps stand_in::add_products
#define _tile_dpbssd stand_in::add_byte_products<std::int8_t>
#define _tile_dpbusd stand_in::add_byte_products<std::uint8_t>
#define _tile_zero stand_in::clear
#define TRIOSERVE_TILES_STAND_IN

namespace stand_in {

struct Tile {
  int rows = 0, row_bytes = 0;
  char bytes[16][64] = {};
};
// Each thread has its own. Without shapes, every use of a tile fails.
inline thread_local Tile tiles[8];

// Of this thread.
inline thread_local int num_byte_products = 0;

inline Tile& find_tile(int number) {
  assert(tiles[number].rows > 0);
  return tiles[number];
}

inline void load_config(const void* config) {
  const auto* bytes = static_cast<const std::uint8_t*>(config);
  assert(bytes[0] == 1 && bytes[1] == 0);
  for (int i = 0; i < 8; ++i) {
    std::uint16_t row_bytes;
    std::memcpy(&row_bytes, bytes + 16 + 2 * i, sizeof row_bytes);
    tiles[i] = Tile();
    tiles[i].rows = bytes[48 + i];
    tiles[i].row_bytes = row_bytes;
    assert(tiles[i].rows <= 16 && row_bytes <= 64);
  }
}

inline void release() {
  for (Tile& tile : tiles) tile = Tile();
}

inline void load(int to, const void* base, std::ptrdiff_t stride) {
  Tile& tile = find_tile(to);
  for (int r = 0; r < tile.rows; ++r) {
    std::memcpy(tile.bytes[r], static_cast<const char*>(base) + r * stride, tile.row_bytes);
  }
}

inline void store(int from, void* base, std::ptrdiff_t stride) {
  const Tile& tile = find_tile(from);
  for (int r = 0; r < tile.rows; ++r) {
    std::memcpy(static_cast<char*>(base) + r * stride, tile.bytes[r], tile.row_bytes);
  }
}

inline void clear(int number) {
  Tile& tile = find_tile(number);
  std::memset(tile.bytes, 0, sizeof tile.bytes);
}

// Products of bytes; the left ones have a sign, or not.
template <class Left>
void add_byte_products(int to, int left, int right) {
  ++num_byte_products;
  Tile& sums = find_tile(to);
  const Tile &a = find_tile(left), &b = find_tile(right);
  assert(a.rows == sums.rows && b.row_bytes == sums.row_bytes && a.row_bytes == 4 * b.rows);
  for (int m = 0; m < sums.rows; ++m) {
    for (int n = 0; n < sums.row_bytes / 4; ++n) {
      std::int32_t sum;
      std::memcpy(&sum, sums.bytes[m] + 4 * n, sizeof sum);
      for (int k = 0; k < a.row_bytes; ++k) {
        sum += static_cast<Left>(a.bytes[m][k]) *
               static_cast<std::int8_t>(b.bytes[k / 4][4 * n + k % 4]);
      }
      std::memcpy(sums.bytes[m] + 4 * n, &sum, sizeof sum);
    }
  }
}

inline float read_bfloat16(const char* from) {
  std::uint32_t bits = 0;
  std::memcpy(reinterpret_cast<char*>(&bits) + 2, from, 2);
  float number;
  std::memcpy(&number, &bits, sizeof number);
  return number;
}

inline void add_products(int to, int left, int right) {
  Tile& sums = find_tile(to);
  const Tile &a = find_tile(left), &b = find_tile(right);
  assert(a.rows == sums.rows && b.row_bytes == sums.row_bytes && a.row_bytes == 4 * b.rows);
  for (int m = 0; m < sums.rows; ++m) {
    for (int n = 0; n < sums.row_bytes / 4; ++n) {
      float sum;
      std::memcpy(&sum, sums.bytes[m] + 4 * n, sizeof sum);
      float even = 0, odd = 0;
      for (int k = 0; k < b.rows; ++k) {
        const char *x = a.bytes[m] + 4 * k, *w = b.bytes[k] + 4 * n;
        even += read_bfloat16(x) * read_bfloat16(w);
        odd += read_bfloat16(x + 2) * read_bfloat16(w + 2);
      }
      sum += even + odd;
      std::memcpy(sums.bytes[m] + 4 * n, &sum, sizeof sum);
    }
  }
}

}  // namespace stand_in
