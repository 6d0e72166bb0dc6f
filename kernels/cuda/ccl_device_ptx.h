// The dialect on devices, in PTX. Included by ccl_device.h.
#pragma once

#if defined(__clang__) && !defined(__device__)
#define __device__ __attribute__((device))
#define __global__ __attribute__((global))
#define __shared__ __attribute__((shared))
#define __forceinline__ __inline__ __attribute__((always_inline))
#define __launch_bounds__(threads) __attribute__((launch_bounds(threads)))
#define CCL_ARGS(Args) const Args args
#else
#define CCL_ARGS(Args) const __grid_constant__ Args args
#endif

#define CCL_INLINE static __device__ __forceinline__
// What has one caller costs nothing inlined, and a call would: whoever calls while it is called itself saves registers.
#define CCL_ONCE static __device__ __forceinline__
#define CCL_LEAF static __device__ __noinline__
#define CCL_MEMBER __device__ __forceinline__
#define CCL_UNROLL _Pragma("unroll")
#define CCL_ROLLED _Pragma("unroll 1")
#define CCL_KERNEL(name, Args, most_threads) \
    extern "C" __global__ void __launch_bounds__(most_threads, 1) name(CCL_ARGS(Args))
#define CCL_SHARED(T, name) T* name = reinterpret_cast<T*>(ccl_shared_memory)
#define CCL_PLANT(number) false
#define CCL_ASSERT(condition) static_cast<void>(0)

extern __shared__ __attribute__((aligned(128))) unsigned char ccl_shared_memory[];

// Threads and blocks.

#define CCL_REGISTER(name, special)                       \
    CCL_INLINE u32 name() {                               \
        u32 value;                                        \
        asm("mov.u32 %0, " special ";" : "=r"(value));    \
        return value;                                     \
    }

CCL_REGISTER(ccl_thread, "%%tid.x")
CCL_REGISTER(ccl_threads, "%%ntid.x")
CCL_REGISTER(ccl_block, "%%ctaid.x")
CCL_REGISTER(ccl_blocks, "%%nctaid.x")

CCL_INLINE u32 ccl_lane() { return ccl_thread() % CCL_WARP; }
CCL_INLINE u32 ccl_warp() { return ccl_thread() / CCL_WARP; }

// Barriers.

CCL_INLINE void ccl_sync() { asm volatile("bar.sync 0;" ::: "memory"); }

CCL_INLINE bool ccl_sync_or(bool mine) {
    u32 any;
    asm volatile(
        "{.reg .pred p, q; setp.ne.u32 p, %1, 0; bar.red.or.pred q, 0, p; selp.u32 %0, 1, 0, q;}"
        : "=r"(any)
        : "r"(static_cast<u32>(mine))
        : "memory");
    return any != 0;
}

