// What a program means: core/plan/src/{cursor,layout}.rs and program/expr.rs once more. One thread of a block walks its
// lane's instructions and says what comes next; it neither waits nor moves anything.
#pragma once

#include "program.h"

// What expressions may refer to.
struct Vars {
    i64 place;
    i64 root;
    i64 n;
    i64 v[3];
};

// Elements from `start` up to `end`.
struct Range {
    u64 start;
    u64 end;
};

// Where the pieces of a Move lie.
struct Spread {
    i64 every;
    u64 run;
    bool of_cells;
};

// The elements that a Move covers.
struct Stretch {
    u64 start;
    u64 count;
    u64 pieces;
    u64 piece_count;
    Spread spread;
};

// A position in one lane of a program, and the data of the call as this rank sees it.
struct Cursor {
    Vars vars;
    i64 limits[3];
    u32 bodies[3];
    u32 depth;
    u32 start;
    u32 end;
    u32 at;
    u32 rank;
    u64 part;
    u64 parts;
    u64 pass;
    u64 passes;
    // The chunks of a whole vector's pass.
    Range chunks;
    u64 chunk_count;
    // Of the program's parts.
    const ProgramHeader* header;
    const ProgramExpr* exprs;
    const ProgramOperand* operands;
    const ProgramMove* instructions;
    // Of the call.
    const u32* rank_at;
    const u32* place_of;
    const u64* tables;
    u64 count;
    u64 most_count;
    u64 grain_count;
    u32 input_shape;
    u32 output_shape;
    // What the last Move covers.
    Stretch stretch;
    // Where expressions of several terms are worked out.
    i64 values[16];
    u16 work[48];
};

CCL_INLINE u64 least(u64 a, u64 b) { return a < b ? a : b; }
CCL_INLINE u64 most(u64 a, u64 b) { return a < b ? b : a; }
CCL_INLINE u64 divided_up(u64 a, u64 b) { return a / b + (a % b != 0 ? 1 : 0); }
CCL_INLINE u64 rounded_up(u64 a, u64 to) { return divided_up(a, to) * to; }

// Expressions. Sums wrap, as on the host.

CCL_INLINE i64 product(i64 a, i64 b) { return static_cast<i64>(static_cast<u64>(a) * static_cast<u64>(b)); }
CCL_INLINE i64 sum(i64 a, i64 b) { return static_cast<i64>(static_cast<u64>(a) + static_cast<u64>(b)); }

// Rounded down, by a divisor of at least 1.
CCL_INLINE i64 floor_quotient(i64 a, i64 b) {
    i64 quotient = a / b;
    return a % b < 0 ? quotient - 1 : quotient;
}

CCL_INLINE i64 floor_remainder(i64 a, i64 b) {
    i64 remainder = a % b;
    return remainder < 0 ? remainder + b : remainder;
}

// Modulo n, never negative; cheap where the value is near the range already.
CCL_INLINE i64 wrapped(i64 value, i64 n) {
    if (value >= 0 && value < n) return value;
    if (value >= n && value < 2 * n) return value - n;
    if (value < 0 && value >= -n) return value + n;
    return floor_remainder(value, n < 1 ? 1 : n);
}

CCL_INLINE i64 sum_value(const ProgramSum* expr, const Vars* vars) {
    i64 value = expr->constant;
    value = sum(value, product(expr->of_rank, vars->place));
    value = sum(value, product(expr->of_root, vars->root));
    value = sum(value, product(expr->of_n, vars->n));
    for (u32 k = 0; k < 3; ++k) value = sum(value, product(expr->of_vars[k], vars->v[k]));
    return expr->modulus == 1 ? wrapped(value, vars->n) : value;
}

CCL_ONCE i64 zero_bits(i64 value) {
    i64 zeros = 0;
    for (u64 bits = static_cast<u64>(value); bits != 0 && (bits & 1) == 0; bits >>= 1) ++zeros;
    return zeros;
}

CCL_ONCE i64 applied(const ProgramExpr* expr, i64 a, i64 b, i64 n) {
    i64 divisor = expr->constant < 1 ? 1 : expr->constant;
    switch (expr->kind) {
        case EXPR_LOW_BIT: return static_cast<i64>(static_cast<u64>(a) & (0 - static_cast<u64>(a)));
        case EXPR_MIN: return a < b ? a : b;
        case EXPR_MAX: return a < b ? b : a;
        case EXPR_ADD: return sum(a, b);
        case EXPR_XOR: return a ^ b;
        case EXPR_MUL: return product(a, expr->constant);
        case EXPR_DIV: return floor_quotient(a, divisor);
        case EXPR_MOD: return floor_remainder(a, divisor);
        case EXPR_MOD_N: return wrapped(a, n);
        case EXPR_AND: return a & b;
        case EXPR_POW2: return a >= 0 && a <= 62 ? static_cast<i64>(1ull << a) : 0;
        default: return zero_bits(a);
    }
}

