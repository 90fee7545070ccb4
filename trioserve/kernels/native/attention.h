// Attention of a step's queries over the paged cache of keys and values.
//
// Keys and values are read once for all query heads that share them, and the softmax is
// computed in one pass over them.
// Source: Dao et al. 2022 (FlashAttention), algorithm 1.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "activation.h"
#include "int8_attention.h"
#include "kv_cache.h"
#include "tile_attention.h"

namespace trioserve {

struct Nothing {};

// Blocks [begin, end) of a row.
struct BlockRange {
  int begin, end;
};

// The attention of queries that share keys: some tokens of a row, times a group of heads.
template <class Format>
class QueryTile {
 public:
  using Operand = typename Format::Operand;
  using Weight = typename Format::Weight;

  // Blocks that lie between two corrections of the softmax.
  static int blocks_at_once(const AttentionShape& shape) {
    return std::max(1, kKeys / shape.block_size);
  }

  // Query rows of one tile, and keys between two corrections of the softmax.
  static constexpr int kRows = kMaxRows * (48 / kMaxRows);
  static constexpr int kKeys = 128;

  // Layers may differ in all but the numbers and sizes of their heads.
  void use(const AttentionShape& shape) { shape_ = shape; }

  explicit QueryTile(const AttentionShape& shape) : shape_(shape) {
    blocks_ = blocks_at_once(shape);
    // The last block's padding, and that of the whole, may lie beyond the last key.
    keys_ = round_up(blocks_ * shape.block_size, Vec::kLanes) + Vec::kLanes;
    scores_.resize(static_cast<std::size_t>(kRows) * keys_);
    weights_.resize(scores_.size());
    sums_.resize(static_cast<std::size_t>(kRows) * shape.value_width());
    gathered_.resize(static_cast<std::size_t>(kMaxRows) * shape.key_dim);
    if (shape.values_in_keys) wide_.resize(static_cast<std::size_t>(kMaxRows) * shape.row_width());
  }

  static int count(const AttentionShape& shape, int num_tokens) {
    return (num_tokens * shape.group_size() + kRows - 1) / kRows;
  }

  // Begins tile `tile` of a row and head, whose keys may come in several parts.
  //
  //   queries: (tokens, num_heads, key_dim) of the whole step, tokens `stride` apart
  void begin(const StepRow& row, int kv_head, int tile, const Operand* queries,
             std::ptrdiff_t stride) {
    const int group = shape_.group_size(), first = tile * kRows;
    num_rows_ = std::min(kRows, row.num_tokens * group - first);
    for (int r = 0; r < num_rows_; ++r) {
      int token = (first + r) / group, head = kv_head * group + (first + r) % group;
      ends_[r] = row.find_end(shape_, token);
      begins_[r] = shape_.window ? std::max(0, row.start + token + 1 - shape_.window) : 0;
      queries_[r] = queries + (row.first_token + token) * stride + head * shape_.key_dim;
    }
    if constexpr (kHasScales<Format>) {
      codes_.gather(shape_, blocks_ * shape_.block_size, queries_, num_rows_);
    }
    clear();
    for (int r = 0; shape_.sinks && r < num_rows_; ++r) {
      largest_[r] = shape_.sinks[kv_head * group + (first + r) % group];
      total_[r] = 1.0f;
    }
  }

  // Forgets the keys that were added.
  void clear() {
    std::fill_n(largest_, num_rows_, kNone);
    std::fill_n(total_, num_rows_, 0.0f);
    std::fill_n(sums_.begin(), num_rows_ * shape_.value_width(), 0.0f);
  }

  // The blocks that a query sees begin and end with these.
  int first_block() const { return begins_[0] / shape_.block_size; }
  int last_block() const { return (ends_[num_rows_ - 1] - 1) / shape_.block_size + 1; }

  // The sums of a range do not depend on the other queries of the tile: corrections are at
  // the same keys, and keys that a query does not see change nothing.
  void add_keys(const Weight* cache, const StepRow& row, int kv_head, BlockRange range) {
#if defined(TRIOSERVE_TILES)
    if constexpr (std::is_same_v<Weight, Bfloat16>) {
      if (AttentionTiles::suit(shape_, num_rows_)) {
        add_keys_by_tiles(cache, row, kv_head, range);
        return;
      }
    }
#endif
    for_keys(range, [&](int block, int last) {
      if constexpr (kHasScales<Format>) {
        auto find = [&](int place) { return find_head(cache, row, kv_head, place); };
        codes_.score(find, block, last, scores_.data(), keys_);
        weigh(block, last, weights_.data(), keys_);
        codes_.add_values(find, block, last, weights_.data(), keys_, sums_.data(),
                          shape_.value_width());
      } else {
        if (shape_.values_in_keys) {
          score_rows(cache, row, kv_head, block, last);
        } else {
          score(cache, row, kv_head, block, last);
        }
        weigh(block, last, weights_.data(), keys_);
        add_values(cache, row, kv_head, block, last);
      }
    });
  }

