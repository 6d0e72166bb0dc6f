// The dialect in emulation, in C++. Included by ccl_device.h. Threads are fibers of one system thread; whatever is not
// an access of memory is asked of the emulator through a table of functions.
#pragma once

#include <string.h>

struct CclEmuThread;

// What the emulator does for a fiber. Mirrored in kernels/emulator/src/dialect.rs.
struct CclEmuHost {
    void (*point)(CclEmuThread*);
    void (*spin)(CclEmuThread*, const volatile void* at);
    u32 (*sync)(CclEmuThread*, u32 id, u32 threads, u32 vote, u32 line);
    u64 (*warp)(CclEmuThread*, u32 function, u32 lanes, u64 value, u32 argument, u32 line);
    void (*line)(CclEmuThread*, u32 is_store, void* at, Vec16* part, u32 line);
    void (*load)(CclEmuThread*, const void* from, void* to, u32 bytes);
    void (*store)(CclEmuThread*, void* to, const void* from, u32 bytes);
    void (*store_all)(CclEmuThread*, void* to, const void* from, u32 bytes);
    void (*strong)(CclEmuThread*, const void* at, u32 bytes, u32 writes);
    void (*fence)(CclEmuThread*);
    u64 (*timer)(CclEmuThread*);
    void (*stop)(CclEmuThread*, const char* why, u32 line);
};

// What a fiber sees of itself. Mirrored in kernels/emulator/src/dialect.rs.
struct CclEmuThread {
    const CclEmuHost* host;
    unsigned char* shared;
    u32 thread;
    u32 threads;
    u32 block;
    u32 blocks;
    u32 plant;
    u32 watched;      // whether plain accesses go through the host: delayed, checked
    i32 fuel;         // points until another fiber runs
    i32 plain_fuel;   // plain accesses until another fiber runs
    u64 stores;       // strong and plain stores, by which progress is told from waiting
};

struct CclEmuKernel {
    const char* name;
    void (*entry)(const void* args);
    u32 args_bytes;
    u32 most_threads;
    CclEmuKernel* next;
};

extern "C" __thread CclEmuThread* ccl_emu_current;
extern "C" void ccl_emu_register(CclEmuKernel*);

#define CCL_INLINE static inline __attribute__((always_inline))
#define CCL_ONCE static inline
#define CCL_LEAF static inline
#define CCL_MEMBER inline __attribute__((always_inline))
#define CCL_UNROLL
#define CCL_ROLLED
#define CCL_KERNEL(name, Args, most_threads)                                                                     \
    static void name##_body(const Args& args);                                                                   \
    static void name##_entry(const void* bytes) { name##_body(*static_cast<const Args*>(bytes)); }               \
    static CclEmuKernel name##_kernel = {#name, &name##_entry, static_cast<u32>(sizeof(Args)), most_threads, nullptr}; \
    __attribute__((constructor)) static void name##_register() { ccl_emu_register(&name##_kernel); }             \
    static void name##_body([[maybe_unused]] const Args& args)
