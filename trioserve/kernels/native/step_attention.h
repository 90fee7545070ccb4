// The attention of a step, cut into pieces for the threads.
//
// A piece is a tile of queries and a head. If these are few, because few sequences have long
// contexts, the keys of a tile are cut into parts, too, which are put together at the end. In
// float32, and with a cache in eight bits, the numbers do not depend on the cut: segments of fixed length are computed alone,
// and put together in a fixed order (fold.h).
// Source: Dao et al. 2023 (Flash-Decoding).
#pragma once

#include <vector>

#include "fold.h"
#include "pool.h"

namespace trioserve {

// attention.cpp has the functions, compiled once for decoders and encoders.
template <class Format>
class StepAttention {
 public:
  using Operand = typename Format::Operand;
  using Weight = typename Format::Weight;

  // Plans a step, for all of its layers.
  void plan(const AttentionShape& shape, const std::vector<StepRow>& rows, int num_threads);

  // Computes one layer.
  //
  //   queries: (tokens, num_heads, key_dim)
  //   out: (tokens, num_heads, value_dim), tokens `out_stride` apart
  void run(Pool& pool, const AttentionShape& shape, const Weight* cache, const Operand* queries,
           float* out, std::ptrdiff_t out_stride);

 private:
  // A thread that is late with its last piece delays the others by a small part.
  static constexpr int kPiecesOfThread = 4;
  // Fewer take less time than putting parts together.
  static constexpr int kKeysOfPart = 256;
  // Products of bfloat16 numbers differ with the number of rows, so nothing is gained there.
  static constexpr bool kIsExact = !std::is_same_v<Format, Bfloat16Format>;
  static constexpr int kAll = 1 << 30;

  struct Tile {
    const StepRow* row;
    int number;
    int first_part, num_parts;
  };
  struct Part {
    const Tile* tile;
    BlockRange range;
  };

  // Cuts the blocks of a tile into `most` parts at most.
  void cut(const Tile& tile, int num_blocks, int most);

  // Adds the keys of a range, which begins with a segment.
  void add_segments(QueryTile<Format>& tile, Fold<Format>& fold, const AttentionShape& shape,
                    const Weight* cache, const StepRow& row, int head, BlockRange range);

  float* find_saved(const AttentionShape& shape, int part, int head);

  int segment_blocks_ = 0;
  std::vector<Tile> tiles_;
  std::vector<Part> parts_;
  std::vector<float> saved_;
  // One for each thread: they hold its scratch memory.
  std::vector<QueryTile<Format>> query_tiles_;
  std::vector<Fold<Format>> folds_;
};

}  // namespace trioserve
