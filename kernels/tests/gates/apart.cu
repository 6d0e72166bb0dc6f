// Has the name of a kernel of the protocol ll128, moves lines without bringing the lanes of a warp together first, and reads through a
// cache that keeps what others have written over.

extern "C" __global__ void __launch_bounds__(544, 1) ccl_apart_f32_sum_ll128(const unsigned long long* lines, unsigned long long* to, const unsigned long long* from, int count) {
    unsigned long long low = 0, high = 0, kept = 0;
    for (int i = threadIdx.x; i < count; i += blockDim.x) {
        asm volatile("ld.global.nc.u64 %0, [%1];" : "=l"(kept) : "l"(from + i));
        if (kept != 0) asm volatile("ld.volatile.global.v2.u64 {%0, %1}, [%2];" : "=l"(low), "=l"(high) : "l"(lines + 2 * i) : "memory");
        if (low != kept) asm volatile("st.volatile.global.v2.u64 [%0], {%1, %2};" ::"l"(to + 2 * i), "l"(low), "l"(high) : "memory");
    }
}
