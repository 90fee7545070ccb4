// The activations of feed-forward layers.
#pragma once

#include "vec.h"

namespace trioserve {

enum class Activation : int { kSilu = 0, kGeluTanh = 1, kGelu = 2, kRelu = 3, kRelu2 = 4 };

inline Vec sigmoid(Vec x) { return Vec::all(1.0f) / (Vec::all(1.0f) + exp(Vec::zero() - x)); }

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

// The error function, within 4 units of the last place: a quotient of two polynomials.
// Source: the Eigen library, generic_fast_erf_float.
inline Vec erf(Vec x) {
  // Beyond 4 the result rounds to 1.
  x = Vec::min(Vec::max(x, Vec::all(-4.0f)), Vec::all(4.0f));
  Vec square = x * x;
  Vec above = Vec::all(-2.72614225801306e-10f);
  above = Vec::fma(above, square, Vec::all(2.77068142495902e-08f));
  above = Vec::fma(above, square, Vec::all(-2.10102402082508e-06f));
  above = Vec::fma(above, square, Vec::all(-5.69250639462346e-05f));
  above = Vec::fma(above, square, Vec::all(-7.34990630326855e-04f));
  above = Vec::fma(above, square, Vec::all(-2.95459980854025e-03f));
  above = Vec::fma(above, square, Vec::all(-1.60960333262415e-02f));
  Vec below = Vec::all(-1.45660718464996e-05f);
  below = Vec::fma(below, square, Vec::all(-2.13374055278905e-04f));
  below = Vec::fma(below, square, Vec::all(-1.68282697438203e-03f));
  below = Vec::fma(below, square, Vec::all(-7.37332916720468e-03f));
  below = Vec::fma(below, square, Vec::all(-1.42647390514189e-02f));
  return x * above / below;
}

// Source: Hendrycks and Gimpel 2016, equation 1.
inline Vec gelu(Vec x) {
  return x * Vec::all(0.5f) * (Vec::all(1.0f) + erf(x * Vec::all(0.70710678118654752f)));
}

// What experts do whose gates and numbers are clamped: gates are at most `limit`, numbers between
// -limit and limit. Without a limit, it is nothing.
struct ClampSpec {
  float slope, limit;
};

// (numbers + 1) * gates * sigmoid(slope * gates)
// Source: OpenAI 2025 (gpt-oss), the activation of experts.
inline Vec weigh_clamped(const ClampSpec& clamp, Vec gates, Vec numbers) {
  const Vec limit = Vec::all(clamp.limit);
  // Of NaN and a number, the second one is taken.
  gates = Vec::min(limit, gates);
  numbers = Vec::max(Vec::zero() - limit, Vec::min(limit, numbers));
  return (numbers + Vec::all(1.0f)) * gates * sigmoid(gates * Vec::all(clamp.slope));
}

inline Vec activate(Activation kind, Vec x) {
  switch (kind) {
    case Activation::kSilu:
      return silu(x);
    case Activation::kGeluTanh:
      return gelu_tanh(x);
    case Activation::kGelu:
      return gelu(x);
    case Activation::kRelu:
    case Activation::kRelu2:
      break;
  }
  const Vec positive = Vec::max(Vec::zero(), x);  // NaN, if x is
  return kind == Activation::kRelu ? positive : positive * positive;
}

}  // namespace trioserve
