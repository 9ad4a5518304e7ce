// One row of RMS normalization.
#pragma once

#include "vector.h"

namespace xllm {

// out = x / sqrt(mean(x^2) + eps) * (offset + weight), rounded once. out may be x.
template <class T>
inline void rms_norm_row(const T* x, const T* weight, T* out, int64_t n, float eps, float offset) {
  Lanes squares = fill(0.0f);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    Lanes v = load(x + i);
    squares = fma(v, v, squares);
  }
  float total = sum(squares);
  for (; i < n; ++i) total += to_float(x[i]) * to_float(x[i]);
  const float scale = 1.0f / std::sqrt(total / float(n) + eps);
  const Lanes scales = fill(scale), offsets = fill(offset);
  for (i = 0; i + kLanes <= n; i += kLanes)
    store(load(x + i) * scales * (load(weight + i) + offsets), out + i);
  for (; i < n; ++i) from_float(to_float(x[i]) * scale * (to_float(weight[i]) + offset), out + i);
}

}  // namespace xllm