  //   out: (tokens, num_heads, value_dim), tokens `out_stride` apart
  void finish(const StepRow& row, int kv_head, int tile, float* out, std::ptrdiff_t out_stride) {
    const int group = shape_.group_size(), first = tile * kRows;
    for (int r = 0; r < num_rows_; ++r) {
      int token = (first + r) / group, head = kv_head * group + (first + r) % group;
      float* to = out + (row.first_token + token) * out_stride + head * shape_.value_dim;
      float* sums = &sums_[r * shape_.value_width()];
      multiply_all(sums, shape_.value_width(), 1.0f / total_[r]);
      std::copy_n(sums, shape_.value_dim, to);
    }
  }

  // What a part of the keys gives: the softmax's maximum and total, and the sums, of each row.
  static int part_size(const AttentionShape& shape) { return kRows * (2 + shape.value_width()); }

  void save(float* part) const {
    std::copy_n(largest_, num_rows_, part);
    std::copy_n(total_, num_rows_, part + kRows);
    std::copy_n(sums_.begin(), num_rows_ * shape_.value_width(), part + 2 * kRows);
  }

  void load(const float* part) {
    std::copy_n(part, num_rows_, largest_);
    std::copy_n(part + kRows, num_rows_, total_);
    std::copy_n(part + 2 * kRows, num_rows_ * shape_.value_width(), sums_.begin());
  }

  // Adds one part of the keys to another. Sinks must be in one of the parts alone.
  void join(float* to, const float* part) const {
    const int width = shape_.value_width();
    for (int r = 0; r < num_rows_; ++r) {
      if (part[r] == kNone) continue;
      const float largest = std::max(to[r], part[r]);
      const float own = std::exp(to[r] - largest), other = std::exp(part[r] - largest);
      to[r] = largest;
      to[kRows + r] = to[kRows + r] * own + part[kRows + r] * other;
      const float* added = part + 2 * kRows + r * width;
      float* sums = to + 2 * kRows + r * width;
      for (int i = 0; i < width; i += Vec::kLanes) {
        (Vec::load(sums + i) * Vec::all(own) + Vec::load(added + i) * Vec::all(other))
            .store(sums + i);
      }
    }
  }

 private:
  static void multiply_all(float* numbers, int size, float factor) {
    for (int i = 0; i < size; i += Vec::kLanes) {
      (Vec::load(numbers + i) * Vec::all(factor)).store(numbers + i);
    }
  }

  static constexpr float kNone = -std::numeric_limits<float>::infinity();

  // Calls body(block, last) for the blocks of a range that a query sees, as many at once as lie
  // between two corrections.
  template <class Body>
  void for_keys(BlockRange range, const Body& body) const {
    const int end = std::min(range.end, last_block());
    const int skipped = std::max(0, first_block() - range.begin);
    for (int block = range.begin + skipped / blocks_ * blocks_; block < end; block += blocks_) {
      body(block, std::min(block + blocks_, end));
    }
  }

#if defined(TRIOSERVE_TILES)
  void add_keys_by_tiles(const Weight* cache, const StepRow& row, int kv_head, BlockRange range) {
    auto find = [&](int block) { return find_head(cache, row, kv_head, block); };
    tiles_.gather(shape_, blocks_ * shape_.block_size, queries_, num_rows_);
    for_keys(range, [&](int block, int last) {
      tiles_.score(find, block, last, {scores_.data(), keys_});
      weigh(block, last, tiles_.weights().first, tiles_.weights().stride);
      tiles_.add_values(find, block, last, {sums_.data(), shape_.value_width()});
    });
  }
#endif

  const Weight* find_head(const Weight* cache, const StepRow& row, int kv_head, int block) {
    const std::int64_t place = row.tables[shape_.table][block];
    return cache + place * shape_.block_numbers<Format>() + kv_head * shape_.head_size<Format>();
  }

