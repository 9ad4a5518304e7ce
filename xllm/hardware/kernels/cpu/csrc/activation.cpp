// Gated activation: act(gate) * up, in float32.
#include "activation.h"
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
      store(activate<KIND, T>(load(gate + i)) * load(up + i), to + i);
    if (i < width) {
      float g[kLanes] = {}, u[kLanes] = {}, y[kLanes];
      for (int64_t j = i; j < width; ++j) g[j - i] = to_float(gate[j]), u[j - i] = to_float(up[j]);
      store(activate<KIND, T>(load(g)) * load(u), y);
      for (int64_t j = i; j < width; ++j) from_float(y[j - i], to + j);
    }
  }
}

}  // namespace
}  // namespace xllm

XLLM_EXPORT void xllm_act_and_mul(const xllm::ActivationArgs* args) {
  xllm::with_dtype(args->dtype, [&](auto element) {
    using T = decltype(element);
    xllm::with_activation(args->kind, [&](auto kind) { xllm::act_and_mul<T, kind>(*args); });
  });
}
