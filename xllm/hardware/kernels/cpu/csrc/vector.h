// Sixteen lanes of float, whatever the machine's registers are: one 512-bit, two 256-bit or four
// 128-bit registers. Everything is plain vector extensions; -march=native picks the instructions.
//
// Sums are made of `fma`, whose products are never rounded, so a sum has the same bits wherever its
// terms come in the same order.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__AVX__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
#define XLLM_REGISTER_BYTES 64
#elif defined(__AVX__)
#define XLLM_REGISTER_BYTES 32
#else
#define XLLM_REGISTER_BYTES 16
#endif

namespace xllm {

constexpr int kLanes = 16;
constexpr int kRegisterLanes = XLLM_REGISTER_BYTES / 4;
constexpr int kRegisters = kLanes / kRegisterLanes;

struct bf16 {
  uint16_t bits;
};

typedef float floats __attribute__((vector_size(XLLM_REGISTER_BYTES)));
typedef int32_t ints __attribute__((vector_size(XLLM_REGISTER_BYTES)));
typedef uint32_t uints __attribute__((vector_size(XLLM_REGISTER_BYTES)));
typedef float v8 __attribute__((vector_size(32)));
typedef uint16_t shorts __attribute__((vector_size(XLLM_REGISTER_BYTES / 2)));

// N registers of floats: R = kRegisters holds all sixteen lanes.
template <int R>
struct Pack {
  floats r[R];
};
using Lanes = Pack<kRegisters>;

#define XLLM_INLINE static inline __attribute__((always_inline))
#define XLLM_EACH_REGISTER(R) _Pragma("GCC unroll 4") for (int i = 0; i < (R); ++i)

template <class V, class T>
XLLM_INLINE V load_unaligned(const T* p) {
  V v;
  std::memcpy(&v, p, sizeof(V));
  return v;
}

// x - 0 is x to the compiler, also for -0; 0 + x would be an addition.
XLLM_INLINE floats splat(float x) { return x - floats{}; }

XLLM_INLINE floats widen(shorts h) {
#if XLLM_REGISTER_BYTES == 64  // GCC 12 converts sixteen halves by four shuffles
  return (floats)((uints)_mm512_cvtepu16_epi32((__m256i)h) << 16);
#else
  return (floats)(__builtin_convertvector(h, uints) << 16);
#endif
}

// Round to nearest even; NaN stays NaN.
XLLM_INLINE shorts narrow(floats x) {
#if defined(__AVX512BF16__)
  return (shorts)_mm512_cvtneps_pbh((__m512)x);  // subnormal numbers become 0
#endif
  uints u = (uints)x;
  uints rounded = u + 0x7fffu + ((u >> 16) & 1u);
  uints bits = (x == x) ? rounded : (u | 0x400000u);
  return __builtin_convertvector(bits >> 16, shorts);
}

XLLM_INLINE float to_float(float x) { return x; }
XLLM_INLINE float to_float(bf16 x) {
  uint32_t u = uint32_t(x.bits) << 16;
  float f;
  std::memcpy(&f, &u, 4);
  return f;
}
XLLM_INLINE void from_float(float x, float* to) { *to = x; }
XLLM_INLINE void from_float(float x, bf16* to) {
  uint32_t u;
  std::memcpy(&u, &x, 4);
  to->bits = (x == x) ? uint16_t((u + 0x7fffu + ((u >> 16) & 1u)) >> 16)
                      : uint16_t((u >> 16) | 0x40u);
}

template <int R = kRegisters>
XLLM_INLINE Pack<R> load(const float* p) {
  Pack<R> v;
  XLLM_EACH_REGISTER(R) v.r[i] = load_unaligned<floats>(p + i * kRegisterLanes);
  return v;
}
template <int R = kRegisters>
XLLM_INLINE Pack<R> load(const bf16* p) {
  Pack<R> v;
  XLLM_EACH_REGISTER(R) v.r[i] = widen(load_unaligned<shorts>(p + i * kRegisterLanes));
  return v;
}
template <int R>
XLLM_INLINE void store(const Pack<R>& v, float* p) {
  XLLM_EACH_REGISTER(R) std::memcpy(p + i * kRegisterLanes, &v.r[i], sizeof(floats));
}
template <int R>
XLLM_INLINE void store(const Pack<R>& v, bf16* p) {
  XLLM_EACH_REGISTER(R) {
    shorts h = narrow(v.r[i]);
    std::memcpy(p + i * kRegisterLanes, &h, sizeof(h));
  }
}

// 32 values in a row.
XLLM_INLINE void store_two(const Lanes& a, const Lanes& b, float* p) {
  store(a, p);
  store(b, p + kLanes);
}
XLLM_INLINE void store_two(const Lanes& a, const Lanes& b, bf16* p) {
#if defined(__AVX512BF16__)
  const auto both = _mm512_cvtne2ps_pbh((__m512)b.r[0], (__m512)a.r[0]);
  std::memcpy(static_cast<void*>(p), &both, sizeof(both));
#else
  store(a, p);
  store(b, p + kLanes);
#endif
}

// x as it would be read after a store as T.
template <class T>
XLLM_INLINE Lanes rounded(const Lanes& x) {
  if constexpr (sizeof(T) == 4) return x;
  Lanes v;
  XLLM_EACH_REGISTER(kRegisters) v.r[i] = widen(narrow(x.r[i]));
  return v;
}

// Stores x and returns it as it would be read again.
XLLM_INLINE Lanes store_rounded(const Lanes& x, float* p) {
  store(x, p);
  return x;
}
XLLM_INLINE Lanes store_rounded(const Lanes& x, bf16* p) {
  Lanes v;
  XLLM_EACH_REGISTER(kRegisters) {
    const shorts h = narrow(x.r[i]);
    std::memcpy(p + i * kRegisterLanes, &h, sizeof(h));
    v.r[i] = widen(h);
  }
  return v;
}

// Sixteen pairs (even, odd) of bfloat16. The values must be bfloat16 or int8 already: the low half
// of each float is cut off, not rounded.
XLLM_INLINE void store_pairs(const Lanes& even, const Lanes& odd, bf16* p) {
  XLLM_EACH_REGISTER(kRegisters) {
    const uints pair = ((uints)odd.r[i] & 0xffff0000u) | ((uints)even.r[i] >> 16);
    std::memcpy(p + 2 * i * kRegisterLanes, &pair, sizeof(pair));
  }
}

// Transposes sixteen rows of sixteen words.
XLLM_INLINE void transpose(uint32_t (&square)[kLanes][kLanes]) {
#if XLLM_REGISTER_BYTES == 64
  __m512i r[kLanes], t[kLanes];
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) r[i] = _mm512_load_si512(square[i]);
#pragma GCC unroll 8
  for (int i = 0; i < kLanes; i += 2) {  // pairs of words, by 128-bit lane
    t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < kLanes; i += 4)  // r[i + c]: word 4 lane + c of rows i .. i + 3
#pragma GCC unroll 2
    for (int j = 0; j < 2; ++j) {
      r[i + 2 * j] = _mm512_unpacklo_epi64(t[i + j], t[i + 2 + j]);
      r[i + 2 * j + 1] = _mm512_unpackhi_epi64(t[i + j], t[i + 2 + j]);
    }
#pragma GCC unroll 4
  for (int c = 0; c < 4; ++c) {  // 4 x 4 of lanes
    const __m512i low = _mm512_shuffle_i32x4(r[c], r[c + 4], 0x88);
    const __m512i low_odd = _mm512_shuffle_i32x4(r[c], r[c + 4], 0xdd);
    const __m512i high = _mm512_shuffle_i32x4(r[c + 8], r[c + 12], 0x88);
    const __m512i high_odd = _mm512_shuffle_i32x4(r[c + 8], r[c + 12], 0xdd);
    _mm512_store_si512(square[c], _mm512_shuffle_i32x4(low, high, 0x88));
    _mm512_store_si512(square[c + 4], _mm512_shuffle_i32x4(low_odd, high_odd, 0x88));
    _mm512_store_si512(square[c + 8], _mm512_shuffle_i32x4(low, high, 0xdd));
    _mm512_store_si512(square[c + 12], _mm512_shuffle_i32x4(low_odd, high_odd, 0xdd));
  }
#else
  for (int i = 0; i < kLanes; ++i)
    for (int j = 0; j < i; ++j) {
      const uint32_t word = square[i][j];
      square[i][j] = square[j][i];
      square[j][i] = word;
    }
#endif
}

