// Protocol ll128: 120 bytes of data and a flag of 8 in lines of 128, each stored by 8 threads of a warp at once. It needs
// such a line to be seen whole or not at all.
#pragma once

#include "move.h"

// Threads that share a line, and words of data in it.
constexpr u32 LINE_THREADS = 8;
constexpr u32 LINE_WORDS = 15;

// This thread's part of a line of message `site`; null where there is no line. All lanes of the warp take part. False
// if the kernels were ended meanwhile.
CCL_ONCE bool receive_part(const Block* block, const Step* step, const Site* site, const Vec16* part, Vec16* data) {
    bool has_flag = part != nullptr && ccl_lane() % LINE_THREADS == LINE_THREADS - 1;
    u64 flag = flag_of<u64>(step, site);
    u32 turns = 0;
    bool elsewhere = false;
    for (;;) {
        *data = ld_ll128(part);
        u32 behind = ccl_ballot(has_flag && data->high != flag);
        if (CCL_PLANT(9)) behind &= 1u << (LINE_THREADS - 1);
        if (behind == 0) return true;
        bool another = has_flag && is_another(data->high, flag);
        if (another) fail_another(block, step, site, static_cast<u32>(data->high >> 48));
        if (ccl_any(another)) return false;
        ccl_spin_hint(at<u64>(site->address));
        if (ccl_any(aborted(block, &turns))) {
            fail(block, FAULT_ABORTED, step, site->edge, site->number + 1, site->number);
            return false;
        }
        if (ccl_any(in_vain(site->edge, turns, &elsewhere))) {
            fail_in_vain(block, step, site->edge);
            return false;
        }
    }
}

template <class D, class Op>
CCL_ONCE bool move_ll128(const Block* block, const Step* step, Worker worker) {
    // A message without payload has a line.
    u64 lines = most(divided_up(step->bytes, 8 * LINE_WORDS), 1);
    u32 in_line = worker.index % LINE_THREADS;
    bool keeps_flag = in_line == LINE_THREADS - 1;
    // A warp's lanes go on together, also those whose line is behind the last.
    for (u64 first = worker.index / CCL_WARP * 4; first < lines; first += worker.all / CCL_WARP * 4) {
        u64 line = first + worker.index % CCL_WARP / LINE_THREADS;
        bool exists = line < lines;
        u64 offset = 8 * (line * LINE_WORDS + 2 * in_line);
        u64 part = line * LINE_THREADS + in_line;
        Vec16 folded = {0, 0};
        CCL_ROLLED
        for (u32 input = 0; input < step->inputs; ++input) {
            const Site* site = &step->sites[input];
            Vec16 next = {0, 0};
            if (site->edge != nullptr) {
                const Vec16* from = exists ? at<Vec16>(site->address) + part : nullptr;
                if (!receive_part(block, step, site, from, &next)) return false;
            } else if (exists) {
                next.low = load_word(block, step, site, offset);
                next.high = keeps_flag ? 0 : load_word(block, step, site, offset + 8);
            }
            folded = fold_pack<D, Op>(folded, next, input, step->finish);
        }
        folded = {complete_word<D, Op>(folded.low, step->finish), complete_word<D, Op>(folded.high, step->finish)};
        CCL_ROLLED
        for (u32 output = 0; output < step->stored; ++output) {
            const Site* site = &step->sites[FIRST_OUTPUT + output];
            if (site->edge != nullptr) {
                Vec16 stored = {folded.low, keeps_flag ? flag_of<u64>(step, site) : folded.high};
                st_ll128(exists ? at<Vec16>(site->address) + part : nullptr, stored);
            } else if (exists) {
                store_word(block, step, site, offset, folded.low);
                if (!keeps_flag) store_word(block, step, site, offset + 8, folded.high);
            }
        }
    }
    return true;
}
