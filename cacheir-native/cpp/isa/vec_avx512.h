// The vector interface on AVX-512 (F, BW, VL, DQ), with VNNI and BF16 where the object is compiled for them.
#pragma once


#ifdef __AVX512VNNI__
#define CACHEIR_MAX_INT8_TILE 12
#else
#define CACHEIR_MAX_INT8_TILE 8
#endif
#define CACHEIR_MAX_F32_TILE 8
#ifdef __AVX512BF16__
#define CACHEIR_HAS_BF16_DOT 1
#else
#define CACHEIR_HAS_BF16_DOT 0
#endif

typedef __m512 VF;
typedef __m512i VI;
typedef __m512i VB;
typedef int32_t __attribute__((may_alias)) AliasedInt;
#define CACHEIR_UNROLL(n) CACHEIR_PRAGMA(GCC unroll n)
#define CACHEIR_PRAGMA(text) _Pragma(#text)
#define V static inline __attribute__((always_inline))

V VF vzero() { return _mm512_setzero_ps(); }
V VF vset(float x) { return _mm512_set1_ps(x); }
V VF vload(const float* p) { return _mm512_loadu_ps(p); }
V void vstore(float* p, VF x) { _mm512_storeu_ps(p, x); }
V VF vadd(VF x, VF y) { return _mm512_add_ps(x, y); }
V VF vsub(VF x, VF y) { return _mm512_sub_ps(x, y); }
V VF vmul(VF x, VF y) { return _mm512_mul_ps(x, y); }
V VF vdiv(VF x, VF y) { return _mm512_div_ps(x, y); }
V VF vfma(VF x, VF y, VF z) { return _mm512_fmadd_ps(x, y, z); }
V VF vmax(VF x, VF y) { return _mm512_max_ps(x, y); }
V VF vmin(VF x, VF y) { return _mm512_min_ps(x, y); }
V VF vabs(VF x) { return _mm512_abs_ps(x); }
V VI vround(VF x) { return _mm512_cvtps_epi32(x); }
V VF vfloat(VI x) { return _mm512_cvtepi32_ps(x); }
V VF vload_half(const uint16_t* p) { return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))); }
V void vstore_half(uint16_t* p, VF x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
V VF vload_bf16(const uint16_t* p) {
  const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}
V void vstore_bf16(uint16_t* p, VF x) {
  const __m512i u = _mm512_castps_si512(x);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
  __m512i r = _mm512_srli_epi32(_mm512_add_epi32(u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff))), 16);
  const __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
  r = _mm512_mask_or_epi32(r, nan, _mm512_srli_epi32(u, 16), _mm512_set1_epi32(0x40));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(r));
}
V VI vload_u8(const uint8_t* p) { return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))); }
V VI vload_s8(const int8_t* p) { return _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))); }
V void vstore_s8(int8_t* p, VI x) { _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(x)); }

V VI iset(int32_t x) { return _mm512_set1_epi32(x); }
V VI iload(const int32_t* p) { return _mm512_loadu_si512(p); }
V VI iadd(VI x, VI y) { return _mm512_add_epi32(x, y); }
V VI imul(VI x, VI y) { return _mm512_mullo_epi32(x, y); }
template <int N> V VI ishl(VI x) { return _mm512_slli_epi32(x, N); }
template <int N> V VI byte_of(VI x) {
  if constexpr (N == 3) return _mm512_srli_epi32(x, 24);
  else return _mm512_and_si512(_mm512_srli_epi32(x, 8 * N), _mm512_set1_epi32(255));
}
V VF exponent_bits(VI n) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(n, _mm512_set1_epi32(127)), 23)); }

