// The vector interface on AVX2, FMA and F16C: every vector of 16 is two registers.
#pragma once


#define CACHEIR_MAX_INT8_TILE 4
#define CACHEIR_MAX_F32_TILE 4
#define CACHEIR_HAS_BF16_DOT 0

struct VF { __m256 lo, hi; };
struct VI { __m256i lo, hi; };
struct VB { __m256i lo, hi; };
typedef int32_t __attribute__((may_alias)) AliasedInt;
#define CACHEIR_UNROLL(n) CACHEIR_PRAGMA(GCC unroll n)
#define CACHEIR_PRAGMA(text) _Pragma(#text)
#define V static inline __attribute__((always_inline))
#define BOTH(op, x, y) {op(x.lo, y.lo), op(x.hi, y.hi)}

V VF vset(float x) { const __m256 v = _mm256_set1_ps(x); return {v, v}; }
V VF vzero() { return vset(0); }
V VF vload(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
V void vstore(float* p, VF x) { _mm256_storeu_ps(p, x.lo); _mm256_storeu_ps(p + 8, x.hi); }
V VF vadd(VF x, VF y) { return BOTH(_mm256_add_ps, x, y); }
V VF vsub(VF x, VF y) { return BOTH(_mm256_sub_ps, x, y); }
V VF vmul(VF x, VF y) { return BOTH(_mm256_mul_ps, x, y); }
V VF vdiv(VF x, VF y) { return BOTH(_mm256_div_ps, x, y); }
V VF vfma(VF x, VF y, VF z) { return {_mm256_fmadd_ps(x.lo, y.lo, z.lo), _mm256_fmadd_ps(x.hi, y.hi, z.hi)}; }
V VF vmax(VF x, VF y) { return BOTH(_mm256_max_ps, x, y); }
V VF vmin(VF x, VF y) { return BOTH(_mm256_min_ps, x, y); }
V VF vabs(VF x) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  return {_mm256_andnot_ps(sign, x.lo), _mm256_andnot_ps(sign, x.hi)};
}
V VI vround(VF x) { return {_mm256_cvtps_epi32(x.lo), _mm256_cvtps_epi32(x.hi)}; }
V VF vfloat(VI x) { return {_mm256_cvtepi32_ps(x.lo), _mm256_cvtepi32_ps(x.hi)}; }
V __m128i load16(const void* p) { return _mm_loadu_si128(static_cast<const __m128i*>(p)); }
V VF vload_half(const uint16_t* p) { return {_mm256_cvtph_ps(load16(p)), _mm256_cvtph_ps(load16(p + 8))}; }
V void vstore_half(uint16_t* p, VF x) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(x.lo, _MM_FROUND_TO_NEAREST_INT));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p + 8), _mm256_cvtps_ph(x.hi, _MM_FROUND_TO_NEAREST_INT));
}
V __m256 widen_bf16(const uint16_t* p) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load16(p)), 16));
}
V VF vload_bf16(const uint16_t* p) { return {widen_bf16(p), widen_bf16(p + 8)}; }
V __m128i narrow_bf16(__m256 x) {
  const __m256i u = _mm256_castps_si256(x);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff))), 16);
  const __m256i quiet = _mm256_or_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(0x40));
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
  const __m256i r = _mm256_blendv_epi8(rounded, quiet, nan);
  return _mm_packus_epi32(_mm256_castsi256_si128(r), _mm256_extracti128_si256(r, 1));
}
V void vstore_bf16(uint16_t* p, VF x) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), narrow_bf16(x.lo));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p + 8), narrow_bf16(x.hi));
}
V __m128i load8(const void* p) { return _mm_loadl_epi64(static_cast<const __m128i*>(p)); }
V VI vload_u8(const uint8_t* p) { return {_mm256_cvtepu8_epi32(load8(p)), _mm256_cvtepu8_epi32(load8(p + 8))}; }
V VI vload_s8(const int8_t* p) { return {_mm256_cvtepi8_epi32(load8(p)), _mm256_cvtepi8_epi32(load8(p + 8))}; }
V void vstore_s8(int8_t* p, VI x) {
  const __m128i lo = _mm_packs_epi32(_mm256_castsi256_si128(x.lo), _mm256_extracti128_si256(x.lo, 1));
  const __m128i hi = _mm_packs_epi32(_mm256_castsi256_si128(x.hi), _mm256_extracti128_si256(x.hi, 1));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm_packs_epi16(lo, hi));
}

V VI iset(int32_t x) { const __m256i v = _mm256_set1_epi32(x); return {v, v}; }
V VI iload(const int32_t* p) {
  return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)), _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 8))};
}
V VI iadd(VI x, VI y) { return BOTH(_mm256_add_epi32, x, y); }
V VI imul(VI x, VI y) { return BOTH(_mm256_mullo_epi32, x, y); }
template <int N> V VI ishl(VI x) { return {_mm256_slli_epi32(x.lo, N), _mm256_slli_epi32(x.hi, N)}; }
template <int N> V VI byte_of(VI x) {
  const __m256i mask = _mm256_set1_epi32(255);
  return {_mm256_and_si256(_mm256_srli_epi32(x.lo, 8 * N), mask), _mm256_and_si256(_mm256_srli_epi32(x.hi, 8 * N), mask)};
}
V VF exponent_bits(VI n) {
  const VI shifted = ishl<23>(iadd(n, iset(127)));
  return {_mm256_castsi256_ps(shifted.lo), _mm256_castsi256_ps(shifted.hi)};
}

