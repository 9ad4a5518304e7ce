// Choosing one token per row: argmax, or a draw under temperature, min-p, top-k and top-p.
//
// A row is one thread's work and stays in its cache: scale, find the smallest logit that may be
// drawn, race. Nothing is sorted but the few logits that share a histogram bin with the cut.
#include <algorithm>
#include <limits>

#include "runtime.h"

namespace xllm {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct ChooseArgs {
  const float* logits;               // (M, V), rows `stride` apart
  const float* inverse_temperature;  // (M,) 0 is greedy; or null: all greedy
  const float* log_min_p;            // (M,) or null
  const int64_t* top_k;              // (M,) or null
  const float* top_p;                // (M,) or null
  const int32_t* keys;               // (2, M), rows `keys_stride` apart
  int64_t* tokens;                   // (M,)
  float* best;                       // (M,)
  int64_t rows, vocab, stride, keys_stride;
};

XLLM_INLINE bool any(ints mask) {
#if XLLM_REGISTER_BYTES == 64
  return _mm512_test_epi32_mask((__m512i)mask, (__m512i)mask) != 0;
#elif XLLM_REGISTER_BYTES == 32
  return !_mm256_testz_si256((__m256i)mask, (__m256i)mask);
#else
  int64_t half[2];
  std::memcpy(half, &mask, sizeof(half));
  return (half[0] | half[1]) != 0;
#endif
}

// The first largest value of a row; the first NaN where there is one.
int64_t first_largest(const float* x, int64_t count) {
  const int64_t whole = count / kRegisterLanes * kRegisterLanes;
  floats most = splat(-kInfinity);
  ints nan = ints{};
  for (int64_t i = 0; i < whole; i += kRegisterLanes) {
    const floats v = load_unaligned<floats>(x + i);
    nan |= (ints)(v != v);
    most = (v > most) ? v : most;
  }
  float largest = -kInfinity;
  for (int i = 0; i < kRegisterLanes; ++i) largest = std::max(largest, float(most[i]));
  bool has_nan = any(nan);
  for (int64_t i = whole; i < count; ++i) {
    has_nan |= std::isnan(x[i]);
    if (x[i] > largest) largest = x[i];
  }
  for (int64_t i = 0; i < whole; i += kRegisterLanes) {
    const floats v = load_unaligned<floats>(x + i);
    const ints hit = has_nan ? (ints)(v != v) : (ints)(v == splat(largest));
    if (!any(hit)) continue;
    for (int j = 0; j < kRegisterLanes; ++j)
      if (hit[j]) return i + j;
  }
  for (int64_t i = whole; i < count; ++i)
    if (has_nan ? std::isnan(x[i]) : x[i] == largest) return i;
  return 0;
}

// Unit exponential draws of `execution.sampling.rng`: the hash of a token id under a row's keys.
struct Draws {
  uint32_t key0, key1;

  XLLM_INLINE uints hash(uints ids, uint32_t key0, uint32_t key1) {
    uints x = ids * 0x9E3779B1u + key0;
    x ^= x >> 16;
    x *= 0x21F0AAADu;
    x ^= key1;
    x ^= x >> 15;
    x *= 0x735A2D97u;
    x ^= x >> 15;
    return x >> 1;
  }
  // v of -log(1 - v), in (0, 1).
  XLLM_INLINE floats uniform(uints hashed) {
    const floats v =
        __builtin_convertvector((ints)hashed, floats) * 0x1p-31f + 0x1p-32f;
    const floats top = splat(1.0f - 0x1p-24f);
    return (v > top) ? top : v;
  }
};

// Scaled logits of one row, largest 0, padded with -inf to whole registers.
struct Row {
  float* scaled;
  int64_t padded;
};

Row scale(const float* x, int64_t count, float best, float inverse, float log_min_p, float* out) {
  const int64_t padded = round_up(count, kRegisterLanes);
  for (int64_t i = 0; i < count; ++i) {
    const float s = (x[i] - best) * inverse;
    out[i] = s < log_min_p ? -kInfinity : s;
  }
  for (int64_t i = count; i < padded; ++i) out[i] = -kInfinity;
  return {out, padded};
}

// Finds the smallest logit that top-k and top-p keep, without sorting the row.
//
// Distances from the largest logit, d >= 0, are binned by their upper bits (64 bins to each doubling
// of 2^-8 .. 128, where mass ends), with mass and count per bin; only the bin of a cut is sorted.
class Cut {
 public:
  Cut(const Row& row, int64_t top_k, float top_p, int64_t vocab)
      : row_(row), with_mass_(top_p < 1.0f) {
    std::memset(counts_, 0, sizeof(counts_));
    std::memset(masses_, 0, sizeof(masses_));
    fill();
    Position end = {kBins - 1, counts_[kBins - 1], vocab};
    if (top_k < vocab) end = after_count(top_k);
    if (with_mass_) end = before_mass(end, top_p);
    kept = end.total;
    threshold = end.inside ? -sorted(end.bin)[end.inside - 1] : -kInfinity;
  }

