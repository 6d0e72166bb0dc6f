// Messages of a group in one launch, so that those that wait for each other need no promise that kernels run at the same
// time.
//
// Calls lie in lists. Each list has as many blocks as its longest call, and these carry out its calls one after the other:
// block i of a list is block i of every call that has so many. The first call of list k is number k.
#include "interpret.h"
#include "variants.h"

// What all threads of a block share.
struct GroupBlock {
    Block block;
    GroupedCall call;
};

static_assert(sizeof(GroupBlock) <= 8192, "SHARED_BYTES of shape.rs");

CCL_ONCE bool carry_out_grouped(GroupBlock* shared, u32 index) {
    const GroupedCall* grouped = &shared->call;
    Part part = {index, grouped->blocks};
    switch (grouped->protocol) {
        case PROTOCOL_SIMPLE: return carry_out<dtype_bytes, op_copy, PROTOCOL_SIMPLE>(&shared->block, grouped->call, part);
        case PROTOCOL_LL: return carry_out<dtype_bytes, op_copy, PROTOCOL_LL>(&shared->block, grouped->call, part);
        default: return carry_out<dtype_bytes, op_copy, PROTOCOL_LL128>(&shared->block, grouped->call, part);
    }
}

// Whether a step of the last call could not be made: what is next on its edges would be taken for the rest of it.
CCL_INLINE bool has_failed(const Block* block) {
    bool failed = false;
    for (u32 i = 0; i < 3; ++i) failed |= block->steps[i].action == ACTION_FAULT;
    return failed;
}

// Brings a call to shared memory, for all threads.
CCL_INLINE void begin_grouped(GroupBlock* shared, u64 call) {
    // All have read which call this is, where the last one is overwritten.
    if (!CCL_PLANT(23)) ccl_sync();
    copy_words(&shared->call, call, sizeof(GroupedCall));
    if (ccl_thread() == 0) {
        shared->block.steps[1].action = ACTION_START;
        shared->block.steps[2].action = ACTION_START;
    }
    ccl_sync();
}

CCL_KERNEL(ccl_group_bytes_copy, GroupArgs, MOST_THREADS) {
    CCL_SHARED(GroupBlock, shared);
    u32 index = ccl_block() % args.each;
    for (u32 number = ccl_block() / args.each + 1; number != 0; number = shared->call.next) {
        begin_grouped(shared, args.calls + (number - 1) * sizeof(GroupedCall));
        if (index >= shared->call.blocks) continue;
        bool stays = carry_out_grouped(shared, index) && !has_failed(&shared->block);
        if (ccl_sync_or(!stays)) return;
    }
}
