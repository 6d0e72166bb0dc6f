// All-reduce in one step, for short messages: every rank pushes its vector to every other as ll lines and folds all
// vectors itself, in the order of places. The bytes are those of `all_reduce.one_shot`.
//
// A rank's inbox has two halves, used in turn, and in each a row of lines for every sender: one that says what call the
// sender is in, then its vector. Whoever fills a half for launch k has got everybody's lines of launch k-1, so everybody
// has ended launch k-2 and read that half.

#include "special.h"
#include "variants.h"

// What marks a line of a launch: never 0, and not what marked the launch before in the same half.
CCL_INLINE u32 one_shot_flag(u64 epoch) { return static_cast<u32>(epoch % 0xffffffffu) + 1; }

// Where the lines of a sender are in an inbox: its call, then word by word.
CCL_INLINE LlLine* one_shot_row(const SpecialArgs& args, u64 inbox, u64 epoch, u32 sender) {
    u64 half = args.inbox_bytes / 2;
    return reinterpret_cast<LlLine*>(inbox + epoch % 2 * half + half / args.n / 16 * 16 * sender);
}

// The first word of a thread, and from each to its next.
CCL_INLINE u64 one_shot_first() { return ccl_block() * ccl_threads() + ccl_thread(); }
CCL_INLINE u64 one_shot_step() { return ccl_blocks() * ccl_threads(); }

// 8 bytes of the vector, or the elements that are left of it.
template <class D>
CCL_INLINE u64 one_shot_load(const SpecialArgs& args, u64 word) {
    typedef typename D::Bits Bits;
    const u64 per_word = 8 / sizeof(Bits);
    const Bits* from = reinterpret_cast<const Bits*>(args.input) + word * per_word;
    u64 left = args.count - word * per_word;
    if (left >= per_word && reinterpret_cast<u64>(from) % 8 == 0) return ld_plain<u64>(from);
    u64 value = 0;
    for (u32 i = 0; i < per_word && i < left; ++i) value |= placed(ld_plain<Bits>(from + i), i);
    return value;
}

template <class D>
CCL_INLINE void one_shot_store(const SpecialArgs& args, u64 word, u64 value) {
    typedef typename D::Bits Bits;
    const u64 per_word = 8 / sizeof(Bits);
    Bits* to = reinterpret_cast<Bits*>(args.output) + word * per_word;
    u64 left = args.count - word * per_word;
    if (left >= per_word && reinterpret_cast<u64>(to) % 8 == 0) return st_plain<u64>(to, value);
    for (u32 i = 0; i < per_word && i < left; ++i) st_plain<Bits>(to + i, element_of<Bits>(value, i));
}

// This rank's contribution.
template <class D, class Op>
CCL_INLINE u64 one_shot_own(const SpecialArgs& args, u64 word, u64 scalar) {
    u64 value = one_shot_load<D>(args, word);
    return Op::FINISHES && (args.flags & SPECIAL_SCALES) ? scaled8<D>(value, scalar) : value;
}

// Waits for a line. False: aborted.
CCL_INLINE bool one_shot_receive(const SpecialArgs& args, u32 peer, const LlLine* from, u32 flag, u64* value) {
    LlLine line = ld_ll(from);
    SpecialWait wait = special_wait(args, peer);
    while (line.flag0 != flag || (!CCL_PLANT(101) && line.flag1 != flag)) {
        if (!wait.goes_on(from)) return false;
        line = ld_ll(from);
    }
    *value = static_cast<u64>(line.data1) << 32 | line.data0;
    return true;
}

