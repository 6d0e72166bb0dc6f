// All-reduce in two steps, for long messages in windows that all ranks can read and write: rank r reads part r of
// everybody's vector, folds it in the order of places, and writes the result to everybody. The bytes are those of
// `all_reduce.two_shot`.
//
// Nothing is staged: a byte crosses the fabric once each way. A rank touches only its own part of any vector, and of
// each 16 bytes has read all inputs before it writes an output, so input and output may be the same.
//
// Mail of rank p in rank q's memory says: my vectors are there (`ready`), and I have written to yours (`done`), each
// for every block. The next mail of p comes after q was done, so one cell is enough.
//
// The vectors may lie anywhere in their windows, but all ranks must name the same windows: a rank knows only of its own
// whether its handle is there. Each looks at what all say, so all come to the same. If they differ, or some vector lies
// in no window, nothing is read or written, and the launch says so in `SpecialServed`: the interpreter, launched behind
// it, then makes the call.

#include "special.h"
#include "variants.h"

// Vectors of all ranks as this one sees them; in shared memory, by place.
struct TwoShotVector {
    u64 input;
    u64 output;
    u64 scalar;
    u64 reserved;
};

// The ranks of one launch: 6 KiB of shared memory.
constexpr u32 TWO_SHOT_MOST_RANKS = 192;

static_assert(sizeof(TwoShotVector) * TWO_SHOT_MOST_RANKS == 6144, "as in kernels/src/special.rs");

CCL_INLINE SpecialMail* two_shot_mail(const SpecialArgs& args, u32 to, u32 from) {
    SpecialMail* mail = reinterpret_cast<SpecialMail*>(special_peer(args, to).mail);
    return mail + static_cast<u64>(ccl_block()) * args.n + from;
}

// Where a window of a rank begins.
CCL_INLINE u64 two_shot_base(u64 window, u32 rank) {
    return ld_plain<u64>(reinterpret_cast<const u64*>(window) + rank);
}

CCL_INLINE void two_shot_post(const SpecialArgs& args, u32 peer, u64 epoch) {
    SpecialMail* mail = two_shot_mail(args, peer, args.rank);
    if (args.windows != 0) {
        st_relaxed_sys(&mail->input_offset, args.input - two_shot_base(args.input_window, args.rank));
        st_relaxed_sys(&mail->output_offset, args.output - two_shot_base(args.output_window, args.rank));
    }
    st_relaxed_sys(&mail->windows, args.windows);
    st_relaxed_sys(&mail->scalar, args.scalar_bits);
    st_relaxed_sys(&mail->call, special_call(args));
    st_release_sys(&mail->ready, epoch);
}

CCL_INLINE bool two_shot_wait(const SpecialArgs& args, u32 peer, const u64* word, u64 epoch) {
    SpecialWait wait = special_wait(args, peer);
    while (ld_acquire_sys(word) < epoch) {
        if (!wait.goes_on(word)) return false;
    }
    return true;
}

// Tells all where this rank's vectors are and learns where theirs are. False, for all threads: aborted, or somebody is
// in another call. `serves`: all vectors lie in the same windows.
template <class D>
CCL_INLINE bool two_shot_open(const SpecialArgs& args, u64 epoch, TwoShotVector* vectors, bool* serves) {
    bool aborted = false, differs = args.windows == 0;
    for (u32 place = ccl_thread(); place < args.n; place += ccl_threads()) {
        two_shot_post(args, special_rank_at(args, place), epoch);
    }
    for (u32 place = ccl_thread(); place < args.n; place += ccl_threads()) {
        u32 rank = special_rank_at(args, place);
        SpecialMail* mail = two_shot_mail(args, args.rank, rank);
        if (!two_shot_wait(args, rank, &mail->ready, epoch)) aborted = true;
        if (!aborted && !special_agrees(args, rank, ld_relaxed_sys(&mail->call), sizeof(typename D::Bits))) aborted = true;
        differs |= ld_relaxed_sys(&mail->windows) != args.windows && !CCL_PLANT(114);
        if (differs) continue;
        vectors[place].input = two_shot_base(args.input_window, rank) + ld_relaxed_sys(&mail->input_offset);
        vectors[place].output = two_shot_base(args.output_window, rank) + ld_relaxed_sys(&mail->output_offset);
        vectors[place].scalar = D::from_scalar(ld_relaxed_sys(&mail->scalar));
    }
    *serves = !ccl_sync_or(differs);
    return !ccl_sync_or(aborted);
}

// Says whether this launch has made the call: to the next one on the stream, and to the host. One thread of the launch.
CCL_INLINE void two_shot_say(const SpecialArgs& args, bool serves) {
    SpecialServed* served = reinterpret_cast<SpecialServed*>(args.served);
    st_plain<u64>(&served->now, serves ? 1 : 0);
    if (!serves) return;
    u64 calls = ld_plain<u64>(&served->calls) + 1, told = ld_plain<u64>(&served->told);
    st_plain<u64>(&served->calls, calls);
    if (told != 0) st_relaxed_sys(reinterpret_cast<u64*>(told), calls);
}

