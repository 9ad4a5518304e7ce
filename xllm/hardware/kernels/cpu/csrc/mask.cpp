// Banning tokens by bit masks: see `ops.mask_logits`.

#include <limits>

#include "runtime.h"

namespace xllm {
namespace {

constexpr int64_t kBits = 32;
constexpr float kBanned = -std::numeric_limits<float>::infinity();

struct MaskArgs {
  float* logits;
  const int64_t* rows;
  const uint32_t* masks;
  int64_t count, vocab, words, stride;
};

void mask_row(float* x, const uint32_t* mask, int64_t vocab) {
  for (int64_t first = 0; first < vocab; first += kBits) {
    const uint32_t word = mask[first / kBits];
    if (word == ~0u) continue;
    const int64_t end = first + kBits < vocab ? first + kBits : vocab;
    for (int64_t i = first; i < end; ++i)
      if (!(word >> (i - first) & 1)) x[i] = kBanned;
  }
}

void mask_logits(const MaskArgs& a) {
#pragma omp parallel for num_threads(num_threads()) if (a.count * a.vocab > kParallelElements)
  for (int64_t m = 0; m < a.count; ++m)
    mask_row(a.logits + a.rows[m] * a.stride, a.masks + m * a.words, a.vocab);
}

}  // namespace
}  // namespace xllm

XLLM_EXPORT void xllm_mask_logits(const xllm::MaskArgs* args) { xllm::mask_logits(*args); }
