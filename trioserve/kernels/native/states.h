// The states that layers keep beside keys and values.
//
// A sequence has a slot in each of these layers:
//
//     slot | last inputs of the convolution | state of head 0 | state of head 1 | ...
//
//     inputs  (num_taps - 1, num_channels), the oldest first
//     state   (blocks of columns, key_dim, kColumns): a matrix of key_dim rows and value_dim
//             columns, cut into blocks that stay in L1 while tokens run through them. Columns
//             beyond value_dim are 0.
//
// All numbers are float32. States of 16 bits drift over long texts. Inputs of 16 bits would
// differ from those that the same tokens read in the middle of a chunk, so the answer would
// depend on how a prompt is cut.
#pragma once

#include <cstddef>
#include <cstdint>

#include "matrix.h"

namespace trioserve {

enum class StateKind : std::int32_t { kDelta = 0, kMamba2 = 1, kShortConv = 2, kKimi = 3 };

// Columns of a state that are computed at once.
constexpr int kColumns = 32;
constexpr int kMaxTaps = 8;

// The formula of one layer, as Python fills it in. All numbers are float32.
//
// The layer reads one row of numbers for each token:
//
//     kDelta, kMamba2   queries | keys | values | gates | rates (kDelta) | decays
//                       ------- channels -------
//     kShortConv        gates before | gates behind | values, num_channels each
//     kKimi             queries | keys | values | rates | narrow decays | narrow gates | decays | gates
//                       ------- channels -------           widened to decays and gates
//
// Mamba-2 calls its queries C, its keys B, its values x, its gates z and its decays dt.
struct StateSpec {
  const float* taps;        // (num_taps, num_channels), that of the newest input last
  const float* tap_bias;    // (num_channels,) or null
  const float* decay;       // (num_value_heads,) negative
  const float* decay_bias;  // (num_value_heads,); of kKimi (num_value_heads * key_dim,)
  const float* skip;        // (num_value_heads,) or null: factor of values in the output
  const float* norm;  // (value_dim,); of kMamba2 (num_value_heads * value_dim,) or null
  // Of kKimi: from narrow decays to (num_value_heads * key_dim), from narrow gates to
  // (num_value_heads * value_dim).
  MatrixSpec widen_decays, widen_gates;
  // kDelta: (num_value_heads,) or null: the place of each head's output among those of a token
  const std::int32_t* places;
  StateKind kind;
  std::int32_t num_channels, num_taps;
  // A head of queries and keys serves num_value_heads / num_key_heads heads of values.
  std::int32_t num_key_heads, num_value_heads, key_dim, value_dim;
  // Of kMamba2.
  std::int32_t num_norm_groups;
  std::int32_t has_gate_behind;  // the gates weigh the output of the norm, not its input
  float min_step, max_step;

  // Places of the first of them among the numbers of a token.
  int rates() const { return kind == StateKind::kKimi ? num_channels : gates() + num_values(); }
  int narrow_decays() const { return num_channels + num_value_heads; }
  int narrow_gates() const { return narrow_decays() + widen_decays.num_inputs; }
  int decays() const {
    if (kind == StateKind::kKimi) return narrow_gates() + widen_gates.num_inputs;
    return rates() + (kind == StateKind::kDelta ? num_value_heads : 0);
  }
  int gates() const {
    return kind == StateKind::kKimi ? decays() + num_value_heads * key_dim : num_channels;
  }
  int num_values() const { return num_value_heads * value_dim; }
  // Numbers of a token that come from narrow ones.
  int num_widened() const { return widen_decays.num_outputs + widen_gates.num_outputs; }

  std::ptrdiff_t inputs_size() const {
    return static_cast<std::ptrdiff_t>(num_taps - 1) * num_channels;
  }
  int num_columns() const { return round_up(value_dim, kColumns); }
  std::ptrdiff_t head_size() const {
    return static_cast<std::ptrdiff_t>(key_dim) * num_columns();
  }
  // Numbers of a slot.
  std::ptrdiff_t size() const { return inputs_size() + num_value_heads * head_size(); }
};

// Tokens of one sequence that a step computes.
struct StateRow {
  int first_token;  // among the step's tokens
  int num_tokens;
  int slot;
  bool begins;  // it has the first token of the sequence, so the slot holds nothing yet
  int num_kept;  // tokens whose state the slot keeps: all, or all but the last, if that comes again
};

}  // namespace trioserve
