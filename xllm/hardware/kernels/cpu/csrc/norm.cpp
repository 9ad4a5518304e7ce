// RMS normalization, alone and fused with the residual addition before it. One row at a time, by
// one thread, in a fixed order: a row's bits do not depend on the batch.
#include <omp.h>

#include "rms.h"
#include "runtime.h"

namespace xllm {
namespace {

struct NormArgs {
  const void* x;         // (T, H)
  void* residual;        // (T, H) or null
  const void* weight;    // (H,)
  void* out;             // (T, H)
  int64_t tokens, hidden;
  double eps, offset;
  int64_t dtype;
};

// Rows whose lines are asked for: between two norms a layer's weights pass through the second-level
// cache, so rows come from the third, and those that are written have to become this core's alone.
constexpr int64_t kAheadBytes = 4096;

// residual += x, rounded, where there is one. The sum of squares of what is to be normalized. Asks for
// what lies `ahead` elements on, of out too.
template <class T, bool RESIDUAL>
float add_row(const T* x, T* residual, const T* out, int64_t hidden, int64_t ahead) {
  Squares squares;
  const auto added = [&](int64_t i) {
    if constexpr (!RESIDUAL) return load(x + i);
    return load(residual + i) + load(x + i);
  };
  int64_t i = 0;
  for (; i + 2 * kLanes <= hidden; i += 2 * kLanes) {
    Lanes even = added(i), odd = added(i + kLanes);
    if constexpr (RESIDUAL) {
      __builtin_prefetch(x + i + ahead);
      __builtin_prefetch(residual + i + ahead, 1);
      __builtin_prefetch(out + i + ahead, 1);
      even = store_rounded(even, residual + i);
      odd = store_rounded(odd, residual + i + kLanes);
    }
    squares.add(even, odd);
  }
  for (; i + kLanes <= hidden; i += kLanes) {
    Lanes last = added(i);
    if constexpr (RESIDUAL) last = store_rounded(last, residual + i);
    squares.add(last);
  }
  float total = squares.total();
  for (; i < hidden; ++i) {
    if constexpr (RESIDUAL) from_float(to_float(residual[i]) + to_float(x[i]), residual + i);
    const float value = to_float(RESIDUAL ? residual[i] : x[i]);
    total += value * value;
  }
  return total;
}

// out = x * scale * weights, rounded once.
template <class T>
void scale_row(const T* x, const float* weights, float scale, T* out, int64_t hidden) {
  const Lanes scales = fill(scale);
  int64_t i = 0;
  for (; i + 2 * kLanes <= hidden; i += 2 * kLanes) {
    const Lanes first = load(x + i) * scales * load(weights + i);
    store_two(first, load(x + i + kLanes) * scales * load(weights + i + kLanes), out + i);
  }
  for (; i < hidden; ++i) from_float(to_float(x[i]) * scale * weights[i], out + i);
}

template <class T, bool RESIDUAL>
void norm(const NormArgs& a) {
  static thread_local Scratch scratch;
  const T* x = static_cast<const T*>(a.x);
  T* residual = static_cast<T*>(a.residual);
  T* out = static_cast<T*>(a.out);
  const int64_t hidden = a.hidden;
  const int64_t rows_ahead = ceil_div(kAheadBytes, hidden * int64_t(sizeof(T)));
  float* weights = scratch.get<float>(hidden);
  for (int64_t i = 0; i < hidden; ++i)
    weights[i] = to_float(static_cast<const T*>(a.weight)[i]) + float(a.offset);
#pragma omp parallel num_threads(num_threads()) if (a.tokens * hidden > kParallelElements)
  {
    const int64_t thread = omp_get_thread_num(), threads = omp_get_num_threads();
    const int64_t first = a.tokens * thread / threads, last = a.tokens * (thread + 1) / threads;
    const auto sum_row = [&](int64_t t) {
      // Never rows of another thread, which would lose them; the row at hand costs nothing.
      const int64_t at = t * hidden, ahead = t + rows_ahead < last ? rows_ahead * hidden : 0;
      return t < last ? add_row<T, RESIDUAL>(x + at, residual + at, out + at, hidden, ahead) : 0.0f;
    };
    float total = sum_row(first);
    for (int64_t t = first; t < last; ++t) {
      const float next = sum_row(t + 1);  // while the root of this row's is taken
      const int64_t at = t * hidden;
      scale_row(RESIDUAL ? residual + at : x + at, weights, rms_scale(total, hidden, float(a.eps)),
                out + at, hidden);
      total = next;
    }
  }
}

}  // namespace
}  // namespace xllm

XLLM_EXPORT void xllm_rms_norm(const xllm::NormArgs* args) {
  xllm::with_dtype(args->dtype, [&](auto element) {
    using T = decltype(element);
    args->residual ? xllm::norm<T, true>(*args) : xllm::norm<T, false>(*args);
  });
}
