// The kernels there are, as one list: the translation units of the fatbin, the emulator's table and the names that Rust
// asks for are all made from it.
//
//     CCL_INTERPRET_VARIANTS(X)        X(dtype, op, protocol)   the interpreter, ccl_interpret_{dtype}_{op}_{protocol}
//     CCL_SPECIAL_VARIANTS(X, shape)   X(shape, dtype, op)      a special kernel, ccl_{shape}_{dtype}_{op}
//
// dtypes are the variants of ccl_plan::Dtype in lower case, with its discriminants in CCL_DTYPES; average and
// pre-multiplied sum are sum with a finish. A program that folds nothing moves bytes, by X(bytes, copy, protocol).
//
// A translation unit may hold a part: -DCCL_ONLY_DTYPE=f32 leaves all of one dtype, with -DCCL_ONLY_OP=sum all of one
// operation, with -DCCL_ONLY_PROTOCOL=ll one kernel. The part that moves bytes is -DCCL_ONLY_DTYPE=bytes
// -DCCL_ONLY_OP=copy.
#pragma once

// X(dtype, discriminant of ccl_plan::Dtype)
#define CCL_DTYPES(X) \
    X(i8, 0)          \
    X(u8, 1)          \
    X(i32, 2)         \
    X(u32, 3)         \
    X(i64, 4)         \
    X(u64, 5)         \
    X(f16, 6)         \
    X(f32, 7)         \
    X(f64, 8)         \
    X(bf16, 9)        \
    X(f8e4m3, 10)     \
    X(f8e5m2, 11)

// All of one dtype and operation; all of one dtype; all.
#define CCL_EACH_PROTOCOL(X, dtype, op) X(dtype, op, simple) X(dtype, op, ll) X(dtype, op, ll128)
#define CCL_EACH_OP(X, dtype)          \
    CCL_EACH_PROTOCOL(X, dtype, sum)   \
    CCL_EACH_PROTOCOL(X, dtype, prod)  \
    CCL_EACH_PROTOCOL(X, dtype, min)   \
    CCL_EACH_PROTOCOL(X, dtype, max)
#define CCL_EACH_DTYPE(X)                                                                           \
    CCL_EACH_PROTOCOL(X, bytes, copy)                                                               \
    CCL_EACH_OP(X, i8) CCL_EACH_OP(X, u8) CCL_EACH_OP(X, i32) CCL_EACH_OP(X, u32)                   \
    CCL_EACH_OP(X, i64) CCL_EACH_OP(X, u64) CCL_EACH_OP(X, f16) CCL_EACH_OP(X, f32)                 \
    CCL_EACH_OP(X, f64) CCL_EACH_OP(X, bf16) CCL_EACH_OP(X, f8e4m3) CCL_EACH_OP(X, f8e5m2)

// The same without protocols.
#define CCL_SPECIAL_EACH_OP(X, shape, dtype) \
    X(shape, dtype, sum) X(shape, dtype, prod) X(shape, dtype, min) X(shape, dtype, max)
#define CCL_SPECIAL_EACH_DTYPE(X, shape)                                                                        \
    CCL_SPECIAL_EACH_OP(X, shape, i8) CCL_SPECIAL_EACH_OP(X, shape, u8) CCL_SPECIAL_EACH_OP(X, shape, i32)      \
    CCL_SPECIAL_EACH_OP(X, shape, u32) CCL_SPECIAL_EACH_OP(X, shape, i64) CCL_SPECIAL_EACH_OP(X, shape, u64)    \
    CCL_SPECIAL_EACH_OP(X, shape, f16) CCL_SPECIAL_EACH_OP(X, shape, f32) CCL_SPECIAL_EACH_OP(X, shape, f64)    \
    CCL_SPECIAL_EACH_OP(X, shape, bf16) CCL_SPECIAL_EACH_OP(X, shape, f8e4m3)                                   \
    CCL_SPECIAL_EACH_OP(X, shape, f8e5m2)

// One more expansion, so that X may paste what CCL_ONLY_... stand for.
#define CCL_APPLY(X, first, second, third) X(first, second, third)

#if !defined(CCL_ONLY_DTYPE)
#define CCL_INTERPRET_VARIANTS(X) CCL_EACH_DTYPE(X)
#define CCL_SPECIAL_VARIANTS(X, shape) CCL_SPECIAL_EACH_DTYPE(X, shape)
#elif !defined(CCL_ONLY_OP)
#define CCL_INTERPRET_VARIANTS(X) CCL_EACH_OP(X, CCL_ONLY_DTYPE)
#define CCL_SPECIAL_VARIANTS(X, shape) CCL_SPECIAL_EACH_OP(X, shape, CCL_ONLY_DTYPE)
#elif !defined(CCL_ONLY_PROTOCOL)
#define CCL_INTERPRET_VARIANTS(X) CCL_EACH_PROTOCOL(X, CCL_ONLY_DTYPE, CCL_ONLY_OP)
#define CCL_SPECIAL_VARIANTS(X, shape) CCL_APPLY(X, shape, CCL_ONLY_DTYPE, CCL_ONLY_OP)
#else
#define CCL_INTERPRET_VARIANTS(X) CCL_APPLY(X, CCL_ONLY_DTYPE, CCL_ONLY_OP, CCL_ONLY_PROTOCOL)
#define CCL_SPECIAL_VARIANTS(X, shape) CCL_APPLY(X, shape, CCL_ONLY_DTYPE, CCL_ONLY_OP)
#endif
