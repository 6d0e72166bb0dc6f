// The dtypes: one element's arithmetic, on its bits.
#pragma once

#include "reduce_float.h"

// Integers. Signed ones add and multiply as unsigned, which wraps.
template <class Bits_, class Signed>
struct Integer {
    typedef Bits_ Bits;

    CCL_INLINE Bits plus(Bits a, Bits b) { return static_cast<Bits>(a + b); }
    // Wide enough that the product of promoted operands does not overflow.
    CCL_INLINE Bits times(Bits a, Bits b) { return static_cast<Bits>(static_cast<u64>(a) * static_cast<u64>(b)); }
    CCL_INLINE Bits larger(Bits a, Bits b) { return static_cast<Signed>(a) < static_cast<Signed>(b) ? b : a; }
    CCL_INLINE Bits smaller(Bits a, Bits b) { return static_cast<Signed>(b) < static_cast<Signed>(a) ? b : a; }

    // Towards zero. Magnitudes are divided, which cannot overflow.
    CCL_INLINE Bits divided(Bits a, u32 n) {
        bool negative = IS_SIGNED && a >> (8 * sizeof(Bits) - 1) != 0;
        Bits magnitude = static_cast<Bits>(negative ? 0 - a : a);
        Bits quotient = static_cast<Bits>(magnitude / n);
        return static_cast<Bits>(negative ? 0 - quotient : quotient);
    }

    // Truncates and saturates; 0 of NaN.
    CCL_INLINE Bits from_scalar(u64 bits) {
        const int value_bits = static_cast<int>(8 * sizeof(Bits)) - (IS_SIGNED ? 1 : 0);
        const Bits most = static_cast<Bits>(static_cast<Bits>(~static_cast<Bits>(0)) >> (IS_SIGNED ? 1 : 0));
        double scalar = f64_of(bits);
        double beyond = f64_of(static_cast<u64>(1023 + value_bits) << 52);
        if (scalar >= beyond) return most;
        if (IS_SIGNED && scalar <= -beyond) return static_cast<Bits>(most + 1);
        if (!(scalar >= 1) && !(scalar <= -1)) return 0;
        if (!IS_SIGNED && scalar < 0) return 0;
        return static_cast<Bits>(static_cast<Signed>(scalar));
    }

  private:
    static const bool IS_SIGNED = static_cast<Signed>(-1) < static_cast<Signed>(1);
};

// Larger and smaller of floats by their bits: flipping the magnitude of negative ones makes two's complement numbers in
// the same order, -0 before +0. Magnitudes beyond `infinity` are NaN.
template <class Bits, class Signed>
CCL_INLINE Bits float_extreme(Bits a, Bits b, Bits infinity, bool larger) {
    const Bits magnitude = static_cast<Bits>(static_cast<Bits>(~static_cast<Bits>(0)) >> 1);
    const Bits sign = static_cast<Bits>(magnitude + 1);
    if ((a & magnitude) > infinity || (b & magnitude) > infinity) return magnitude;
    Signed x = static_cast<Signed>(a & sign ? a ^ magnitude : a);
    Signed y = static_cast<Signed>(b & sign ? b ^ magnitude : b);
    return (x < y) == larger ? b : a;
}

struct dtype_f32 {
    typedef u32 Bits;

    CCL_INLINE Bits plus(Bits a, Bits b) { return one_nan(rounded_sum(f32_of(a), f32_of(b))); }
    CCL_INLINE Bits times(Bits a, Bits b) { return one_nan(rounded_product(f32_of(a), f32_of(b))); }
    CCL_INLINE Bits larger(Bits a, Bits b) { return float_extreme<u32, i32>(a, b, 0x7f800000u, true); }
    CCL_INLINE Bits smaller(Bits a, Bits b) { return float_extreme<u32, i32>(a, b, 0x7f800000u, false); }
    CCL_INLINE Bits divided(Bits a, u32 n) { return one_nan(rounded_quotient(f32_of(a), static_cast<float>(n))); }
    CCL_INLINE Bits from_scalar(u64 bits) { return scalar_nan(bits, bits_of(static_cast<float>(f64_of(bits)))); }

  private:
    // Any NaN is as good: whatever is multiplied by it becomes the one NaN.
    CCL_INLINE Bits scalar_nan(u64 bits, Bits rounded) { return f64_of(bits) != f64_of(bits) ? 0x7fffffffu : rounded; }
};

struct dtype_f64 {
    typedef u64 Bits;

