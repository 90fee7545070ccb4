// Layers that mix the tokens of a sequence by a state of a fixed size.
//
//     kDelta       convolution -> SiLU -> L2 norm of q, k -> delta rule -> norm -> * SiLU(gate)
//     kMamba2      convolution -> SiLU -> recurrence, + skip * v -> * SiLU(gate) -> norm
//     kShortConv   * gate before -> convolution -> * gate behind
//     kKimi        as kDelta, with a decay for each row of the state, and sigmoids of gates
//
// Source: Yang et al. 2025 (Gated Delta Networks), section 3.4; Dao and Gu 2024 (Mamba-2),
// section 7; Liquid AI 2025 (LFM2); Kimi Team 2025 (Kimi Linear), section 3.
#pragma once

#include <cmath>
#include <vector>

#include "activation.h"
#include "buffers.h"
#include "convolution.h"
#include "norm.h"
#include "recurrence.h"
#include "tokens.h"

namespace trioserve {

class StateMixer {
 public:
  // Computes one layer.
  //
  //   states: the first slot of the layer
  //   x: (tokens, numbers that StateSpec draws), tokens `stride` apart; changed. Those that are
  //      widened are filled in here.
  //   out: (tokens, num_value_heads * value_dim), or num_channels of kShortConv; tokens
  //        `out_stride` apart
  void run(Pool& pool, OperandBuffer& buffer, const StateSpec& spec,
           const std::vector<StateRow>& rows, int num_tokens, float epsilon, float* states,
           float* x, std::ptrdiff_t stride, float* out, std::ptrdiff_t out_stride) {
    if (spec.kind == StateKind::kShortConv) {
      run_short(pool, spec, rows, states, x, stride, out, out_stride);
      return;
    }
    if (spec.kind == StateKind::kKimi) {
      widen(pool, buffer, spec.widen_decays, num_tokens, x + spec.narrow_decays(), stride,
            x + spec.decays());
      widen(pool, buffer, spec.widen_gates, num_tokens, x + spec.narrow_gates(), stride,
            x + spec.gates());
    }
    convolve(pool, spec, rows, states,
             [&](std::ptrdiff_t token, int first, int count, float* to) {
               std::copy_n(x + token * stride + first, count, to);
             },
             [&](std::ptrdiff_t token, int first, int count, const float* from) {
               float* to = x + token * stride + first;
               for_vectors(count, [&](int i, int part) {
                 store_part(silu(Vec::load(from + i)), part, to + i);
               });
             });
    while (static_cast<int>(heads_.size()) < pool.num_threads()) heads_.emplace_back();
    const int num_heads = spec.num_value_heads;
    pool.run(static_cast<int>(rows.size()) * num_heads, [&](int piece, int thread) {
      const StateRow& row = rows[piece / num_heads];
      heads_[thread].run(spec, row, piece % num_heads, epsilon,
                         states + row.slot * spec.size() + spec.inputs_size(),
                         x + row.first_token * stride, stride,
                         out + row.first_token * out_stride, out_stride);
    });
    if (spec.kind != StateKind::kMamba2 || !spec.norm) return;
    const int size = spec.num_values() / spec.num_norm_groups;
    run_tokens(pool, num_tokens, [&](std::ptrdiff_t token) {
      float* mixed = out + token * out_stride;
      for (int i = 0; i < spec.num_values(); i += size) {
        normalize(mixed + i, spec.norm + i, size, epsilon, mixed + i);
      }
      if (!spec.has_gate_behind) return;
      const float* gate = x + token * stride + spec.gates();
      for_vectors(spec.num_values(), [&](int i, int count) {
        Vec part = load_part(mixed + i, count) * silu(load_part(gate + i, count));
        store_part(part, count, mixed + i);
      });
    });
  }

 private:
  // to = from W^T, in rows of the same distance
  static void widen(Pool& pool, OperandBuffer& buffer, const MatrixSpec& matrix, int num_tokens,
                    const float* from, std::ptrdiff_t stride, float* to) {
    multiply(pool, buffer, {from, stride, num_tokens},
             {[&](int row, int first, int count, const float* values) {
               std::copy_n(values, count, to + row * stride + first);
             },
              {to, stride}},
             matrix);
  }

  static void run_short(Pool& pool, const StateSpec& spec, const std::vector<StateRow>& rows,
                        float* states, const float* x, std::ptrdiff_t stride, float* out,
                        std::ptrdiff_t out_stride) {
    const int size = spec.num_channels;
    convolve(pool, spec, rows, states,
             [&](std::ptrdiff_t token, int first, int count, float* to) {
               const float* gate = x + token * stride + first;
               for (int i = 0; i < count; ++i) to[i] = gate[i] * gate[2 * size + i];
             },
             [&](std::ptrdiff_t token, int first, int count, const float* from) {
               const float* gate = x + token * stride + size + first;
               float* to = out + token * out_stride + first;
               for (int i = 0; i < count; ++i) to[i] = gate[i] * from[i];
             });
  }

