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

// residual += x, rounded. Asks for what lies `ahead` elements on, of out too.
template <class T>
void add_row(const T* x, T* residual, const T* out, int64_t hidden, int64_t ahead) {
  int64_t i = 0;
  for (; i + kLanes <= hidden; i += kLanes) {
    __builtin_prefetch(x + i + ahead);
    __builtin_prefetch(residual + i + ahead, 1);
    __builtin_prefetch(out + i + ahead, 1);
    store(load(residual + i) + load(x + i), residual + i);
  }
  for (; i < hidden; ++i) from_float(to_float(residual[i]) + to_float(x[i]), residual + i);
}

template <class T>
void norm(const NormArgs& a) {
  const T* x = static_cast<const T*>(a.x);
  T* residual = static_cast<T*>(a.residual);
  const T* weight = static_cast<const T*>(a.weight);
  T* out = static_cast<T*>(a.out);
  const int64_t hidden = a.hidden;
  const int64_t rows_ahead = ceil_div(kAheadBytes, hidden * int64_t(sizeof(T)));
#pragma omp parallel num_threads(num_threads()) if (a.tokens * hidden > kParallelElements)
  {
    const int64_t thread = omp_get_thread_num(), threads = omp_get_num_threads();
    const int64_t last = a.tokens * (thread + 1) / threads;
    for (int64_t t = a.tokens * thread / threads; t < last; ++t) {
      const T* row = x + t * hidden;
      T* to = out + t * hidden;
      if (residual) {
        // Never rows of another thread, which would lose them; the row at hand costs nothing.
        const int64_t ahead = t + rows_ahead < last ? rows_ahead * hidden : 0;
        add_row(row, residual + t * hidden, to, hidden, ahead);
        row = residual + t * hidden;
      }
      rms_norm_row(row, weight, to, hidden, float(a.eps), float(a.offset));
    }
  }
}

}  // namespace
}  // namespace xllm

XLLM_EXPORT void xllm_rms_norm(const xllm::NormArgs* args) {
  xllm::with_dtype(args->dtype, [&](auto element) { xllm::norm<decltype(element)>(*args); });
}
