// The dialect of the kernels. A kernel includes this and headers beside it, nothing else, so that one text compiles
// under nvcc, NVRTC (no include path), clang (no CUDA headers) and, with -DCCL_EMU, as C++ for the emulator.
//
// Rules
//
// 1. Memory that another thread may write or read at the same time is accessed through the functions declared here.
//    In emulation each of them is a point where another thread may run; plain accesses are not.
// 2. A loop that waits for such memory calls ccl_spin_hint(address) in every turn, and looks at an abort flag.
// 3. Shared memory is dynamic: CCL_SHARED. Threads of a block see it as after ccl_sync(), or ld_volatile/st_volatile.
// 4. A kernel takes one struct by value: CCL_KERNEL(name, Args, most_threads) { ... args.field ... }.
// 5. All threads of a block reach every ccl_sync() of the same line; all lanes named take part in a function of a warp.
//    A thread that returns reaches no barrier any more: return all together.
// 6. Data of users and payload of slots goes through ld16, st16, ld_plain and st_plain: the emulator can delay such
//    stores until a fence or release, and can check their addresses.
//
// What stores mean
//
// Plain stores (st16, st_plain) may become visible to other blocks and devices in any order and at any time until
// this thread, or one that meets it at a barrier afterwards, executes fence_sys() or a release. A release (st_release_*,
// atomic_*_acq_rel_*) is the fence and then a store. Strong stores (st_relaxed_*, st_volatile, st_ll, st_ll128) reach
// memory at once but may overtake plain stores before them.
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef signed char i8;
typedef short i16;
typedef int i32;
typedef long long i64;

// Threads of a warp.
#define CCL_WARP 32

// All lanes of a warp.
#define CCL_ALL_LANES 0xffffffffu

// 16 bytes: what one thread moves at a time.
struct alignas(16) Vec16 {
    u64 low;
    u64 high;
};

// A line of the protocol ll: two words of data, each with the flag beside it. A reader may see either half, 8 bytes,
// before the other; flag and data of one half are seen together.
struct alignas(16) LlLine {
    u32 data0;
    u32 flag0;
    u32 data1;
    u32 flag1;
};

static_assert(sizeof(Vec16) == 16 && sizeof(LlLine) == 16, "lines are 16 bytes");

#if defined(CCL_EMU)
#include "ccl_device_emu.h"
#else
#include "ccl_device_ptx.h"
#endif

// Declared by both forms:
//
// CCL_KERNEL(name, Args, most_threads)  begins a kernel; its body sees `args`
// CCL_INLINE                            begins a function of kernels, inlined
// CCL_ONCE                              begins a function of kernels with one caller; inlined on devices
// CCL_LEAF                              begins a function of kernels that is called and calls no other, so that nothing
//                                       has to be saved: `kernels/tests/gates` sees to it
// CCL_MEMBER                            begins a function of an object
// CCL_UNROLL                            before a loop of constant length
// CCL_ROLLED                            before a loop that is to stay one
// CCL_SHARED(T, name)                   T* name: the block's dynamic shared memory, aligned to 128 bytes
// CCL_PLANT(number)                     whether a planted bug is wanted: never on a device
// CCL_ASSERT(condition)                 checked in emulation, where its failure ends the run with a report
//
// u32 ccl_thread(), ccl_threads()       index in, and size of, the block; one dimension
// u32 ccl_block(), ccl_blocks()         index in, and size of, the grid
// u32 ccl_lane(), ccl_warp()            thread % 32, thread / 32
//
// void ccl_sync()                       a barrier of the block; orders memory between its threads
// bool ccl_sync_or(bool)                the same, and whether any thread said true
// void ccl_sync_part(id, threads)       a barrier of `threads` threads (whole warps), id 1 to 15
// void ccl_sync_warp(lanes)             a barrier of lanes of a warp; orders memory between them
// T ccl_shfl(T, lane), ccl_shfl_xor(T, mask), ccl_shfl_down(T, lanes), ccl_shfl_up(T, lanes)
//                                       u32 or u64 of another lane; all lanes of the warp take part. Beyond the end of
//                                       the warp the own value
// u32 ccl_ballot(bool), bool ccl_any(bool), ccl_all(bool)
//                                       all lanes of the warp take part; they order no memory
//
// T ld_acquire_sys, ld_relaxed_sys, ld_acquire_gpu, ld_relaxed_gpu, ld_volatile(const T*)      u32 or u64
// void st_release_sys, st_relaxed_sys, st_release_gpu, st_relaxed_gpu, st_volatile(T*, T)
// void fence_sys(), fence_gpu(), fence_block()
// T atomic_add_relaxed_gpu, atomic_add_acq_rel_gpu, atomic_add_relaxed_sys, atomic_add_acq_rel_sys(T*, T)
// T atomic_cas_acq_rel_sys(T*, expected, wanted), atomic_exch_acq_rel_sys(T*, T)               the value before
//
// LlLine ld_ll(const LlLine*)           16 bytes, aligned
// void st_ll(LlLine*, data0, data1, flag)
// Vec16 ld_ll128(const Vec16*), void st_ll128(Vec16*, Vec16)
//                                       all lanes of the warp take part; 8 lanes that start at a multiple of 8 have
//                                       the 8 parts of one line of 128 bytes, aligned, in order, or all null (they do
//                                       nothing; what they load is 0). A line stored so is seen whole or not at all by
//                                       a load of the same form: true within a device, over NVLink, and in host memory
//                                       of processors that are known to keep it; not over PCIe in general
//
// Vec16 ld16(const void*), void st16(void*, Vec16)                   plain, aligned to 16 bytes
// Vec16 ld16_stream(const void*), void st16_stream(void*, Vec16)     the same, not to be kept in caches
// T ld_plain<T>(const void*), void st_plain<T>(void*, T)             plain, a T of 1 to 8 bytes, aligned to its size
//
// void st16_all(void*, Vec16), void st8_all(void*, u64)
//                                       plain stores at an address of multicast memory, aligned: every member's copy gets
//                                       them, each in its own time. Nothing else may be done at such an address
// void fence_all()                      between such stores and accesses of a copy at an address of its own, somewhere on
//                                       the way from one to the other, in either direction; beside what orders them
//
// void ccl_spin_hint(const volatile void*)   the caller waits until what is there changes; null: it
//                                       waits with other lanes, who have an address
// u64 ccl_timer_ns()                         a clock of the device; in emulation it counts what runs
// void ccl_trap()                            ends the kernel with an error
