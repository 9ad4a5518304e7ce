// One row of RMS normalization.
#pragma once

#include "vector.h"

namespace xllm {

// The sum of squares of a row, whose first lanes come sixteen at a time. Two sums, as one would wait
// for each of its additions.
class Squares {
 public:
  void add(const Lanes& even, const Lanes& odd) {
    even_ = fma(even, even, even_);
    odd_ = fma(odd, odd, odd_);
  }
  void add(const Lanes& last) { even_ = fma(last, last, even_); }
  float total() const { return sum(even_ + odd_); }

 private:
  Lanes even_ = fill(0.0f), odd_ = fill(0.0f);
};

// 1 / sqrt(mean + eps) of a row with this sum of squares.
inline float rms_scale(float total, int64_t n, float eps) {
  return 1.0f / std::sqrt(total / float(n) + eps);
}

// out = x / sqrt(mean(x^2) + eps) * (offset + weight), rounded once. out may be x.
template <class T>
inline void rms_norm_row(const T* x, const T* weight, T* out, int64_t n, float eps, float offset) {
  Squares squares;
  int64_t i = 0;
  for (; i + 2 * kLanes <= n; i += 2 * kLanes) squares.add(load(x + i), load(x + i + kLanes));
  for (; i + kLanes <= n; i += kLanes) squares.add(load(x + i));
  float total = squares.total();
  for (; i < n; ++i) total += to_float(x[i]) * to_float(x[i]);
  const float scale = rms_scale(total, n, eps);
  const Lanes scales = fill(scale), offsets = fill(offset);
  for (i = 0; i + kLanes <= n; i += kLanes)
    store(load(x + i) * scales * (load(weight + i) + offsets), out + i);
  for (; i < n; ++i) from_float(to_float(x[i]) * scale * (to_float(weight[i]) + offset), out + i);
}

}  // namespace xllm
