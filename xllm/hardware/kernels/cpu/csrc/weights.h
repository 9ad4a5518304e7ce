// Packed weights: panels of sixteen output rows, pairs of k together.
//
//   float32   [N / 16][K / 2][2][16]          the panels of F32Engine
//   bfloat16  [N / 16][K / 2][16][2]          the panels of DotEngine and TileEngine
//   int8      [N / 16][K / 2][2][16]
//
// N is padded to 16 and K to an even number (float32) or to 32, both with zeros.
#pragma once

#include "vector.h"

namespace xllm {

// One register of int8, sign-extended. (GCC's own conversion of so short a vector goes by element.)
XLLM_INLINE ints sign_extend(const int8_t* p) {
#if defined(__AVX512F__)
  return (ints)_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
#elif defined(__AVX2__)
  return (ints)_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
#else
  ints v;
  for (int i = 0; i < kRegisterLanes; ++i) v[i] = p[i];
  return v;
#endif
}

// The two entries k, k + 1 of sixteen outputs.
struct PairOfLanes {
  Lanes even, odd;
};

struct F32Weights {
  using Element = float;
  XLLM_INLINE PairOfLanes load_pair(const float* p) { return {load(p), load(p + kLanes)}; }
};

struct BF16Weights {
  using Element = bf16;
  XLLM_INLINE PairOfLanes load_pair(const bf16* p) {
    PairOfLanes v;
    XLLM_EACH_REGISTER(kRegisters) {
      const uints w = load_unaligned<uints>(p + 2 * i * kRegisterLanes);
      v.even.r[i] = (floats)(w << 16);
      v.odd.r[i] = (floats)(w & 0xffff0000u);
    }
    return v;
  }
};

struct I8Weights {
  using Element = int8_t;
  XLLM_INLINE PairOfLanes load_pair(const int8_t* p) { return {widen(p), widen(p + kLanes)}; }

 private:
  XLLM_INLINE Lanes widen(const int8_t* p) {
    Lanes v;
    XLLM_EACH_REGISTER(kRegisters)
    v.r[i] = __builtin_convertvector(sign_extend(p + i * kRegisterLanes), floats);
    return v;
  }
};

constexpr int64_t kAhead = 128;  // how many k ahead of the expansion weights are requested

// One panel over k weights as an engine reads it.
template <class Weights>
inline void expand_panel(const typename Weights::Element* from, int64_t k, float* to) {
  for (int64_t i = 0; i < k; i += 2) {
    const PairOfLanes v = Weights::load_pair(from + i * kLanes);
    store(v.even, to + i * kLanes);
    store(v.odd, to + (i + 1) * kLanes);
  }
}
template <class Weights>
inline void expand_panel(const typename Weights::Element* from, int64_t k, bf16* to) {
  for (int64_t i = 0; i < k; i += 2) {
    __builtin_prefetch(from + (i + kAhead) * kLanes);
    const PairOfLanes v = Weights::load_pair(from + i * kLanes);
    store_pairs(v.even, v.odd, to + i * kLanes);
  }
}

}  // namespace xllm