CCL_INLINE bool takes_two(u32 kind) {
    return (kind >= EXPR_MIN && kind <= EXPR_XOR) || kind == EXPR_AND;
}

// Of several terms: what is to be worked out is stacked, an expression a second time below its operands. There are at
// most 16 terms in all.
CCL_ONCE i64 stacked_value(Cursor* cursor, u32 id) {
    const u16 OPERANDS_DONE = 0x8000;
    u32 work = 0;
    u32 values = 0;
    cursor->work[work++] = static_cast<u16>(id);
    while (work > 0) {
        u16 top = cursor->work[--work];
        const ProgramExpr* expr = cursor->exprs + (top & (OPERANDS_DONE - 1));
        bool two = takes_two(expr->kind);
        if (expr->kind == EXPR_SUM) {
            cursor->values[values++] = sum_value(reinterpret_cast<const ProgramSum*>(expr), &cursor->vars);
        } else if (top & OPERANDS_DONE) {
            i64 b = two ? cursor->values[--values] : 0;
            i64 a = cursor->values[--values];
            cursor->values[values++] = applied(expr, a, b, cursor->vars.n);
        } else {
            cursor->work[work++] = top | OPERANDS_DONE;
            if (two) cursor->work[work++] = expr->b;
            cursor->work[work++] = expr->a;
        }
    }
    return cursor->values[0];
}

CCL_LEAF i64 value_of(Cursor* cursor, u32 id) {
    const ProgramExpr* expr = cursor->exprs + id;
    if (expr->kind == EXPR_SUM) return sum_value(reinterpret_cast<const ProgramSum*>(expr), &cursor->vars);
    return stacked_value(cursor, id);
}

CCL_INLINE i64 bound_value(const ProgramBound* bound, const Vars* vars) {
    i64 value = bound->constant;
    value += bound->of_n * vars->n + bound->of_rank * vars->place;
    return value + bound->of_vars[0] * vars->v[0] + bound->of_vars[1] * vars->v[1];
}

// How user data is cut.

CCL_INLINE bool is_whole(const Cursor* cursor) { return cursor->input_shape == SHAPE_WHOLE; }
CCL_INLINE u32 ranks(const Cursor* cursor) { return static_cast<u32>(cursor->vars.n); }

CCL_INLINE u32 rank_at(const Cursor* cursor, i64 place) {
    if (cursor->rank_at == nullptr) return static_cast<u32>(place);
    return static_cast<u64>(place) < ranks(cursor) ? cursor->rank_at[place] : 0xffffffffu;
}

CCL_INLINE u32 place_of(const Cursor* cursor, u32 rank) {
    return cursor->place_of == nullptr || rank >= ranks(cursor) ? rank : cursor->place_of[rank];
}

CCL_INLINE Range cut(const Cursor* cursor, u64 count) {
    if (cursor->parts == 1) return {0, count};
    u64 grain = cursor->grain_count;
    u64 grains = divided_up(count, grain);
    return {least(grains * cursor->part / cursor->parts * grain, count),
            least(grains * (cursor->part + 1) / cursor->parts * grain, count)};
}

// Entry `rank` of one of the four tables.
CCL_INLINE u64 entry(const Cursor* cursor, u32 table, u32 rank) {
    u64 n = ranks(cursor);
    return rank < n ? cursor->tables[table * n + rank] : 0;
}

CCL_INLINE u64 block_count(const Cursor* cursor, u32 extent, u32 rank) {
    if (cursor->tables == nullptr) return cursor->count;
    return entry(cursor, extent == EXTENT_SEND_BLOCK ? 0 : 2, rank);
}

// Where a rank's block starts in the send buffer (`table` 1) or the receive buffer (3).
CCL_INLINE u64 block_offset(const Cursor* cursor, u32 shape, u32 table, u32 rank) {
    if (shape != SHAPE_PER_RANK) return 0;
    return cursor->tables == nullptr ? rank * cursor->count : entry(cursor, table, rank);
}

// The elements of a rank's block that this pass covers, from the block's start.
CCL_INLINE Range block_pass(const Cursor* cursor, u32 extent, u32 rank) {
    Range range = cut(cursor, block_count(cursor, extent, rank));
    u64 start = least(range.start + cursor->pass * cursor->most_count, range.end);
    return {start, least(start + cursor->most_count, range.end)};
}

