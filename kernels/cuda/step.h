// A step: one Move for one setting of the loop variables, with addresses looked up. One thread makes it, ahead of time;
// all threads of the block carry it out.
#pragma once

#include "cursor.h"
#include "reduce.h"

enum Action : u32 {
    ACTION_DONE = 0,
    ACTION_MOVE = 1,
    ACTION_BARRIER = 2,
    ACTION_FAULT = 3,
    ACTION_START = 4,  // nothing, before the first
};

// How an operand's pieces lie.
enum Lies : u32 {
    LIES_ALONG = 0,   // one after the other
    LIES_BLOCKS = 1,  // in blocks of a user buffer
    LIES_CELLS = 2,   // in cells of scratch
};

// An operand.
struct Site {
    // Of the first piece; of the first of all blocks where pieces lie in blocks; of an edge's slot.
    u64 address;
    // From one block or cell to the next.
    u64 stride;
    // Of an edge: the message's number from 0, and where in the queue its slot is.
    u64 number;
    DeviceEdge* edge;
    u32 slot;
    u32 lies;
    // The place of the first block.
    u32 place;
    // Bytes that may be read or written at once wherever they are a multiple of that from the start: up to 16.
    u32 unit;
    // Whether the edge is known to have room for the message, or to hold it, and what came was looked at.
    bool ready;
    // Of an output: the payload is lent, at `address`; nothing is stored.
    bool lent;
    // Of an output: the payload is in a shared slot, at `address` of multicast memory; the first output that says so stores
    // it there.
    bool shared;
};

struct Step {
    u32 action;
    u32 instruction;
    // Of the call and of what it moves here: it goes into the flags of lines.
    u32 mark;
    u64 bytes;
    u64 pieces;
    u64 piece_bytes;
    Spread spread;
    Finish finish;
    u32 inputs;
    // Outputs that are stored; those that lend, or tell of what another stores, come after them.
    u32 stored;
    u32 outputs;
    // Whether an edge must be waited for or looked at before data is moved.
    bool gated;
    Site sites[8];
};

// Of `sites`: inputs first.
constexpr u32 FIRST_OUTPUT = 4;

// What all threads of a block share.
struct Block {
    alignas(16) u8 program[PROGRAM_MOST_BYTES];
    // One that is carried out, one that is being made, one whose edges are still told.
    Step steps[3];
    Cursor cursor;
    DeviceComm comm;
    DevicePlan plan;
    // Which of the blocks that carry out the call this is, and how many there are.
    u32 index;
    u32 blocks;
    u32 channel;
    u32 lane;
    u64 cell_bytes;
    u64 scratch;
    u64 scalar;
    // The last edge that lent, as its number plus 1.
    u64 lending;
    // The shared slot that the last step has its payload in, NO_SLOT if none was free for it, 0 if it was to have none. Then
    // who reads it, and what the payload is.
    u64 shared;
    u64 shared_readers;
    u64 shared_source;
    u64 shared_bytes;
};

static_assert(sizeof(Block) <= 8064, "SHARED_BYTES of shape.rs, with what group.cu has beside it");

template <class T>
CCL_INLINE T* at(u64 address) {
    return reinterpret_cast<T*>(address);
}

// Says what went wrong, if nobody has before, and ends all kernels of this rank.
CCL_LEAF void fail(const Block* block, u32 code, const Step* step, const DeviceEdge* edge, u64 expected, u64 found) {
    DeviceError* error = at<DeviceError>(block->comm.error);
    if (atomic_cas_acq_rel_sys(&error->claimed, 0u, 1u) == 0) {
        st_relaxed_sys(&error->instruction, step->instruction);
        st_relaxed_sys(&error->peer, edge != nullptr ? edge->peer : 0xffffffffu);
        st_relaxed_sys(&error->channel, block->channel);
        st_relaxed_sys(&error->lane, block->lane);
        st_relaxed_sys(&error->edge, edge != nullptr ? edge->tag + 256 * edge->direction : 0);
        st_relaxed_sys(&error->expected, expected);
        st_relaxed_sys(&error->found, found);
        st_release_sys(&error->code, code);
    }
    st_release_sys(at<u32>(block->comm.abort), 1u);
}

