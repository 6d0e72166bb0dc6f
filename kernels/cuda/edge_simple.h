// Protocol simple: data, a fence, then the number of messages. A slot is payload from end to end, or, on a direct edge,
// nothing, and the sender's buffer is read where it is.
#pragma once

#include "move.h"

// Loads that a thread has under way at once: as many as registers allow, whose code for devices from sm_100 on takes more of them
// for the rest. Of words that may lie apart, fewer.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
constexpr u32 AT_ONCE = 6;
#else
constexpr u32 AT_ONCE = 8;
#endif
constexpr u32 WORDS_AT_ONCE = 2;

// Words, from byte `first` on, however operands lie.
template <class D, class Op>
CCL_ONCE void move_words(const Block* block, const Step* step, Worker worker, u64 first) {
    u64 stride = 8ull * worker.all;
    for (u64 start = first + 8ull * worker.index; start < step->bytes; start += stride * WORDS_AT_ONCE) {
        u64 folded[WORDS_AT_ONCE];
        CCL_ROLLED
        for (u32 input = 0; input < step->inputs; ++input) {
            u64 next[WORDS_AT_ONCE];
            CCL_UNROLL
            for (u32 i = 0; i < WORDS_AT_ONCE; ++i) {
                next[i] = load_word(block, step, &step->sites[input], start + i * stride);
            }
            CCL_UNROLL
            for (u32 i = 0; i < WORDS_AT_ONCE; ++i) {
                folded[i] = fold_word<D, Op>(input == 0 ? 0 : folded[i], next[i], input, step->finish);
            }
        }
        CCL_UNROLL
        for (u32 i = 0; i < WORDS_AT_ONCE; ++i) folded[i] = complete_word<D, Op>(folded[i], step->finish);
        CCL_ROLLED
        for (u32 output = 0; output < step->stored; ++output) {
            const Site* site = &step->sites[FIRST_OUTPUT + output];
            CCL_UNROLL
            for (u32 i = 0; i < WORDS_AT_ONCE; ++i) {
                u64 offset = start + i * stride;
                if (!site->shared) {
                    store_word(block, step, site, offset, folded[i]);
                } else if (offset < step->bytes) {
                    st8_all(at<void>(site->address + offset), folded[i]);
                }
            }
        }
    }
}

// Where the data of piece `piece` begins, or all of it where operands lie along.
CCL_INLINE u64 pack_start(const Block* block, const Step* step, const Site* site, u64 piece) {
    return piece == 0 && site->lies == LIES_ALONG ? site->address : piece_address(block, step, site, piece);
}

// `bytes` of one piece, a pack of 8 or 16 at a time: all addresses, and `bytes`, are multiples of that.
template <class D, class Op, class Pack>
CCL_ONCE void move_packs(const Block* block, const Step* step, Worker worker, u64 piece, u64 bytes) {
    u64 stride = sizeof(Pack) * worker.all;
    for (u64 start = sizeof(Pack) * worker.index; start < bytes; start += stride * AT_ONCE) {
        Pack folded[AT_ONCE];
        CCL_ROLLED
        for (u32 input = 0; input < step->inputs; ++input) {
            u64 from = pack_start(block, step, &step->sites[input], piece) + start;
            Pack next[AT_ONCE];
            CCL_UNROLL
            for (u32 i = 0; i < AT_ONCE; ++i) {
                next[i] = Pack{};
                if (start + i * stride < bytes) load_pack(at<Pack>(from + i * stride), &next[i]);
            }
            CCL_UNROLL
            for (u32 i = 0; i < AT_ONCE; ++i) {
                folded[i] = fold_pack<D, Op>(input == 0 ? Pack{} : folded[i], next[i], input, step->finish);
            }
        }
        CCL_UNROLL
        for (u32 i = 0; i < AT_ONCE; ++i) folded[i] = complete_pack<D, Op>(folded[i], step->finish);
        CCL_ROLLED
        for (u32 output = 0; output < step->stored; ++output) {
            const Site* site = &step->sites[FIRST_OUTPUT + output];
            u64 to = pack_start(block, step, site, piece) + start;
            bool shared = site->shared;
            CCL_UNROLL
            for (u32 i = 0; i < AT_ONCE; ++i) {
                if (start + i * stride >= bytes) continue;
                if (shared) {
                    store_pack_all(at<Pack>(to + i * stride), folded[i]);
                } else {
                    store_pack(at<Pack>(to + i * stride), folded[i]);
                }
            }
        }
    }
}

// All packs that operands which lie along have; of pieces apart, every piece, which is a multiple of them. The bytes
// that were moved.
template <class D, class Op, class Pack>
CCL_ONCE u64 move_pieces(const Block* block, const Step* step, Worker worker, bool apart) {
    u64 all = apart ? step->bytes : step->bytes / sizeof(Pack) * sizeof(Pack);
    u64 most_bytes = apart ? step->piece_bytes : all;
    u64 moved = 0;
    CCL_ROLLED
    for (u64 piece = 0; moved < all; ++piece) {
        u64 bytes = least(most_bytes, all - moved);
        move_packs<D, Op, Pack>(block, step, worker, piece, bytes);
        moved += bytes;
    }
    return moved;
}

// How a step's data may be moved: its smallest unit, and whether an operand lies in pieces apart.
CCL_INLINE u32 smallest_unit(const Step* step, bool* apart) {
    u32 unit = 16;
    CCL_ROLLED
    for (u32 i = 0; i < step->inputs; ++i) {
        unit = static_cast<u32>(least(unit, step->sites[i].unit));
        *apart |= step->sites[i].lies != LIES_ALONG;
    }
    CCL_ROLLED
    for (u32 i = 0; i < step->stored; ++i) {
        unit = static_cast<u32>(least(unit, step->sites[FIRST_OUTPUT + i].unit));
        *apart |= step->sites[FIRST_OUTPUT + i].lies != LIES_ALONG;
    }
    return unit;
}

template <class D, class Op>
CCL_ONCE bool move_simple(const Block* block, const Step* step, Worker worker) {
    if (step->stored == 0 || step->bytes == 0) return true;
    bool apart = false;
    u32 unit = smallest_unit(step, &apart);
    u64 moved = 0;
    // In small pieces threads would stand idle.
    if (!apart || step->piece_bytes >= 16ull * worker.all) {
        if (unit == 16) {
            moved = move_pieces<D, Op, Vec16>(block, step, worker, apart);
        } else if (unit == 8) {
            moved = move_pieces<D, Op, u64>(block, step, worker, apart);
        }
    }
    move_words<D, Op>(block, step, worker, moved);
    return true;
}
