// The interpreter of programs: one kernel for every (dtype, operation, protocol), one thread block for every lane of every
// channel, numbered channel * lanes + lane. All blocks of a launch must be resident at once.
//
// A block has workers, whole warps; a warp that tells the other ends of edges; and one thread more, which makes the next
// step while they carry out this one. For each step
//
//     workers wait for its edges, if they are not known to be ready          a barrier, only then
//     workers move data; the thread ahead makes the next step                a barrier
//     one thread for each edge tells the other end, while workers go on: telling waits until all has been stored
#pragma once

#include "edge_ll.h"
#include "edge_ll128.h"
#include "edge_simple.h"

// Threads of a block at most, with the warp that tells and that of the thread ahead.
constexpr u32 MOST_THREADS = 512;

// Waits until a counter says `least`; false if the kernels were ended meanwhile.
CCL_INLINE bool wait_for(const Block* block, const Step* step, const DeviceEdge* edge, const u64* counter, u64 least) {
    u32 turns = 0;
    bool elsewhere = false;
    for (;;) {
        u64 seen = ld_acquire_sys(counter);
        if (seen >= least) return true;
        ccl_spin_hint(counter);
        if (aborted(block, &turns)) {
            fail(block, FAULT_ABORTED, step, edge, least, seen);
            return false;
        }
        if (in_vain(edge, turns, &elsewhere)) {
            fail_in_vain(block, step, edge);
            return false;
        }
    }
}

// One thread for each edge: waits until it is ready, and looks at what came.
CCL_ONCE bool admit(const Block* block, const LaunchArgs& args, Step* step, Site* site) {
    const DeviceEdge* edge = site->edge;
    if (edge == nullptr || site->ready) return true;
    if (!wait_for(block, step, edge, other_counter(edge), needed(edge, site->number))) return false;
    return edge->direction == SENDS || look_at(block, args, step, site);
}

// The shared slots of this channel, through multicast memory.
CCL_INLINE u64 shared_start(const Block* block) {
    const DeviceComm* comm = &block->comm;
    return comm->window + static_cast<u64>(block->channel) * comm->shared_slots * comm->shared_stride_bytes;
}

// One thread for each edge: says that the step is done. What was read has been folded or stored by all threads, and what
// was stored is behind the barrier that this thread has met them at, so the release covers it.
template <u32 Protocol>
CCL_ONCE void tell(const Block* block, const LaunchArgs& args, const Step* step, const Site* site) {
    const DeviceEdge* edge = site->edge;
    u64 done = site->number + 1;
    if (edge->direction == RECEIVES) {
        // Pairs with the acquire in `wait_for` or `edge_site` of the sender. Nothing of ours follows from it.
        u64* head = at<u64>(CCL_PLANT(8) ? at<DeviceEdge>(block->comm.edges)->head : edge->head);
        st_relaxed_sys(head, done);
        return;
    }
    if (edge->sizes != 0) st_relaxed_sys(at<u64>(edge->sizes) + site->slot, size_word(args, step));
    if (Protocol == PROTOCOL_SIMPLE && site->shared) {
        fence_all();
        st_relaxed_sys(at<u64>(edge->shared) + site->slot, IS_SHARED | (site->address - shared_start(block)));
    } else if (Protocol == PROTOCOL_SIMPLE && (edge->lent | edge->shared) != 0) {
        st_relaxed_sys(at<u64>(edge->lent | edge->shared) + site->slot, site->lent ? site->address : 0);
    }
    if (Protocol == PROTOCOL_SIMPLE || edge->sizes != 0) {
        // Pairs with the acquire of the receiver.
        if (CCL_PLANT(16) || (CCL_PLANT(19) && site->shared)) {
            st_relaxed_sys(at<u64>(edge->tail), done);
        } else {
            st_release_sys(at<u64>(edge->tail), done);
        }
    }
}

// The site that worker `index` waits for, and that thread `index` of those that tell tells of; null if it has none.
CCL_INLINE Site* site_of(Step* step, u32 index) {
    if (index < FIRST_OUTPUT) return index < step->inputs ? &step->sites[index] : nullptr;
    return index < FIRST_OUTPUT + step->outputs ? &step->sites[index] : nullptr;
}