// Fruitless turns between two looks at the abort flag, which may be in the host's memory. In emulation, whose turns are
// few, sooner.
#if defined(CCL_EMU)
constexpr u32 LOOKS_EVERY = 8;
#else
constexpr u32 LOOKS_EVERY = 64;
#endif

// Whether somebody has ended all kernels: asked now and then by those who wait.
CCL_INLINE bool aborted(const Block* block, u32* turns) {
    *turns += 1;
    return *turns % LOOKS_EVERY == 0 && !CCL_PLANT(10) && ld_relaxed_sys(at<u32>(block->comm.abort)) != 0;
}

// Which of the queue's slots a message is in.
CCL_INLINE u32 slot_of(u64 number, u32 slots) {
    if ((slots & (slots - 1)) == 0) return static_cast<u32>(number) & (slots - 1);
    return static_cast<u32>(number % slots);
}

// Whether the first line of an edge's next message is there, or under simple the message.
CCL_INLINE bool has_next(const DeviceEdge* edge) {
    u64 next = edge->done + 1;
    if (edge->protocol == PROTOCOL_SIMPLE) return ld_acquire_sys(at<u64>(edge->tail)) >= next;
    u64 line = edge->slots + static_cast<u64>(slot_of(edge->done, edge->slot_count)) * edge->stride_bytes;
    if (edge->protocol == PROTOCOL_LL) return (ld_relaxed_sys(&at<LlLine>(line)->flag0) ^ static_cast<u32>(next)) << 16 == 0;
    return (ld_relaxed_sys(at<u64>(line + 120)) ^ next) << 16 == 0;
}

// Whether the sender has gone on to a call of another protocol.
CCL_LEAF bool sends_otherwise(const DeviceEdge* edge) {
    if (edge->direction == SENDS || edge->others == 0) return false;
    for (u32 protocol = PROTOCOL_SIMPLE; protocol <= PROTOCOL_LL128; ++protocol) {
        const DeviceEdge* other = at<DeviceEdge>(edge->others) + protocol;
        if (protocol != edge->protocol && other->slot_count != 0 && has_next(other)) return true;
    }
    return false;
}

// Whether a receiver waits in vain, asked every turn: its sender is elsewhere, seen twice and far apart. What was sent before
// that would be here by now.
CCL_INLINE bool in_vain(const DeviceEdge* edge, u32 turns, bool* elsewhere) {
    if (turns % (LOOKS_EVERY * 64) != 0) return false;
    bool before = *elsewhere;
    *elsewhere = sends_otherwise(edge);
    return before && *elsewhere;
}

// Says so, of a message for which the sender is in another call.
CCL_INLINE void fail_in_vain(const Block* block, const Step* step, const DeviceEdge* edge) {
    fail(block, FAULT_OTHER_MESSAGE, step, edge, 0, 1ull << 32);
}

// Where piece `piece` of an operand is.
CCL_INLINE u64 distance(const Spread& spread, u64 piece) {
    return piece / spread.run * magnitude(spread.every) + piece % spread.run;
}

CCL_INLINE u64 piece_address(const Block* block, const Step* step, const Site* site, u64 piece) {
    if (site->lies == LIES_ALONG) return site->address + piece * step->piece_bytes;
    if (site->lies == LIES_CELLS) {
        return site->address + (step->spread.of_cells ? distance(step->spread, piece) : piece) * site->stride;
    }
    i64 far = static_cast<i64>(distance(step->spread, piece));
    i64 place = wrapped(site->place + (step->spread.every < 0 ? -far : far), block->cursor.vars.n);
    return site->address + rank_at(&block->cursor, place) * site->stride;
}

// Making steps.

// The largest power of two up to 16 that divides all numbers that these bits are the union of.
CCL_INLINE u32 unit_of(u64 bits) {
    u32 low = static_cast<u32>(bits) | 16;
    return low & (0 - low);
}

