// Operations on several elements by one instruction of a device. Included by reduce_word.h.
//
// Only where PTX promises the bits of the general form: every instruction here rounds once to nearest even, keeps
// subnormals, and gives the NaN with all bits set but the sign. (An f8 sum or product in binary16 rounds twice, which is
// harmless: binary16 has more than twice the bits of either f8 plus two, and what overflows it saturates.)
#pragma once

#define CCL_IN_HALVES(D, Op, half)                                                      \
    template <>                                                                         \
    struct Words<D, Op> {                                                               \
        CCL_INLINE u64 of(u64 a, u64 b) {                                               \
            u32 low = half(static_cast<u32>(a), static_cast<u32>(b));                   \
            u32 high = half(static_cast<u32>(a >> 32), static_cast<u32>(b >> 32));      \
            return static_cast<u64>(high) << 32 | low;                                  \
        }                                                                               \
    };

// binary16, two at a time.

#define CCL_F16X2(name, instruction)                                                    \
    CCL_INLINE u32 name(u32 a, u32 b) {                                                 \
        u32 result;                                                                     \
        asm(instruction " %0, %1, %2;" : "=r"(result) : "r"(a), "r"(b));                \
        return result;                                                                  \
    }

CCL_F16X2(f16x2_sum, "add.rn.f16x2")
CCL_F16X2(f16x2_product, "mul.rn.f16x2")
CCL_IN_HALVES(dtype_f16, op_sum, f16x2_sum)
CCL_IN_HALVES(dtype_f16, op_prod, f16x2_product)

// bfloat16: widened by a shift, rounded two at a time.

#if __CUDA_ARCH__ >= 800
#define CCL_BF16X2(name, operation)                                                             \
    CCL_INLINE u32 name(u32 a, u32 b) {                                                         \
        float low = operation(f32_of(a << 16), f32_of(b << 16));                                \
        float high = operation(f32_of(a & 0xffff0000u), f32_of(b & 0xffff0000u));               \
        u32 result;                                                                             \
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(result) : "f"(high), "f"(low));              \
        return result;                                                                          \
    }

CCL_BF16X2(bf16x2_sum, rounded_sum)
CCL_BF16X2(bf16x2_product, rounded_product)
CCL_IN_HALVES(dtype_bf16, op_sum, bf16x2_sum)
CCL_IN_HALVES(dtype_bf16, op_prod, bf16x2_product)
#endif

// f8: by way of binary16, which holds them all.

#if __CUDA_ARCH__ >= 890
#define CCL_F8X4(name, type, operation)                                                         \
    CCL_INLINE u32 name(u32 a, u32 b) {                                                         \
        u32 result;                                                                             \
        asm("{.reg .b16 al, ah, bl, bh; .reg .b32 wal, wah, wbl, wbh;"                          \
            "mov.b32 {al, ah}, %1; mov.b32 {bl, bh}, %2;"                                       \
            "cvt.rn.f16x2." type "x2 wal, al; cvt.rn.f16x2." type "x2 wah, ah;"                 \
            "cvt.rn.f16x2." type "x2 wbl, bl; cvt.rn.f16x2." type "x2 wbh, bh;"                 \
            operation " wal, wal, wbl;" operation " wah, wah, wbh;"                             \
            "cvt.rn.satfinite." type "x2.f16x2 al, wal;"                                        \
            "cvt.rn.satfinite." type "x2.f16x2 ah, wah;"                                        \
            "mov.b32 %0, {al, ah};}"                                                            \
            : "=r"(result)                                                                      \
            : "r"(a), "r"(b));                                                                  \
        return result;                                                                          \
    }

CCL_F8X4(e4m3x4_sum, "e4m3", "add.rn.f16x2")
CCL_F8X4(e4m3x4_product, "e4m3", "mul.rn.f16x2")
CCL_F8X4(e5m2x4_sum, "e5m2", "add.rn.f16x2")
CCL_F8X4(e5m2x4_product, "e5m2", "mul.rn.f16x2")
CCL_IN_HALVES(dtype_f8e4m3, op_sum, e4m3x4_sum)
CCL_IN_HALVES(dtype_f8e4m3, op_prod, e4m3x4_product)
CCL_IN_HALVES(dtype_f8e5m2, op_sum, e5m2x4_sum)
CCL_IN_HALVES(dtype_f8e5m2, op_prod, e5m2x4_product)
#endif
