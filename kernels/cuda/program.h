// What the interpreter reads and writes in memory: the records of kernels/src/layout.rs, where they are described, and
// those of a program's binary form (docs/plan-isa.md).
#pragma once

#include "ccl_device.h"

// What a launch passes by value.
struct LaunchArgs {
    u64 comm;
    u64 plan;
    u64 input;
    u64 output;
    u64 count;
    u64 chunk_count;
    u64 grain_count;
    u64 scalar_bits;
    u64 tables;
    u32 root;
    u32 tag;
    u32 channels;
    u32 element_bytes;
    u32 flags;
    u32 windows;
};

constexpr u32 LAUNCH_SCALES = 1;
constexpr u32 LAUNCH_DIVIDES = 2;
constexpr u32 LAUNCH_LENDS = 4;
constexpr u32 LAUNCH_YIELDS = 8;

// A call of a group.
struct GroupedCall {
    LaunchArgs call;
    u32 protocol;
    u32 blocks;
    u32 next;
    u32 reserved;
};

// What a launch of a group passes by value.
struct GroupArgs {
    u64 calls;
    u32 each;
    u32 reserved;
};

// A communicator as one rank's kernels see it.
struct DeviceComm {
    u32 rank;
    u32 n;
    u64 edges;
    u64 edge_index;
    u32 channels;
    u32 tags;
    u64 abort;
    u64 error;
    u64 barriers;
    u64 scratch;
    u64 scratch_bytes;
    u64 served;
    u64 window;
    u64 sharing;
    u32 shared_slots;
    u32 shared_stride_bytes;
    u64 windows;
    u64 reserved[2];
};

// A program as one rank runs it.
struct DevicePlan {
    u64 program;
    u64 rank_at;
    u64 place_of;
    u32 program_bytes;
    u32 lanes;
    u32 collective;
    u32 scratch_cells;
    u32 input_shape;
    u32 output_shape;
    u64 shared;
};

constexpr u32 SHAPE_NONE = 0;
constexpr u32 SHAPE_WHOLE = 1;
constexpr u32 SHAPE_PER_RANK = 2;
constexpr u32 SHAPE_OWN = 3;

constexpr u32 COLLECTIVE_BARRIER = 15;

// One end of an edge.
struct DeviceEdge {
    u64 slots;
    u64 tail;
    u64 head;
    u64 sizes;
    u64 lent;
    u64 lends;
    u64 done;
    u64 seen;
    u64 lending;
    u32 slot_bytes;
    u32 slot_count;
    u32 stride_bytes;
    u32 protocol;
    u32 peer;
    u32 channel;
    u32 tag;
    u32 direction;
    u64 others;
    u64 shared;
    u64 reserved;
};

// What a channel of a sender knows of its shared slots: these, then a reader of each rank for every slot.
struct SharedSlots {
    u64 next;
    u64 sent;
};

struct SharedReader {
    u64 head;
    u64 until;
};

// In a word of DeviceEdge::lent: the payload is in the sender's shared slots, so many bytes from their start.
constexpr u64 IS_SHARED = 1ull << 63;
// There: it is in one of the sender's windows, whose slot is 48 bits up, so many bytes from its start.
constexpr u64 IS_IN_WINDOW = 1ull << 62;
constexpr u32 WINDOW_SLOT_AT = 48;
constexpr u32 WINDOW_SLOTS = 32;

// What DeviceEdge::lends says.
constexpr u64 LENDS_BY_ADDRESS = 1;
constexpr u64 LENDS_BY_WINDOW = 2;

constexpr u32 NO_EDGE = 0xffffffffu;
constexpr u32 RECEIVES = 0;
constexpr u32 SENDS = 1;
constexpr u32 PROTOCOL_SIMPLE = 0;
constexpr u32 PROTOCOL_LL = 1;
constexpr u32 PROTOCOL_LL128 = 2;

// Where the lanes of a channel meet.
struct LaneBarrier {
    u32 arrived;
    u32 met;
};

// What the first block to fail says about it.
struct DeviceError {
    u32 code;
    u32 claimed;
    u32 instruction;
    u32 peer;
    u32 channel;
    u32 lane;
    u32 edge;
    u32 reserved;
    u64 expected;
    u64 found;
};

// What DeviceError::instruction has where no program was interpreted.
constexpr u32 NO_INSTRUCTION = 0xffffffffu;

constexpr u32 FAULT_ABORTED = 1;
constexpr u32 FAULT_NO_EDGE = 2;
constexpr u32 FAULT_SLOT_TOO_SMALL = 3;
constexpr u32 FAULT_OTHER_MESSAGE = 4;
constexpr u32 FAULT_OTHER_PROTOCOL = 5;
constexpr u32 FAULT_SCRATCH_TOO_SMALL = 6;
constexpr u32 FAULT_UNREADABLE = 7;