#define CCL_SHARED(T, name) T* name = reinterpret_cast<T*>(ccl_emu_current->shared)
#define CCL_PLANT(number) (ccl_emu_current->plant == (number))
#define CCL_ASSERT(condition) \
    ((condition) ? static_cast<void>(0) : ccl_emu_current->host->stop(ccl_emu_current, #condition, __LINE__))

// Threads and blocks.

CCL_INLINE u32 ccl_thread() { return ccl_emu_current->thread; }
CCL_INLINE u32 ccl_threads() { return ccl_emu_current->threads; }
CCL_INLINE u32 ccl_block() { return ccl_emu_current->block; }
CCL_INLINE u32 ccl_blocks() { return ccl_emu_current->blocks; }
CCL_INLINE u32 ccl_lane() { return ccl_thread() % CCL_WARP; }
CCL_INLINE u32 ccl_warp() { return ccl_thread() / CCL_WARP; }

// Barriers. The line they stand in is compared between threads.

CCL_INLINE void ccl_sync(u32 line = __builtin_LINE()) {
    CclEmuThread* self = ccl_emu_current;
    self->host->sync(self, 0, self->threads, 0, line);
}

CCL_INLINE bool ccl_sync_or(bool mine, u32 line = __builtin_LINE()) {
    CclEmuThread* self = ccl_emu_current;
    return self->host->sync(self, 0, self->threads, mine, line) != 0;
}

CCL_INLINE void ccl_sync_part(u32 id, u32 threads, u32 line = __builtin_LINE()) {
    CclEmuThread* self = ccl_emu_current;
    self->host->sync(self, id, threads, 0, line);
}

// Functions of a warp.

enum CclEmuWarpFunction : u32 {
    CCL_EMU_SYNC = 0,
    CCL_EMU_SHFL = 1,
    CCL_EMU_SHFL_XOR = 2,
    CCL_EMU_SHFL_DOWN = 3,
    CCL_EMU_SHFL_UP = 4,
    CCL_EMU_BALLOT = 5,
    CCL_EMU_ALL = 6,
};

CCL_INLINE u64 ccl_emu_warp(u32 function, u64 value, u32 argument, u32 line) {
    CclEmuThread* self = ccl_emu_current;
    return self->host->warp(self, function, CCL_ALL_LANES, value, argument, line);
}

CCL_INLINE void ccl_sync_warp(u32 lanes = CCL_ALL_LANES, u32 line = __builtin_LINE()) {
    CclEmuThread* self = ccl_emu_current;
    self->host->warp(self, CCL_EMU_SYNC, lanes, 0, 0, line);
}

#define CCL_SHUFFLE(name, function)                                                        \
    CCL_INLINE u32 name(u32 value, u32 lane, u32 line = __builtin_LINE()) {                \
        return static_cast<u32>(ccl_emu_warp(function, value, lane, line));                \
    }                                                                                      \
    CCL_INLINE u64 name(u64 value, u32 lane, u32 line = __builtin_LINE()) {                \
        return ccl_emu_warp(function, value, lane, line);                                  \
    }

CCL_SHUFFLE(ccl_shfl, CCL_EMU_SHFL)
CCL_SHUFFLE(ccl_shfl_xor, CCL_EMU_SHFL_XOR)
CCL_SHUFFLE(ccl_shfl_down, CCL_EMU_SHFL_DOWN)
CCL_SHUFFLE(ccl_shfl_up, CCL_EMU_SHFL_UP)

CCL_INLINE u32 ccl_ballot(bool mine, u32 line = __builtin_LINE()) {
    return static_cast<u32>(ccl_emu_warp(CCL_EMU_BALLOT, mine, 0, line));
}

CCL_INLINE bool ccl_any(bool mine, u32 line = __builtin_LINE()) {
    return ccl_emu_warp(CCL_EMU_BALLOT, mine, 0, line) != 0;
}

CCL_INLINE bool ccl_all(bool mine, u32 line = __builtin_LINE()) {
    return ccl_emu_warp(CCL_EMU_ALL, mine, 0, line) != 0;
}

// Where another fiber may run.

CCL_INLINE CclEmuThread* ccl_emu_point() {
    CclEmuThread* self = ccl_emu_current;
    if (--self->fuel < 0) self->host->point(self);
    return self;
}

CCL_INLINE CclEmuThread* ccl_emu_plain_point() {
    CclEmuThread* self = ccl_emu_current;
    if (--self->plain_fuel < 0) self->host->point(self);
    return self;
}

CCL_INLINE void ccl_emu_before(const void* at, u32 bytes, u32 writes) {
    CclEmuThread* self = ccl_emu_point();
    self->stores += writes;
    if (self->watched) self->host->strong(self, at, bytes, writes);
}

CCL_INLINE void ccl_emu_fence() {
    CclEmuThread* self = ccl_emu_current;
    if (self->watched) self->host->fence(self);
}

// Words that others write or read.

template <class T>
CCL_INLINE T ccl_emu_load_word(const T* from) {
    ccl_emu_before(from, sizeof(T), 0);
    return __atomic_load_n(from, __ATOMIC_ACQUIRE);
}

template <class T>
CCL_INLINE void ccl_emu_store_word(T* to, T value) {
    ccl_emu_before(to, sizeof(T), 1);
    __atomic_store_n(to, value, __ATOMIC_RELEASE);
}

#define CCL_LOAD(name)                                                   \
    CCL_INLINE u32 name(const u32* from) { return ccl_emu_load_word(from); } \
    CCL_INLINE u64 name(const u64* from) { return ccl_emu_load_word(from); }

#define CCL_STORE(name, fence)                                           \
    CCL_INLINE void name(u32* to, u32 value) { fence; ccl_emu_store_word(to, value); } \
    CCL_INLINE void name(u64* to, u64 value) { fence; ccl_emu_store_word(to, value); }

#define CCL_ATOMIC(name, function, fence)                                \
    CCL_INLINE u32 name(u32* at, u32 value) {                            \
        fence;                                                           \
        ccl_emu_before(at, sizeof(u32), 1);                              \
        return function(at, value, __ATOMIC_SEQ_CST);                    \
    }                                                                    \
    CCL_INLINE u64 name(u64* at, u64 value) {                            \
        fence;                                                           \
        ccl_emu_before(at, sizeof(u64), 1);                              \
        return function(at, value, __ATOMIC_SEQ_CST);                    \
    }

CCL_LOAD(ld_acquire_sys)
CCL_LOAD(ld_relaxed_sys)
CCL_LOAD(ld_acquire_gpu)
CCL_LOAD(ld_relaxed_gpu)
CCL_LOAD(ld_volatile)
CCL_STORE(st_release_sys, ccl_emu_fence())
CCL_STORE(st_relaxed_sys, )
CCL_STORE(st_release_gpu, ccl_emu_fence())
CCL_STORE(st_relaxed_gpu, )
CCL_STORE(st_volatile, )
CCL_ATOMIC(atomic_add_relaxed_gpu, __atomic_fetch_add, )
CCL_ATOMIC(atomic_add_acq_rel_gpu, __atomic_fetch_add, ccl_emu_fence())
CCL_ATOMIC(atomic_add_relaxed_sys, __atomic_fetch_add, )
CCL_ATOMIC(atomic_add_acq_rel_sys, __atomic_fetch_add, ccl_emu_fence())
CCL_ATOMIC(atomic_exch_acq_rel_sys, __atomic_exchange_n, ccl_emu_fence())

template <class T>
CCL_INLINE T ccl_emu_compare_and_swap(T* at, T expected, T wanted) {
    ccl_emu_fence();
    ccl_emu_before(at, sizeof(T), 0);
    T before = expected;
    if (__atomic_compare_exchange_n(at, &before, wanted, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {
        ccl_emu_current->stores += 1;
    }
    return before;
}

CCL_INLINE u32 atomic_cas_acq_rel_sys(u32* at, u32 expected, u32 wanted) {
    return ccl_emu_compare_and_swap(at, expected, wanted);
}

CCL_INLINE u64 atomic_cas_acq_rel_sys(u64* at, u64 expected, u64 wanted) {
    return ccl_emu_compare_and_swap(at, expected, wanted);
}

CCL_INLINE void fence_sys() {
    ccl_emu_fence();
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

CCL_INLINE void fence_gpu() { fence_sys(); }
CCL_INLINE void fence_block() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }

// Lines. An ll line is two halves, with a point between.

CCL_INLINE LlLine ld_ll(const LlLine* from) {
    const u64* halves = reinterpret_cast<const u64*>(from);
    u64 first = ccl_emu_load_word(halves);
    u64 second = ccl_emu_load_word(halves + 1);
    return {static_cast<u32>(first), static_cast<u32>(first >> 32), static_cast<u32>(second),
            static_cast<u32>(second >> 32)};
}

CCL_INLINE void st_ll(LlLine* to, u32 data0, u32 data1, u32 flag) {
    u64* halves = reinterpret_cast<u64*>(to);
    u64 high = static_cast<u64>(flag) << 32;
    u32 second_first = ccl_emu_current->fuel & 1;
    ccl_emu_store_word(halves + second_first, high | (second_first ? data1 : data0));
    ccl_emu_store_word(halves + 1 - second_first, high | (second_first ? data0 : data1));
}

CCL_INLINE Vec16 ld_ll128(const Vec16* from, u32 line = __builtin_LINE()) {
    CclEmuThread* self = ccl_emu_current;
    Vec16 part = {0, 0};
    self->host->line(self, 0, const_cast<Vec16*>(from), &part, line);
    return part;
}

CCL_INLINE void st_ll128(Vec16* to, Vec16 part, u32 line = __builtin_LINE()) {
    CclEmuThread* self = ccl_emu_current;
    self->stores += 1;
    self->host->line(self, 1, to, &part, line);
}

// Data.

template <class T>
CCL_INLINE T ld_plain(const void* from) {
    CclEmuThread* self = ccl_emu_plain_point();
    T value;
    if (self->watched) {
        self->host->load(self, from, &value, sizeof(T));
    } else {
        memcpy(&value, from, sizeof(T));
    }
    return value;
}

template <class T>
CCL_INLINE void st_plain(void* to, T value) {
    CclEmuThread* self = ccl_emu_plain_point();
    self->stores += 1;
    if (self->watched) {
        self->host->store(self, to, &value, sizeof(T));
    } else {
        memcpy(to, &value, sizeof(T));
    }
}

CCL_INLINE Vec16 ld16(const void* from) {
    CCL_ASSERT(reinterpret_cast<unsigned long>(from) % 16 == 0);
    return ld_plain<Vec16>(from);
}

CCL_INLINE void st16(void* to, Vec16 part) {
    CCL_ASSERT(reinterpret_cast<unsigned long>(to) % 16 == 0);
    st_plain<Vec16>(to, part);
}

// Multicast memory is no memory here: the emulator knows whose copies are behind an address.
template <class T>
CCL_INLINE void ccl_emu_store_all(void* to, T value) {
    CCL_ASSERT(reinterpret_cast<unsigned long>(to) % sizeof(T) == 0);
    CclEmuThread* self = ccl_emu_plain_point();
    self->stores += 1;
    self->host->store_all(self, to, &value, sizeof(T));
}

CCL_INLINE void st16_all(void* to, Vec16 part) { ccl_emu_store_all(to, part); }
CCL_INLINE void st8_all(void* to, u64 word) { ccl_emu_store_all(to, word); }
CCL_INLINE void fence_all() {}

CCL_INLINE Vec16 ld16_stream(const void* from) { return ld16(from); }
CCL_INLINE void st16_stream(void* to, Vec16 part) { st16(to, part); }

// Waiting.

CCL_INLINE void ccl_spin_hint(const volatile void* at) {
    CclEmuThread* self = ccl_emu_current;
    self->host->spin(self, at);
}

CCL_INLINE u64 ccl_timer_ns() {
    CclEmuThread* self = ccl_emu_point();
    return self->host->timer(self);
}

CCL_INLINE void ccl_trap() {
    CclEmuThread* self = ccl_emu_current;
    self->host->stop(self, "trap", __builtin_LINE());
}
