// The activations of gated feed-forward layers.
#pragma once

#include "vec.h"

namespace trioserve {

enum class Activation : int { kSilu = 0, kGeluTanh = 1 };

inline Vec silu(Vec x) { return x / (Vec::all(1.0f) + exp(Vec::zero() - x)); }

inline Vec tanh(Vec x) {
  Vec limited = Vec::min(Vec::max(x, Vec::all(-20.0f)), Vec::all(20.0f));
  return Vec::all(1.0f) - Vec::all(2.0f) / (exp(limited + limited) + Vec::all(1.0f));
}

// GELU as PyTorch's approximate="tanh" has it.
// Source: Hendrycks and Gimpel 2016, section 2.
inline Vec gelu_tanh(Vec x) {
  Vec inner = Vec::fma(x * x * x, Vec::all(0.044715f), x) * Vec::all(0.7978845608028654f);
  return x * Vec::all(0.5f) * (Vec::all(1.0f) + tanh(inner));
}

inline Vec activate(Activation kind, Vec x) {
  return kind == Activation::kSilu ? silu(x) : gelu_tanh(x);
}

}  // namespace trioserve