// Tells of the site that is this thread's, if it is one of those behind the workers that tell; a planted bug has some told
// before data is moved.
template <u32 Protocol>
CCL_INLINE void tell_own(const Block* block, const LaunchArgs& args, Step* step, Worker worker, bool before) {
    if (worker.index < worker.all) return;
    Site* site = site_of(step, worker.index - worker.all);
    if (site == nullptr || site->edge == nullptr) return;
    bool early = CCL_PLANT(site->edge->direction == RECEIVES ? 2 : 3);
    if (early == before) tell<Protocol>(block, args, step, site);
}

// Waits until every lane of the channel is here; by one thread. False if the kernels were ended meanwhile.
CCL_ONCE bool meet(const Block* block, const Step* step) {
    LaneBarrier* barrier = at<LaneBarrier>(block->comm.barriers) + block->channel;
    u32 met = ld_acquire_gpu(&barrier->met);
    // Releases what this block has stored; the last to arrive acquires it from all and releases it with `met`.
    u32 before = CCL_PLANT(18) ? atomic_add_relaxed_gpu(&barrier->arrived, 1u) : atomic_add_acq_rel_gpu(&barrier->arrived, 1u);
    if (before + 1 == block->plan.lanes) {
        st_relaxed_gpu(&barrier->arrived, 0u);
        st_release_gpu(&barrier->met, met + 1);
        return true;
    }
    u32 turns = 0;
    while (ld_acquire_gpu(&barrier->met) == met && !CCL_PLANT(11)) {
        ccl_spin_hint(&barrier->met);
        if (aborted(block, &turns)) {
            fail(block, FAULT_ABORTED, step, nullptr, block->plan.lanes, before + 1);
            return false;
        }
    }
    return true;
}

// Waits until peers have read all that was lent to them; by one thread.
CCL_ONCE bool await_readers(Block* block, const Step* step) {
    while (block->lending != 0) {
        DeviceEdge* edge = at<DeviceEdge>(block->comm.edges) + (block->lending - 1);
        if (!CCL_PLANT(12) && !wait_for(block, step, edge, at<u64>(edge->head), edge->done)) return false;
        block->lending = edge->lending & 0xffffffffull;
        edge->lending = 0;
    }
    return true;
}

// Before a step's data is moved; false if the block gives up.
CCL_ONCE bool enter_step(const Block* block, const LaunchArgs& args, Step* step, Worker worker) {
    bool stays = true;
    if (step->action == ACTION_BARRIER) {
        if (worker.index == 0) stays = meet(block, step);
    } else if (Site* site = site_of(step, worker.index)) {
        stays = admit(block, args, step, site);
    }
    return stays;
}

template <class D, class Op, u32 Protocol>
CCL_INLINE bool move_data(const Block* block, const Step* step, Worker worker) {
    if (Protocol == PROTOCOL_LL) return move_ll<D, Op>(block, step, worker);
    if (Protocol == PROTOCOL_LL128) return move_ll128<D, Op>(block, step, worker);
    return move_simple<D, Op>(block, step, worker);
}

// Copies words to shared memory, all threads together.
CCL_INLINE void copy_words(void* to, u64 from, u32 bytes) {
    for (u32 i = ccl_thread(); i < bytes / 8; i += ccl_threads()) {
        static_cast<u64*>(to)[i] = at<u64>(from)[i];
    }
}

// By the thread ahead: whether the program is one that this launch can run, and where its lane begins.
template <class D, class Op>
CCL_ONCE bool prepare(Block* block, const LaunchArgs& args, Step* step) {
    const ProgramHeader* header = reinterpret_cast<const ProgramHeader*>(block->program);
    u32 lanes = block->plan.lanes;
    step->instruction = 0;
    bool known = header->magic == PROGRAM_MAGIC && header->version == PROGRAM_VERSION && header->lanes == lanes;
    known = known && block->plan.program_bytes <= PROGRAM_MOST_BYTES && (!Op::FINISHES || sizeof(typename D::Bits) == args.element_bytes);
    if (!known || lanes == 0 || block->blocks != lanes * args.channels) {
        fail(block, FAULT_UNREADABLE, step, nullptr, lanes * args.channels, block->blocks);
        return false;
    }
    block->channel = block->index / lanes;
    block->lane = block->index % lanes;
    block->cell_bytes = rounded_up(args.chunk_count * args.element_bytes, 16);
    u64 lane_bytes = block->plan.scratch_cells * block->cell_bytes;
    block->scratch = block->comm.scratch + block->index * lane_bytes;
    if (lane_bytes * block->blocks > block->comm.scratch_bytes) {
        fail(block, FAULT_SCRATCH_TOO_SMALL, step, nullptr, lane_bytes * block->blocks, block->comm.scratch_bytes);
        return false;
    }
    block->lending = 0;
    block->shared = 0;
    block->scalar = 0;
    if constexpr (Op::FINISHES) block->scalar = D::from_scalar(args.scalar_bits);
    start_cursor(&block->cursor, block->program, args, &block->plan, &block->comm, block->channel, block->lane);
    return true;
}