// Tells all that this block has written to them, and waits until they have. All threads.
CCL_INLINE void two_shot_close(const SpecialArgs& args, u64 epoch) {
    if (!CCL_PLANT(112)) ccl_sync();
    for (u32 rank = ccl_thread(); rank < args.n; rank += ccl_threads()) {
        u64* done = &two_shot_mail(args, rank, args.rank)->done;
        if (CCL_PLANT(111)) {
            st_relaxed_sys(done, epoch);
        } else {
            st_release_sys(done, epoch);
        }
    }
    if (CCL_PLANT(113)) return;
    for (u32 rank = ccl_thread(); rank < args.n; rank += ccl_threads()) {
        if (!two_shot_wait(args, rank, &two_shot_mail(args, args.rank, rank)->done, epoch)) return;
    }
}

// COPIES times 16 bytes of everybody's vectors, `step` bytes apart: so many loads are on their way at once.
template <class D, class Op, u32 COPIES>
CCL_INLINE void two_shot_16(const SpecialArgs& args, const TwoShotVector* vectors, u64 offset, u64 step) {
    bool scales = Op::FINISHES && (args.flags & SPECIAL_SCALES);
    Vec16 folded[COPIES] = {}, values[COPIES];
    for (u32 place = 0; place < args.n; ++place) {
        const char* from = reinterpret_cast<const char*>(vectors[place].input + offset);
        CCL_UNROLL
        for (u32 i = 0; i < COPIES; ++i) values[i] = ld16_stream(from + i * step);
        CCL_UNROLL
        for (u32 i = 0; i < COPIES; ++i) {
            if (scales) {
                u64 scalar = vectors[place].scalar;
                values[i] = {scaled8<D>(values[i].low, scalar), scaled8<D>(values[i].high, scalar)};
            }
            folded[i] = place == 0 ? values[i] : combine16<D, Op>(folded[i], values[i]);
        }
    }
    const Finish finish = {0, Op::FINISHES && (args.flags & SPECIAL_DIVIDES) ? args.n : 0, 0};
    CCL_UNROLL
    for (u32 i = 0; i < COPIES; ++i) folded[i] = completed16<D, Op>(folded[i], finish);
    for (u32 peer = 0; peer < args.n; ++peer) {
        // Each rank begins elsewhere, so that no two write to the same third.
        char* to = reinterpret_cast<char*>(vectors[(args.rank + peer) % args.n].output + offset);
        CCL_UNROLL
        for (u32 i = 0; i < COPIES; ++i) st16_stream(to + i * step, folded[i]);
    }
}

template <class D, class Op>
CCL_INLINE void two_shot_element(const SpecialArgs& args, const TwoShotVector* vectors, u64 offset) {
    typedef typename D::Bits Bits;
    bool scales = Op::FINISHES && (args.flags & SPECIAL_SCALES);
    Bits folded = 0;
    for (u32 place = 0; place < args.n; ++place) {
        Bits value = ld_plain<Bits>(reinterpret_cast<const void*>(vectors[place].input + offset));
        if (scales) value = D::times(value, static_cast<Bits>(vectors[place].scalar));
        folded = place == 0 ? value : combine<D, Op>(folded, value);
    }
    if (Op::FINISHES && (args.flags & SPECIAL_DIVIDES)) folded = D::divided(folded, args.n);
    for (u32 i = 0; i < args.n; ++i) {
        u32 place = (args.rank + i) % args.n;
        st_plain<Bits>(reinterpret_cast<void*>(vectors[place].output + offset), folded);
    }
}

// This block's share of this rank's part: whole 16 bytes where everybody's vectors are aligned so, else elements.
template <class D, class Op>
CCL_INLINE void two_shot_part(const SpecialArgs& args, const TwoShotVector* vectors) {
    const u64 size = sizeof(typename D::Bits);
    u64 bytes = args.count * size;
    u64 part = ((bytes + args.n - 1) / args.n + 15) / 16 * 16;
    u64 start = args.rank * part < bytes ? args.rank * part : bytes;
    u64 end = start + part < bytes ? start + part : bytes;
    u64 misaligned = 0;
    for (u32 place = 0; place < args.n; ++place) misaligned |= vectors[place].input | vectors[place].output;
    u64 wide_end = misaligned % 16 == 0 ? start + (end - start) / 16 * 16 : start;
    u64 first = ccl_block() * ccl_threads() + ccl_thread();
    u64 step = ccl_blocks() * ccl_threads();
    u64 at = start + first * 16;
    for (; at + 3 * step * 16 < wide_end; at += 4 * step * 16) two_shot_16<D, Op, 4>(args, vectors, at, step * 16);
    for (; at < wide_end; at += step * 16) two_shot_16<D, Op, 1>(args, vectors, at, step * 16);
    for (at = wide_end + first * size; at < end; at += step * size) two_shot_element<D, Op>(args, vectors, at);
}

template <class D, class Op>
CCL_ONCE void two_shot(const SpecialArgs& args) {
    CCL_SHARED(TwoShotVector, vectors);
    CCL_ASSERT(args.n <= TWO_SHOT_MOST_RANKS);
    u64 epoch = special_epoch(args);
    bool serves = false;
    if (two_shot_open<D>(args, epoch, vectors, &serves)) {
        if (serves) two_shot_part<D, Op>(args, vectors);
        two_shot_close(args, epoch);
        if (ccl_block() == 0 && ccl_thread() == 0) two_shot_say(args, serves);
    }
    special_end(args, epoch);
}

#define CCL_TWO_SHOT(shape, dtype, op) \
    CCL_KERNEL(ccl_##shape##_##dtype##_##op, SpecialArgs, 512) { two_shot<dtype_##dtype, op_##op>(args); }

CCL_SPECIAL_VARIANTS(CCL_TWO_SHOT, two_shot)
