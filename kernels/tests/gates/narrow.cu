// Has the name of a kernel of the protocol simple, and moves 8 bytes at a time.

extern "C" __global__ void __launch_bounds__(544, 1) ccl_narrow_f32_sum_simple(const unsigned long long* from, unsigned long long* to, int count) {
    for (int i = threadIdx.x; i < count; i += blockDim.x) to[i] = from[i] + 1;
}
