// What the special kernels share: the records of kernels/src/special.rs, where they are described, and waiting.
#pragma once

#include "reduce.h"

struct SpecialArgs {
    u64 peers;
    u64 order;
    u64 epochs;
    u64 abort;
    u64 input;
    u64 output;
    u64 input_offset;
    u64 output_offset;
    u64 count;
    u64 scalar_bits;
    u64 inbox_bytes;
    u32 rank;
    u32 n;
    u32 flags;
    u32 reserved[3];
};

static_assert(sizeof(SpecialArgs) == 112, "as in kernels/src/special.rs");

constexpr u32 SPECIAL_SCALES = 1;
constexpr u32 SPECIAL_DIVIDES = 2;

struct SpecialPeer {
    u64 inbox;
    u64 mail;
    u64 window;
    u64 reserved;
};

static_assert(sizeof(SpecialPeer) == 32, "as in kernels/src/special.rs");

struct SpecialMail {
    u64 ready;
    u64 input_offset;
    u64 output_offset;
    u64 scalar;
    u64 done;
    u64 reserved[3];
};

static_assert(sizeof(SpecialMail) == 64, "as in kernels/src/special.rs");

// How this block has got on: the number of this launch among those of the block, from 1.
CCL_INLINE u64 special_epoch(const SpecialArgs& args) {
    return ld_volatile(reinterpret_cast<const u64*>(args.epochs) + ccl_block()) + 1;
}

// Every thread has read the epoch, and the launch is complete: the next one has the next number.
CCL_INLINE void special_end(const SpecialArgs& args, u64 epoch) {
    ccl_sync();
    if (ccl_thread() == 0) st_volatile(reinterpret_cast<u64*>(args.epochs) + ccl_block(), epoch);
}

CCL_INLINE SpecialPeer special_peer(const SpecialArgs& args, u32 rank) {
    const u64* words = reinterpret_cast<const u64*>(args.peers + rank * sizeof(SpecialPeer));
    return {ld_plain<u64>(words), ld_plain<u64>(words + 1), ld_plain<u64>(words + 2), 0};
}

// The rank at a place of the order in which contributions are folded.
CCL_INLINE u32 special_rank_at(const SpecialArgs& args, u32 place) {
    return args.order == 0 ? place : ld_plain<u32>(reinterpret_cast<const u32*>(args.order) + place);
}

// Looks at the abort flag in every 64th turn of a wait.
struct SpecialWait {
    const u32* abort;
    u32 turns;

    CCL_MEMBER bool goes_on(const void* at) {
        ccl_spin_hint(at);
        return ++turns % 64 != 0 || ld_relaxed_sys(abort) == 0;
    }
};

CCL_INLINE SpecialWait special_wait(const SpecialArgs& args) { return {reinterpret_cast<const u32*>(args.abort), 0}; }
