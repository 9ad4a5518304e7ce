// What a linear layer is called with.
#pragma once

#include <cstdint>

namespace xllm {

struct LinearArgs {
  const void* x;       // (T, K)
  const void* weight;  // packed
  const float* scale;  // (N padded to 16,), or null
  const void* bias;    // (N,) in the dtype of x, or null
  void* out;           // (T, N)
  int64_t tokens, k, padded_k, n;
  int64_t format;  // 0 float32, 1 bfloat16, 2 int8
  int64_t dtype;   // of x, bias and out
  // -1, or an activation's kind: the first half of N are gates of the second half, out is
  // (T, N / 2), and N is a multiple of 32. Not for rows that stream the weight.
  int64_t gate;
};

}  // namespace xllm
