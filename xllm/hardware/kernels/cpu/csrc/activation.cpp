// Gated activation: act(gate) * up, in float32.
#include "runtime.h"

namespace xllm {
namespace {

struct ActivationArgs {
  const void* gate_up;  // (T, 2 I): gate, then up
  void* out;            // (T, I)
  int64_t tokens, width;
  int64_t kind;  // 0 silu, 1 gelu by tanh, 2 exact gelu
  int64_t dtype;
};

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

template <class T, int KIND>
void act_and_mul(const ActivationArgs& a) {
  const T* in = static_cast<const T*>(a.gate_up);
  T* out = static_cast<T*>(a.out);
  const int64_t width = a.width;
#pragma omp parallel for num_threads(num_threads()) if (a.tokens * width > kParallelElements)
  for (int64_t t = 0; t < a.tokens; ++t) {
    const T* gate = in + t * 2 * width;
    const T* up = gate + width;
    T* to = out + t * width;
    int64_t i = 0;
    for (; i + kLanes <= width; i += kLanes)
      store(activate<KIND>(load(gate + i)) * load(up + i), to + i);
    if (i < width) {
      float g[kLanes] = {}, u[kLanes] = {}, y[kLanes];
      for (int64_t j = i; j < width; ++j) g[j - i] = to_float(gate[j]), u[j - i] = to_float(up[j]);
      store(activate<KIND>(load(g)) * load(u), y);
      for (int64_t j = i; j < width; ++j) from_float(y[j - i], to + j);
    }
  }
}

}  // namespace
}  // namespace xllm

XLLM_EXPORT void xllm_act_and_mul(const xllm::ActivationArgs* args) {
  xllm::with_dtype(args->dtype, [&](auto element) {
    using T = decltype(element);
    if (args->kind == 0) return xllm::act_and_mul<T, 0>(*args);
    if (args->kind == 1) return xllm::act_and_mul<T, 1>(*args);
    return xllm::act_and_mul<T, 2>(*args);
  });
}
