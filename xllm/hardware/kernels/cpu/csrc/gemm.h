// The one product behind linear layers and attention: C (rows, 16) = [C +] A (rows, k) B (k, 16).
//
// A is row-major; B is a panel: sixteen columns whose k-th entries lie together. Sixteen is the
// width of a tile, of a 512-bit register and of two 256-bit ones. Three engines compute it:
//
//   F32Engine   any vector unit. B[k][16] floats.
//   DotEngine   AVX512-BF16. B[k / 2][16][2] bfloat16: each lane holds a pair along k.
//   TileEngine  AMX. The same panels; k a multiple of 32.
//
// Every element of C is summed over k in one order that depends on nothing but k. So a row of the
// result has the same bits however many rows are computed with it, and a k range may be cut in two
// (at a multiple of kStep) with `accumulate`.
#pragma once

#include "tile.h"
#include "vector.h"

namespace xllm {

// Memory that will be read after a product. F32Engine asks for it while it computes, so that a
// product of few rows does not wait for its weights and then for its arithmetic. TileEngine does so
// where a block has more than 16 rows; with fewer it asks for B itself a few tiles ahead, told of any.
struct Ahead {
  const void* at = nullptr;
  int64_t bytes = 0;
};

// Scratch of an engine per thread and parallel region.
struct NoScope {};

struct F32Engine {
  using Input = float;
  using Scope = NoScope;
  static constexpr int64_t kStep = 1;
  static constexpr bool kPairs = false;

  // `panels` panels of B, `b_stride` apart; their C blocks (rows, 16) are `c_stride` apart.
  static void gemm(int64_t rows, int panels, int64_t k, const float* a, int64_t lda,
                   const float* b, int64_t b_stride, float* c, int64_t c_stride, bool accumulate,
                   const Ahead& ahead = {});
};

#if defined(__AVX512BF16__) || defined(XLLM_EMULATE)
#define XLLM_HAS_DOT 1

struct DotEngine {
  using Input = bf16;
  using Scope = NoScope;
  static constexpr int64_t kStep = 2;
  static constexpr bool kPairs = true;

  static void gemm(int64_t rows, int panels, int64_t k, const bf16* a, int64_t lda, const bf16* b,
                   int64_t b_stride, float* c, int64_t c_stride, bool accumulate,
                   const Ahead& = {});
};
#endif

#if defined(XLLM_HAS_TILES)

struct TileEngine {
  using Input = bf16;
  using Scope = TileScope;
  static constexpr int64_t kStep = 32;
  static constexpr bool kPairs = true;
  // Of k per pass: two panels and 32 rows of A stay in the first-level cache meanwhile.
  static constexpr int64_t kDepth = 320;

  static void gemm(int64_t rows, int panels, int64_t k, const bf16* a, int64_t lda, const bf16* b,
                   int64_t b_stride, float* c, int64_t c_stride, bool accumulate,
                   const Ahead& ahead = {}) {
    // Few rows pass over B once, in the order of memory.
    const int64_t passes = rows > 32 ? (k + kDepth - 1) / kDepth : 1;
    const int64_t depth = (k / kStep + passes - 1) / passes * kStep;
    TileAhead next{static_cast<const char*>(ahead.at)};
    if (ahead.bytes > 0) {
      const int64_t steps = (panels + 1) / 2 * ((rows + 31) / 32) * (k / kStep);
      next.lines = int((ahead.bytes / 64 + steps - 1) / steps);
    }
    for (int64_t i = 0; i < k; i += depth) {
      const int64_t here = k - i < depth ? k - i : depth;
      for (int p = 0; p < panels; p += 2)
        for (int64_t row = 0; row < rows; row += 32) {
          block(rows - row, p + 1 < panels, here, a + row * lda + i, lda,
                b + p * b_stride + i * kLanes, b_stride, c + p * c_stride + row * kLanes, c_stride,
                accumulate || i > 0, next);
          next.at += next.lines * (here / kStep) * 64;
        }
    }
  }

 private:
  static void block(int64_t rows, bool two, int64_t k, const bf16* a, int64_t lda, const bf16* b,
                    int64_t b_stride, float* c, int64_t c_stride, bool accumulate, TileAhead next) {
    const int here = int(rows < 32 ? rows : 32);
    if (here > 16)
      two ? tile_block<2, 2>(here, k, a, lda, b, b_stride, c, c_stride, accumulate, next)
          : tile_block<2, 1>(here, k, a, lda, b, b_stride, c, c_stride, accumulate, next);
    else
      two ? tile_block<1, 2>(here, k, a, lda, b, b_stride, c, c_stride, accumulate, next)
          : tile_block<1, 1>(here, k, a, lda, b, b_stride, c, c_stride, accumulate, next);
  }
};
#endif

}  // namespace xllm