  // One head and its scratch memory; a thread has one.
  class Head {
   public:
    // state: of the head 0; x, out: of the row's first token
    void run(const StateSpec& spec, const StateRow& row, int head, float epsilon, float* state,
             const float* x, std::ptrdiff_t stride, float* out, std::ptrdiff_t out_stride) {
      const int num_columns = spec.num_columns();
      fit(queries_, kTokensAtOnce * spec.key_dim);
      fit(keys_, kTokensAtOnce * spec.key_dim);
      fit(values_, kTokensAtOnce * num_columns);
      fit(mixed_, kTokensAtOnce * num_columns);
      fit(decays_, kTokensAtOnce * (spec.kind == StateKind::kKimi ? spec.key_dim : 1));
      state += head * spec.head_size();
      for (int begin = 0, count; begin < row.num_tokens; begin += count) {
        if (begin == row.num_kept) {
          copy_.assign(state, state + spec.head_size());
          state = copy_.data();
        }
        if (row.begins && begin == 0) std::fill_n(state, spec.head_size(), 0.0f);
        const int end = begin < row.num_kept ? row.num_kept : row.num_tokens;
        count = std::min(kTokensAtOnce, end - begin);
        for (int t = 0; t < count; ++t) read(spec, head, x + (begin + t) * stride, t);
        const HeadInputs inputs{count,         spec.key_dim,   num_columns,
                                queries_.data(), keys_.data(),   values_.data(),
                                decays_.data(), rates_};
        switch (spec.kind) {
          case StateKind::kDelta: run_blocks<StateKind::kDelta>(inputs, state); break;
          case StateKind::kKimi: run_blocks<StateKind::kKimi>(inputs, state); break;
          default: run_blocks<StateKind::kMamba2>(inputs, state);
        }
        const int place = spec.places ? spec.places[head] : head;
        for (int t = 0; t < count; ++t) {
          write(spec, head, epsilon, x + (begin + t) * stride, t,
                out + (begin + t) * out_stride + place * spec.value_dim);
        }
      }
    }

   private:
    // Their numbers stay in L1 and L2 beside a block of the state.
    static constexpr int kTokensAtOnce = 16;

    template <StateKind kKind>
    void run_blocks(const HeadInputs& inputs, float* state) {
      for (int column = 0; column < inputs.num_columns; column += kColumns) {
        float* columns = state + static_cast<std::ptrdiff_t>(column) * inputs.key_dim;
        run_columns<kKind>(inputs, column, columns, mixed_.data());
      }
    }

    // As PyTorch has it.
    static float softplus(float x) { return x > 20.0f ? x : std::log1p(std::exp(x)); }

    static int value_place(const StateSpec& spec, int head) {
      return 2 * spec.num_key_heads * spec.key_dim + head * spec.value_dim;
    }

    // Fills in what token t reads; x: its numbers
    void read(const StateSpec& spec, int head, const float* x, int t) {
      const int key_dim = spec.key_dim, num_heads = spec.num_value_heads;
      const int key_head = head / (num_heads / spec.num_key_heads);
      const float* query = x + key_head * key_dim;
      const float* key = query + spec.num_key_heads * key_dim;
      float* value = &values_[t * spec.num_columns()];
      std::copy_n(x + value_place(spec, head), spec.value_dim, value);
      std::fill_n(value + spec.value_dim, spec.num_columns() - spec.value_dim, 0.0f);
      const float* decay = x + spec.decays();
      if (spec.kind == StateKind::kMamba2) {
        std::copy_n(query, key_dim, &queries_[t * key_dim]);
        std::copy_n(key, key_dim, &keys_[t * key_dim]);
        const float step = softplus(decay[head] + spec.decay_bias[head]);
        rates_[t] = std::min(std::max(step, spec.min_step), spec.max_step);
        decays_[t] = std::exp(spec.decay[head] * rates_[t]);
        return;
      }
      const float scale = 1.0f / std::sqrt(static_cast<float>(key_dim));
      scale_to_length(query, key_dim, scale, &queries_[t * key_dim]);
      scale_to_length(key, key_dim, 1.0f, &keys_[t * key_dim]);
      rates_[t] = 1.0f / (1.0f + std::exp(-x[spec.rates() + head]));
      const int count = spec.kind == StateKind::kKimi ? key_dim : 1, first = head * count;
      for (int i = 0; i < count; ++i) {
        const float step = softplus(decay[first + i] + spec.decay_bias[first + i]);
        decays_[t * count + i] = std::exp(spec.decay[head] * step);
      }
    }

    // to = x * length / sqrt(sum(x^2) + 1e-6)
    static void scale_to_length(const float* x, int size, float length, float* to) {
      Vec squares = Vec::zero();
      for_vectors(size, [&](int i, int count) {
        Vec part = load_part(x + i, count);
        squares = Vec::fma(part, part, squares);
      });
      const Vec factor = Vec::all(length / std::sqrt(squares.sum() + 1e-6f));
      for_vectors(size, [&](int i, int count) {
        store_part(load_part(x + i, count) * factor, count, to + i);
      });
    }

    // x: the numbers of token t; to: its output
    void write(const StateSpec& spec, int head, float epsilon, const float* x, int t, float* to) {
      const int size = spec.value_dim;
      float* mixed = &mixed_[t * spec.num_columns()];
      const float* gate = x + spec.gates() + head * size;
      const bool is_mamba = spec.kind == StateKind::kMamba2;
      const bool is_kimi = spec.kind == StateKind::kKimi;
      if (!is_mamba) normalize(mixed, spec.norm, size, epsilon, mixed);
      const Vec skip = Vec::all(spec.skip ? spec.skip[head] : 0.0f);
      const float* value = x + value_place(spec, head);
      for_vectors(size, [&](int i, int count) {
        Vec part = load_part(mixed + i, count);
        if (is_mamba) part = Vec::fma(skip, load_part(value + i, count), part);
        if (!(is_mamba && spec.has_gate_behind)) {
          const Vec weight = load_part(gate + i, count);
          part = part * (is_kimi ? sigmoid(weight) : silu(weight));
        }
        store_part(part, count, to + i);
      });
    }

    std::vector<float> queries_, keys_, values_, mixed_, decays_, copy_;
    float rates_[kTokensAtOnce];
  };

  std::vector<Head> heads_;
};

}  // namespace trioserve
