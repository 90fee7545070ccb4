// The causal convolution of each channel with its last inputs.
//
//     y[t] = bias + sum over i of taps[i] * x[t - num_taps + 1 + i]
#pragma once

#include <algorithm>
#include <vector>

#include "pool.h"
#include "states.h"

namespace trioserve {

// Channels of one piece.
constexpr int kChannels = 128;

//   states: the first slot; slots are spec.size() numbers apart
//   read(token, first channel, count, to): writes the inputs of some channels
//   write(token, first channel, count, from): takes their outputs; kChannels numbers may be read
template <class Read, class Write>
void convolve(Pool& pool, const StateSpec& spec, const std::vector<StateRow>& rows, float* states,
              Read&& read, Write&& write) {
  const int size = spec.num_channels, num_taps = spec.num_taps;
  const int num_blocks = (size + kChannels - 1) / kChannels;
  pool.run(static_cast<int>(rows.size()) * num_blocks, [&](int piece, int) {
    const StateRow& row = rows[piece / num_blocks];
    const int first = piece % num_blocks * kChannels;
    const int count = std::min(kChannels, size - first);
    float* kept = states + row.slot * spec.size() + first;
    alignas(64) float taps[kMaxTaps][kChannels] = {}, inputs[kMaxTaps][kChannels] = {};
    alignas(64) float bias[kChannels] = {}, sums[kChannels];
    if (spec.tap_bias) std::copy_n(spec.tap_bias + first, count, bias);
    for (int i = 0; i < num_taps; ++i) {
      std::copy_n(spec.taps + static_cast<std::ptrdiff_t>(i) * size + first, count, taps[i]);
      if (i + 1 < num_taps && !row.begins) {
        std::copy_n(kept + static_cast<std::ptrdiff_t>(i) * size, count, inputs[i]);
      }
    }
    for (int t = 0; t < row.num_tokens; ++t) {
      // The inputs lie in a ring, whose oldest one is at t.
      read(row.first_token + t, first, count, inputs[(t + num_taps - 1) % num_taps]);
      std::copy_n(bias, kChannels, sums);
      for (int i = 0; i < num_taps; ++i) {
        const float* input = inputs[(t + i) % num_taps];
        for (int c = 0; c < kChannels; c += Vec::kLanes) {
          Vec::fma(Vec::load(taps[i] + c), Vec::load(input + c), Vec::load(sums + c))
              .store(sums + c);
        }
      }
      write(row.first_token + t, first, count, sums);
    }
    for (int i = 0; i + 1 < num_taps; ++i) {
      std::copy_n(inputs[(row.num_kept + i) % num_taps], count,
                  kept + static_cast<std::ptrdiff_t>(i) * size);
    }
  });
}

}  // namespace trioserve