// A user buffer's range, from element `start` of the block at `place`.
CCL_ONCE void user_site(Block* block, const LaunchArgs& args, Site* site, bool is_input, i64 place, const Step* step,
                          u64 start) {
    const Cursor* cursor = &block->cursor;
    u64 size = args.element_bytes;
    u32 rank = rank_at(cursor, place);
    u32 shape = is_input ? cursor->input_shape : cursor->output_shape;
    u64 offset = (block_offset(cursor, shape, is_input ? 1 : 3, rank) + start) * size;
    u64 buffer = is_input ? args.input : args.output;
    site->lies = LIES_ALONG;
    site->address = buffer + offset;
    if (step->pieces > 1 && !is_whole(cursor) && cursor->count > 0) {
        u64 block_bytes = cursor->count * size;
        site->lies = LIES_BLOCKS;
        site->address = buffer + offset % block_bytes;
        site->stride = block_bytes;
        site->place = place_of(cursor, static_cast<u32>(offset / block_bytes));
    }
}

// 16 bits of what both ends of a message must agree on.
CCL_INLINE u32 mark_of(u32 tag, u64 bytes) {
    u32 mixed = tag ^ static_cast<u32>(bytes) * 0x9e3779b1u;
    return (mixed ^ mixed >> 16) & 0xffff;
}

// Whether the other end's counter says that this end may go on with a message.
CCL_INLINE u64 needed(const DeviceEdge* edge, u64 number) {
    if (edge->direction == RECEIVES) return number + 1;
    return number + 1 > edge->slot_count ? number + 1 - edge->slot_count : 0;
}

template <u32 Protocol>
CCL_INLINE bool must_wait(const DeviceEdge* edge) {
    // Lines bring their own flags; proxies count messages under every protocol.
    return edge->direction == SENDS ? !CCL_PLANT(1) : Protocol == PROTOCOL_SIMPLE || edge->sizes != 0;
}

CCL_INLINE const u64* other_counter(const DeviceEdge* edge) {
    return at<u64>(edge->direction == RECEIVES ? edge->tail : edge->head);
}

// Where the window in a slot begins on this rank's way to a rank's memory; its own is one of them.
CCL_INLINE u64 window_start(const Block* block, u32 rank, u32 slot) {
    return ld_relaxed_sys(at<u64>(block->comm.windows) + slot * block->comm.n + rank);
}

// Where a payload in a peer's window lies for this rank.
CCL_INLINE u64 window_place(const Block* block, u32 peer, u64 word) {
    u32 slot = static_cast<u32>(word >> WINDOW_SLOT_AT) % WINDOW_SLOTS;
    u64 offset = word & ((1ull << WINDOW_SLOT_AT) - 1);
    return window_start(block, CCL_PLANT(23) ? block->comm.rank : peer, slot) + offset;
}

// What a slot holds, as in DeviceEdge::sizes.
CCL_INLINE u64 size_word(const LaunchArgs& args, const Step* step) {
    return static_cast<u64>(args.tag) << 32 | static_cast<u32>(step->bytes);
}

// Looks at a message that is there: whether it is the one that is wanted, and where its payload is.
CCL_INLINE bool look_at(const Block* block, const LaunchArgs& args, const Step* step, Site* site) {
    const DeviceEdge* edge = site->edge;
    u64 size = edge->sizes != 0 ? ld_relaxed_sys(at<u64>(edge->sizes) + site->slot) : size_word(args, step);
    u64 lent = edge->lent != 0 ? ld_relaxed_sys(at<u64>(edge->lent) + site->slot) : 0;
    if (size != size_word(args, step) && !CCL_PLANT(13)) {
        fail(block, FAULT_OTHER_MESSAGE, step, edge, size_word(args, step), size);
        return false;
    }
    if ((lent & IS_SHARED) != 0) {
        if (!CCL_PLANT(21)) site->address = edge->shared + (lent & ~IS_SHARED);
    } else if (lent != 0) {
        site->address = (lent & IS_IN_WINDOW) != 0 ? window_place(block, edge->peer, lent) : lent;
        site->unit = unit_of(site->address);
    }
    return true;
}

