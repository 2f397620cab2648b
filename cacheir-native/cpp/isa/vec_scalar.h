// The vector interface without instruction sets: arrays of 16 and loops, which any compiler can vectorise as it likes.
#pragma once

#define CACHEIR_MAX_INT8_TILE 2
#define CACHEIR_MAX_F32_TILE 4
#define CACHEIR_HAS_BF16_DOT 0

struct VF { float a[16]; };
struct VI { int32_t a[16]; };
struct VB { uint8_t a[64]; };
#define EACH for (int i = 0; i < 16; ++i)
#define CACHEIR_UNROLL(n)  // loops stay loops: unrolled arrays take minutes to compile
#define V static inline __attribute__((always_inline))

V VF vzero() { VF r; EACH r.a[i] = 0; return r; }
V VF vset(float x) { VF r; EACH r.a[i] = x; return r; }
V VF vload(const float* p) { VF r; EACH r.a[i] = p[i]; return r; }
V void vstore(float* p, VF x) { EACH p[i] = x.a[i]; }
V VF vadd(VF x, VF y) { EACH x.a[i] += y.a[i]; return x; }
V VF vsub(VF x, VF y) { EACH x.a[i] -= y.a[i]; return x; }
V VF vmul(VF x, VF y) { EACH x.a[i] *= y.a[i]; return x; }
V VF vdiv(VF x, VF y) { EACH x.a[i] /= y.a[i]; return x; }
V VF vfma(VF x, VF y, VF z) { EACH z.a[i] += x.a[i] * y.a[i]; return z; }
V VF vmax(VF x, VF y) { EACH x.a[i] = x.a[i] > y.a[i] ? x.a[i] : y.a[i]; return x; }
V VF vmin(VF x, VF y) { EACH x.a[i] = x.a[i] < y.a[i] ? x.a[i] : y.a[i]; return x; }
V VF vabs(VF x) { EACH x.a[i] = x.a[i] < 0 ? -x.a[i] : x.a[i]; return x; }
V float round_even(float x) { return __builtin_rintf(x); }
V VI vround(VF x) {
  VI r;
  EACH r.a[i] = x.a[i] > -2147483648.0f && x.a[i] < 2147483648.0f ? static_cast<int32_t>(round_even(x.a[i])) : INT32_MIN;
  return r;
}
V VF vfloat(VI x) { VF r; EACH r.a[i] = static_cast<float>(x.a[i]); return r; }
V float half_to_float(uint16_t h) {
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000u) << 16, body = h & 0x7fffu;
  union { uint32_t u; float f; } r;
  if (body >= 0x7c00u) r.u = sign | 0x7f800000u | (body & 0x3ffu) << 13 | (body > 0x7c00u ? 0x400000u : 0);
  else if (body >= 0x400u) r.u = sign | ((body << 13) + 0x38000000u);
  else { r.f = static_cast<float>(body) * 0x1p-24f; r.u |= sign; }
  return r.f;
}
V uint16_t float_to_half(float x) {
  union { float f; uint32_t u; } v{x};
  const uint32_t sign = v.u >> 16 & 0x8000u;
  v.u &= 0x7fffffffu;
  if (v.u > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u);
  if (v.u >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);
  if (v.u < 0x38800000u) {  // below the smallest normal half: count steps of 2^-24
    return static_cast<uint16_t>(sign | static_cast<uint32_t>(round_even(v.f * 0x1p24f)));
  }
  const uint32_t rounded = v.u + 0xfffu + (v.u >> 13 & 1u);
  return static_cast<uint16_t>(sign | (rounded - 0x38000000u) >> 13);
}
V uint16_t float_to_bf16(float x) {
  union { float f; uint32_t u; } v{x};
  if ((v.u & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>(v.u >> 16 | 0x40u);
  return static_cast<uint16_t>((v.u + 0x7fffu + (v.u >> 16 & 1u)) >> 16);
}
V VF vload_half(const uint16_t* p) { VF r; EACH r.a[i] = half_to_float(p[i]); return r; }
V void vstore_half(uint16_t* p, VF x) { EACH p[i] = float_to_half(x.a[i]); }
V VF vload_bf16(const uint16_t* p) {
  VF r;
  EACH { union { uint32_t u; float f; } v{static_cast<uint32_t>(p[i]) << 16}; r.a[i] = v.f; }
  return r;
}
V void vstore_bf16(uint16_t* p, VF x) { EACH p[i] = float_to_bf16(x.a[i]); }
V VI vload_u8(const uint8_t* p) { VI r; EACH r.a[i] = p[i]; return r; }
V VI vload_s8(const int8_t* p) { VI r; EACH r.a[i] = p[i]; return r; }
V void vstore_s8(int8_t* p, VI x) { EACH p[i] = static_cast<int8_t>(x.a[i]); }

V VI iset(int32_t x) { VI r; EACH r.a[i] = x; return r; }
V VI iload(const int32_t* p) { VI r; EACH r.a[i] = p[i]; return r; }
V VI iadd(VI x, VI y) { EACH x.a[i] += y.a[i]; return x; }
V VI imul(VI x, VI y) { EACH x.a[i] *= y.a[i]; return x; }
template <int N> V VI ishl(VI x) { EACH x.a[i] = static_cast<int32_t>(static_cast<uint32_t>(x.a[i]) << N); return x; }
template <int N> V VI byte_of(VI x) { EACH x.a[i] = static_cast<int32_t>(static_cast<uint32_t>(x.a[i]) >> 8 * N & 255u); return x; }
V VF exponent_bits(VI n) {  // 2^n
  VF r;
  EACH { union { uint32_t u; float f; } v{static_cast<uint32_t>(n.a[i] + 127) << 23}; r.a[i] = v.f; }
  return r;
}

V VB bload(const uint8_t* p) { VB r; for (int i = 0; i < 64; ++i) r.a[i] = p[i]; return r; }
V void bstore(uint8_t* p, VB x) { for (int i = 0; i < 64; ++i) p[i] = x.a[i]; }
V VB band(VB x, uint8_t mask) { for (int i = 0; i < 64; ++i) x.a[i] &= mask; return x; }
V VB bor(VB x, VB y) { for (int i = 0; i < 64; ++i) x.a[i] |= y.a[i]; return x; }
// Shifts whose bits from a neighbouring byte the next mask takes away.
template <int N> V VB bshr(VB x) { for (int i = 0; i < 64; ++i) x.a[i] = static_cast<uint8_t>(x.a[i] >> N); return x; }
template <int N> V VB bshl(VB x) { for (int i = 0; i < 64; ++i) x.a[i] = static_cast<uint8_t>(x.a[i] << N); return x; }
V VI as_words(VB x) {
  VI r;
  EACH r.a[i] = static_cast<int32_t>(x.a[4 * i] | static_cast<uint32_t>(x.a[4 * i + 1]) << 8 |
                                     static_cast<uint32_t>(x.a[4 * i + 2]) << 16 |
                                     static_cast<uint32_t>(x.a[4 * i + 3]) << 24);
  return r;
}
// acc[i] += sum over j of w[4 i + j] * a[j]; NARROW: no code is above 127.
template <bool NARROW> V VI dot4(VI acc, VB w, const int8_t* a) {
  EACH acc.a[i] += w.a[4 * i] * a[0] + w.a[4 * i + 1] * a[1] + w.a[4 * i + 2] * a[2] + w.a[4 * i + 3] * a[3];
  return acc;
}
V void prefetch(const void* p) { __builtin_prefetch(p); }
V void prefetch_to_second(const void* p) { __builtin_prefetch(p, 0, 2); }
V void prefetch_for_write(void* p) { __builtin_prefetch(p, 1); }
// Lanes whose number is not between first and last (both inside) become `other`.
V VF drop_lanes(VF x, int first, int last, float other) { EACH x.a[i] = i >= first && i <= last ? other : x.a[i]; return x; }
V VF keep_lanes(VF x, int first, int last, float other) { EACH x.a[i] = i >= first && i <= last ? x.a[i] : other; return x; }
V float vsum(VF x) {
  for (int n = 8; n; n /= 2) for (int i = 0; i < n; ++i) x.a[i] += x.a[i + n];
  return x.a[0];
}
V float vlargest(VF x) { float m = x.a[0]; EACH m = m > x.a[i] ? m : x.a[i]; return m; }
V float root(float x) { return __builtin_sqrtf(x); }
V bool has_nan(VF x) { int n = 0; EACH n |= x.a[i] != x.a[i]; return n != 0; }
V void vstore_part(float* p, VF x, int count) { EACH if (i < count) p[i] = x.a[i]; }
V VF vload_part(const float* p, int count) { VF r; EACH r.a[i] = i < count ? p[i] : 0; return r; }
V VF as_floats(VI x) { VF r; EACH { union { int32_t i; float f; } v{x.a[i]}; r.a[i] = v.f; } return r; }
V VI upper_half(VI x) { EACH x.a[i] = static_cast<int32_t>(static_cast<uint32_t>(x.a[i]) & 0xffff0000u); return x; }
