// Arithmetic of single floats on their bits: the same bits on devices, in emulation and on hosts (docs/adr/0007).
//
// Every operation rounds once, to nearest even. PTX says .rn outright, because instructions without it may be contracted
// to a fused multiply-add, which rounds once where two roundings are due.
#pragma once

#include "ccl_device.h"

union CclF32 {
    u32 bits;
    float value;
};

union CclF64 {
    u64 bits;
    double value;
};

CCL_INLINE float f32_of(u32 bits) {
    CclF32 pun;
    pun.bits = bits;
    return pun.value;
}

CCL_INLINE u32 bits_of(float value) {
    CclF32 pun;
    pun.value = value;
    return pun.bits;
}

CCL_INLINE double f64_of(u64 bits) {
    CclF64 pun;
    pun.bits = bits;
    return pun.value;
}

CCL_INLINE u64 bits_of(double value) {
    CclF64 pun;
    pun.value = value;
    return pun.bits;
}

#if defined(CCL_EMU)
#define CCL_FLOAT(name, T, constraint, instruction, symbol) \
    CCL_INLINE T name(T a, T b) { return a symbol b; }
#else
#define CCL_FLOAT(name, T, constraint, instruction, symbol)                                            \
    CCL_INLINE T name(T a, T b) {                                                                      \
        T result;                                                                                      \
        asm(instruction " %0, %1, %2;" : "=" constraint(result) : constraint(a), constraint(b));       \
        return result;                                                                                 \
    }
#endif

CCL_FLOAT(rounded_sum, float, "f", "add.rn.f32", +)
CCL_FLOAT(rounded_product, float, "f", "mul.rn.f32", *)
CCL_FLOAT(rounded_quotient, float, "f", "div.rn.f32", /)
CCL_FLOAT(rounded_sum, double, "d", "add.rn.f64", +)
CCL_FLOAT(rounded_product, double, "d", "mul.rn.f64", *)
CCL_FLOAT(rounded_quotient, double, "d", "div.rn.f64", /)

// The bits, or those of the one NaN: all but the sign.
CCL_INLINE u32 one_nan(float value) { return value != value ? 0x7fffffffu : bits_of(value); }
CCL_INLINE u64 one_nan(double value) { return value != value ? 0x7fffffffffffffffull : bits_of(value); }

// A binary32 that rounds to any narrower float as `value` itself would: if it is not exact, it is the neighbour whose
// last bit is 1, so that no tie is mistaken.
CCL_LEAF float rounded_to_odd(double value) {
    float near = static_cast<float>(value);
    double exact = near;
    u32 bits = bits_of(near);
    if (exact == value || value != value || (bits & 1)) return near;
    bool outward = (exact < 0 ? -exact : exact) < (value < 0 ? -value : value);
    return f32_of(outward ? bits + 1 : bits - 1);
}

// A float format of at most 16 bits: a sign, then exponent bits, then MANTISSA bits.
template <u32 MANTISSA_, u32 BIAS_, u32 MAGNITUDE_, u32 INFINITY_, u32 OVERFLOW_>
struct NarrowFormat {
    static const u32 MANTISSA = MANTISSA_;    // explicit bits of the significand
    static const u32 BIAS = BIAS_;            // what is added to exponents
    static const u32 MAGNITUDE = MAGNITUDE_;  // all bits but the sign
    static const u32 INFINITE = INFINITY_;    // the largest magnitude that is not NaN
    static const u32 OVERFLOW_TO = OVERFLOW_; // the magnitude of a result beyond the largest finite number
    static const u32 SHIFT = 23 - MANTISSA_;
    static const u32 REBIAS = (127 - BIAS_) << 23;
    static const u32 SIGN_SHIFT = MAGNITUDE_ == 0x7fff ? 16 : 24;
    static const bool HAS_INFINITY = INFINITY_ == (MAGNITUDE_ >> MANTISSA_ << MANTISSA_);
};

typedef NarrowFormat<10, 15, 0x7fff, 0x7c00, 0x7c00> FormatF16;
typedef NarrowFormat<3, 7, 0x7f, 0x7e, 0x7e> FormatE4m3;
typedef NarrowFormat<2, 15, 0x7f, 0x7c, 0x7b> FormatE5m2;

// The value of the low bits of `bits`.
template <class F>
CCL_INLINE float widened(u32 bits) {
    u32 magnitude = bits & F::MAGNITUDE;
    u32 normal = (magnitude << F::SHIFT) + F::REBIAS;
    // A subnormal is a small integer times the smallest of them.
    float smallest = f32_of((128 - F::BIAS - F::MANTISSA) << 23);
    u32 subnormal = bits_of(rounded_product(static_cast<float>(static_cast<i32>(magnitude)), smallest));
    u32 number = magnitude >> F::MANTISSA == 0 ? subnormal : normal;
    if (F::HAS_INFINITY && magnitude == F::INFINITE) number = 0x7f800000u;
    if (magnitude > F::INFINITE) number = 0x7fffffffu;
    return f32_of((bits & (F::MAGNITUDE + 1)) << F::SIGN_SHIFT | number);
}

// The bits of the nearest number, ties to even; the NaN with all bits set but the sign if it is one.
template <class F>
CCL_INLINE u32 narrowed(float value) {
    u32 bits = bits_of(value);
    u32 magnitude = bits & 0x7fffffffu;
    // Adding just under half a unit carries into the unit exactly when rounding up is due.
    u32 half = (1u << (F::SHIFT - 1)) - 1 + (magnitude >> F::SHIFT & 1);
    u32 normal = (magnitude + half - F::REBIAS) >> F::SHIFT;
    // Adding the power of two whose unit is the smallest subnormal rounds to multiples of it.
    float unit = f32_of((128 - F::BIAS - F::MANTISSA + 23) << 23);
    u32 subnormal = bits_of(rounded_sum(f32_of(magnitude), unit)) - bits_of(unit);
    u32 number = magnitude < F::REBIAS + (1u << 23) ? subnormal : normal;
    if (number > F::OVERFLOW_TO) number = F::OVERFLOW_TO;
    u32 sign = bits >> F::SIGN_SHIFT & (F::MAGNITUDE + 1);
    return magnitude > 0x7f800000u ? F::MAGNITUDE : sign | number;
}

CCL_INLINE float widened_bf16(u32 bits) { return f32_of(bits << 16); }

CCL_INLINE u32 narrowed_bf16(float value) {
    u32 bits = bits_of(value);
    return value != value ? 0x7fffu : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}