// False if there is no such edge, the message does not fit it, or another came.
template <u32 Protocol>
CCL_ONCE bool edge_site(Block* block, const LaunchArgs& args, Site* site, Step* step, u32 direction, u32 peer, u32 tag) {
    const DeviceComm* comm = &block->comm;
    u32 number = NO_EDGE;
    if (peer < comm->n && tag < comm->tags && block->channel < comm->channels) {
        u64 index = (static_cast<u64>(peer) * comm->channels + block->channel) * comm->tags + tag;
        number = at<u32>(comm->edge_index)[index * 2 + direction];
    }
    if (number == NO_EDGE) {
        fail(block, FAULT_NO_EDGE, step, nullptr, peer, tag + 256 * direction);
        return false;
    }
    DeviceEdge* edge = at<DeviceEdge>(comm->edges) + number;
    if (edge->protocol != Protocol) {
        fail(block, FAULT_OTHER_PROTOCOL, step, edge, Protocol, edge->protocol);
        return false;
    }
    if (step->bytes > edge->slot_bytes) {
        fail(block, FAULT_SLOT_TOO_SMALL, step, edge, step->bytes, edge->slot_bytes);
        return false;
    }
    site->edge = edge;
    site->number = edge->done;
    if (!CCL_PLANT(7)) edge->done = site->number + 1;
    site->slot = slot_of(site->number, edge->slot_count);
    site->address = edge->slots + static_cast<u64>(site->slot) * edge->stride_bytes;
    site->lies = LIES_ALONG;
    site->unit = 16;
    site->ready = !must_wait<Protocol>(edge) || needed(edge, site->number) <= edge->seen;
    if (!site->ready) {
        edge->seen = ld_acquire_sys(other_counter(edge));
        site->ready = needed(edge, site->number) <= edge->seen;
    }
    step->gated |= !site->ready;
    // What is there already is looked at while others move data.
    return !site->ready || direction == SENDS || look_at(block, args, step, site);
}

template <u32 Protocol>
CCL_ONCE bool operand_site(Block* block, const LaunchArgs& args, Site* site, Step* step, u32 operand, i64 index,
                             u64 start) {
    Cursor* cursor = &block->cursor;
    const ProgramOperand* at = cursor->operands + operand;
    site->edge = nullptr;
    site->ready = true;
    site->lent = false;
    site->shared = false;
    site->stride = 0;
    if (at->space <= SPACE_OUT) {
        i64 place = at->expr == NO_EXPR ? index : value_of(cursor, at->expr);
        user_site(block, args, site, at->space == SPACE_IN, place, step, start);
    } else if (at->space == SPACE_SCRATCH) {
        site->lies = step->pieces > 1 ? LIES_CELLS : LIES_ALONG;
        site->stride = block->cell_bytes;
        site->address = block->scratch + static_cast<u64>(value_of(cursor, at->expr)) * block->cell_bytes;
    } else {
        u32 direction = at->space == SPACE_FROM ? RECEIVES : SENDS;
        return edge_site<Protocol>(block, args, site, step, direction, rank_at(cursor, value_of(cursor, at->expr)), at->tag);
    }
    site->unit = unit_of(site->address | (site->lies == LIES_ALONG ? 0 : site->stride | step->piece_bytes));
    return true;
}

// What tells the other end where memory that this rank keeps lies: its address, where that means the same there; else the place
// in the window that the launch says it lies in. 0 if the edge does not lend it.
CCL_INLINE u64 lent_word(const Block* block, const LaunchArgs& args, const DeviceEdge* edge, u64 kept, bool is_output) {
    if ((args.flags & LAUNCH_LENDS) != 0 && (edge->lends & LENDS_BY_ADDRESS) != 0) return kept;
    // Slots count from 1 here.
    u32 slot = is_output ? args.windows >> 16 : args.windows & 0xffffu;
    if (slot == 0 || (edge->lends & LENDS_BY_WINDOW) == 0) return 0;
    u64 offset = kept - window_start(block, block->comm.rank, slot - 1);
    return IS_IN_WINDOW | static_cast<u64>(slot - 1) << WINDOW_SLOT_AT | offset;
}

