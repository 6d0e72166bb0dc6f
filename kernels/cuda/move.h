// What Moves of all protocols have in common: words of 8 bytes from and to wherever an operand lies, folded.
#pragma once

#include "step.h"

#if defined(CCL_EMU)
#define CCL_ROLLED
#else
#define CCL_ROLLED _Pragma("unroll 1")
#endif

// The worker threads that move data, and which of them this is.
struct Worker {
    u32 index;
    u32 all;
};

// Where byte `offset` of a step's data is.
CCL_INLINE u64 byte_address(const Block* block, const Step* step, const Site* site, u64 offset) {
    if (site->lies == LIES_ALONG) return site->address + offset;
    u64 piece = offset / step->piece_bytes;
    return piece_address(block, step, site, piece) + (offset - piece * step->piece_bytes);
}

template <class T>
CCL_DEVICE u64 load_units(const Block* block, const Step* step, const Site* site, u64 offset, u32 bytes) {
    u64 word = 0;
    for (u32 i = 0; i < bytes; i += sizeof(T)) {
        u64 unit = ld_plain<T>(at<void>(byte_address(block, step, site, offset + i)));
        word |= unit << (8 * i);
    }
    return word;
}

template <class T>
CCL_DEVICE void store_units(const Block* block, const Step* step, const Site* site, u64 offset, u32 bytes, u64 word) {
    for (u32 i = 0; i < bytes; i += sizeof(T)) {
        st_plain<T>(at<void>(byte_address(block, step, site, offset + i)), static_cast<T>(word >> (8 * i)));
    }
}

// Bytes of the word at `offset`: 8, or what is left.
CCL_INLINE u32 word_bytes(const Step* step, u64 offset) { return static_cast<u32>(least(8, step->bytes - offset)); }

// A word that does not lie as one does.
CCL_DEVICE u64 load_apart(const Block* block, const Step* step, const Site* site, u64 offset) {
    u32 bytes = word_bytes(step, offset);
    u32 unit = bytes < 8 ? 1 : site->unit;
    if (unit == 4) return load_units<u32>(block, step, site, offset, bytes);
    if (unit == 2) return load_units<u16>(block, step, site, offset, bytes);
    return load_units<u8>(block, step, site, offset, bytes);
}

CCL_DEVICE void store_apart(const Block* block, const Step* step, const Site* site, u64 offset, u64 word) {
    u32 bytes = word_bytes(step, offset);
    u32 unit = bytes < 8 ? 1 : site->unit;
    if (unit == 4) return store_units<u32>(block, step, site, offset, bytes, word);
    if (unit == 2) return store_units<u16>(block, step, site, offset, bytes, word);
    store_units<u8>(block, step, site, offset, bytes, word);
}

// 8 bytes of an operand in memory, from byte `offset` on; beyond the end they are 0.
CCL_INLINE u64 load_word(const Block* block, const Step* step, const Site* site, u64 offset) {
    if (offset + 8 <= step->bytes && site->unit >= 8) return ld_plain<u64>(at<void>(byte_address(block, step, site, offset)));
    return offset < step->bytes ? load_apart(block, step, site, offset) : 0;
}

CCL_INLINE void store_word(const Block* block, const Step* step, const Site* site, u64 offset, u64 word) {
    if (offset + 8 <= step->bytes && site->unit >= 8) {
        st_plain<u64>(at<void>(byte_address(block, step, site, offset)), word);
    } else if (offset < step->bytes) {
        store_apart(block, step, site, offset, word);
    }
}

// `folded` with one more input behind the others.
template <class D, class Op>
CCL_INLINE u64 fold_word(u64 folded, u64 next, u32 input, const Finish& finish) {
    if constexpr (Op::FINISHES) {
        if (finish.scaled >> input & 1) next = Words<D, op_prod>::of(next, repeated<D>(finish.scalar));
    }
    return input == 0 ? next : Words<D, Op>::of(folded, next);
}

template <class D, class Op>
CCL_INLINE u64 complete_word(u64 folded, const Finish& finish) {
    if constexpr (Op::FINISHES) {
        if (finish.n != 0) return divided_word<D>(folded, finish.n);
    }
    return folded;
}

template <class D, class Op>
CCL_INLINE Vec16 fold_pack(Vec16 folded, Vec16 next, u32 input, const Finish& finish) {
    return {fold_word<D, Op>(folded.low, next.low, input, finish), fold_word<D, Op>(folded.high, next.high, input, finish)};
}

// The flag of a message's lines. Where its 32 bits are used up, lines that are older have been written anew before:
// see `write_anew`.
CCL_INLINE u64 flag_of(const Site* site) {
    if (CCL_PLANT(5)) return site->slot + 1;
    return site->number + 1;
}