CCL_INLINE void ccl_sync_part(u32 id, u32 threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

CCL_INLINE void ccl_sync_warp(u32 lanes = CCL_ALL_LANES) { asm volatile("bar.warp.sync %0;" ::"r"(lanes) : "memory"); }

// Functions of a warp.

#define CCL_SHUFFLE(name, mode, clamp)                                                      \
    CCL_INLINE u32 name(u32 value, u32 lane) {                                              \
        u32 result;                                                                         \
        asm volatile("shfl.sync." mode ".b32 %0, %1, %2, " clamp ", 0xffffffff;"            \
                     : "=r"(result)                                                         \
                     : "r"(value), "r"(lane));                                              \
        return result;                                                                      \
    }                                                                                       \
    CCL_INLINE u64 name(u64 value, u32 lane) {                                              \
        u32 low = name(static_cast<u32>(value), lane);                                      \
        u32 high = name(static_cast<u32>(value >> 32), lane);                               \
        return static_cast<u64>(high) << 32 | low;                                          \
    }

CCL_SHUFFLE(ccl_shfl, "idx", "31")
CCL_SHUFFLE(ccl_shfl_xor, "bfly", "31")
CCL_SHUFFLE(ccl_shfl_down, "down", "31")
CCL_SHUFFLE(ccl_shfl_up, "up", "0")

CCL_INLINE u32 ccl_ballot(bool mine) {
    u32 lanes;
    asm volatile("{.reg .pred p; setp.ne.u32 p, %1, 0; vote.sync.ballot.b32 %0, p, 0xffffffff;}"
                 : "=r"(lanes)
                 : "r"(static_cast<u32>(mine)));
    return lanes;
}

CCL_INLINE bool ccl_any(bool mine) { return ccl_ballot(mine) != 0; }
CCL_INLINE bool ccl_all(bool mine) { return ccl_ballot(mine) == CCL_ALL_LANES; }

// Words that others write or read.

#define CCL_LOAD(name, instruction)                                                                  \
    CCL_INLINE u32 name(const u32* from) {                                                           \
        u32 value;                                                                                   \
        asm volatile(instruction ".u32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");             \
        return value;                                                                                \
    }                                                                                                \
    CCL_INLINE u64 name(const u64* from) {                                                           \
        u64 value;                                                                                   \
        asm volatile(instruction ".u64 %0, [%1];" : "=l"(value) : "l"(from) : "memory");             \
        return value;                                                                                \
    }

#define CCL_STORE(name, instruction)                                                                 \
    CCL_INLINE void name(u32* to, u32 value) {                                                       \
        asm volatile(instruction ".u32 [%0], %1;" ::"l"(to), "r"(value) : "memory");                 \
    }                                                                                                \
    CCL_INLINE void name(u64* to, u64 value) {                                                       \
        asm volatile(instruction ".u64 [%0], %1;" ::"l"(to), "l"(value) : "memory");                 \
    }

#define CCL_ATOMIC(name, instruction)                                                                \
    CCL_INLINE u32 name(u32* at, u32 value) {                                                        \
        u32 before;                                                                                  \
        asm volatile(instruction "32 %0, [%1], %2;" : "=r"(before) : "l"(at), "r"(value) : "memory"); \
        return before;                                                                               \
    }                                                                                                \
    CCL_INLINE u64 name(u64* at, u64 value) {                                                        \
        u64 before;                                                                                  \
        asm volatile(instruction "64 %0, [%1], %2;" : "=l"(before) : "l"(at), "l"(value) : "memory"); \
        return before;                                                                               \
    }

CCL_LOAD(ld_acquire_sys, "ld.acquire.sys")
CCL_LOAD(ld_relaxed_sys, "ld.relaxed.sys")
CCL_LOAD(ld_acquire_gpu, "ld.acquire.gpu")
CCL_LOAD(ld_relaxed_gpu, "ld.relaxed.gpu")
CCL_LOAD(ld_volatile, "ld.volatile")
CCL_STORE(st_release_sys, "st.release.sys")
CCL_STORE(st_relaxed_sys, "st.relaxed.sys")
CCL_STORE(st_release_gpu, "st.release.gpu")
CCL_STORE(st_relaxed_gpu, "st.relaxed.gpu")
CCL_STORE(st_volatile, "st.volatile")
CCL_ATOMIC(atomic_add_relaxed_gpu, "atom.relaxed.gpu.add.u")
CCL_ATOMIC(atomic_add_acq_rel_gpu, "atom.acq_rel.gpu.add.u")
CCL_ATOMIC(atomic_add_relaxed_sys, "atom.relaxed.sys.add.u")
CCL_ATOMIC(atomic_add_acq_rel_sys, "atom.acq_rel.sys.add.u")
CCL_ATOMIC(atomic_exch_acq_rel_sys, "atom.acq_rel.sys.exch.b")

CCL_INLINE u32 atomic_cas_acq_rel_sys(u32* at, u32 expected, u32 wanted) {
    u32 before;
    asm volatile("atom.acq_rel.sys.cas.b32 %0, [%1], %2, %3;"
                 : "=r"(before)
                 : "l"(at), "r"(expected), "r"(wanted)
                 : "memory");
    return before;
}

CCL_INLINE u64 atomic_cas_acq_rel_sys(u64* at, u64 expected, u64 wanted) {
    u64 before;
    asm volatile("atom.acq_rel.sys.cas.b64 %0, [%1], %2, %3;"
                 : "=l"(before)
                 : "l"(at), "l"(expected), "l"(wanted)
                 : "memory");
    return before;
}

CCL_INLINE void fence_sys() { asm volatile("fence.acq_rel.sys;" ::: "memory"); }
CCL_INLINE void fence_gpu() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }
CCL_INLINE void fence_block() { asm volatile("fence.acq_rel.cta;" ::: "memory"); }