// Which of the blocks that carry out a call one is, and how many there are.
struct Part {
    u32 index;
    u32 blocks;
};

// Brings everything to shared memory.
CCL_ONCE void begin(Block* block, const LaunchArgs& args, Part part) {
    copy_words(&block->comm, args.comm, sizeof(DeviceComm));
    copy_words(&block->plan, args.plan, sizeof(DevicePlan));
    ccl_sync();
    copy_words(block->program, block->plan.program, static_cast<u32>(least(block->plan.program_bytes, PROGRAM_MOST_BYTES)));
    if (ccl_thread() == 0) {
        block->index = part.index;
        block->blocks = part.blocks;
        Step* start = &block->steps[0];
        start->action = ACTION_START;
        start->gated = false;
        start->inputs = 0;
        start->outputs = 0;
    }
    ccl_sync();
}

// Makes the step after this one; by the thread ahead.
template <class D, class Op, u32 Protocol>
CCL_ONCE void look_ahead(Block* block, const LaunchArgs& args, const Step* step, Step* next) {
    if (step->action == ACTION_START && !prepare<D, Op>(block, args, next)) {
        next->action = ACTION_FAULT;
    } else {
        make_step<Protocol>(block, args, next);
    }
}

// Whether a kernel of its own, launched before this one, has made the call.
CCL_INLINE bool is_served(const LaunchArgs& args) {
    if ((args.flags & LAUNCH_YIELDS) == 0) return false;
    u64 served = ld_plain<u64>(&reinterpret_cast<const DeviceComm*>(args.comm)->served);
    return ld_plain<u64>(reinterpret_cast<const void*>(served)) != 0;
}

// Carries out one block's part of a call; false if a thread gave up in a step. A step that could not be made is left as
// ACTION_FAULT.
template <class D, class Op, u32 Protocol>
CCL_ONCE bool carry_out(Block* block, const LaunchArgs& args, Part part) {
    Worker worker = {ccl_thread(), (ccl_threads() - 1) / CCL_WARP * CCL_WARP - CCL_WARP};
    bool works = worker.index < worker.all;
    bool is_ahead = worker.index == worker.all + CCL_WARP;
    begin(block, args, part);
    u32 now = 0;
    while (block->steps[now].action != ACTION_DONE && block->steps[now].action != ACTION_FAULT) {
        Step* step = &block->steps[now];
        u32 next = now == 2 || (now == 1 && CCL_PLANT(15)) ? 0 : now + 1;
        bool stays = true;
        if (is_ahead) look_ahead<D, Op, Protocol>(block, args, step, &block->steps[next]);
        if (step->gated || step->action == ACTION_BARRIER) {
            if (works) stays = enter_step(block, args, step, worker);
            if (!CCL_PLANT(6) && ccl_sync_or(!stays)) return false;
        }
        if (CCL_PLANT(2) || CCL_PLANT(3)) tell_own<Protocol>(block, args, step, worker, true);
        if (works && step->action == ACTION_MOVE) stays = move_data<D, Op, Protocol>(block, step, worker);
        if (ccl_sync_or(!stays)) return false;
        if (step->action == ACTION_MOVE) tell_own<Protocol>(block, args, step, worker, false);
        now = next;
    }
    if (worker.index == 0 && block->steps[now].action == ACTION_DONE) await_readers(block, &block->steps[now]);
    return true;
}

// The kernel's body.
template <class D, class Op, u32 Protocol>
CCL_ONCE void interpret(const LaunchArgs& args) {
    if (is_served(args)) return;
    CCL_SHARED(Block, block);
    carry_out<D, Op, Protocol>(block, args, {ccl_block(), ccl_blocks()});
}