template <int R = kRegisters>
XLLM_INLINE Pack<R> fill(float x) {
  Pack<R> v;
  XLLM_EACH_REGISTER(R) v.r[i] = splat(x);
  return v;
}
template <int R>
XLLM_INLINE Pack<R> operator+(const Pack<R>& a, const Pack<R>& b) {
  Pack<R> v;
  XLLM_EACH_REGISTER(R) v.r[i] = a.r[i] + b.r[i];
  return v;
}
template <int R>
XLLM_INLINE Pack<R> operator-(const Pack<R>& a, const Pack<R>& b) {
  Pack<R> v;
  XLLM_EACH_REGISTER(R) v.r[i] = a.r[i] - b.r[i];
  return v;
}
template <int R>
XLLM_INLINE Pack<R> operator*(const Pack<R>& a, const Pack<R>& b) {
  Pack<R> v;
  XLLM_EACH_REGISTER(R) v.r[i] = a.r[i] * b.r[i];
  return v;
}
template <int R>
XLLM_INLINE Pack<R> operator/(const Pack<R>& a, const Pack<R>& b) {
  Pack<R> v;
  XLLM_EACH_REGISTER(R) v.r[i] = a.r[i] / b.r[i];
  return v;
}
// a * b + c, fused. Contraction of the plain expression is not enough: tuned for some processors,
// GCC leaves it out of loops that sum (avoid-fma-max-bits), and so rounds a sum by where it stands.
XLLM_INLINE floats fma(floats a, floats b, floats c) {
#if defined(__AVX512F__)
  return (floats)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__FMA__)
  return (floats)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
  return a * b + c;
