// The engines of vector registers (gemm.h): blocks of C stay in registers over all of k.
#include "gemm.h"

namespace xllm {
namespace {

// Register blocks: rows that are summed in registers beside B and a broadcast of A, for one panel and
// for two at once. Two read A half as often, where there are registers for them.
constexpr bool kPanelPairs = XLLM_REGISTER_BYTES == 64;
constexpr int block_rows(int panels) {
  return XLLM_REGISTER_BYTES == 64 ? (panels == 2 ? 12 : 14) : 12 / kRegisters;
}

// C (ROWS, 16) of PANELS panels. `Step` of an engine adds the products of one or two k.
template <class Step, int ROWS, int PANELS>
void block(int64_t k, const typename Step::Input* a, int64_t lda, const typename Step::Input* b,
           int64_t b_stride, float* c, int64_t c_stride, bool accumulate, const char* next,
           int64_t next_step) {
  Lanes sums[PANELS][ROWS];  // in registers, if every loop over them is unrolled
#pragma GCC unroll 2
  for (int p = 0; p < PANELS; ++p)
#pragma GCC unroll 16
    for (int r = 0; r < ROWS; ++r)
      sums[p][r] = accumulate ? load(c + p * c_stride + r * kLanes) : fill(0.0f);
  for (int64_t i = 0; i < k; i += Step::kStep) {
    typename Step::Column columns[PANELS];
#pragma GCC unroll 2
    for (int p = 0; p < PANELS; ++p) columns[p] = Step::column(b + p * b_stride + i * kLanes);
    if (Step::kAsksAhead) __builtin_prefetch(next + i * next_step);
#pragma GCC unroll 16
    for (int r = 0; r < ROWS; ++r) {
      const typename Step::Column x = Step::broadcast(a + r * lda + i);
#pragma GCC unroll 2
      for (int p = 0; p < PANELS; ++p) sums[p][r] = Step::add(x, columns[p], sums[p][r]);
    }
  }
#pragma GCC unroll 2
  for (int p = 0; p < PANELS; ++p)
#pragma GCC unroll 16
    for (int r = 0; r < ROWS; ++r) store(sums[p][r], c + p * c_stride + r * kLanes);
}

template <class Step, int ROWS, int PANELS, class... Arguments>
void some_rows(int rows, Arguments... arguments) {
  if constexpr (ROWS > 0) {
    if (rows == ROWS) return block<Step, ROWS, PANELS>(arguments...);
    some_rows<Step, ROWS - 1, PANELS>(rows, arguments...);
  }
}

template <class Step, int PANELS>
void blocks(int64_t rows, int panels, int64_t k, const typename Step::Input* a, int64_t lda,
            const typename Step::Input* b, int64_t b_stride, float* c, int64_t c_stride,
            bool accumulate, const Ahead& ahead) {
  constexpr int kRows = block_rows(PANELS);
  // Per block and panel, one line every `share / k` bytes per k; a step of 0 repeats one for free.
  const int64_t share = ahead.bytes / ((rows + kRows - 1) / kRows * panels);
  const char* next = reinterpret_cast<const char*>(ahead.at ? ahead.at : b);
  for (int64_t row = 0; row < rows; row += kRows) {
    const int here = int(rows - row < kRows ? rows - row : kRows);
    int p = 0;
    for (; p + PANELS <= panels; p += PANELS, next += PANELS * share)
      some_rows<Step, kRows, PANELS>(here, k, a + row * lda, lda, b + p * b_stride, b_stride,
                                     c + p * c_stride + row * kLanes, c_stride, accumulate, next,
                                     PANELS * share / k);
    for (; p < panels; ++p, next += share)
      some_rows<Step, kRows, 1>(here, k, a + row * lda, lda, b + p * b_stride, b_stride,
                                c + p * c_stride + row * kLanes, c_stride, accumulate, next,
                                share / k);
  }
}

template <class Step, class... Arguments>
void multiply(int64_t rows, int panels, Arguments... arguments) {
  if (kPanelPairs && panels > 1)
    blocks<Step, kPanelPairs ? 2 : 1>(rows, panels, arguments...);
  else
    blocks<Step, 1>(rows, panels, arguments...);
}

struct F32Step {
  using Input = float;
  using Column = Lanes;
  static constexpr int64_t kStep = 1;
  static constexpr bool kAsksAhead = true;

  static Lanes column(const float* b) { return load(b); }
  static Lanes broadcast(const float* a) { return fill(*a); }
  static Lanes add(const Lanes& x, const Lanes& column, const Lanes& sums) {
    return fma(x, column, sums);
  }
};

#if defined(XLLM_HAS_DOT)
// Sixteen pairs of bfloat16 along k.
struct DotStep {
  using Input = bf16;
  struct Column {
    uints r[kRegisters];
  };
  static constexpr int64_t kStep = 2;
  static constexpr bool kAsksAhead = false;

  static Column column(const bf16* b) {
    Column v;
    XLLM_EACH_REGISTER(kRegisters) v.r[i] = load_unaligned<uints>(b + 2 * i * kRegisterLanes);
    return v;
  }
  static Column broadcast(const bf16* a) {
    uint32_t pair;
    std::memcpy(&pair, a, 4);
    Column v;
    XLLM_EACH_REGISTER(kRegisters) v.r[i] = pair - uints{};
    return v;
  }
  // sums[lane] += column[lane][0] * x[0] + column[lane][1] * x[1]
  static Lanes add(const Column& x, const Column& column, const Lanes& sums) {
    Lanes out;
    XLLM_EACH_REGISTER(kRegisters) {
#if defined(__AVX512BF16__)
      out.r[i] = (floats)_mm512_dpbf16_ps((__m512)sums.r[i], (__m512bh)column.r[i],
                                          (__m512bh)x.r[i]);
#else
      const uints high = uints{} + 0xffff0000u;
      out.r[i] = fma((floats)(column.r[i] << 16), (floats)(x.r[i] << 16), sums.r[i]);
      out.r[i] = fma((floats)(column.r[i] & high), (floats)(x.r[i] & high), out.r[i]);
#endif
    }
    return out;
  }
};
#endif

}  // namespace

void F32Engine::gemm(int64_t rows, int panels, int64_t k, const float* a, int64_t lda,
                     const float* b, int64_t b_stride, float* c, int64_t c_stride, bool accumulate,
                     const Ahead& ahead) {
  multiply<F32Step>(rows, panels, k, a, lda, b, b_stride, c, c_stride, accumulate, ahead);
}

#if defined(XLLM_HAS_DOT)
void DotEngine::gemm(int64_t rows, int panels, int64_t k, const bf16* a, int64_t lda,
                     const bf16* b, int64_t b_stride, float* c, int64_t c_stride, bool accumulate,
                     const Ahead&) {
  multiply<DotStep>(rows, panels, k, a, lda, b, b_stride, c, c_stride, accumulate, Ahead());
}
#endif

}  // namespace xllm