// Folds everybody's 8 bytes, from place 0 on. False: aborted.
template <class D, class Op>
CCL_INLINE bool one_shot_fold(const SpecialArgs& args, u64 inbox, u64 epoch, u64 word, u64 own, u64* folded) {
    for (u32 place = 0; place < args.n; ++place) {
        u32 rank = special_rank_at(args, CCL_PLANT(104) ? (place + args.rank) % args.n : place);
        u64 value = own;
        if (rank != args.rank) {
            const LlLine* from = one_shot_row(args, inbox, epoch, rank) + 1 + word;
            if (!one_shot_receive(args, rank, from, one_shot_flag(epoch), &value)) return false;
        }
        *folded = place == 0 ? value : Words<D, Op>::of(*folded, value);
    }
    if (Op::FINISHES && (args.flags & SPECIAL_DIVIDES)) *folded = divided_word<D>(*folded, args.n);
    return true;
}

// Which of a block's threads speak of calls: the last first, which have the least to do with a short vector.
CCL_INLINE u32 one_shot_speaker() { return ccl_threads() - ccl_thread(); }

// Tells everybody what call this rank is in. The threads of the first block.
CCL_INLINE void one_shot_tell(const SpecialArgs& args, u64 epoch) {
    u64 call = special_call(args);
    for (u32 i = one_shot_speaker(); i < args.n; i += ccl_threads()) {
        LlLine* to = one_shot_row(args, special_peer(args, (args.rank + i) % args.n).inbox, epoch, args.rank);
        st_ll(to, static_cast<u32>(call), static_cast<u32>(call >> 32), one_shot_flag(epoch));
    }
}

// Fails if somebody is in another call. The threads of the first block.
CCL_INLINE void one_shot_agree(const SpecialArgs& args, u64 inbox, u64 epoch, u32 element_bytes) {
    for (u32 i = one_shot_speaker(); i < args.n; i += ccl_threads()) {
        u32 peer = (args.rank + i) % args.n;
        u64 call = 0;
        const LlLine* from = one_shot_row(args, inbox, epoch, peer);
        if (!one_shot_receive(args, peer, from, one_shot_flag(epoch), &call)) return;
        if (!special_agrees(args, peer, call, element_bytes)) return;
    }
}

// This thread's words to everybody.
template <class D, class Op>
CCL_INLINE void one_shot_push(const SpecialArgs& args, u64 epoch, u64 words, u64 scalar) {
    for (u32 i = 1; i < args.n; ++i) {
        u32 peer = (args.rank + i) % args.n;
        LlLine* to = one_shot_row(args, special_peer(args, peer).inbox, epoch, args.rank) + 1;
        for (u64 word = one_shot_first(); word < words; word += one_shot_step()) {
            u64 own = one_shot_own<D, Op>(args, word, scalar);
            st_ll(to + word, static_cast<u32>(own), static_cast<u32>(own >> 32), one_shot_flag(epoch));
        }
    }
}

template <class D, class Op>
CCL_ONCE void one_shot(const SpecialArgs& args) {
    u64 words = (args.count * sizeof(typename D::Bits) + 7) / 8;
    u64 launch = special_epoch(args);
    // Planted: one half serves every launch.
    u64 epoch = CCL_PLANT(102) ? 2 * launch : launch;
    u64 scalar = Op::FINISHES && (args.flags & SPECIAL_SCALES) ? D::from_scalar(args.scalar_bits) : 0;
    u64 inbox = special_peer(args, args.rank).inbox;
    if (ccl_block() == 0) one_shot_tell(args, epoch);
    one_shot_push<D, Op>(args, epoch, words, scalar);
    if (ccl_block() == 0) one_shot_agree(args, inbox, epoch, sizeof(typename D::Bits));
    for (u64 word = one_shot_first(); word < words; word += one_shot_step()) {
        u64 own = one_shot_own<D, Op>(args, word, scalar), folded = 0;
        if (!one_shot_fold<D, Op>(args, inbox, epoch, word, own, &folded)) break;
        one_shot_store<D>(args, word, folded);
    }
    special_end(args, launch);
}

#define CCL_ONE_SHOT(shape, dtype, op) \
    CCL_KERNEL(ccl_##shape##_##dtype##_##op, SpecialArgs, 512) { one_shot<dtype_##dtype, op_##op>(args); }

CCL_SPECIAL_VARIANTS(CCL_ONE_SHOT, one_shot)
