// One-step recurrences of a head's state, over the tokens of a sequence.
//
//     delta rule    S <- decay * S;  S <- S + k (rate * (v - S^T k))^T;  o = S^T q
//     Mamba-2       S <- decay * S + k (rate * v)^T;                     o = S^T q
//     Kimi          the delta rule, with a decay for each row of S
//
// Tokens follow each other one by one, in prompts too. So a sequence gets the same numbers
// however its tokens are spread over steps. A block of columns needs no other column, so all
// tokens run through one block, which stays in L1, before the next.
//
// Source: Yang et al. 2025 (Gated Delta Networks), equation 10; Dao and Gu 2024 (Mamba-2),
// section 3; Kimi Team 2025 (Kimi Linear), equation 1.
#pragma once

#include "states.h"

namespace trioserve {

// What the tokens of one head read.
struct HeadInputs {
  int num_tokens;
  int key_dim;
  int num_columns;       // numbers of a token's values, with padding
  const float* queries;  // (num_tokens, key_dim)
  const float* keys;     // (num_tokens, key_dim)
  const float* values;   // (num_tokens, num_columns)
  const float* decays;   // (num_tokens,); of kKimi (num_tokens, key_dim)
  const float* rates;    // (num_tokens,)
};

constexpr int kColumnVecs = kColumns / Vec::kLanes;

// Calls body(chain, row) for each row of a state. As many rows as there are chains can be
// added at once, because their sums do not wait for each other.
template <int kChains, class Body>
inline void for_rows(int num_rows, Body&& body) {
  int i = 0;
  for (; i + kChains <= num_rows; i += kChains) {
#pragma GCC unroll 4
    for (int chain = 0; chain < kChains; ++chain) body(chain, i + chain);
  }
  for (; i < num_rows; ++i) body(0, i);
}

template <int kChains>
inline void join(Vec (&sums)[kChains][kColumnVecs]) {
  for (int chain = 1; chain < kChains; ++chain) {
    for (int v = 0; v < kColumnVecs; ++v) sums[0][v] = sums[0][v] + sums[chain][v];
  }
}

// Runs tokens through the columns that begin with `column`.
//
//   state: (key_dim, kColumns), changed
//   out: (num_tokens, num_columns)
template <StateKind kKind>
void run_columns(const HeadInputs& inputs, int column, float* state, float* out) {
  // Enough sums to hide the time of an addition.
  constexpr int kReadChains = 8 / kColumnVecs, kWriteChains = 4 / kColumnVecs;
  constexpr bool kIsKimi = kKind == StateKind::kKimi;
  const int key_dim = inputs.key_dim;
  for (int t = 0; t < inputs.num_tokens; ++t) {
    const float* key = inputs.keys + t * key_dim;
    const float* query = inputs.queries + t * key_dim;
    const float* values = inputs.values + t * inputs.num_columns + column;
    const float* decays = inputs.decays + (kIsKimi ? t * key_dim : t);
    const Vec decay = Vec::all(*decays), rate = Vec::all(inputs.rates[t]);
    Vec seen[kReadChains][kColumnVecs] = {};
    if constexpr (kKind != StateKind::kMamba2) {
      for_rows<kReadChains>(key_dim, [&](int chain, int i) {
        const Vec number = Vec::all(kIsKimi ? key[i] * decays[i] : key[i]);
#pragma GCC unroll 4
        for (int v = 0; v < kColumnVecs; ++v) {
          Vec part = Vec::load(state + i * kColumns + v * Vec::kLanes);
          seen[chain][v] = Vec::fma(part, number, seen[chain][v]);
        }
      });
      join(seen);
    }
    Vec added[kColumnVecs], sums[kWriteChains][kColumnVecs] = {};
    for (int v = 0; v < kColumnVecs; ++v) {
      const Vec known = kIsKimi ? seen[0][v] : decay * seen[0][v];
      added[v] = (Vec::load(values + v * Vec::kLanes) - known) * rate;
    }
    for_rows<kWriteChains>(key_dim, [&](int chain, int i) {
      const Vec number = Vec::all(key[i]), asked = Vec::all(query[i]);
      const Vec kept = kIsKimi ? Vec::all(decays[i]) : decay;
#pragma GCC unroll 4
      for (int v = 0; v < kColumnVecs; ++v) {
        float* place = state + i * kColumns + v * Vec::kLanes;
        Vec part = Vec::fma(added[v], number, Vec::load(place) * kept);
        part.store(place);
        sums[chain][v] = Vec::fma(part, asked, sums[chain][v]);
      }
    });
    join(sums);
    for (int v = 0; v < kColumnVecs; ++v) {
      sums[0][v].store(out + t * inputs.num_columns + column + v * Vec::kLanes);
    }
  }
}

}  // namespace trioserve
