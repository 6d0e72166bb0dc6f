// Kernels that try the emulator itself.

#include "ccl_device.h"

struct ToyArgs {
    u64* words;
    u64* others;
    u64 turns;
};

// Passes a token around all threads of all blocks `turns` times: every thread waits for its number.
CCL_KERNEL(toy_token, ToyArgs, 1024) {
    u64 all = ccl_threads() * ccl_blocks();
    u64 mine = ccl_block() * ccl_threads() + ccl_thread();
    for (u64 turn = 0; turn < args.turns; ++turn) {
        while (ld_acquire_sys(args.words) != turn * all + mine) ccl_spin_hint(args.words);
        st_release_sys(args.words, turn * all + mine + 1);
    }
}

// Two launches pass a token to and fro; each of their threads adds one in turn.
CCL_INLINE void toy_half_token(const ToyArgs& args, u64 half) {
    for (u64 turn = 0; turn < args.turns; ++turn) {
        u64 mine = (2 * turn + half) * ccl_threads() + ccl_thread();
        while (ld_acquire_sys(args.words) != mine) ccl_spin_hint(args.words);
        st_release_sys(args.words, mine + 1);
    }
}

CCL_KERNEL(toy_ping, ToyArgs, 1024) { toy_half_token(args, 0); }
CCL_KERNEL(toy_pong, ToyArgs, 1024) { toy_half_token(args, 1); }

// Counts without an atomic: loses counts in some schedules.
CCL_KERNEL(toy_race, ToyArgs, 1024) {
    for (u64 turn = 0; turn < args.turns; ++turn) {
        u64 count = ld_relaxed_sys(args.words);
        st_relaxed_sys(args.words, count + 1);
    }
}

// Two blocks wait for each other, each for what the other would write next.
CCL_KERNEL(toy_deadlock, ToyArgs, 1024) {
    u64* mine = args.words + ccl_block();
    u64* other = args.words + 1 - ccl_block();
    if (ccl_thread() == 0) {
        while (ld_acquire_sys(other) == 0) ccl_spin_hint(other);
        st_release_sys(mine, 1ull);
    }
    ccl_sync();
}

// One thread never comes to the barrier.
CCL_KERNEL(toy_divergence, ToyArgs, 1024) {
    if (ccl_thread() == 3) return;
    ccl_sync();
}

// Two threads are at another barrier than the others.
CCL_KERNEL(toy_two_barriers, ToyArgs, 1024) {
    if (ccl_thread() < 2) {
        ccl_sync();
    } else {
        ccl_sync();
    }
}

// Every function of a warp, 8 results for each thread.
CCL_KERNEL(toy_warp, ToyArgs, 1024) {
    u64* mine = args.words + (ccl_block() * ccl_threads() + ccl_thread()) * 8;
    u64 value = 0x100000000ull + ccl_thread() * 3;
    mine[0] = ccl_shfl(value, 5);
    mine[1] = ccl_shfl_xor(value, 1);
    mine[2] = ccl_shfl_down(value, 4);
    mine[3] = ccl_shfl_up(static_cast<u32>(value), 4);
    mine[4] = ccl_ballot(ccl_thread() % 3 == 0);
    mine[5] = ccl_any(ccl_thread() == 40) + 2 * ccl_all(ccl_thread() >= 32);
    mine[6] = ccl_sync_or(ccl_thread() == 7);
    ccl_sync_warp();
    ccl_sync_part(1 + ccl_warp(), CCL_WARP);
    mine[7] = ccl_sync_or(false);
}

// Threads write shared memory and read each other's after a barrier. Planted 1: without the barrier.
CCL_KERNEL(toy_shared, ToyArgs, 1024) {
    CCL_SHARED(u64, shared);
    u32 next = (ccl_thread() + 1) % ccl_threads();
    for (u64 turn = 1; turn <= args.turns; ++turn) {
        st_volatile(shared + ccl_thread(), turn);
        if (!CCL_PLANT(1)) ccl_sync();
        u64 seen = ld_volatile(shared + next);
        if (seen != turn) st_relaxed_sys(args.words, turn);
        ccl_sync();
    }
}

// Block 0 sends to block 1 through a word and a flag. Planted 1: the flag is stored without a release. Planted 2: it
// is stored by a thread that met no other at a barrier.
CCL_KERNEL(toy_message, ToyArgs, 1024) {
    Vec16* slot = reinterpret_cast<Vec16*>(args.words + 16);
    for (u64 turn = 1; turn <= args.turns; ++turn) {
        if (ccl_block() == 0) {
            st16(slot + ccl_thread(), {turn, turn});
            if (!CCL_PLANT(2)) ccl_sync();
            if (ccl_thread() == 0) {
                if (CCL_PLANT(1)) {
                    st_relaxed_sys(args.words, turn);
                } else {
                    st_release_sys(args.words, turn);
                }
                while (ld_acquire_sys(args.words + 1) != turn) ccl_spin_hint(args.words + 1);
            }
            ccl_sync();
        } else {
            if (ccl_thread() == 0) {
                while (ld_acquire_sys(args.words) != turn) ccl_spin_hint(args.words);
            }
            ccl_sync();
            Vec16 seen = ld16(slot + ccl_thread());
            if (seen.low != turn || seen.high != turn) atomic_add_relaxed_sys(args.others, 1ull);
            ccl_sync();
            if (ccl_thread() == 0) st_release_sys(args.words + 1, turn);
        }
    }
}