  // scores = q K^T for the keys of blocks [block, last)
  void score(const Weight* cache, const StepRow& row, int kv_head, int block, int last) {
    for (int r = 0; r < num_rows_; r += kMaxRows) {
      gather_queries(r);
      with_rows(std::min(kMaxRows, num_rows_ - r), [&](auto constant) {
        constexpr int R = decltype(constant)::value;
        for (int b = block; b < last; ++b) {
          const Weight* keys = find_head(cache, row, kv_head, b);
          float* to = &scores_[r * keys_ + (b - block) * shape_.block_size];
          // The padding behind a block's scores is overwritten by the next block's.
          int t = 0;
          for (; t + kBlock <= shape_.token_width(); t += kBlock) {
            score_tokens<R, kVecs>(keys + t * Format::kInputs, to + t);
          }
          for (; t < shape_.block_size; t += Vec::kLanes) {
            score_tokens<R, 1>(keys + t * Format::kInputs, to + t);
          }
        }
      });
    }
  }

  // The scores of V vectors of tokens.
  template <int R, int V>
  void score_tokens(const Weight* keys, float* to) {
    Vec sums[R][V];
    trioserve::clear(sums);
    multiply_block<Format, R, V>(gathered_.data(), shape_.key_dim, keys, shape_.token_width(),
                                 shape_.key_dim / Format::kInputs, sums);
#pragma GCC unroll 16
    for (int i = 0; i < R; ++i) {
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v) sums[i][v].store(to + i * keys_ + v * Vec::kLanes);
    }
  }

  // As score, where a token's numbers lie side by side, in the layout of values.
  void score_rows(const Weight* cache, const StepRow& row, int kv_head, int block, int last) {
    const int width = shape_.row_width();
    for (int r = 0; r < num_rows_; r += kMaxRows) {
      widen_queries(r, width);
      with_rows(std::min(kMaxRows, num_rows_ - r), [&](auto constant) {
        constexpr int R = decltype(constant)::value;
        for (int b = block; b < last; ++b) {
          const Weight* keys = find_head(cache, row, kv_head, b);
          float* to = &scores_[r * keys_ + (b - block) * shape_.block_size];
          // The second of a last pair may be padding; the next block overwrites its score.
          for (int t = 0; t < shape_.block_size; t += 2) {
            score_pair<R>(keys + static_cast<std::ptrdiff_t>(t) * width, width, to + t);
          }
        }
      });
    }
  }

  // The scores of two tokens. Each is added up in one order, whatever the number of rows.
  template <int R>
  void score_pair(const Weight* pair, int width, float* to) {
    Vec sums[R][2] = {};
    for (int d = 0; d < width; d += Vec::kLanes) {
      Vec first, second;
      if constexpr (Format::kInputs == 2) {
        first = Vec::load_low(pair + 2 * d);
        second = Vec::load_high(pair + 2 * d);
      } else {
        first = Vec::load(pair + d);
        second = Vec::load(pair + width + d);
      }
#pragma GCC unroll 16
      for (int i = 0; i < R; ++i) {
        const Vec query = Vec::load(&wide_[i * width + d]);
        sums[i][0] = Vec::fma(query, first, sums[i][0]);
        sums[i][1] = Vec::fma(query, second, sums[i][1]);
      }
    }
    for (int i = 0; i < R; ++i) {
      for (int t = 0; t < 2; ++t) to[i * keys_ + t] = sums[i][t].sum();
    }
  }

  // Numbers beyond the keys are 0.
  void widen_queries(int first, int width) {
    for (int r = first; r < std::min(first + kMaxRows, num_rows_); ++r) {
      float* to = &wide_[static_cast<std::ptrdiff_t>(r - first) * width];
      for (int d = 0; d < shape_.key_dim; ++d) {
        if constexpr (sizeof(Operand) == sizeof(float)) {
          to[d] = queries_[r][d];
        } else {
          to[d] = widen(queries_[r][d]);
        }
      }
    }
  }

  // A product wants rows at equal distances; those of a group of heads are not.
  void gather_queries(int first) {
    for (int r = first; r < std::min(first + kMaxRows, num_rows_); ++r) {
      std::copy_n(queries_[r], shape_.key_dim, &gathered_[(r - first) * shape_.key_dim]);
    }
  }

