#include "step_attention.h"

namespace trioserve {

template <class Format>
void StepAttention<Format>::plan(const AttentionShape& shape, const std::vector<StepRow>& rows,
                                 int num_threads) {
  segment_blocks_ = kIsExact ? 2 * QueryTile<Format>::blocks_at_once(shape) : kAll;
  tiles_.clear();
  parts_.clear();
  for (const StepRow& row : rows) {
    // The last tile of a row reads the most keys, so it comes first.
    for (int tile = QueryTile<Format>::count(shape, row.num_tokens); tile--;) {
      tiles_.push_back({&row, tile, 0, 0});
    }
  }
  const int num_pieces = static_cast<int>(tiles_.size()) * shape.num_kv_heads;
  const int most = (kPiecesOfThread * num_threads + num_pieces - 1) / num_pieces;
  for (Tile& tile : tiles_) {
    const int num_blocks = (tile.row->count_keys() + shape.block_size - 1) / shape.block_size;
    const int num_parts =
        std::clamp(num_blocks * shape.block_size / kKeysOfPart, 1, num_threads > 1 ? most : 1);
    tile.first_part = static_cast<int>(parts_.size());
    cut(tile, num_blocks, num_parts);
    tile.num_parts = static_cast<int>(parts_.size()) - tile.first_part;
  }
  while (static_cast<int>(query_tiles_.size()) < num_threads) {
    query_tiles_.emplace_back(shape);
    folds_.emplace_back();
  }
  if (parts_.size() > tiles_.size()) {
    fit(saved_, static_cast<std::ptrdiff_t>(parts_.size()) * shape.num_kv_heads *
                    QueryTile<Format>::part_size(shape));
  }
}

template <class Format>
void StepAttention<Format>::run(Pool& pool, const AttentionShape& shape, const Weight* cache,
                                const Operand* queries, float* out, std::ptrdiff_t out_stride) {
  const std::ptrdiff_t stride = shape.num_heads * shape.key_dim;
  const int num_heads = shape.num_kv_heads;
  pool.run(static_cast<int>(parts_.size()) * num_heads, [&](int piece, int thread) {
    const int place = piece / num_heads, head = piece % num_heads;
    const Part& part = parts_[place];
    const Tile& tile = *part.tile;
    QueryTile<Format>& queries_of_tile = query_tiles_[thread];
    AttentionShape own = shape;
    if (place != tile.first_part) own.sinks = nullptr;
    queries_of_tile.use(own);
    queries_of_tile.begin(*tile.row, head, tile.number, queries, stride);
    add_segments(queries_of_tile, folds_[thread], own, cache, *tile.row, head, part.range);
    if (tile.num_parts == 1) {
      queries_of_tile.finish(*tile.row, head, tile.number, out, out_stride);
    } else {
      queries_of_tile.save(find_saved(shape, place, head));
    }
  });
  if (parts_.size() == tiles_.size()) return;
  AttentionShape without_sinks = shape;
  without_sinks.sinks = nullptr;
  pool.run(static_cast<int>(tiles_.size()) * num_heads, [&](int piece, int thread) {
    const Tile& tile = tiles_[piece / num_heads];
    const int head = piece % num_heads;
    if (tile.num_parts == 1) return;
    QueryTile<Format>& queries_of_tile = query_tiles_[thread];
    queries_of_tile.use(without_sinks);
    queries_of_tile.begin(*tile.row, head, tile.number, queries, stride);
    Fold<Format>& fold = folds_[thread];
    fold.begin();
    for (int part = 0; part < tile.num_parts; ++part) {
      fold.add(queries_of_tile, shape, part, find_saved(shape, tile.first_part + part, head));
    }
    fold.finish(queries_of_tile, shape);
    queries_of_tile.finish(*tile.row, head, tile.number, out, out_stride);
  });
}

template <class Format>
void StepAttention<Format>::cut(const Tile& tile, int num_blocks, int most) {
  if constexpr (!kIsExact) {
    for (int part = 0; part < most; ++part) {
      parts_.push_back({&tile, {part * num_blocks / most, (part + 1) * num_blocks / most}});
    }
    return;
  }
  std::int64_t size = segment_blocks_;
  while (size * most < num_blocks) size *= 2;
  for (std::int64_t begin = 0; begin < num_blocks; begin += size) {
    const int end = static_cast<int>(std::min<std::int64_t>(begin + size, num_blocks));
    parts_.push_back({&tile, {static_cast<int>(begin), end}});
  }
}

template <class Format>
void StepAttention<Format>::add_segments(QueryTile<Format>& tile, Fold<Format>& fold,
                                         const AttentionShape& shape, const Weight* cache,
                                         const StepRow& row, int head, BlockRange range) {
  range.end = std::min(range.end, tile.last_block());
  if (range.end - range.begin <= segment_blocks_) {
    tile.add_keys(cache, row, head, range);
    return;
  }
  fold.begin();
  // The first segment has the sinks.
  int place = shape.sinks ? 0 : std::max(0, tile.first_block() - range.begin) / segment_blocks_;
  for (bool is_first = true; range.begin + place * segment_blocks_ < range.end; ++place) {
    if (!is_first) tile.clear();
    is_first = false;
    const int begin = range.begin + place * segment_blocks_;
    tile.add_keys(cache, row, head, {begin, std::min(begin + segment_blocks_, range.end)});
    fold.add(tile, shape, place);
  }
  fold.finish(tile, shape);
}

template <class Format>
float* StepAttention<Format>::find_saved(const AttentionShape& shape, int part, int head) {
  std::ptrdiff_t place = static_cast<std::ptrdiff_t>(part) * shape.num_kv_heads + head;
  return &saved_[place * QueryTile<Format>::part_size(shape)];
}

template class StepAttention<Float32Format>;
template class StepAttention<Bfloat16Format>;
template class StepAttention<Int8CacheFormat>;

}  // namespace trioserve
