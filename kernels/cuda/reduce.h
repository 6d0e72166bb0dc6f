// Folds of elements, for every dtype and reduce operation: the bits that the host's folds give (core/runtime/src/exec/reduce).
//
// A dtype is a class dtype_{name}, an operation a class op_{name}, so that X(f16, sum, ...) of variants.h can name them.
// Elements are their bits, in the low bits of an unsigned integer `Bits`.
//
//     combine<D, Op>(a, b), combine16<D, Op>(a, b)     a op b, of one element and of 16 bytes of them
//     Words<D, Op>::of(a, b), scaled8, divided_word    the same of 8 bytes
//     fold<D, Op>(inputs, count, finish), fold16<...>  1 to 4 inputs from left to right, scaled before, divided after
//
// The result depends on the inputs and their order only. Every operation rounds to the dtype; a NaN that results is the
// one with all bits set but the sign; of zeros -0 is the smaller; f8 saturates; integers wrap; an average of integers
// truncates.
#pragma once

#include "reduce_dtype.h"
#include "reduce_word.h"

// What is applied beside the fold; only sums heed it.
struct Finish {
    u32 scaled;  // multiply input i by the scalar first for every bit i
    u32 n;       // divide the result by this; 0: do not
    u64 scalar;  // in the dtype's bits: D::from_scalar
};

template <class D, class Op>
CCL_INLINE typename D::Bits combine(typename D::Bits a, typename D::Bits b) {
    return Op::template of<D>(a, b);
}

template <class D, class Op>
CCL_INLINE Vec16 combine16(Vec16 a, Vec16 b) {
    return {Words<D, Op>::of(a.low, b.low), Words<D, Op>::of(a.high, b.high)};
}

// Input number `input`, multiplied by the scalar if that is due.
template <class D, class Op>
CCL_INLINE typename D::Bits scaled(typename D::Bits value, u32 input, const Finish& finish) {
    if (Op::FINISHES && (finish.scaled >> input & 1)) {
        return D::times(value, static_cast<typename D::Bits>(finish.scalar));
    }
    return value;
}

// 8 bytes of elements, all multiplied by `scalar`.
template <class D>
CCL_INLINE u64 scaled8(u64 word, u64 scalar) {
    return Words<D, op_prod>::of(word, repeated<D>(scalar));
}

template <class D, class Op>
CCL_INLINE Vec16 scaled16(Vec16 value, u32 input, const Finish& finish) {
    if (Op::FINISHES && (finish.scaled >> input & 1)) {
        return {scaled8<D>(value.low, finish.scalar), scaled8<D>(value.high, finish.scalar)};
    }
    return value;
}

// A complete result, divided if that is due.
template <class D, class Op>
CCL_INLINE typename D::Bits completed(typename D::Bits value, const Finish& finish) {
    return Op::FINISHES && finish.n != 0 ? D::divided(value, finish.n) : value;
}

template <class D, class Op>
CCL_INLINE Vec16 completed16(Vec16 value, const Finish& finish) {
    if (Op::FINISHES && finish.n != 0) {
        return {divided_word<D>(value.low, finish.n), divided_word<D>(value.high, finish.n)};
    }
    return value;
}

// `inputs` has four places, of which the first `count` are folded.
template <class D, class Op>
CCL_INLINE typename D::Bits fold(const typename D::Bits (&inputs)[4], u32 count, const Finish& finish) {
    typename D::Bits folded = scaled<D, Op>(inputs[0], 0, finish);
    CCL_UNROLL
    for (u32 i = 1; i < 4; ++i) {
        if (i < count) folded = combine<D, Op>(folded, scaled<D, Op>(inputs[i], i, finish));
    }
    return completed<D, Op>(folded, finish);
}

template <class D, class Op>
CCL_INLINE Vec16 fold16(const Vec16 (&inputs)[4], u32 count, const Finish& finish) {
    Vec16 folded = scaled16<D, Op>(inputs[0], 0, finish);
    CCL_UNROLL
    for (u32 i = 1; i < 4; ++i) {
        if (i < count) folded = combine16<D, Op>(folded, scaled16<D, Op>(inputs[i], i, finish));
    }
    return completed16<D, Op>(folded, finish);
}