V VB bload(const uint8_t* p) { return _mm512_loadu_si512(p); }
V void bstore(void* p, VB x) { _mm512_storeu_si512(p, x); }
V VB band(VB x, uint8_t mask) { return _mm512_and_si512(x, _mm512_set1_epi8(static_cast<char>(mask))); }
V VB bor(VB x, VB y) { return _mm512_or_si512(x, y); }
template <int N> V VB bshr(VB x) { if constexpr (N == 0) return x; else return _mm512_srli_epi16(x, N); }
template <int N> V VB bshl(VB x) { if constexpr (N == 0) return x; else return _mm512_slli_epi16(x, N); }
V VI as_words(VB x) { return x; }
#ifdef __AVX512VNNI__
template <bool NARROW> V VI dot4(VI acc, VB w, const int8_t* a) {
  // Written out because compilers put the broadcast into a register of its own, one instruction more each.
  asm("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(acc) : "v"(w), "m"(*reinterpret_cast<const AliasedInt*>(a)));
  return acc;
}
// Four rows of activations at once, side by side as they are written: each waits four cycles for itself.
#define CACHEIR_HAS_FOUR_DOTS 1
V void four_dots(VI* acc, VB w, const int8_t* a) {
  asm("vpdpbusd %5%{1to16%}, %4, %0\n\tvpdpbusd %6%{1to16%}, %4, %1\n\tvpdpbusd %7%{1to16%}, %4, %2\n\tvpdpbusd %8%{1to16%}, %4, %3"
      : "+&v"(acc[0]), "+&v"(acc[1]), "+&v"(acc[2]), "+&v"(acc[3])
      : "v"(w), "m"(*reinterpret_cast<const AliasedInt*>(a)), "m"(*reinterpret_cast<const AliasedInt*>(a + 32)),
        "m"(*reinterpret_cast<const AliasedInt*>(a + 64)), "m"(*reinterpret_cast<const AliasedInt*>(a + 96)));
}
#else
template <bool NARROW> V VI dot4(VI acc, VB w, const int8_t* a) {
  const __m512i q = _mm512_set1_epi32(*reinterpret_cast<const AliasedInt*>(a));
  if constexpr (NARROW) {
    return _mm512_add_epi32(acc, _mm512_madd_epi16(_mm512_maddubs_epi16(w, q), _mm512_set1_epi16(1)));
  } else {  // maddubs would saturate: even and odd bytes as 16-bit numbers
    const __m512i even = _mm512_madd_epi16(_mm512_and_si512(w, _mm512_set1_epi16(255)), _mm512_srai_epi16(_mm512_slli_epi16(q, 8), 8));
    const __m512i odd = _mm512_madd_epi16(_mm512_srli_epi16(w, 8), _mm512_srai_epi16(q, 8));
    return _mm512_add_epi32(acc, _mm512_add_epi32(even, odd));
  }
}
#endif
V void prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0); }
V void prefetch_to_second(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T1); }
V void prefetch_for_write(void* p) { asm volatile("prefetchw %0" : : "m"(*static_cast<char*>(p))); }
V __mmask16 lanes_below(int n) { return static_cast<__mmask16>(n >= 16 ? 0xffff : n <= 0 ? 0 : (1u << n) - 1); }
V VF drop_lanes(VF x, int first, int last, float other) {
  const __mmask16 dropped = static_cast<__mmask16>(lanes_below(last + 1) & ~lanes_below(first));
  return _mm512_mask_blend_ps(dropped, x, _mm512_set1_ps(other));
}
V VF keep_lanes(VF x, int first, int last, float other) {
  const __mmask16 kept = static_cast<__mmask16>(lanes_below(last + 1) & ~lanes_below(first));
  return _mm512_mask_blend_ps(kept, _mm512_set1_ps(other), x);
}
V float vsum(VF x) {
  const __m256 a = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
  const __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  const __m128 c = _mm_add_ps(b, _mm_movehl_ps(b, b));
  return _mm_cvtss_f32(_mm_add_ss(c, _mm_shuffle_ps(c, c, 1)));
}
V float vlargest(VF x) {
  const __m256 a = _mm256_max_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
  const __m128 b = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  const __m128 c = _mm_max_ps(b, _mm_movehl_ps(b, b));
  return _mm_cvtss_f32(_mm_max_ss(c, _mm_shuffle_ps(c, c, 1)));
}
V float root(float x) { return _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(x))); }
V bool has_nan(VF x) { return _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q) != 0; }
V void vstore_part(float* p, VF x, int count) { _mm512_mask_storeu_ps(p, lanes_below(count), x); }
V VF vload_part(const float* p, int count) { return _mm512_maskz_loadu_ps(lanes_below(count), p); }
V VF as_floats(VI x) { return _mm512_castsi512_ps(x); }
V VI upper_half(VI x) { return _mm512_and_si512(x, _mm512_set1_epi32(static_cast<int>(0xffff0000u))); }
#if CACHEIR_HAS_BF16_DOT
// acc[i] += w[2 i] a[0] + w[2 i + 1] a[1] of bf16
V VF dot2(VF acc, VB w, const uint16_t* a) {
  asm("vdpbf16ps %2%{1to16%}, %1, %0" : "+v"(acc) : "v"(w), "m"(*reinterpret_cast<const AliasedInt*>(a)));
  return acc;
}
// 32 numbers of bf16 in their order, and as pairs of one of each.
V VB bf16_row(VF low, VF high) { return reinterpret_cast<VB>(_mm512_cvtne2ps_pbh(high, low)); }
V VB bf16_pairs(VF first, VF second) {
  const __m512i places = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6, 21, 5, 20, 4,
                                          19, 3, 18, 2, 17, 1, 16, 0);
  return _mm512_permutexvar_epi16(places, bf16_row(first, second));
}
// M rows of 16 words each become 16 columns of M words, one after the other: the first `wanted` of them.
template <int M> V void store_columns(VB* x, uint32_t* to, int wanted) {
  __m512i y[16];
  for (int i = M; i < 16; ++i) x[i] = _mm512_setzero_si512();
CACHEIR_UNROLL(8)
  for (int i = 0; i < 8; ++i) {
    y[2 * i] = _mm512_unpacklo_epi32(x[2 * i], x[2 * i + 1]);
    y[2 * i + 1] = _mm512_unpackhi_epi32(x[2 * i], x[2 * i + 1]);
  }
CACHEIR_UNROLL(4)
  for (int i = 0; i < 4; ++i)
CACHEIR_UNROLL(2)
    for (int j = 0; j < 2; ++j) {
      x[4 * i + 2 * j] = _mm512_unpacklo_epi64(y[4 * i + j], y[4 * i + 2 + j]);
      x[4 * i + 2 * j + 1] = _mm512_unpackhi_epi64(y[4 * i + j], y[4 * i + 2 + j]);
    }
CACHEIR_UNROLL(4)
  for (int j = 0; j < 4; ++j) {
    y[j] = _mm512_shuffle_i32x4(x[j], x[4 + j], 0x88);
    y[4 + j] = _mm512_shuffle_i32x4(x[j], x[4 + j], 0xdd);
    y[8 + j] = _mm512_shuffle_i32x4(x[8 + j], x[12 + j], 0x88);
    y[12 + j] = _mm512_shuffle_i32x4(x[8 + j], x[12 + j], 0xdd);
  }
CACHEIR_UNROLL(8)
  for (int j = 0; j < 8; ++j) {
    x[j] = _mm512_shuffle_i32x4(y[j], y[8 + j], 0x88);
    x[8 + j] = _mm512_shuffle_i32x4(y[j], y[8 + j], 0xdd);
  }
  constexpr __mmask16 lanes = static_cast<__mmask16>((1u << M) - 1);
CACHEIR_UNROLL(16)
  for (int i = 0; i < 16; ++i)
    if (i < wanted) _mm512_mask_storeu_epi32(to + i * M, lanes, x[i]);
}
// 2^x to about 18 bits; 0 exactly below -126, NaN stays NaN.
V VF vexp2_short(VF x) {
  const __mmask16 kept = _mm512_cmp_ps_mask(x, _mm512_set1_ps(-126.0f), _CMP_NLE_UQ);
  const VF n = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC), r = _mm512_sub_ps(x, n);
  VF p = vset(9.6004e-3f);
  p = vfma(p, r, vset(5.591689e-2f));
  p = vfma(p, r, vset(2.4023718e-1f));
  p = vfma(p, r, vset(6.9312199e-1f));
  p = vfma(p, r, vset(1.0f));
  return _mm512_maskz_scalef_ps(kept, p, n);
}
#endif