// Lends, on direct edges, what this rank keeps or only passes on. Those outputs go behind the others.
CCL_ONCE void lend(Block* block, const LaunchArgs& args, Step* step, const ProgramMove* move) {
    Cursor* cursor = &block->cursor;
    u64 kept = 0;
    bool is_output = false;
    for (u32 i = 0; i < move->outputs && kept == 0; ++i) {
        is_output = cursor->operands[move->output_ids[i]].space == SPACE_OUT;
        if (is_output) kept = step->sites[FIRST_OUTPUT + i].address;
    }
    bool unchanged = move->inputs == 1 && step->finish.scaled == 0 && step->finish.n == 0;
    if (kept == 0 && unchanged && cursor->operands[move->input_ids[0]].space <= SPACE_OUT) {
        is_output = cursor->operands[move->input_ids[0]].space == SPACE_OUT;
        kept = step->sites[0].address;
    }
    if (kept == 0 || step->pieces > 1) return;
    u32 stored = 0;
    for (u32 i = 0; i < step->outputs; ++i) {
        Site* site = &step->sites[FIRST_OUTPUT + i];
        u64 word = site->edge != nullptr && site->edge->lent != 0 ? lent_word(block, args, site->edge, kept, is_output) : 0;
        if (word != 0) {
            site->lent = true;
            site->address = word;
            DeviceEdge* edge = site->edge;
            if (edge->lending >> 32 == 0) {
                edge->lending = 1ull << 32 | block->lending;
                block->lending = static_cast<u64>(edge - at<DeviceEdge>(block->comm.edges)) + 1;
            }
        } else {
            Site other = step->sites[FIRST_OUTPUT + stored];
            step->sites[FIRST_OUTPUT + stored++] = *site;
            if (stored <= i) *site = other;
        }
    }
    step->stored = stored;
}

// No shared slot's address.
constexpr u64 NO_SLOT = 1;

// A shared slot that all its readers have done with, through multicast memory. Nobody waits for one: credit stays each edge's
// own.
CCL_ONCE u64 free_shared_slot(Block* block) {
    const DeviceComm* comm = &block->comm;
    u64 channel_bytes = sizeof(SharedSlots) + static_cast<u64>(comm->shared_slots) * comm->n * sizeof(SharedReader);
    SharedSlots* slots = at<SharedSlots>(comm->sharing + block->channel * channel_bytes);
    u64 slot = slots->next;
    SharedReader* readers = reinterpret_cast<SharedReader*>(slots + 1) + slot * comm->n;
    CCL_ROLLED
    for (u32 peer = 0; peer < comm->n; ++peer) {
        u64 until = readers[peer].until;
        // Pairs with what the receiver stores when it has read, as for slots of its own.
        if (until != 0 && ld_acquire_sys(at<u64>(readers[peer].head)) < until && !CCL_PLANT(20)) return NO_SLOT;
        readers[peer].until = 0;
    }
    fence_all();
    slots->next = slot + 1 == comm->shared_slots ? 0 : slot + 1;
    slots->sent += 1;
    block->shared_readers = reinterpret_cast<u64>(readers);
    return comm->window + (static_cast<u64>(block->channel) * comm->shared_slots + slot) * comm->shared_stride_bytes;
}

// Puts what all others are sent into a shared slot, of which all are told; or, where the last step has done so, only tells.
// If none was free at first, all get it in slots of their own: what reaches a rank, that rank is told of, so no store comes
// after its last call. `last` is the slot of the last step. Outputs that store nothing go behind the others.
CCL_ONCE void share(Block* block, Step* step, u64 last) {
    if (step->pieces > 1) return;
    const Site* source = &step->sites[0];
    bool goes_on = last != 0 && block->shared_bytes == step->bytes && step->inputs == 1 && source->edge == nullptr &&
                   (block->shared_source == source->address || CCL_PLANT(22));
    block->shared = goes_on ? last : free_shared_slot(block);
    block->shared_bytes = step->bytes;
    block->shared_source = source->address;
    if (block->shared == NO_SLOT) return;
    bool has_stored = goes_on;
    u32 stored = 0;
    CCL_ROLLED
    for (u32 i = 0; i < step->outputs; ++i) {
        Site* site = &step->sites[FIRST_OUTPUT + i];
        bool stores = true;
        if (site->edge != nullptr) {
            site->shared = true;
            site->address = block->shared;
            at<SharedReader>(block->shared_readers)[site->edge->peer] = {site->edge->head, site->number + 1};
            stores = !has_stored;
            has_stored = true;
        }
        if (stores) {
            Site other = step->sites[FIRST_OUTPUT + stored];
            step->sites[FIRST_OUTPUT + stored++] = *site;
            if (stored <= i) *site = other;
        }
    }
    step->stored = stored;
}