// The binary form of programs.
constexpr u32 PROGRAM_MAGIC = 0x506c6363u;  // "cclP"
constexpr u32 PROGRAM_VERSION = 3;
constexpr u32 PROGRAM_MOST_BYTES = 4096;
constexpr u32 NO_EXPR = 0xffff;

struct ProgramHeader {
    u32 magic;
    u8 version;
    u8 collective;
    u16 chunks_constant;
    u16 chunks_per_rank;
    u16 scratch;
    u16 lanes;
    u16 exprs;
    u16 operands;
    u16 instructions;
    u32 padding[3];
};

struct ProgramLane {
    u16 start;
    u16 end;
    u8 share;
    u8 shares;
    u8 padding[2];
};

// A sum: modulus 1 is n; coefficients of r, root and n, then of the loop variables.
struct ProgramSum {
    u8 kind;
    u8 modulus;
    i8 of_rank;
    i8 of_root;
    i8 of_n;
    u8 zero;
    i16 of_vars[3];
    i32 constant;
};

// Any other expression: of others before it.
struct ProgramExpr {
    u8 kind;
    u8 zero;
    u16 a;
    u16 b;
    u16 zeros;
    i32 constant;
    u32 padding;
};

constexpr u32 EXPR_SUM = 0;
constexpr u32 EXPR_LOW_BIT = 1;
constexpr u32 EXPR_MIN = 2;
constexpr u32 EXPR_MAX = 3;
constexpr u32 EXPR_ADD = 4;
constexpr u32 EXPR_XOR = 5;
constexpr u32 EXPR_MUL = 6;
constexpr u32 EXPR_DIV = 7;
constexpr u32 EXPR_MOD = 8;
constexpr u32 EXPR_MOD_N = 9;
constexpr u32 EXPR_AND = 10;
constexpr u32 EXPR_POW2 = 11;
constexpr u32 EXPR_ZEROS = 12;

struct ProgramOperand {
    u8 space;
    u8 tag;
    u16 expr;
    u32 padding[3];
};

constexpr u32 SPACE_IN = 0;
constexpr u32 SPACE_OUT = 1;
constexpr u32 SPACE_SCRATCH = 2;
constexpr u32 SPACE_FROM = 3;
constexpr u32 SPACE_TO = 4;

// The kinds of instructions lie on each other: the first byte tells them apart.
struct ProgramMove {
    u8 opcode;
    u8 finish;
    u8 inputs;
    u8 input_ids[4];
    u8 outputs;
    u8 output_ids[4];
    u8 extent;
    u8 zero;
    u16 index;
    u16 span;
    u16 every;
    u16 run;
    u8 padding[10];
};

struct ProgramBound {
    i32 constant;
    i8 of_n;
    i8 of_rank;
    i8 of_vars[2];
};

struct ProgramLoop {
    u8 opcode;
    u8 variable;
    u16 end;
    ProgramBound from;
    ProgramBound to;
    u8 padding[12];
};

struct ProgramMeeting {
    u8 opcode;
    u8 operand;
    u8 padding[30];
};

constexpr u32 FINISH_PRE = 1;
constexpr u32 FINISH_POST = 2;
constexpr u32 INSTRUCTION_BYTES = 32;

constexpr u32 OP_EXIT = 0;
constexpr u32 OP_MOVE = 1;
constexpr u32 OP_LOOP = 2;
constexpr u32 OP_END = 3;
constexpr u32 OP_SIGNAL = 4;
constexpr u32 OP_WAIT = 5;
constexpr u32 OP_BARRIER = 6;

constexpr u32 EXTENT_CHUNK = 0;
constexpr u32 EXTENT_SEND_BLOCK = 1;
constexpr u32 EXTENT_RECV_BLOCK = 2;

// The offset of a field, in a constant expression that no compiler's headers are needed for.
#if defined(__CUDACC_RTC__)
// NVRTC knows it by this name only.
#define CCL_OFFSET(type, field) __INTADDR__(&((type*)0)->field)
#else
#define CCL_OFFSET(type, field) __builtin_offsetof(type, field)
#endif

