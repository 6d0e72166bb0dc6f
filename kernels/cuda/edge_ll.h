// Protocol ll: 8 bytes of data in lines of 16, a flag beside every 4. Whoever sees both flags has the data; nobody waits
// for a fence. Lines that a message does not need keep the flags of older ones.
#pragma once

#include "move.h"

// After so many messages every slot is written from end to end, long before a flag's number comes again: no line is older
// than this and a round of slots, which are at most 1,024.
constexpr u64 ANEW_EVERY = 1ull << 14;

// The data of a line of message `site`. False if the kernels were ended meanwhile.
CCL_ONCE bool receive_line(const Block* block, const Step* step, const Site* site, u64 word, u64* data) {
    const LlLine* line = at<LlLine>(site->address) + word;
    u32 flag = flag_of<u32>(step, site);
    u32 turns = 0;
    bool elsewhere = false;
    for (;;) {
        LlLine seen = ld_ll(line);
        if (seen.flag0 == flag && (seen.flag1 == flag || CCL_PLANT(4))) {
            *data = static_cast<u64>(seen.data1) << 32 | seen.data0;
            return true;
        }
        if (is_another(seen.flag0, flag) || is_another(seen.flag1, flag)) {
            fail_another(block, step, site, (is_another(seen.flag0, flag) ? seen.flag0 : seen.flag1) >> 16);
            return false;
        }
        ccl_spin_hint(line);
        if (aborted(block, &turns)) {
            fail(block, FAULT_ABORTED, step, site->edge, site->number + 1, site->number);
            return false;
        }
        if (in_vain(site->edge, turns, &elsewhere)) {
            fail_in_vain(block, step, site->edge);
            return false;
        }
    }
}

// Writes the lines that the message leaves, so that none keeps a flag until it is used again.
CCL_ONCE void write_anew(const Step* step, const Site* site, Worker worker, u64 words) {
    u64 since = site->number % ANEW_EVERY;
    if (site->number < ANEW_EVERY || since >= site->edge->slot_count || CCL_PLANT(14)) return;
    for (u64 word = words + worker.index; word < site->edge->slot_bytes / 8; word += worker.all) {
        st_ll(at<LlLine>(site->address) + word, 0, 0, flag_of<u32>(step, site));
    }
}

template <class D, class Op>
CCL_ONCE bool move_ll(const Block* block, const Step* step, Worker worker) {
    // A message without payload has a line.
    u64 words = most(divided_up(step->bytes, 8), 1);
    for (u64 word = worker.index; word < words; word += worker.all) {
        u64 folded = 0;
        CCL_ROLLED
        for (u32 input = 0; input < step->inputs; ++input) {
            const Site* site = &step->sites[input];
            u64 next;
            if (site->edge == nullptr) {
                next = load_word(block, step, site, 8 * word);
            } else if (!receive_line(block, step, site, word, &next)) {
                return false;
            }
            folded = fold_word<D, Op>(folded, next, input, step->finish);
        }
        folded = complete_word<D, Op>(folded, step->finish);
        CCL_ROLLED
        for (u32 output = 0; output < step->stored; ++output) {
            const Site* site = &step->sites[FIRST_OUTPUT + output];
            if (site->edge == nullptr) {
                store_word(block, step, site, 8 * word, folded);
            } else {
                st_ll(at<LlLine>(site->address) + word, static_cast<u32>(folded), static_cast<u32>(folded >> 32),
                      flag_of<u32>(step, site));
            }
        }
    }
    for (u32 output = 0; output < step->stored; ++output) {
        const Site* site = &step->sites[FIRST_OUTPUT + output];
        if (site->edge != nullptr) write_anew(step, site, worker, words);
    }
    return true;
}