CCL_INLINE u64 chunks_of(const Cursor* cursor) {
    return cursor->header->chunks_constant + static_cast<u64>(cursor->header->chunks_per_rank) * ranks(cursor);
}

CCL_ONCE u64 passes_of(const Cursor* cursor) {
    if (is_whole(cursor)) {
        Range range = cut(cursor, cursor->count);
        return divided_up(range.end - range.start, most(chunks_of(cursor) * cursor->most_count, 1));
    }
    u64 longest = 0;
    u32 blocks = cursor->tables == nullptr ? 1 : 2 * ranks(cursor);
    CCL_ROLLED
    for (u32 i = 0; i < blocks; ++i) {
        u64 n = ranks(cursor);
        u64 count = cursor->tables == nullptr ? cursor->count : cursor->tables[i < n ? i : i + n];
        Range range = cut(cursor, count);
        longest = most(longest, range.end - range.start);
    }
    return divided_up(longest, most(cursor->most_count, 1));
}

CCL_ONCE void cut_pass(Cursor* cursor) {
    Range range = cut(cursor, cursor->count);
    u64 k = most(chunks_of(cursor), 1);
    u64 start = least(range.start + cursor->pass * k * cursor->most_count, range.end);
    u64 remaining = range.end - start;
    cursor->chunk_count = remaining >= k * cursor->most_count
        ? cursor->most_count
        : least(rounded_up(divided_up(remaining, k), cursor->grain_count), cursor->most_count);
    cursor->chunks = {start, least(range.end, start + k * cursor->most_count)};
}

// The elements of chunk `index`; empty if the pass ends before it.
CCL_INLINE Range chunk(const Cursor* cursor, u64 index) {
    Range all = cursor->chunks;
    // No chunk is as far on as 2^32, which a span's last may say.
    u64 start = index >> 32 != 0 ? all.end : least(all.start + cursor->chunk_count * index, all.end);
    return {start, least(start + cursor->chunk_count, all.end)};
}

// The walk.

CCL_LEAF void enter_pass(Cursor* cursor) {
    cursor->at = cursor->start;
    cursor->depth = 0;
    if (is_whole(cursor)) cut_pass(cursor);
}

CCL_ONCE void end_pass(Cursor* cursor) {
    cursor->pass += 1;
    if (cursor->pass < cursor->passes) enter_pass(cursor);
}

CCL_ONCE void open_loop(Cursor* cursor, const ProgramLoop* loop, u32 at) {
    i64 from = bound_value(&loop->from, &cursor->vars);
    i64 to = bound_value(&loop->to, &cursor->vars);
    if (from >= to) {
        cursor->at = loop->end + 1u;
        return;
    }
    cursor->vars.v[cursor->depth] = from;
    cursor->limits[cursor->depth] = to;
    cursor->bodies[cursor->depth] = at + 1;
    cursor->depth += 1;
}

CCL_ONCE void turn_loop(Cursor* cursor) {
    u32 depth = cursor->depth - 1;
    cursor->vars.v[depth] += 1;
    if (cursor->vars.v[depth] < cursor->limits[depth]) {
        cursor->at = cursor->bodies[depth];
    } else {
        cursor->vars.v[depth] = 0;
        cursor->depth = depth;
    }
}

// The next instruction that touches data or meets somebody; null at the end of the lane.
CCL_ONCE const ProgramMove* next_instruction(Cursor* cursor) {
    while (cursor->pass < cursor->passes) {
        u32 at = cursor->at;
        cursor->at = at + 1;
        const ProgramMove* instruction = cursor->instructions + at;
        switch (at < cursor->end ? instruction->opcode : OP_EXIT) {
            case OP_LOOP: open_loop(cursor, reinterpret_cast<const ProgramLoop*>(instruction), at); break;
            case OP_END: turn_loop(cursor); break;
            case OP_EXIT: end_pass(cursor); break;
            default: return instruction;
        }
    }
    return nullptr;
}

// What a Move covers. False if there is nothing in it.

CCL_ONCE bool dense_stretch(const Cursor* cursor, const ProgramMove* move, i64 index, i64 span, Stretch* stretch) {
    if (index < 0 || span <= 0) return false;
    u64 first = static_cast<u64>(index);
    Range range;
    u64 end;
    if (move->extent == EXTENT_CHUNK) {
        range = chunk(cursor, first);
        end = chunk(cursor, first + static_cast<u64>(span) - 1).end;
    } else {
        u64 n = ranks(cursor);
        if (first >= n) return false;
        range = block_pass(cursor, move->extent, rank_at(cursor, index));
        end = range.start + least(static_cast<u64>(span), n - first) * (range.end - range.start);
    }
    stretch->start = range.start;
    stretch->count = end - range.start;
    if (stretch->count == 0) return false;
    stretch->piece_count = range.end - range.start;
    stretch->pieces = span == 1 ? 1 : divided_up(stretch->count, stretch->piece_count);
    stretch->spread = {1, 1, false};
    return true;
}

