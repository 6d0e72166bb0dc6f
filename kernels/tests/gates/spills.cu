// Must spill: 200 values live at once, where a block of 1024 threads leaves 64 registers to each.

extern "C" __global__ void __launch_bounds__(1024, 1) ccl_spills_f32_sum(const volatile unsigned* from, volatile unsigned* to) {
    unsigned values[200];
#pragma unroll
    for (int i = 0; i < 200; ++i) values[i] = from[i * 1024 + threadIdx.x];
#pragma unroll
    for (int i = 199; i >= 0; --i) to[i * 1024 + threadIdx.x] = values[i] * values[199 - i];
}
