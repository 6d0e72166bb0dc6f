// Protocol simple: data, a fence, then the number of messages. A slot is payload from end to end, or, on a direct edge,
// nothing, and the sender's buffer is read where it is.
#pragma once

#include "move.h"

// Loads that a thread has under way at once.
constexpr u32 AT_ONCE = 4;

// Words, from byte `first` on, however operands lie.
template <class D, class Op>
CCL_DEVICE void move_words(const Block* block, const Step* step, Worker worker, u64 first) {
    u64 stride = 8ull * worker.all;
    for (u64 start = first + 8ull * worker.index; start < step->bytes; start += stride * AT_ONCE) {
        u64 folded[AT_ONCE];
        CCL_ROLLED
        for (u32 input = 0; input < step->inputs; ++input) {
            u64 next[AT_ONCE];
            CCL_UNROLL
            for (u32 i = 0; i < AT_ONCE; ++i) next[i] = load_word(block, step, &step->sites[input], start + i * stride);
            CCL_UNROLL
            for (u32 i = 0; i < AT_ONCE; ++i) {
                folded[i] = fold_word<D, Op>(input == 0 ? 0 : folded[i], next[i], input, step->finish);
            }
        }
        CCL_UNROLL
        for (u32 i = 0; i < AT_ONCE; ++i) folded[i] = complete_word<D, Op>(folded[i], step->finish);
        CCL_ROLLED
        for (u32 output = 0; output < step->stored; ++output) {
            const Site* site = &step->sites[FIRST_OUTPUT + output];
            CCL_UNROLL
            for (u32 i = 0; i < AT_ONCE; ++i) store_word(block, step, site, start + i * stride, folded[i]);
        }
    }
}

// Where the data of piece `piece` begins, or all of it where operands lie along.
CCL_INLINE u64 pack_start(const Block* block, const Step* step, const Site* site, u64 piece) {
    return piece == 0 && site->lies == LIES_ALONG ? site->address : piece_address(block, step, site, piece);
}

// `bytes`, a multiple of 16, of one piece, 16 at a time: all addresses are multiples of 16.
template <class D, class Op>
CCL_DEVICE void move_packs(const Block* block, const Step* step, Worker worker, u64 piece, u64 bytes) {
    u64 stride = 16ull * worker.all;
    for (u64 start = 16ull * worker.index; start < bytes; start += stride * AT_ONCE) {
        Vec16 folded[AT_ONCE];
        CCL_ROLLED
        for (u32 input = 0; input < step->inputs; ++input) {
            u64 from = pack_start(block, step, &step->sites[input], piece) + start;
            Vec16 next[AT_ONCE];
            CCL_UNROLL
            for (u32 i = 0; i < AT_ONCE; ++i) {
                next[i] = start + i * stride < bytes ? ld16(at<void>(from + i * stride)) : Vec16{0, 0};
            }
            CCL_UNROLL
            for (u32 i = 0; i < AT_ONCE; ++i) {
                folded[i] = fold_pack<D, Op>(input == 0 ? Vec16{0, 0} : folded[i], next[i], input, step->finish);
            }
        }
        CCL_UNROLL
        for (u32 i = 0; i < AT_ONCE; ++i) {
            folded[i] = {complete_word<D, Op>(folded[i].low, step->finish), complete_word<D, Op>(folded[i].high, step->finish)};
        }
        CCL_ROLLED
        for (u32 output = 0; output < step->stored; ++output) {
            u64 to = pack_start(block, step, &step->sites[FIRST_OUTPUT + output], piece) + start;
            CCL_UNROLL
            for (u32 i = 0; i < AT_ONCE; ++i) {
                if (start + i * stride < bytes) st16(at<void>(to + i * stride), folded[i]);
            }
        }
    }
}

// How a step's data may be moved: its smallest unit, and whether an operand lies in pieces apart.
CCL_INLINE u32 smallest_unit(const Step* step, bool* apart) {
    u32 unit = 16;
    for (u32 i = 0; i < step->inputs; ++i) {
        unit = static_cast<u32>(least(unit, step->sites[i].unit));
        *apart |= step->sites[i].lies != LIES_ALONG;
    }
    for (u32 i = 0; i < step->stored; ++i) {
        unit = static_cast<u32>(least(unit, step->sites[FIRST_OUTPUT + i].unit));
        *apart |= step->sites[FIRST_OUTPUT + i].lies != LIES_ALONG;
    }
    return unit;
}

template <class D, class Op>
CCL_DEVICE bool move_simple(const Block* block, const Step* step, Worker worker) {
    if (step->stored == 0 || step->bytes == 0) return true;
    bool apart = false;
    u32 unit = smallest_unit(step, &apart);
    if (unit < 16 || (apart && step->piece_bytes < 16ull * worker.all)) {
        move_words<D, Op>(block, step, worker, 0);
        return true;
    }
    if (!apart) {
        u64 packs = step->bytes / 16 * 16;
        move_packs<D, Op>(block, step, worker, 0, packs);
        move_words<D, Op>(block, step, worker, packs);
        return true;
    }
    // Units of 16 bytes in pieces apart: every piece is a multiple of them.
    CCL_ROLLED
    for (u64 piece = 0; piece < step->pieces; ++piece) {
        u64 left = step->bytes - piece * step->piece_bytes;
        move_packs<D, Op>(block, step, worker, piece, least(step->piece_bytes, left));
    }
    return true;
}
