// What Moves of all protocols have in common: words of 8 bytes from and to wherever an operand lies, folded.
#pragma once

#include "step.h"

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

// Bytes of the word at `offset`: 8, or what is left.
CCL_INLINE u32 word_bytes(const Step* step, u64 offset) { return static_cast<u32>(least(8, step->bytes - offset)); }

CCL_INLINE u32 word_unit(const Site* site, u32 bytes) { return bytes < 8 ? 1 : static_cast<u32>(least(site->unit, 8)); }

// A word that does not lie as one does, or in a piece apart, by its units.
CCL_INLINE u64 load_apart(const Block* block, const Step* step, const Site* site, u64 offset) {
    u32 bytes = word_bytes(step, offset);
    u32 unit = word_unit(site, bytes);
    u64 word = 0;
    CCL_ROLLED
    for (u32 i = 0; i < bytes; i += unit) {
        const void* from = at<void>(byte_address(block, step, site, offset + i));
        u64 part = unit == 8   ? ld_plain<u64>(from)
                   : unit == 4 ? ld_plain<u32>(from)
                   : unit == 2 ? ld_plain<u16>(from)
                               : ld_plain<u8>(from);
        word |= part << (8 * i);
    }
    return word;
}

CCL_INLINE void store_apart(const Block* block, const Step* step, const Site* site, u64 offset, u64 word) {
    u32 bytes = word_bytes(step, offset);
    u32 unit = word_unit(site, bytes);
    CCL_ROLLED
    for (u32 i = 0; i < bytes; i += unit) {
        void* to = at<void>(byte_address(block, step, site, offset + i));
        u64 part = word >> (8 * i);
        if (unit == 8) {
            st_plain<u64>(to, part);
        } else if (unit == 4) {
            st_plain<u32>(to, static_cast<u32>(part));
        } else if (unit == 2) {
            st_plain<u16>(to, static_cast<u16>(part));
        } else {
            st_plain<u8>(to, static_cast<u8>(part));
        }
    }
}

// Whether a word of the operand lies in memory as one.
CCL_INLINE bool lies_whole(const Step* step, const Site* site, u64 offset) {
    return offset + 8 <= step->bytes && site->unit >= 8 && site->lies == LIES_ALONG;
}

// 8 bytes of an operand in memory, from byte `offset` on; beyond the end they are 0.
CCL_INLINE u64 load_word(const Block* block, const Step* step, const Site* site, u64 offset) {
    if (lies_whole(step, site, offset)) return ld_plain<u64>(at<void>(site->address + offset));
    return offset < step->bytes ? load_apart(block, step, site, offset) : 0;
}

CCL_INLINE void store_word(const Block* block, const Step* step, const Site* site, u64 offset, u64 word) {
    if (lies_whole(step, site, offset)) {
        st_plain<u64>(at<void>(site->address + offset), word);
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

// The same of packs: a word, or two.

template <class D, class Op>
CCL_INLINE u64 fold_pack(u64 folded, u64 next, u32 input, const Finish& finish) {
    return fold_word<D, Op>(folded, next, input, finish);
}

template <class D, class Op>
CCL_INLINE Vec16 fold_pack(Vec16 folded, Vec16 next, u32 input, const Finish& finish) {
    return {fold_word<D, Op>(folded.low, next.low, input, finish), fold_word<D, Op>(folded.high, next.high, input, finish)};
}

template <class D, class Op>
CCL_INLINE u64 complete_pack(u64 folded, const Finish& finish) {
    return complete_word<D, Op>(folded, finish);
}

template <class D, class Op>
CCL_INLINE Vec16 complete_pack(Vec16 folded, const Finish& finish) {
    return {complete_word<D, Op>(folded.low, finish), complete_word<D, Op>(folded.high, finish)};
}

CCL_INLINE void load_pack(const u64* from, u64* to) { *to = ld_plain<u64>(from); }
CCL_INLINE void load_pack(const Vec16* from, Vec16* to) { *to = ld16(from); }
CCL_INLINE void store_pack(u64* to, u64 pack) { st_plain<u64>(to, pack); }
CCL_INLINE void store_pack(Vec16* to, Vec16 pack) { st16(to, pack); }
CCL_INLINE void store_pack_all(u64* to, u64 pack) { st8_all(to, pack); }
CCL_INLINE void store_pack_all(Vec16* to, Vec16 pack) { st16_all(to, pack); }

// The flag of a message's lines: its number, so that no older line is taken for one of it, and above it the step's mark, so
// that no line of another message with this number is. 16 bits each under ll, where lines are written anew before a
// number comes again (`write_anew`); 48 and 16 under ll128.
template <class Flag>
CCL_INLINE Flag flag_of(const Step* step, const Site* site) {
    u64 number = CCL_PLANT(5) ? site->slot + 1 : site->number + 1;
    constexpr u32 bits = 8 * sizeof(Flag) - 16;
    return static_cast<Flag>(step->mark) << bits | static_cast<Flag>(number & ((1ull << bits) - 1));
}

// Whether a line has a message's number, but not its mark.
template <class Flag>
CCL_INLINE bool is_another(Flag seen, Flag flag) {
    return seen != flag && static_cast<Flag>((seen ^ flag) << 16) == 0 && !CCL_PLANT(17);
}

// Says so. The marks stand where tags do in DeviceEdge::sizes.
CCL_INLINE void fail_another(const Block* block, const Step* step, const Site* site, u32 found) {
    fail(block, FAULT_OTHER_MESSAGE, step, site->edge, static_cast<u64>(step->mark) << 32, static_cast<u64>(found) << 32);
}
