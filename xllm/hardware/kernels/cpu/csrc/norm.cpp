// RMS normalization, alone and fused with the residual addition before it. One row at a time, by
// one thread, in a fixed order: a row's bits do not depend on the batch.
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

// residual += x, rounded.
template <class T>
void add_row(const T* x, T* residual, int64_t hidden) {
  int64_t i = 0;
  for (; i + kLanes <= hidden; i += kLanes) store(load(residual + i) + load(x + i), residual + i);
  for (; i < hidden; ++i) from_float(to_float(residual[i]) + to_float(x[i]), residual + i);
}

template <class T>
void norm(const NormArgs& a) {
  const T* x = static_cast<const T*>(a.x);
  T* residual = static_cast<T*>(a.residual);
  const T* weight = static_cast<const T*>(a.weight);
  T* out = static_cast<T*>(a.out);
  const int64_t hidden = a.hidden;
#pragma omp parallel for num_threads(num_threads()) if (a.tokens * hidden > kParallelElements)
  for (int64_t t = 0; t < a.tokens; ++t) {
    const T* row = x + t * hidden;
    if (residual) {
      add_row(row, residual + t * hidden, hidden);
      row = residual + t * hidden;
    }
    rms_norm_row(row, weight, out + t * hidden, hidden, float(a.eps), float(a.offset));
  }
}

}  // namespace
}  // namespace xllm

XLLM_EXPORT void xllm_rms_norm(const xllm::NormArgs* args) {
  xllm::with_dtype(args->dtype, [&](auto element) { xllm::norm<decltype(element)>(*args); });
}
