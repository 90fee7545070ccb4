// Whether this process has tiles (tiles.h), and the time in which a thread uses them.
#pragma once

#include <immintrin.h>

#include <cstdint>

#if defined(TRIOSERVE_TILES_STAND_IN)
#define TRIOSERVE_TILES
#elif defined(__AVX512BF16__) && (defined(__clang__) || __GNUC__ >= 11)
#define TRIOSERVE_TILES __attribute__((target("amx-tile,amx-bf16,amx-int8")))
#endif

namespace trioserve {

#if defined(TRIOSERVE_TILES)

// Set once, when the system has given tiles to this process.
inline bool has_tiles = false;

// The shapes of tiles, as ldtilecfg reads them.
struct alignas(64) TileShapes {
  std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
  std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
static_assert(sizeof(TileShapes) == 64);

// All tiles are as large as they can be, but where a product shapes them.
TRIOSERVE_TILES inline void shape_tiles(const TileShapes& shapes = {}) {
  _tile_loadconfig(&shapes);
}
TRIOSERVE_TILES inline void release_tiles() { _tile_release(); }

// Lets the thread of this scope use tiles. A thread whose tiles are released is cheaper to
// switch to.
struct TileScope {
  TileScope() {
    if (has_tiles) shape_tiles();
  }
  ~TileScope() {
    if (has_tiles) release_tiles();
  }
  TileScope(const TileScope&) = delete;
  TileScope& operator=(const TileScope&) = delete;
};

#else

struct TileScope {
  TileScope() {}
};

#endif

}  // namespace trioserve