  float threshold = -kInfinity;
  int64_t kept = 0;  // logits kept, those equal to the threshold counted up to the cut

 private:
  static constexpr int kShift = 17;
  static constexpr int kFirst = (127 - 8) << (23 - kShift);
  static constexpr int kLast = ((127 + 7) << (23 - kShift)) - kFirst;
  static constexpr int kBins = kLast + 1;
  // The cut comes after `inside` logits of `bin`, sorted; `total` logits come before it in all.
  struct Position {
    int bin;
    int64_t inside, total;
  };

  XLLM_INLINE ints bins_of(floats distance) {
    const ints bin = (ints)((uints)distance >> kShift) - kFirst;
    const ints low = (bin < 0) ? ints{} : bin;
    return (low > kLast) ? ints{} + kLast : low;
  }

  void fill() {
    for (int64_t i = 0; i < row_.padded; i += kRegisterLanes) {
      const floats s = load_unaligned<floats>(row_.scaled + i);
      const ints bins = bins_of(0.0f - s);
      const floats mass = with_mass_ ? exponential(s) : floats{};
      for (int j = 0; j < kRegisterLanes; ++j) {
        ++counts_[bins[j]];
        masses_[bins[j]] += mass[j];
      }
    }
  }

  Position after_count(int64_t count) const {
    int64_t before = 0;
    int bin = 0;
    while (before + counts_[bin] < count) before += counts_[bin++];
    return {bin, count - before, count};
  }

  // The first place at which the mass so far reaches its share of what `end` leaves.
  Position before_mass(const Position& end, float top_p) {
    double total = 0;
    for (int bin = 0; bin < end.bin; ++bin) total += masses_[bin];
    total += mass_of(end.bin, end.inside);
    const double limit = double(top_p) * total;
    double before = 0;
    int64_t count = 0;
    int bin = 0;
    while (bin < end.bin && before + masses_[bin] < limit) {
      before += masses_[bin];
      count += counts_[bin++];
    }
    const float* d = sorted(bin);
    const int64_t most = bin == end.bin ? end.inside : counts_[bin];
    int64_t inside = 0;
    while (inside < most && (before < limit || count + inside == 0))
      before += std::exp(-double(d[inside++]));
    return {bin, inside, count + inside};
  }

  double mass_of(int bin, int64_t count) {
    if (count == counts_[bin]) return masses_[bin];
    const float* d = sorted(bin);
    double mass = 0;
    for (int64_t i = 0; i < count; ++i) mass += std::exp(-double(d[i]));
    return mass;
  }

  // Distances of one bin, ascending.
  const float* sorted(int bin) {
    if (bin == sorted_bin_) return bin_;
    static thread_local Scratch scratch;
    bin_ = scratch.get<float>(counts_[bin] + 1);
    int64_t count = 0;
    for (int64_t i = 0; i < row_.padded; i += kRegisterLanes) {
      const floats d = 0.0f - load_unaligned<floats>(row_.scaled + i);
      const ints hit = bins_of(d) == bin;
      if (!any(hit)) continue;
      for (int j = 0; j < kRegisterLanes; ++j)
        if (hit[j]) bin_[count++] = d[j];
    }
    std::sort(bin_, bin_ + count);
    sorted_bin_ = bin;
    return bin_;
  }

