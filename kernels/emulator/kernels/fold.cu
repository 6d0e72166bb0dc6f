// The folds of reduce.h for tests, and a kernel that does nothing but fold.

#include "reduce.h"

struct FoldArgs {
    Vec16* out;
    const Vec16* a;
    const Vec16* b;
    u64 count;
};

// 16 bytes for each thread in turn.
CCL_KERNEL(toy_fold_f32_sum, FoldArgs, 1024) {
    const Finish none = {0, 0, 0};
    u64 threads = ccl_threads() * ccl_blocks();
    for (u64 i = ccl_block() * ccl_threads() + ccl_thread(); i < args.count; i += threads) {
        Vec16 inputs[4] = {ld16(args.a + i), ld16(args.b + i), {0, 0}, {0, 0}};
        st16(args.out + i, fold16<dtype_f32, op_sum>(inputs, 2, none));
    }
}

namespace {

struct Call {
    u32 scaled;
    u32 n;
    double scalar;
    const u8* const* inputs;
    u32 input_count;
    u8* out;
    u64 bytes;
};

// Whole 16 bytes as such, the rest element by element; or all element by element.
template <class D, class Op>
void fold_all(const Call& call, bool by_element) {
    typedef typename D::Bits Bits;
    const Finish finish = {call.scaled, call.n, D::from_scalar(bits_of(call.scalar))};
    u64 at = 0;
    for (; !by_element && at + 16 <= call.bytes; at += 16) {
        Vec16 inputs[4] = {};
        for (u32 i = 0; i < call.input_count; ++i) memcpy(&inputs[i], call.inputs[i] + at, 16);
        Vec16 folded = fold16<D, Op>(inputs, call.input_count, finish);
        memcpy(call.out + at, &folded, 16);
    }
    for (; at < call.bytes; at += sizeof(Bits)) {
        Bits inputs[4] = {};
        for (u32 i = 0; i < call.input_count; ++i) memcpy(&inputs[i], call.inputs[i] + at, sizeof(Bits));
        Bits folded = fold<D, Op>(inputs, call.input_count, finish);
        memcpy(call.out + at, &folded, sizeof(Bits));
    }
}

template <class D>
bool fold_by(u32 op, const Call& call, bool by_element) {
    switch (op) {
        case 0: fold_all<D, op_sum>(call, by_element); return true;
        case 1: fold_all<D, op_prod>(call, by_element); return true;
        case 2: fold_all<D, op_max>(call, by_element); return true;
        case 3: fold_all<D, op_min>(call, by_element); return true;
        default: return false;
    }
}

}  // namespace

// dtype and op are the discriminants of ccl_plan's. Whether both are known.
extern "C" bool ccl_emu_fold(u32 dtype, u32 op, const Call* call, bool by_element) {
    switch (dtype) {
        case 0: return fold_by<dtype_i8>(op, *call, by_element);
        case 1: return fold_by<dtype_u8>(op, *call, by_element);
        case 2: return fold_by<dtype_i32>(op, *call, by_element);
        case 3: return fold_by<dtype_u32>(op, *call, by_element);
        case 4: return fold_by<dtype_i64>(op, *call, by_element);
        case 5: return fold_by<dtype_u64>(op, *call, by_element);
        case 6: return fold_by<dtype_f16>(op, *call, by_element);
        case 7: return fold_by<dtype_f32>(op, *call, by_element);
        case 8: return fold_by<dtype_f64>(op, *call, by_element);
        case 9: return fold_by<dtype_bf16>(op, *call, by_element);
        case 10: return fold_by<dtype_f8e4m3>(op, *call, by_element);
        case 11: return fold_by<dtype_f8e5m2>(op, *call, by_element);
        default: return false;
    }
}