// Looks up the operands of a Move, a signal or a wait: inputs, then outputs.
template <u32 Protocol>
CCL_ONCE bool make_sites(Block* block, const LaunchArgs& args, Step* step, const ProgramMove* move, i64 index, u64 start) {
    CCL_ROLLED
    for (u32 i = 0; i < step->inputs + step->outputs; ++i) {
        bool is_input = i < step->inputs;
        u32 k = is_input ? i : i - step->inputs;
        u32 operand = is_input ? move->input_ids[k] : move->output_ids[k];
        if (move->opcode != OP_MOVE) operand = reinterpret_cast<const ProgramMeeting*>(move)->operand;
        Site* site = &step->sites[is_input ? k : FIRST_OUTPUT + k];
        if (!operand_site<Protocol>(block, args, site, step, operand, index, start)) return false;
    }
    return true;
}

// The inputs that are multiplied by the scalar, as bits: a rank's own.
CCL_INLINE u32 scaled_inputs(const Block* block, const LaunchArgs& args, const ProgramMove* move) {
    u32 scaled = 0;
    if (!(move->finish & FINISH_PRE) || !(args.flags & LAUNCH_SCALES)) return scaled;
    for (u32 i = 0; i < move->inputs; ++i) {
        scaled |= block->cursor.operands[move->input_ids[i]].space == SPACE_IN ? 1u << i : 0;
    }
    return scaled;
}

// What a Move covers and how it ends. False if there is nothing in it.
CCL_ONCE bool make_move(Block* block, const LaunchArgs& args, Step* step, const ProgramMove* move, i64 index, u64* start) {
    Stretch* stretch = &block->cursor.stretch;
    if (!stretch_of(&block->cursor, move, index, stretch)) return false;
    step->bytes = stretch->count * args.element_bytes;
    step->pieces = stretch->pieces;
    step->piece_bytes = stretch->piece_count * args.element_bytes;
    step->spread = stretch->spread;
    step->inputs = move->inputs;
    step->outputs = move->outputs;
    bool divides = (move->finish & FINISH_POST) && (args.flags & LAUNCH_DIVIDES);
    step->finish = {scaled_inputs(block, args, move), divides ? block->comm.n : 0, block->scalar};
    *start = stretch->start;
    return true;
}

// A signal or wait: a message without payload.
CCL_ONCE void make_meeting(Step* step, u32 opcode) {
    step->bytes = 0;
    step->pieces = 1;
    step->piece_bytes = 0;
    step->inputs = opcode == OP_SIGNAL ? 0 : 1;
    step->outputs = opcode == OP_SIGNAL ? 1 : 0;
    step->finish = {0, 0, 0};
}

// The next step of the lane. Skips Moves of empty ranges.
template <u32 Protocol>
CCL_ONCE void make_step(Block* block, const LaunchArgs& args, Step* step) {
    Cursor* cursor = &block->cursor;
    u64 last_shared = block->shared;
    block->shared = 0;
    while (const ProgramMove* move = next_instruction(cursor)) {
        i64 index = 0;
        u64 start = 0;
        step->instruction = cursor->at - 1;
        step->action = ACTION_MOVE;
        step->gated = false;
        if (move->opcode == OP_BARRIER) {
            step->action = ACTION_BARRIER;
            step->inputs = 0;
            step->outputs = 0;
            return;
        }
        if (move->opcode == OP_MOVE) {
            index = value_of(cursor, move->index);
            if (!make_move(block, args, step, move, index, &start)) continue;
        } else {
            make_meeting(step, move->opcode);
        }
        step->stored = step->outputs;
        if (Protocol != PROTOCOL_SIMPLE) step->mark = mark_of(args.tag, step->bytes);
        if (!make_sites<Protocol>(block, args, step, move, index, start)) {
            step->action = ACTION_FAULT;
        } else if (Protocol == PROTOCOL_SIMPLE && move->opcode == OP_MOVE) {
            if (block->comm.window != 0 && (block->plan.shared >> step->instruction & 1) != 0) {
                share(block, step, last_shared);
            } else if ((args.flags & LAUNCH_LENDS) != 0 || args.windows != 0) {
                lend(block, args, step, move);
            }
        }
        return;
    }
    step->action = ACTION_DONE;
}