// Block 0 sends lines to block 1, `turns` times, without credit for one line in flight: the next is only sent when the
// last was answered. Planted 1: the reader of ll looks at the first flag only. Planted 2: the reader of ll128 looks at
// the flag of the warp's first line only.
CCL_KERNEL(toy_lines, ToyArgs, 32) {
    LlLine* ll = reinterpret_cast<LlLine*>(args.words + 16) + ccl_lane();
    Vec16* ll128 = reinterpret_cast<Vec16*>(args.words + 128) + ccl_lane();
    u64* answers = args.words + 256 + ccl_lane();
    bool has_flag = ccl_lane() % 8 == 7;
    for (u32 turn = 1; turn <= args.turns; ++turn) {
        if (ccl_block() == 0) {
            st_ll(ll, turn * 3, turn * 5, turn);
            st_ll128(ll128, {turn * 7ull, has_flag ? turn : turn * 9ull});
            while (ld_acquire_sys(answers) != turn) ccl_spin_hint(answers);
        } else {
            LlLine line = ld_ll(ll);
            while (line.flag0 != turn || (!CCL_PLANT(1) && line.flag1 != turn)) {
                ccl_spin_hint(ll);
                line = ld_ll(ll);
            }
            Vec16 part = ld_ll128(ll128);
            while (ccl_any(has_flag && (!CCL_PLANT(2) || ccl_lane() == 7) && part.high != turn)) {
                ccl_spin_hint(ll128);
                part = ld_ll128(ll128);
            }
            bool right = line.data0 == turn * 3 && line.data1 == turn * 5 && part.low == turn * 7ull;
            if (!right) atomic_add_relaxed_sys(args.others, 1ull);
            st_release_sys(answers, static_cast<u64>(turn));
        }
    }
}

// Block 0 stores 7 parts and a word in multicast memory at `others`, then a flag; the others look at their copies, 16 words
// apart, and count what is not there. Planted 1: the flag is stored without a release.
CCL_KERNEL(toy_all, ToyArgs, 1) {
    u64* seen = args.words + 1;
    u64* wrong = seen + ccl_block();
    for (u64 turn = 1; turn <= args.turns; ++turn) {
        if (ccl_block() == 0) {
            for (u64 i = 0; i < 7; ++i) st16_all(args.others + 2 * i, {turn, turn * i});
            st8_all(args.others + 14, turn * 5);
            if (CCL_PLANT(1)) {
                st_relaxed_sys(args.words, turn);
            } else {
                st_release_sys(args.words, turn);
            }
            while (ld_acquire_sys(seen) != turn * (ccl_blocks() - 1)) ccl_spin_hint(seen);
        } else {
            while (ld_acquire_sys(args.words) != turn) ccl_spin_hint(args.words);
            u64* copy = args.words + 16 * ccl_block();
            for (u64 i = 0; i < 7; ++i) {
                Vec16 part = ld16(copy + 2 * i);
                *wrong += part.low != turn || part.high != turn * i;
            }
            *wrong += ld_plain<u64>(copy + 14) != turn * 5;
            atomic_add_acq_rel_sys(seen, 1ull);
        }
    }
}

// Writes where it may not: `turns` words behind the first.
CCL_KERNEL(toy_stray, ToyArgs, 32) {
    if (ccl_thread() == 2) st_plain<u64>(args.words + args.turns, 1);
}

// Says that something cannot be.
CCL_KERNEL(toy_assert, ToyArgs, 32) {
    CCL_ASSERT(ccl_thread() != 1);
}

// Switches between fibers and does nothing else.
CCL_KERNEL(toy_switch, ToyArgs, 1024) {
    for (u64 turn = 0; turn < args.turns; ++turn) {
        ccl_spin_hint(args.words);
        st_relaxed_sys(args.words + ccl_thread() + 1, turn);
    }
}

struct CopyArgs {
    const u8* from;
    u8* to;
    u64 bytes;
};

CCL_KERNEL(toy_copy, CopyArgs, 1024) {
    for (u64 i = ccl_thread(); i < args.bytes; i += ccl_threads()) st_plain<u8>(args.to + i, ld_plain<u8>(args.from + i));
}