    CCL_INLINE Bits plus(Bits a, Bits b) { return one_nan(rounded_sum(f64_of(a), f64_of(b))); }
    CCL_INLINE Bits times(Bits a, Bits b) { return one_nan(rounded_product(f64_of(a), f64_of(b))); }
    CCL_INLINE Bits larger(Bits a, Bits b) { return float_extreme<u64, i64>(a, b, 0x7ffull << 52, true); }
    CCL_INLINE Bits smaller(Bits a, Bits b) { return float_extreme<u64, i64>(a, b, 0x7ffull << 52, false); }
    CCL_INLINE Bits divided(Bits a, u32 n) { return one_nan(rounded_quotient(f64_of(a), static_cast<double>(n))); }
    CCL_INLINE Bits from_scalar(u64 bits) { return bits; }
};

// Floats that compute in binary32 and round at once.
template <class Bits_, class Signed, class Conversion>
struct NarrowFloat {
    typedef Bits_ Bits;

    CCL_INLINE float wide(Bits a) { return Conversion::wide(a); }
    CCL_INLINE Bits nearest(float value) { return static_cast<Bits>(Conversion::nearest(value)); }

    CCL_INLINE Bits plus(Bits a, Bits b) { return nearest(rounded_sum(wide(a), wide(b))); }
    CCL_INLINE Bits times(Bits a, Bits b) { return nearest(rounded_product(wide(a), wide(b))); }
    CCL_INLINE Bits larger(Bits a, Bits b) { return float_extreme<Bits, Signed>(a, b, Conversion::INFINITE, true); }
    CCL_INLINE Bits smaller(Bits a, Bits b) { return float_extreme<Bits, Signed>(a, b, Conversion::INFINITE, false); }
    CCL_INLINE Bits divided(Bits a, u32 n) { return nearest(rounded_quotient(wide(a), static_cast<float>(n))); }
    CCL_INLINE Bits from_scalar(u64 bits) { return nearest(rounded_to_odd(f64_of(bits))); }
};

template <class F>
struct ConversionOf {
    static const u32 INFINITE = F::INFINITE;
    CCL_INLINE float wide(u32 bits) { return widened<F>(bits); }
    CCL_INLINE u32 nearest(float value) { return narrowed<F>(value); }
};

struct ConversionOfBf16 {
    static const u32 INFINITE = 0x7f80;
    CCL_INLINE float wide(u32 bits) { return widened_bf16(bits); }
    CCL_INLINE u32 nearest(float value) { return narrowed_bf16(value); }
};

typedef Integer<u8, i8> dtype_i8;
typedef Integer<u8, u8> dtype_u8;
typedef Integer<u32, i32> dtype_i32;
typedef Integer<u32, u32> dtype_u32;
typedef Integer<u64, i64> dtype_i64;
typedef Integer<u64, u64> dtype_u64;
typedef NarrowFloat<u16, i16, ConversionOf<FormatF16>> dtype_f16;
typedef NarrowFloat<u16, i16, ConversionOfBf16> dtype_bf16;
typedef NarrowFloat<u8, i8, ConversionOf<FormatE4m3>> dtype_f8e4m3;
typedef NarrowFloat<u8, i8, ConversionOf<FormatE5m2>> dtype_f8e5m2;

// What is moved and never folded.
struct dtype_bytes {
    typedef u8 Bits;
};

// The operations. Average and pre-multiplied sum are sums with a finish.
struct op_sum {
    static const bool FINISHES = true;
    template <class D>
    CCL_INLINE typename D::Bits of(typename D::Bits a, typename D::Bits b) { return D::plus(a, b); }
};

struct op_prod {
    static const bool FINISHES = false;
    template <class D>
    CCL_INLINE typename D::Bits of(typename D::Bits a, typename D::Bits b) { return D::times(a, b); }
};

struct op_max {
    static const bool FINISHES = false;
    template <class D>
    CCL_INLINE typename D::Bits of(typename D::Bits a, typename D::Bits b) { return D::larger(a, b); }
};

struct op_min {
    static const bool FINISHES = false;
    template <class D>
    CCL_INLINE typename D::Bits of(typename D::Bits a, typename D::Bits b) { return D::smaller(a, b); }
};

// No operation: the first input.
struct op_copy {
    static const bool FINISHES = false;
    template <class D>
    CCL_INLINE typename D::Bits of(typename D::Bits a, typename D::Bits) { return a; }
};
