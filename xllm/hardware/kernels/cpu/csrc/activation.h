// Activations of gated layers, in float32.
#pragma once

#include <type_traits>

#include "vector.h"

namespace xllm {

XLLM_INLINE Lanes silu(const Lanes& x) { return x / (fill(1.0f) + exponential(fill(0.0f) - x)); }

// 0.5 x (1 + tanh u) = x / (1 + e^(-2u))
XLLM_INLINE Lanes gelu_tanh(const Lanes& x) {
  Lanes u = fill(-1.5957691216057308f) * (x + fill(0.044715f) * x * x * x);
  return x / (fill(1.0f) + exponential(u));
}

// By erf of Abramowitz and Stegun 7.1.26, absolute error below 1.5e-7.
XLLM_INLINE Lanes gelu(const Lanes& x) {
  Lanes out;
  XLLM_EACH_REGISTER(kRegisters) {
    floats z = x.r[i] * 0.70710678118654752f;
    floats a = (z < 0.0f) ? -z : z;
    floats t = 1.0f / (1.0f + 0.3275911f * a);
    floats p = splat(1.061405429f);
    p = p * t - 1.453152027f;
    p = p * t + 1.421413741f;
    p = p * t - 0.284496736f;
    p = p * t + 0.254829592f;
    floats e = 1.0f - p * t * exponential(-a * a);
    out.r[i] = 0.5f * x.r[i] * (1.0f + ((z < 0.0f) ? -e : e));
  }
  return out;
}

template <int KIND>
XLLM_INLINE Lanes activate(const Lanes& x) {
  return KIND == 0 ? silu(x) : KIND == 1 ? gelu_tanh(x) : gelu(x);
}

// The kinds of the callers: 0 silu, 1 gelu by tanh, 2 exact gelu.
template <class F>
void with_activation(int64_t kind, F f) {
  if (kind == 0) return f(std::integral_constant<int, 0>());
  if (kind == 1) return f(std::integral_constant<int, 1>());
  f(std::integral_constant<int, 2>());
}

}  // namespace xllm
