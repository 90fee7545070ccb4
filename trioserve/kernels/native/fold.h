// Puts the parts of a tile's keys together, in an order that depends on their places alone.
//
// Neighbours are joined in pairs, and pairs in pairs, however many segments there are:
//
//     segments    0   1   2   3   4   5   6
//                  \ /     \ /     \ /    |
//                   \       /       \    /
//                    \     /         \  /
//                       \           /
//
// So a thread may join some segments, 2 to any power, and another thread the results.
#pragma once

#include "attention.h"
#include "buffers.h"

namespace trioserve {

template <class Format>
class Fold {
 public:
  void begin() { levels_.clear(); }

  // Adds what a tile holds, as the segment at `place`. Segments come in order; empty ones may
  // be left out.
  void add(const QueryTile<Format>& tile, const AttentionShape& shape, int place) {
    tile.save(make_room(shape));
    join_pairs(tile, shape, place);
  }
  void add(const QueryTile<Format>& tile, const AttentionShape& shape, int place,
           const float* part) {
    std::copy_n(part, QueryTile<Format>::part_size(shape), make_room(shape));
    join_pairs(tile, shape, place);
  }

  // Gives the whole to a tile.
  void finish(QueryTile<Format>& tile, const AttentionShape& shape) {
    while (levels_.size() > 1) join_last(tile, shape);
    if (!levels_.empty()) tile.load(find(shape, 0));
  }

 private:
  float* find(const AttentionShape& shape, std::size_t i) {
    return &parts_[i * static_cast<std::size_t>(QueryTile<Format>::part_size(shape))];
  }

  float* make_room(const AttentionShape& shape) {
    levels_.push_back(0);
    fit(parts_, static_cast<std::ptrdiff_t>(levels_.size()) * QueryTile<Format>::part_size(shape));
    return find(shape, levels_.size() - 1);
  }

  void join_pairs(const QueryTile<Format>& tile, const AttentionShape& shape, int place) {
    for (; place & 1; place >>= 1) {
      // Without it, all on the left is empty.
      if (levels_.size() > 1 && levels_.end()[-2] == levels_.back()) join_last(tile, shape);
      ++levels_.back();
    }
  }

  void join_last(const QueryTile<Format>& tile, const AttentionShape& shape) {
    tile.join(find(shape, levels_.size() - 2), find(shape, levels_.size() - 1));
    levels_.pop_back();
  }

  std::vector<int> levels_;
  std::vector<float> parts_;
};

}  // namespace trioserve