  const Row& row_;
  const bool with_mass_;
  float* bin_ = nullptr;
  int sorted_bin_ = -1;
  int64_t counts_[kBins];
  double masses_[kBins];
};

// The winner of the exponential race among logits of at least `threshold`: argmax of p / E. As
// E > v, p / v bounds a score from above, so that most logarithms are never taken.
int64_t race(const Row& row, int64_t favourite, float threshold, uint32_t key0, uint32_t key1) {
  constexpr float kMargin = 0.9999f;  // for the rounding of p, v and E
  uints ids;
  for (int j = 0; j < kRegisterLanes; ++j) ids[j] = j;
  const float v = Draws::uniform(Draws::hash(uints{} + uint32_t(favourite), key0, key1))[0];
  float score = -1.0f / std::log1p(-v);
  int64_t winner = favourite;
  for (int64_t i = 0; i < row.padded; i += kRegisterLanes, ids += kRegisterLanes) {
    const floats s = load_unaligned<floats>(row.scaled + i);
    const ints kept = (ints)(s >= splat(threshold));
    if (!any(kept)) continue;
    const floats p = exponential(s);
    const floats v = Draws::uniform(Draws::hash(ids, key0, key1));
    const ints hopeful = kept & (ints)(p > v * (score * kMargin));
    if (!any(hopeful)) continue;
    for (int j = 0; j < kRegisterLanes; ++j) {
      if (!hopeful[j]) continue;
      const float own = p[j] / -std::log1p(-v[j]);
      if (own > score || (own == score && i + j < winner)) {
        score = own;
        winner = i + j;
      }
    }
  }
  return winner;
}

int64_t draw(const ChooseArgs& a, int64_t m, const float* x, int64_t best) {
  static thread_local Scratch scratch;
  const float log_min_p = a.log_min_p ? a.log_min_p[m] : -kInfinity;
  const Row row = scale(x, a.vocab, x[best], a.inverse_temperature[m], log_min_p,
                        scratch.get<float>(a.vocab + kRegisterLanes));
  const int64_t top_k = a.top_k ? a.top_k[m] : a.vocab;
  const float top_p = a.top_p ? a.top_p[m] : 1.0f;
  float threshold = -kInfinity;
  if (top_k < a.vocab || top_p < 1.0f) {
    const Cut cut(row, top_k, top_p, a.vocab);
    if (cut.kept == 1) return best;
    threshold = cut.threshold;
  }
  return race(row, best, threshold, uint32_t(a.keys[m]), uint32_t(a.keys[a.keys_stride + m]));
}

void choose(const ChooseArgs& a) {
#pragma omp parallel for schedule(dynamic) num_threads(num_threads()) if (a.rows > 1)
  for (int64_t m = 0; m < a.rows; ++m) {
    const float* x = a.logits + m * a.stride;
    int64_t token = first_largest(x, a.vocab);
    a.best[m] = x[token];
    const bool draws = a.inverse_temperature && a.inverse_temperature[m] > 0.0f;
    if (draws && std::isfinite(x[token])) token = draw(a, m, x, token);
    a.tokens[m] = token;
  }
}

struct SampleArgs {
  const void* logits;                // (M, V), rows `stride` apart
  const float* inverse_temperature;  // (M,) 0 is greedy
  const int32_t* keys;               // (2, M), rows `keys_stride` apart
  int32_t* tokens;                   // (M,)
  float* best;                       // (M,)
  int32_t* table;                    // flat
  const int64_t* write_index;        // (M,) into the table; negative is nowhere
  int64_t rows, vocab, stride, keys_stride, dtype;
};

// Without filters, from logits of any type, and written where the row reads it next.
template <class T>
void sample(const SampleArgs& a) {
  ChooseArgs plain = {};
  plain.inverse_temperature = a.inverse_temperature;
  plain.keys = a.keys;
  plain.keys_stride = a.keys_stride;
  plain.rows = a.rows;
  plain.vocab = a.vocab;
#pragma omp parallel for schedule(dynamic) num_threads(num_threads()) if (a.rows > 1)
  for (int64_t m = 0; m < a.rows; ++m) {
    static thread_local Scratch scratch;
    float* x = scratch.get<float>(a.vocab);
    const T* logits = static_cast<const T*>(a.logits) + m * a.stride;
    int64_t i = 0;
    for (; i + kLanes <= a.vocab; i += kLanes) store(load(logits + i), x + i);
    for (; i < a.vocab; ++i) x[i] = to_float(logits[i]);
    int64_t token = first_largest(x, a.vocab);
    a.best[m] = x[token];
    if (a.inverse_temperature[m] > 0.0f && std::isfinite(x[token])) token = draw(plain, m, x, token);
    a.tokens[m] = int32_t(token);
    if (a.write_index[m] >= 0) a.table[a.write_index[m]] = int32_t(token);
  }
}

}  // namespace
}  // namespace xllm

XLLM_EXPORT void xllm_sample_tokens(const xllm::SampleArgs* args) {
  xllm::with_dtype(args->dtype, [&](auto element) { xllm::sample<decltype(element)>(*args); });
}

XLLM_EXPORT void xllm_choose_tokens(const xllm::ChooseArgs* args) { xllm::choose(*args); }
