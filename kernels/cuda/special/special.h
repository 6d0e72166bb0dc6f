// What the special kernels share: the records of kernels/src/special.rs, where they are described, waiting, and failing.
#pragma once

#include "program.h"
#include "reduce.h"

struct SpecialArgs {
    u64 peers;
    u64 order;
    u64 epochs;
    u64 abort;
    u64 error;
    u64 input;
    u64 output;
    u64 input_window;
    u64 output_window;
    u64 windows;
    u64 served;
    u64 count;
    u64 scalar_bits;
    u64 inbox_bytes;
    u32 rank;
    u32 n;
    u32 flags;
    u32 tag;
};

static_assert(sizeof(SpecialArgs) == 128, "as in kernels/src/special.rs");

constexpr u32 SPECIAL_SCALES = 1;
constexpr u32 SPECIAL_DIVIDES = 2;

struct SpecialPeer {
    u64 inbox;
    u64 mail;
    u64 reserved[2];
};

static_assert(sizeof(SpecialPeer) == 32, "as in kernels/src/special.rs");

struct SpecialMail {
    u64 ready;
    u64 input_offset;
    u64 output_offset;
    u64 scalar;
    u64 done;
    u64 call;
    u64 windows;
    u64 reserved;
};

static_assert(sizeof(SpecialMail) == 64, "as in kernels/src/special.rs");

struct SpecialServed {
    u64 now;
    u64 calls;
    u64 told;
    u64 reserved;
};

static_assert(sizeof(SpecialServed) == 32, "as in kernels/src/special.rs");

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
    return {ld_plain<u64>(words), ld_plain<u64>(words + 1), {}};
}

// The rank at a place of the order in which contributions are folded.
CCL_INLINE u32 special_rank_at(const SpecialArgs& args, u32 place) {
    return args.order == 0 ? place : ld_plain<u32>(reinterpret_cast<const u32*>(args.order) + place);
}

// What all ranks must agree on: the tag of the call, and below it its elements.
CCL_INLINE u64 special_call(const SpecialArgs& args) {
    return static_cast<u64>(args.tag) << 32 | static_cast<u32>(args.count);
}

// Says what went wrong with a peer, if nobody has before, and ends all kernels of this rank.
CCL_LEAF void special_fail(const SpecialArgs& args, u32 code, u32 peer, u64 expected, u64 found) {
    DeviceError* error = reinterpret_cast<DeviceError*>(args.error);
    if (atomic_cas_acq_rel_sys(&error->claimed, 0u, 1u) == 0) {
        st_relaxed_sys(&error->instruction, NO_INSTRUCTION);
        st_relaxed_sys(&error->peer, peer);
        st_relaxed_sys(&error->expected, expected);
        st_relaxed_sys(&error->found, found);
        st_release_sys(&error->code, code);
    }
    st_release_sys(reinterpret_cast<u32*>(args.abort), 1u);
}

// Whether a peer is in the same call, of `bytes` bytes for each element. Says so if not.
CCL_INLINE bool special_agrees(const SpecialArgs& args, u32 peer, u64 theirs, u32 bytes) {
    u64 ours = special_call(args);
    if (ours == theirs || CCL_PLANT(105)) return true;
    u64 expected = (ours >> 32 << 32) + static_cast<u32>(ours) * bytes;
    u64 found = (theirs >> 32 << 32) + static_cast<u32>(theirs) * bytes;
    special_fail(args, FAULT_OTHER_MESSAGE, peer, expected, found);
    return false;
}

// A wait for a peer. Looks at the abort flag in every 64th turn.
struct SpecialWait {
    const SpecialArgs* args;
    u32 peer;
    u32 turns;

    CCL_MEMBER bool goes_on(const void* at) {
        ccl_spin_hint(at);
        if (++turns % 64 != 0 || ld_relaxed_sys(reinterpret_cast<const u32*>(args->abort)) == 0) return true;
        special_fail(*args, FAULT_ABORTED, peer, 0, 0);
        return false;
    }
};

CCL_INLINE SpecialWait special_wait(const SpecialArgs& args, u32 peer) { return {&args, peer, 0}; }
