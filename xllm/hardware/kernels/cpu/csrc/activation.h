// Activations of gated layers, in float32.
#pragma once

#include <type_traits>

#include "vector.h"

namespace xllm {

// x / (1 + e^(factor y)), which is rounded to T next: for bfloat16 within 2e-4 of it, a tenth of what
// that rounding may cost, and without the division, which takes as long as everything else.
template <class T>
XLLM_INLINE Lanes over_one_plus_exponential(const Lanes& x, float factor, const Lanes& y) {
#if defined(__AVX512DQ__)
  if constexpr (sizeof(T) == 2) {
    const floats sum = power_of_two<3>(y.r[0] * (factor * 1.44269504088896341f)) + 1.0f;
    return {x.r[0] * (floats)_mm512_rcp14_ps((__m512)sum)};
  }
#endif
  return x / (fill(1.0f) + exponential(fill(factor) * y));
}

template <class T>
XLLM_INLINE Lanes silu(const Lanes& x) {
  return over_one_plus_exponential<T>(x, -1.0f, x);
}

// 0.5 x (1 + tanh u) = x / (1 + e^(-2u))
template <class T>
XLLM_INLINE Lanes gelu_tanh(const Lanes& x) {
  return over_one_plus_exponential<T>(x, -1.5957691216057308f, x + fill(0.044715f) * x * x * x);
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

// Of values whose result leaves as T.
template <int KIND, class T>
XLLM_INLINE Lanes activate(const Lanes& x) {
  return KIND == 0 ? silu<T>(x) : KIND == 1 ? gelu_tanh<T>(x) : gelu(x);
}

// The kinds of the callers: 0 silu, 1 gelu by tanh, 2 exact gelu.
template <class F>
void with_activation(int64_t kind, F f) {
  if (kind == 0) return f(std::integral_constant<int, 0>());
  if (kind == 1) return f(std::integral_constant<int, 1>());
  f(std::integral_constant<int, 2>());
}

}  // namespace xllm