// Lines.

CCL_INLINE LlLine ld_ll(const LlLine* from) {
    LlLine line;
    asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(line.data0), "=r"(line.flag0), "=r"(line.data1), "=r"(line.flag1)
                 : "l"(from)
                 : "memory");
    return line;
}

CCL_INLINE void st_ll(LlLine* to, u32 data0, u32 data1, u32 flag) {
    asm volatile("st.volatile.global.v4.u32 [%0], {%1, %2, %3, %2};" ::"l"(to), "r"(data0), "r"(flag), "r"(data1)
                 : "memory");
}

// One instruction moves a line whole only if its lanes are at it together, so they meet first. In one piece of PTX, nothing
// comes between.

CCL_INLINE Vec16 ld_ll128(const Vec16* from) {
    Vec16 part = {0, 0};
    asm volatile(
        "{.reg .pred p; setp.ne.u64 p, %2, 0; bar.warp.sync 0xffffffff; @p ld.volatile.global.v2.u64 {%0, %1}, [%2];}"
        : "+l"(part.low), "+l"(part.high)
        : "l"(from)
        : "memory");
    return part;
}

CCL_INLINE void st_ll128(Vec16* to, Vec16 part) {
    asm volatile("{.reg .pred p; setp.ne.u64 p, %0, 0; bar.warp.sync 0xffffffff; @p st.volatile.global.v2.u64 [%0], {%1, %2};}"
                 ::"l"(to), "l"(part.low), "l"(part.high)
                 : "memory");
}

// Data.

CCL_INLINE Vec16 ld16(const void* from) {
    Vec16 part;
    asm volatile("ld.global.v2.u64 {%0, %1}, [%2];" : "=l"(part.low), "=l"(part.high) : "l"(from) : "memory");
    return part;
}

CCL_INLINE void st16(void* to, Vec16 part) {
    asm volatile("st.global.v2.u64 [%0], {%1, %2};" ::"l"(to), "l"(part.low), "l"(part.high) : "memory");
}

CCL_INLINE Vec16 ld16_stream(const void* from) {
    Vec16 part;
    asm volatile("ld.global.L1::no_allocate.v2.u64 {%0, %1}, [%2];"
                 : "=l"(part.low), "=l"(part.high)
                 : "l"(from)
                 : "memory");
    return part;
}

CCL_INLINE void st16_stream(void* to, Vec16 part) {
    asm volatile("st.global.L1::no_allocate.v2.u64 [%0], {%1, %2};" ::"l"(to), "l"(part.low), "l"(part.high)
                 : "memory");
}

template <class T>
CCL_INLINE T ld_plain(const void* from) {
    return *static_cast<const T*>(from);
}

template <class T>
CCL_INLINE void st_plain(void* to, T value) {
    *static_cast<T*>(to) = value;
}

// Multicast memory: devices before sm_90 have none, so nobody hands them such addresses.

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
CCL_INLINE void st16_all(void* to, Vec16 part) {
    asm volatile("multimem.st.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(static_cast<u32>(part.low)),
                 "r"(static_cast<u32>(part.low >> 32)), "r"(static_cast<u32>(part.high)),
                 "r"(static_cast<u32>(part.high >> 32))
                 : "memory");
}

CCL_INLINE void st8_all(void* to, u64 word) {
    asm volatile("multimem.st.global.u64 [%0], %1;" ::"l"(to), "l"(word) : "memory");
}

CCL_INLINE void fence_all() { asm volatile("fence.proxy.alias;" ::: "memory"); }
#else
CCL_INLINE void st16_all(void* to, Vec16 part) { st16(to, part); }
CCL_INLINE void st8_all(void* to, u64 word) { *static_cast<u64*>(to) = word; }
CCL_INLINE void fence_all() {}
#endif

// Waiting.

CCL_INLINE void ccl_spin_hint(const volatile void*) {}

CCL_INLINE u64 ccl_timer_ns() {
    u64 now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    return now;
}

CCL_INLINE void ccl_trap() { asm volatile("trap;"); }
