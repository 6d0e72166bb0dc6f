// Operations on the elements in 8 bytes, one by one or by an instruction for several.
#pragma once

#include "reduce_dtype.h"

// Element `i` of a word, and its place.
template <class Bits>
CCL_INLINE Bits element_of(u64 word, u32 i) {
    return static_cast<Bits>(word >> (8 * sizeof(Bits) * i));
}

template <class Bits>
CCL_INLINE u64 placed(Bits element, u32 i) {
    return static_cast<u64>(element) << (8 * sizeof(Bits) * i);
}

// A word of the same element all over.
template <class D>
CCL_INLINE u64 repeated(u64 element) {
    u64 word = 0;
    CCL_UNROLL
    for (u32 i = 0; i < 8 / sizeof(typename D::Bits); ++i) word |= placed(static_cast<typename D::Bits>(element), i);
    return word;
}

template <class D>
CCL_INLINE u64 divided_word(u64 word, u32 n) {
    u64 result = 0;
    CCL_UNROLL
    for (u32 i = 0; i < 8 / sizeof(typename D::Bits); ++i) {
        result |= placed(D::divided(element_of<typename D::Bits>(word, i), n), i);
    }
    return result;
}

template <class D, class Op>
struct Words {
    CCL_INLINE u64 of(u64 a, u64 b) {
        typedef typename D::Bits Bits;
        u64 result = 0;
        CCL_UNROLL
        for (u32 i = 0; i < 8 / sizeof(Bits); ++i) {
            result |= placed(Op::template of<D>(element_of<Bits>(a, i), element_of<Bits>(b, i)), i);
        }
        return result;
    }
};

// Bytes side by side: the low seven bits add without carry into the next, the eighth is a sum without carry.
struct ByteSum {
    CCL_INLINE u64 of(u64 a, u64 b) {
        const u64 low = 0x7f7f7f7f7f7f7f7full;
        return ((a & low) + (b & low)) ^ ((a ^ b) & ~low);
    }
};

template <>
struct Words<dtype_u8, op_sum> : ByteSum {};
template <>
struct Words<dtype_i8, op_sum> : ByteSum {};

template <>
struct Words<dtype_bytes, op_copy> {
    CCL_INLINE u64 of(u64 a, u64) { return a; }
};

#if !defined(CCL_EMU)
#include "reduce_word_ptx.h"
#endif