static_assert(sizeof(LaunchArgs) == 96 && CCL_OFFSET(LaunchArgs, scalar_bits) == 56, "as in layout.rs");
static_assert(CCL_OFFSET(LaunchArgs, tables) == 64 && CCL_OFFSET(LaunchArgs, root) == 72, "as in layout.rs");
static_assert(CCL_OFFSET(LaunchArgs, element_bytes) == 84 && CCL_OFFSET(LaunchArgs, flags) == 88, "as in layout.rs");
static_assert(sizeof(GroupedCall) == 112 && CCL_OFFSET(GroupedCall, protocol) == 96, "as in layout.rs");
static_assert(CCL_OFFSET(GroupedCall, blocks) == 100 && CCL_OFFSET(GroupedCall, next) == 104, "as in layout.rs");
static_assert(sizeof(GroupArgs) == 16 && CCL_OFFSET(GroupArgs, each) == 8, "as in layout.rs");
static_assert(sizeof(DeviceComm) == 128 && CCL_OFFSET(DeviceComm, edges) == 8, "as in layout.rs");
static_assert(CCL_OFFSET(DeviceComm, channels) == 24 && CCL_OFFSET(DeviceComm, abort) == 32, "as in layout.rs");
static_assert(CCL_OFFSET(DeviceComm, barriers) == 48 && CCL_OFFSET(DeviceComm, served) == 72, "as in layout.rs");
static_assert(CCL_OFFSET(DeviceComm, window) == 80 && CCL_OFFSET(DeviceComm, shared_stride_bytes) == 100, "as in layout.rs");
static_assert(sizeof(DevicePlan) == 56 && CCL_OFFSET(DevicePlan, program_bytes) == 24, "as in layout.rs");
static_assert(CCL_OFFSET(DevicePlan, scratch_cells) == 36 && CCL_OFFSET(DevicePlan, output_shape) == 44, "as in layout.rs");
static_assert(CCL_OFFSET(DevicePlan, shared) == 48, "as in layout.rs");
static_assert(sizeof(DeviceEdge) == 128 && CCL_OFFSET(DeviceEdge, lent) == 32, "as in layout.rs");
static_assert(CCL_OFFSET(DeviceEdge, done) == 48 && CCL_OFFSET(DeviceEdge, lending) == 64, "as in layout.rs");
static_assert(CCL_OFFSET(DeviceEdge, slot_bytes) == 72 && CCL_OFFSET(DeviceEdge, protocol) == 84, "as in layout.rs");
static_assert(CCL_OFFSET(DeviceEdge, direction) == 100 && CCL_OFFSET(DeviceEdge, others) == 104, "as in layout.rs");
static_assert(CCL_OFFSET(DeviceEdge, shared) == 112, "as in layout.rs");
static_assert(sizeof(SharedSlots) == 16 && CCL_OFFSET(SharedSlots, sent) == 8, "as in layout.rs");
static_assert(sizeof(SharedReader) == 16 && CCL_OFFSET(SharedReader, until) == 8, "as in layout.rs");
static_assert(sizeof(LaneBarrier) == 8 && CCL_OFFSET(LaneBarrier, met) == 4, "as in layout.rs");
static_assert(sizeof(DeviceError) == 48 && CCL_OFFSET(DeviceError, peer) == 12, "as in layout.rs");
static_assert(CCL_OFFSET(DeviceError, edge) == 24 && CCL_OFFSET(DeviceError, expected) == 32, "as in layout.rs");
static_assert(sizeof(ProgramHeader) == 32 && CCL_OFFSET(ProgramHeader, lanes) == 12, "as in docs/plan-isa.md");
static_assert(sizeof(ProgramLane) == 8 && CCL_OFFSET(ProgramLane, shares) == 5, "as in docs/plan-isa.md");
static_assert(sizeof(ProgramSum) == 16 && CCL_OFFSET(ProgramSum, of_vars) == 6, "as in docs/plan-isa.md");
static_assert(sizeof(ProgramExpr) == 16 && CCL_OFFSET(ProgramExpr, a) == 2, "as in docs/plan-isa.md");
static_assert(CCL_OFFSET(ProgramSum, constant) == 12 && CCL_OFFSET(ProgramExpr, constant) == 8, "as in docs/plan-isa.md");
static_assert(sizeof(ProgramOperand) == 16 && CCL_OFFSET(ProgramOperand, expr) == 2, "as in docs/plan-isa.md");
static_assert(sizeof(ProgramMove) == 32 && CCL_OFFSET(ProgramMove, extent) == 12, "as in docs/plan-isa.md");
static_assert(CCL_OFFSET(ProgramMove, index) == 14 && CCL_OFFSET(ProgramMove, run) == 20, "as in docs/plan-isa.md");
static_assert(sizeof(ProgramLoop) == 32 && CCL_OFFSET(ProgramLoop, to) == 12, "as in docs/plan-isa.md");
static_assert(sizeof(ProgramMeeting) == INSTRUCTION_BYTES, "as in docs/plan-isa.md");
