// What all kernels share: the number of threads, scratch memory, the calling convention.
//
// Every entry point takes one pointer to a packed struct whose fields are all eight bytes wide
// (pointers, int64, double), so that the caller hands over one argument. `dtype` is 0 for float32
// and 1 for bfloat16.
#pragma once

#include <omp.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <memory>

#include "vector.h"

#define XLLM_EXPORT extern "C" __attribute__((visibility("default")))

namespace xllm {

int num_threads();

// What computes bfloat16 products (gemm.h), from slow to fast.
enum class EngineKind : int64_t { kF32 = 0, kDot = 1, kTile = 2 };
EngineKind active_engine();

inline int64_t round_up(int64_t x, int64_t unit) { return (x + unit - 1) / unit * unit; }
inline int64_t ceil_div(int64_t x, int64_t unit) { return (x + unit - 1) / unit; }

// Memory of one thread that grows and is kept. Contents do not survive `get`.
class Scratch {
 public:
  ~Scratch() { std::free(data_); }
  template <class T>
  T* get(int64_t count) {
    size_t bytes = size_t(round_up(count * int64_t(sizeof(T)), 4096));
    if (bytes > size_) {
      std::free(data_);
      data_ = std::aligned_alloc(4096, bytes);
      if (!data_) std::abort();
      size_ = bytes;
    }
    return static_cast<T*>(data_);
  }

 private:
  void* data_ = nullptr;
  size_t size_ = 0;
};

// Calls f with a value of the element type that `dtype` names.
template <class F>
void with_dtype(int64_t dtype, F f) {
  if (dtype)
    f(bf16{});
  else
    f(float{});
}

// Tasks 0 .. count of a parallel region. Each thread takes a run of consecutive ones, the same in
// every region with as many tasks, and then what other threads have left of theirs: rows stay in the
// cache of the core that wrote them, and no thread waits for a slow one.
class TaskRuns {
 public:
  TaskRuns(int64_t count, int threads) : threads_(threads), runs_(new Run[size_t(threads)]) {
    for (int t = 0; t < threads; ++t) {
      runs_[size_t(t)].next = count * t / threads;
      runs_[size_t(t)].end = count * (t + 1) / threads;
    }
  }

  // Calls f(task) until none is left. Every thread of the region calls it, each once.
  template <class F>
  void work(F f) {
    const int self = omp_get_thread_num();
    for (int i = 0; i < threads_; ++i) {
      Run& run = runs_[size_t((self + i) % threads_)];
      for (int64_t task; (task = run.next.fetch_add(1, std::memory_order_relaxed)) < run.end;)
        f(task);
    }
  }

 private:
  struct alignas(64) Run {
    std::atomic<int64_t> next;
    int64_t end;
  };
  int threads_;
  std::unique_ptr<Run[]> runs_;
};

// Below this many elements a second thread costs more than it saves.
constexpr int64_t kParallelElements = 1 << 15;

}  // namespace xllm