V VB bload(const uint8_t* p) {
  return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)), _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 32))};
}
V void bstore(void* p, VB x) {
  _mm256_storeu_si256(static_cast<__m256i*>(p), x.lo);
  _mm256_storeu_si256(static_cast<__m256i*>(p) + 1, x.hi);
}
V VB band(VB x, uint8_t mask) {
  const __m256i m = _mm256_set1_epi8(static_cast<char>(mask));
  return {_mm256_and_si256(x.lo, m), _mm256_and_si256(x.hi, m)};
}
V VB bor(VB x, VB y) { return BOTH(_mm256_or_si256, x, y); }
template <int N> V VB bshr(VB x) { return {_mm256_srli_epi16(x.lo, N), _mm256_srli_epi16(x.hi, N)}; }
template <int N> V VB bshl(VB x) { return {_mm256_slli_epi16(x.lo, N), _mm256_slli_epi16(x.hi, N)}; }
V VI as_words(VB x) { return {x.lo, x.hi}; }
template <bool NARROW> V __m256i dot4_half(__m256i acc, __m256i w, __m256i q) {
  if constexpr (NARROW) {
    return _mm256_add_epi32(acc, _mm256_madd_epi16(_mm256_maddubs_epi16(w, q), _mm256_set1_epi16(1)));
  } else {  // maddubs would saturate: even and odd bytes as 16-bit numbers
    const __m256i even = _mm256_madd_epi16(_mm256_and_si256(w, _mm256_set1_epi16(255)), _mm256_srai_epi16(_mm256_slli_epi16(q, 8), 8));
    const __m256i odd = _mm256_madd_epi16(_mm256_srli_epi16(w, 8), _mm256_srai_epi16(q, 8));
    return _mm256_add_epi32(acc, _mm256_add_epi32(even, odd));
  }
}
template <bool NARROW> V VI dot4(VI acc, VB w, const int8_t* a) {
  const __m256i q = _mm256_set1_epi32(*reinterpret_cast<const AliasedInt*>(a));
  return {dot4_half<NARROW>(acc.lo, w.lo, q), dot4_half<NARROW>(acc.hi, w.hi, q)};
}
V void prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0); }
V void prefetch_to_second(const void* p) { __builtin_prefetch(p, 0, 2); }
V void prefetch_for_write(void* p) { __builtin_prefetch(p, 1); }
V __m256i lane_numbers(int first) { return _mm256_add_epi32(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), _mm256_set1_epi32(first)); }
V __m256 keep_half(__m256 x, __m256i lane, int first, int last, __m256 other) {
  const __m256i out = _mm256_or_si256(_mm256_cmpgt_epi32(_mm256_set1_epi32(first), lane), _mm256_cmpgt_epi32(lane, _mm256_set1_epi32(last)));
  return _mm256_blendv_ps(x, other, _mm256_castsi256_ps(out));
}
V __m256 drop_half(__m256 x, __m256i lane, int first, int last, __m256 other) {
  const __m256i out = _mm256_or_si256(_mm256_cmpgt_epi32(_mm256_set1_epi32(first), lane), _mm256_cmpgt_epi32(lane, _mm256_set1_epi32(last)));
  return _mm256_blendv_ps(other, x, _mm256_castsi256_ps(out));
}
V VF drop_lanes(VF x, int first, int last, float other) {
  const __m256 o = _mm256_set1_ps(other);
  return {drop_half(x.lo, lane_numbers(0), first, last, o), drop_half(x.hi, lane_numbers(8), first, last, o)};
}
V VF keep_lanes(VF x, int first, int last, float other) {
  const __m256 o = _mm256_set1_ps(other);
  return {keep_half(x.lo, lane_numbers(0), first, last, o), keep_half(x.hi, lane_numbers(8), first, last, o)};
}
V float vsum(VF x) {
  const __m256 a = _mm256_add_ps(x.lo, x.hi);
  const __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  const __m128 c = _mm_add_ps(b, _mm_movehl_ps(b, b));
  return _mm_cvtss_f32(_mm_add_ss(c, _mm_shuffle_ps(c, c, 1)));
}
V float vlargest(VF x) {
  const __m256 a = _mm256_max_ps(x.lo, x.hi);
  const __m128 b = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  const __m128 c = _mm_max_ps(b, _mm_movehl_ps(b, b));
  return _mm_cvtss_f32(_mm_max_ss(c, _mm_shuffle_ps(c, c, 1)));
}
V float root(float x) { return _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(x))); }
V bool has_nan(VF x) {
  return (_mm256_movemask_ps(_mm256_cmp_ps(x.lo, x.lo, _CMP_UNORD_Q)) | _mm256_movemask_ps(_mm256_cmp_ps(x.hi, x.hi, _CMP_UNORD_Q))) != 0;
}
V __m256i mask_below(int n, int first) { return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), lane_numbers(first)); }
V void vstore_part(float* p, VF x, int count) {
  _mm256_maskstore_ps(p, mask_below(count, 0), x.lo);
  if (count > 8) _mm256_maskstore_ps(p + 8, mask_below(count, 8), x.hi);
}
V VF vload_part(const float* p, int count) {
  return {_mm256_maskload_ps(p, mask_below(count, 0)), count > 8 ? _mm256_maskload_ps(p + 8, mask_below(count, 8)) : _mm256_setzero_ps()};
}
V VF as_floats(VI x) { return {_mm256_castsi256_ps(x.lo), _mm256_castsi256_ps(x.hi)}; }
V VI upper_half(VI x) {
  const __m256i mask = _mm256_set1_epi32(static_cast<int>(0xffff0000u));
  return {_mm256_and_si256(x.lo, mask), _mm256_and_si256(x.hi, mask)};
}