CCL_INLINE u64 magnitude(i64 value) { return value < 0 ? 0 - static_cast<u64>(value) : static_cast<u64>(value); }

CCL_ONCE bool touches_user(const Cursor* cursor, const ProgramMove* move) {
    bool touches = false;
    for (u32 i = 0; i < move->inputs; ++i) touches |= cursor->operands[move->input_ids[i]].space <= SPACE_OUT;
    for (u32 i = 0; i < move->outputs; ++i) touches |= cursor->operands[move->output_ids[i]].space <= SPACE_OUT;
    return touches;
}

CCL_ONCE Spread spread_of(Cursor* cursor, const ProgramMove* move) {
    i64 every = value_of(cursor, move->every);
    if (every > 0x7fffffff || every < -0x80000000ll) every = 0x7fffffff;
    i64 run = move->run == NO_EXPR ? 1 : value_of(cursor, move->run);
    i64 longest = static_cast<i64>(most(magnitude(every), 1));
    run = run < 1 ? 1 : run > longest ? longest : run;
    return {every, static_cast<u64>(run), !touches_user(cursor, move)};
}

CCL_ONCE bool spread_stretch(Cursor* cursor, const ProgramMove* move, i64 index, i64 span, Stretch* stretch) {
    i64 n = cursor->vars.n;
    if (span <= 0 || index < 0 || index >= n) return false;
    u64 blocks = least(static_cast<u64>(span), static_cast<u64>(n));
    Spread spread = spread_of(cursor, move);
    Range range = block_pass(cursor, move->extent, rank_at(cursor, index));
    u64 every = most(magnitude(spread.every), 1);
    stretch->start = range.start;
    stretch->spread = spread;
    stretch->piece_count = range.end - range.start;
    stretch->pieces = blocks / every * spread.run + least(blocks % every, spread.run);
    stretch->count = stretch->pieces * stretch->piece_count;
    return stretch->count > 0;
}

CCL_ONCE bool stretch_of(Cursor* cursor, const ProgramMove* move, i64 index, Stretch* stretch) {
    i64 span = move->span == NO_EXPR ? 1 : value_of(cursor, move->span);
    if (move->every == NO_EXPR) return dense_stretch(cursor, move, index, span, stretch);
    return spread_stretch(cursor, move, index, span, stretch);
}

// At the start of lane `lane` of a channel.
CCL_ONCE void start_cursor(Cursor* cursor, u8* program, const LaunchArgs& args, const DevicePlan* plan,
                             const DeviceComm* comm, u32 channel, u32 lane) {
    const ProgramHeader* header = reinterpret_cast<const ProgramHeader*>(program);
    const ProgramLane* lanes = reinterpret_cast<const ProgramLane*>(header + 1);
    // What follows the lanes is as long as a multiple of 16, and so is its end.
    const u8* exprs = program + sizeof(ProgramHeader) + header->lanes * sizeof(ProgramLane);
    cursor->header = header;
    cursor->exprs = reinterpret_cast<const ProgramExpr*>(exprs);
    cursor->operands = reinterpret_cast<const ProgramOperand*>(cursor->exprs + header->exprs);
    cursor->instructions = reinterpret_cast<const ProgramMove*>(cursor->operands + header->operands);
    cursor->rank_at = reinterpret_cast<const u32*>(plan->rank_at);
    cursor->place_of = reinterpret_cast<const u32*>(plan->place_of);
    cursor->tables = reinterpret_cast<const u64*>(args.tables);
    cursor->count = args.count;
    cursor->most_count = args.chunk_count;
    cursor->grain_count = most(args.grain_count, 1);
    cursor->input_shape = plan->input_shape;
    cursor->output_shape = plan->output_shape;
    cursor->rank = comm->rank;
    cursor->vars.n = comm->n;
    cursor->vars.place = place_of(cursor, comm->rank);
    cursor->vars.root = place_of(cursor, args.root);
    for (u32 k = 0; k < 3; ++k) cursor->vars.v[k] = 0;
    u32 shares = lanes[lane].shares < 1 ? 1 : lanes[lane].shares;
    cursor->part = channel * shares + lanes[lane].share;
    cursor->parts = most(args.channels, 1) * shares;
    cursor->start = lanes[lane].start;
    cursor->end = lanes[lane].end;
    cursor->pass = 0;
    cursor->passes = plan->collective == COLLECTIVE_BARRIER ? 1 : passes_of(cursor);
    enter_pass(cursor);
}