#endif
}
template <int R>
XLLM_INLINE Pack<R> fma(const Pack<R>& a, const Pack<R>& b, const Pack<R>& c) {
  Pack<R> v;
  XLLM_EACH_REGISTER(R) v.r[i] = fma(a.r[i], b.r[i], c.r[i]);
  return v;
}
// A NaN in b stays; one in a is dropped.
template <int R>
XLLM_INLINE Pack<R> maximum(const Pack<R>& a, const Pack<R>& b) {
  Pack<R> v;
  XLLM_EACH_REGISTER(R) v.r[i] = (a.r[i] > b.r[i]) ? a.r[i] : b.r[i];
  return v;
}

XLLM_INLINE float sum(const Lanes& v) {
#if XLLM_REGISTER_BYTES == 64
  const __m512 all = (__m512)v.r[0];
  const __m256 half = (__m256)((v8)_mm512_castps512_ps256(all) +
                               (v8)_mm256_castpd_ps(_mm512_extractf64x4_pd((__m512d)all, 1)));
#elif XLLM_REGISTER_BYTES == 32
  const __m256 half = (__m256)(v.r[0] + v.r[1]);
#endif
#if XLLM_REGISTER_BYTES >= 32  // eight lanes to four, to two, to one, without memory
  __m128 four = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
  four = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(four, _mm_movehdup_ps(four)));
#else
  float x[kLanes];
  store(v, x);
  for (int width = kLanes / 2; width; width /= 2)
    for (int i = 0; i < width; ++i) x[i] += x[i + width];
  return x[0];
#endif
}

// The largest of sixteen; a NaN may be dropped.
XLLM_INLINE float largest(const Lanes& v) {
#if XLLM_REGISTER_BYTES == 64
  return _mm512_reduce_max_ps((__m512)v.r[0]);
#elif XLLM_REGISTER_BYTES == 32
  const __m256 half = _mm256_max_ps((__m256)v.r[0], (__m256)v.r[1]);
  __m128 four = _mm_max_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
  four = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(four, _mm_movehdup_ps(four)));
#else
  float x[kLanes];
  store(v, x);
  for (int width = kLanes / 2; width; width /= 2)
    for (int i = 0; i < width; ++i) x[i] = x[i] > x[i + width] ? x[i] : x[i + width];
  return x[0];
#endif
}

// Whether any lane is greater than `limit`; NaN is not.
XLLM_INLINE bool any_above(const Lanes& v, float limit) {
#if XLLM_REGISTER_BYTES == 64
  return _mm512_cmp_ps_mask((__m512)v.r[0], _mm512_set1_ps(limit), _CMP_GT_OQ) != 0;
#elif XLLM_REGISTER_BYTES == 32
  const ints above = (v.r[0] > splat(limit)) | (v.r[1] > splat(limit));
  return _mm256_movemask_ps((__m256)above) != 0;
#else
  return largest(v) > limit;
#endif
}

