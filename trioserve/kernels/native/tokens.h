// Work that treats each token alone and is cheap for it.
#pragma once

#include <algorithm>

#include "pool.h"

namespace trioserve {

// Tokens of one piece.
constexpr int kTokens = 8;

// Calls piece(token) for each token, in several threads.
template <class Piece>
void run_tokens(Pool& pool, int num_tokens, Piece&& piece) {
  pool.run((num_tokens + kTokens - 1) / kTokens, [&](int i, int) {
    int end = std::min((i + 1) * kTokens, num_tokens);
    for (int token = i * kTokens; token < end; ++token) piece(token);
  });
}

}  // namespace trioserve