  // Turns the scores of blocks [block, last) into weights, `stride` numbers a row, and corrects
  // the sums for a larger maximum.
  template <class Number>
  void weigh(int block, int last, Number* weights, std::ptrdiff_t stride) {
    const int first_key = block * shape_.block_size, num_keys = (last - block) * shape_.block_size;
    const int width = round_up(num_keys, Vec::kLanes);
    for (int r = 0; r < num_rows_; ++r, weights += stride) {
      float* scores = &scores_[r * keys_];
      scale(scores, width);
      mask(scores, num_keys, begins_[r] - first_key, ends_[r] - first_key);
      std::fill(scores + num_keys, scores + width, kNone);
      Vec most = Vec::all(largest_[r]);
      for (int i = 0; i < width; i += Vec::kLanes) most = Vec::max(most, Vec::load(scores + i));
      float largest = most.largest();
      if (largest == kNone) {
        std::fill_n(weights, width, Number{0});
        continue;
      }
      Vec total = Vec::zero(), shift = Vec::all(largest);
      for (int i = 0; i < width; i += Vec::kLanes) {
        Vec weight = exp(Vec::load(scores + i) - shift);
        weight.store(weights + i);
        total = total + weight;
      }
      float correction = std::exp(largest_[r] - largest);
      total_[r] = total_[r] * correction + total.sum();
      largest_[r] = largest;
      if (correction != 1.0f) {
        multiply_all(&sums_[r * shape_.value_width()], shape_.value_width(), correction);
      }
    }
  }

  void scale(float* scores, int num_keys) {
    for (int i = 0; i < num_keys; i += Vec::kLanes) {
      Vec score = Vec::load(scores + i) * Vec::all(shape_.scaling);
      if (shape_.softcap > 0.0f) {
        score = tanh(score / Vec::all(shape_.softcap)) * Vec::all(shape_.softcap);
      }
      score.store(scores + i);
    }
  }

  // A query sees the keys [begin, end).
  static void mask(float* scores, int num_keys, int begin, int end) {
    std::fill(scores + std::clamp(end, 0, num_keys), scores + num_keys, kNone);
    std::fill(scores, scores + std::clamp(begin, 0, num_keys), kNone);
  }

  // sums += p V for blocks [block, last)
  void add_values(const Weight* cache, const StepRow& row, int kv_head, int block, int last) {
    for (int r = 0; r < num_rows_; r += kMaxRows) {
      with_rows(std::min(kMaxRows, num_rows_ - r), [&](auto constant) {
        constexpr int R = decltype(constant)::value;
        int d = 0;
        for (; d + kBlock <= shape_.value_width(); d += kBlock) {
          add_columns<R, kVecs>(cache, row, kv_head, block, last, r, d);
        }
        for (; d < shape_.value_width(); d += Vec::kLanes) {
          add_columns<R, 1>(cache, row, kv_head, block, last, r, d);
        }
      });
    }
  }

  template <int R, int V>
  void add_columns(const Weight* cache, const StepRow& row, int kv_head, int block, int last,
                   int r, int d) {
    Vec sums[R][V];
    float* to = &sums_[r * shape_.value_width() + d];
#pragma GCC unroll 16
    for (int i = 0; i < R; ++i) {
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v) {
        sums[i][v] = Vec::load(to + i * shape_.value_width() + v * Vec::kLanes);
      }
    }
    for (int b = block; b < last; ++b) {
      const Weight* values = find_head(cache, row, kv_head, b) +
                             shape_.keys_size() + d * Format::kInputs;
      multiply_block<Format, R, V>(&weights_[r * keys_ + (b - block) * shape_.block_size], keys_,
                                   values, shape_.row_width(),
                                   round_up(shape_.block_size, Format::kInputs) / Format::kInputs,
                                   sums);
    }
#pragma GCC unroll 16
    for (int i = 0; i < R; ++i) {
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v) sums[i][v].store(to + i * shape_.value_width() + v * Vec::kLanes);
    }
  }

  AttentionShape shape_;
  int blocks_, keys_, num_rows_ = 0;
  int begins_[kRows], ends_[kRows];  // the keys that each query sees
  const Operand* queries_[kRows];
  float largest_[kRows], total_[kRows];
  std::vector<float> scores_, sums_, wide_;
  std::vector<Operand> weights_, gathered_;
  std::conditional_t<kHasScales<Format>, Int8Operands, Nothing> codes_;
#if defined(TRIOSERVE_TILES)
  static_assert(kRows == AttentionTiles::kRows);
  AttentionTiles tiles_;
#endif
};

}  // namespace trioserve
