#include "runtime.h"

#include <omp.h>

#include "gemm.h"

namespace xllm {
namespace {

int threads = 0;

EngineKind best_engine() {
#if defined(XLLM_HAS_TILES)
  if (tiles_permitted()) return EngineKind::kTile;
#endif
#if defined(XLLM_HAS_DOT)
  return EngineKind::kDot;
#endif
  return EngineKind::kF32;
}

EngineKind engine = best_engine();

}  // namespace

int num_threads() { return threads ? threads : omp_get_max_threads(); }

EngineKind active_engine() { return engine; }

}  // namespace xllm

// Threads that take part in every kernel from now on.
XLLM_EXPORT void xllm_set_num_threads(int64_t n) { xllm::threads = int(n); }
XLLM_EXPORT int64_t xllm_num_threads() { return xllm::num_threads(); }

// Engine of bfloat16 products: 0 float32 registers, 1 AVX512-BF16, 2 AMX.
XLLM_EXPORT int64_t xllm_engine() { return int64_t(xllm::engine); }

// For tests and for machines whose tiles misbehave: products run on an engine no better than this.
XLLM_EXPORT void xllm_limit_engine(int64_t engine) {
  const xllm::EngineKind best = xllm::best_engine();
  xllm::engine = int64_t(best) < engine ? best : xllm::EngineKind(engine);
}

// Kernels in a row, with their structs: a captured step (graph.py).
struct Call {
  void (*kernel)(const void*);
  const void* args;
};
XLLM_EXPORT void xllm_run(const Call* calls, int64_t count) {
  for (int64_t i = 0; i < count; ++i) calls[i].kernel(calls[i].args);
}