// Lanes first <= i < last of v, -infinity elsewhere.
XLLM_INLINE Lanes only(const Lanes& v, int first, int last) {
  ints lane;
  for (int j = 0; j < kRegisterLanes; ++j) lane[j] = j;
  Lanes out;
  XLLM_EACH_REGISTER(kRegisters) {
    const ints at = lane + i * kRegisterLanes;
    out.r[i] = ((at >= first) & (at < last)) ? v.r[i] : splat(-INFINITY);
  }
  return out;
}

// e^x within 2 ulp; 0 below the normal range, exactly 1 at 0, NaN for NaN.
XLLM_INLINE floats exponential(floats x) {
  const floats low = splat(-87.33654f), high = splat(88.72283f);
  floats y = (x < low) ? low : x;
  y = (y > high) ? high : y;
  const floats magic = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
  floats n = y * 1.44269504088896341f + magic;
  ints exponent = ((ints)n - (ints)magic) << 23;
  n = n - magic;
  floats r = y - n * 0.693359375f;
  r = r + n * 2.12194440e-4f;
  floats p = splat(1.9875691500e-4f);
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  floats e = (floats)((ints)p + exponent);
  return (x < low) ? floats{} : e;
}
template <int R>
XLLM_INLINE Pack<R> exponential(const Pack<R>& x) {
  Pack<R> v;
  XLLM_EACH_REGISTER(R) v.r[i] = exponential(x.r[i]);
  return v;
}

#if defined(__AVX512DQ__)
// 1 + r (c1 + r (c2 + ..)), the nearest of its degree to 2^r in 0..1: relative error 1e-7 of five
// coefficients, 9e-5 of three, a fortieth of what rounding to bfloat16 may cost.
template <int DEGREE>
XLLM_INLINE floats power_of_fraction(floats r) {
  static_assert(DEGREE == 3 || DEGREE == 5);
  if constexpr (DEGREE == 3) {
    floats p = fma(splat(7.7067068673e-2f), r, splat(2.2764496182e-1f));
    p = fma(p, r, splat(6.9511679319e-1f));
    return fma(p, r, splat(1.0f));
  }
  floats p = fma(splat(1.8671304959e-3f), r, splat(9.0170294147e-3f));
  p = fma(p, r, splat(5.5799913759e-2f));
  p = fma(p, r, splat(2.4016444997e-1f));
  p = fma(p, r, splat(6.9315131182e-1f));
  return fma(p, r, splat(1.0f));
}
#endif

// 2^x for x below 120, by a polynomial of degree 5, relative error 2e-7, or at least 3, 1e-4. 0 where
// that is subnormal, exactly 1 at 0, NaN for NaN.
template <int DEGREE>
XLLM_INLINE floats power_of_two(floats x) {
  const floats low = splat(-126.0f);
#if defined(__AVX512DQ__)
  const __m512 fraction = _mm512_reduce_ps((__m512)x, 0x09);  // x - floor(x)
  const __mmask16 normal = _mm512_cmp_ps_mask((__m512)x, (__m512)low, _CMP_NLT_UQ);
  return (floats)_mm512_maskz_scalef_ps(
      normal, (__m512)power_of_fraction<DEGREE>((floats)fraction), (__m512)x);
#else
  const floats y = (x < low) ? low : x;
  const floats magic = splat(12582912.0f);  // as in `exponential`
  const floats shifted = y + magic;
  const floats r = y - (shifted - magic);
  floats p = splat(1.326472731e-3f);  // minimax of 2^r in -0.5..0.5, relative error 1e-7
  p = fma(p, r, splat(9.671512991e-3f));
  p = fma(p, r, splat(5.550733581e-2f));
  p = fma(p, r, splat(2.402224243e-1f));
  p = fma(p, r, splat(6.931470037e-1f));
  p = fma(p, r, splat(1.0f));
  const floats power = (floats)((ints)p + ((ints)shifted << 23));
  return (x < low) ? floats{} : power;
#endif
}
template <int DEGREE = 5, int R>
XLLM_INLINE Pack<R> power_of_two(const Pack<R>& x) {
  Pack<R> v;
  XLLM_EACH_REGISTER(R) v.r[i] = power_of_two<DEGREE>(x.r[i]);
  return v;
}

// tanh by e^2|x|, accurate to 1e-6.
template <int R>
XLLM_INLINE Pack<R> hyperbolic_tangent(const Pack<R>& x) {
  Pack<R> v;
  XLLM_EACH_REGISTER(R) {
    floats e = exponential(x.r[i] * 2.0f);
    v.r[i] = 1.0f - 2.0f / (e + 1.0f);
  }
  return v;
}

}  // namespace xllm
