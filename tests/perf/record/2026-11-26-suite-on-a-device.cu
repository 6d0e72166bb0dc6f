// Do kernels of several streams of one process run side by side, and what waits for kernels?
//
//     nvcc -O2 -std=c++20 -arch=sm_90 -o meet 2026-11-26-suite-on-a-device.cu
//     CUDA_DEVICE_MAX_CONNECTIONS=32 CUDA_MODULE_LOADING=EAGER ./meet
//
// A rank is a thread with a stream. Each launches kernels that wait for the kernel with their number of all other ranks, but
// PATIENCE_NS at most: then they count that they waited in vain, and end.
#include <cuda.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <thread>
#include <vector>

constexpr unsigned long long PATIENCE_NS = 4'000'000;
// So that what stands still again and again takes no minutes.
constexpr unsigned long long LATER_PATIENCE_NS = 100'000;
constexpr unsigned MOST_PATIENT = 16;
constexpr double MOST_US = 200e3;
constexpr int MOST_ROUNDS = 4000;

#define CHECK(call)                                                                       \
    do {                                                                                  \
        cudaError_t error = (call);                                                       \
        if (error != cudaSuccess) {                                                       \
            std::printf("%s, line %d: %s\n", #call, __LINE__, cudaGetErrorString(error)); \
            std::exit(2);                                                                 \
        }                                                                                 \
    } while (0)

struct Board {
    unsigned here[8][32];
    unsigned number[8][32];
    unsigned in_vain;
    unsigned values[8];
};

struct Args {
    Board* board;
    int rank;
    int ranks;
    // As many bytes as a real launch has.
    char filler[108];
};

__device__ unsigned long long now() {
    unsigned long long time;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(time));
    return time;
}

__global__ void __launch_bounds__(512, 1) meet(Args args) {
    Board* board = args.board;
    if (threadIdx.x == 0) {
        unsigned number = ++board->number[args.rank][blockIdx.x];
        asm volatile("st.release.gpu.u32 [%0], %1;" ::"l"(&board->here[args.rank][blockIdx.x]), "r"(number) : "memory");
        unsigned long long start = now();
        for (int other = 0; other < args.ranks; ++other) {
            for (;;) {
                unsigned seen;
                asm volatile("ld.acquire.gpu.u32 %0, [%1];" : "=r"(seen) : "l"(&board->here[other][blockIdx.x]) : "memory");
                if (static_cast<int>(seen - number) >= 0) break;
                unsigned before = *reinterpret_cast<volatile unsigned*>(&board->in_vain);
                if (now() - start > (before > MOST_PATIENT ? LATER_PATIENCE_NS : PATIENCE_NS)) {
                    atomicAdd(&board->in_vain, 1);
                    break;
                }
            }
        }
    }
    __syncthreads();
}

__global__ void nothing(Args) {}

// What is between a stream's kernels.
enum class Between { NOTHING, EVENT, EVENT_AND_WAIT, TWO_STREAMS, VALUE, PROGRAMMATIC, KERNEL };

struct Case {
    int ranks;
    // Kernels of each graph that is launched in place of a kernel; 0: none.
    int graph;
    int together;
    Between between = Between::NOTHING;
    int blocks = 1;
    int shared_bytes = 0;
    // Copies from the device before each round, graphs made anew in each, and more streams.
    bool copies = false, makes = false, crowds = false;
};

static Board* board;
static CUresult (*write_value)(CUstream, CUdeviceptr, cuuint32_t, unsigned);
static CUresult (*wait_for_value)(CUstream, CUdeviceptr, cuuint32_t, unsigned);

static double us_since(std::chrono::steady_clock::time_point start) {
    return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count();
}

static cudaStream_t new_stream() {
    cudaStream_t stream;
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    return stream;
}

static cudaGraphExec_t graph_of(cudaStream_t stream, const Case& the, Args args) {
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < the.graph; ++i) meet<<<the.blocks, 512, the.shared_bytes, stream>>>(args);
    CHECK(cudaStreamEndCapture(stream, &graph));
    CHECK(cudaGraphInstantiate(&exec, graph, 0));
    CHECK(cudaGraphDestroy(graph));
    CHECK(cudaGraphUpload(exec, stream));
    CHECK(cudaStreamSynchronize(stream));
    return exec;
}

static void launch(const Case& the, Args args, cudaStream_t streams[2], cudaEvent_t event, int number) {
    cudaStream_t stream = streams[the.between == Between::TWO_STREAMS ? number % 2 : 0];
    CUdeviceptr value = reinterpret_cast<CUdeviceptr>(&board->values[args.rank]);
    if (the.between == Between::VALUE) wait_for_value(stream, value, number, CU_STREAM_WAIT_VALUE_GEQ);
    if (the.between == Between::PROGRAMMATIC) {
        cudaLaunchAttribute early{cudaLaunchAttributeProgrammaticStreamSerialization};
        early.val.programmaticStreamSerializationAllowed = 1;
        cudaLaunchConfig_t config{dim3(the.blocks), dim3(512), 0, stream, &early, 1};
        CHECK(cudaLaunchKernelEx(&config, meet, args));
    } else {
        meet<<<the.blocks, 512, the.shared_bytes, stream>>>(args);
    }
    if (the.between == Between::VALUE) write_value(stream, value, number + 1, 0);
    if (the.between == Between::KERNEL) nothing<<<1, 32, 0, stream>>>(args);
    if (the.between == Between::NOTHING || the.between >= Between::VALUE) return;
    CHECK(cudaEventRecord(event, stream));
    if (the.between == Between::EVENT_AND_WAIT) CHECK(cudaStreamWaitEvent(stream, event, 0));
    if (the.between == Between::TWO_STREAMS) CHECK(cudaStreamWaitEvent(streams[(number + 1) % 2], event, 0));
}

static void run(Case the) {
    CHECK(cudaMemset(board, 0, sizeof(Board)));
    CHECK(cudaDeviceSynchronize());
    std::barrier all(the.ranks);
    std::atomic<bool> over{false};
    std::atomic<int> rounds{0};
    auto start = std::chrono::steady_clock::now();
    auto rank = [&](int rank) {
        CHECK(cudaSetDevice(0));
        cudaStream_t streams[2] = {new_stream(), new_stream()};
        std::vector<cudaStream_t> more;
        for (int i = 0; the.crowds && i < 6; ++i) more.push_back(new_stream());
        cudaEvent_t events[64];
        for (cudaEvent_t& event : events) CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
        Args args{board, rank, the.ranks, {}};
        std::vector<char> host(1 << 18);
        char* memory;
        CHECK(cudaMallocAsync(&memory, host.size(), streams[0]));
        cudaGraphExec_t exec = the.graph > 0 ? graph_of(streams[0], the, args) : nullptr;
        int number = 0;
        while (!over) {
            if (the.makes) {
                CHECK(cudaGraphExecDestroy(exec));
                exec = graph_of(streams[0], the, args);
            }
            if (the.copies) {
                CHECK(cudaMemcpyAsync(host.data(), memory, host.size(), cudaMemcpyDeviceToHost, streams[0]));
                CHECK(cudaStreamSynchronize(streams[0]));
            }
            all.arrive_and_wait();
            for (int i = 0; i < the.together; ++i, ++number) {
                if (exec != nullptr) {
                    CHECK(cudaGraphLaunch(exec, streams[0]));
                } else {
                    launch(the, args, streams, events[number % 64], number);
                }
            }
            for (cudaStream_t stream : streams) CHECK(cudaStreamSynchronize(stream));
            if (rank == 0 && (++rounds == MOST_ROUNDS || us_since(start) > MOST_US)) over = true;
            all.arrive_and_wait();
        }
        if (exec != nullptr) CHECK(cudaGraphExecDestroy(exec));
        CHECK(cudaFreeAsync(memory, streams[0]));
        CHECK(cudaStreamSynchronize(streams[0]));
        for (cudaEvent_t event : events) CHECK(cudaEventDestroy(event));
        for (cudaStream_t stream : more) CHECK(cudaStreamDestroy(stream));
        for (cudaStream_t stream : streams) CHECK(cudaStreamDestroy(stream));
    };
    std::vector<std::thread> threads;
    for (int i = 0; i < the.ranks; ++i) threads.emplace_back(rank, i);
    for (std::thread& thread : threads) thread.join();
    Board found;
    CHECK(cudaMemcpy(&found, board, sizeof found, cudaMemcpyDeviceToHost));
    std::printf("%d ranks, graphs of %d, %d together, between %d, %d blocks%s%s%s: %u in vain in %d rounds, %.1f us each\n", the.ranks,
                the.graph, the.together, static_cast<int>(the.between), the.blocks, the.copies ? ", copies" : "",
                the.makes ? ", makes" : "", the.crowds ? ", crowds" : "", found.in_vain, rounds.load(),
                us_since(start) / rounds / the.together);
}

// Whether a call waits for a kernel that waits for one which this thread launches after the call.
static void waits(const char* name, std::function<void(cudaStream_t)> before, std::function<void(cudaStream_t)> call) {
    CHECK(cudaMemset(board, 0, sizeof(Board)));
    CHECK(cudaDeviceSynchronize());
    cudaStream_t first = new_stream(), second = new_stream();
    int waited = 0;
    double longest_us = 0;
    for (int i = 0; i < 5; ++i) {
        before(second);
        CHECK(cudaStreamSynchronize(second));
        meet<<<1, 512, 0, first>>>(Args{board, 0, 2, {}});
        auto start = std::chrono::steady_clock::now();
        call(second);
        double took_us = us_since(start);
        longest_us = std::max(longest_us, took_us);
        waited += took_us > 0.75e-3 * PATIENCE_NS;
        meet<<<1, 512, 0, second>>>(Args{board, 1, 2, {}});
        CHECK(cudaDeviceSynchronize());
    }
    std::printf("%s: waited %d of 5 times, %.0f us at most\n", name, waited, longest_us);
    CHECK(cudaStreamDestroy(first));
    CHECK(cudaStreamDestroy(second));
}

static void what_waits() {
    static char host[1 << 20];
    void* made = nullptr;
    char* memory;
    cudaEvent_t event;
    cudaStream_t stream;
    cudaGraphExec_t exec;
    CHECK(cudaMalloc(&memory, sizeof host));
    auto none = [](cudaStream_t) {};
    Case four{.ranks = 1, .graph = 4, .together = 1};
    auto graph = [&](cudaStream_t on) { exec = graph_of(on, four, Args{board, 2, 1, {}}); };
    waits("nothing", none, none);
    waits("host memory made", none, [&](cudaStream_t) { CHECK(cudaHostAlloc(&made, 4096, cudaHostAllocMapped)); });
    waits("host memory freed", [&](cudaStream_t) { CHECK(cudaHostAlloc(&made, 4096, cudaHostAllocMapped)); },
          [&](cudaStream_t) { CHECK(cudaFreeHost(made)); });
    waits("memory made", none, [&](cudaStream_t) { CHECK(cudaMalloc(&made, 64 << 20)); });
    waits("memory freed", [&](cudaStream_t) { CHECK(cudaMalloc(&made, 64 << 20)); }, [&](cudaStream_t) { CHECK(cudaFree(made)); });
    waits("event made", none, [&](cudaStream_t) { CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming)); });
    waits("stream made and destroyed", none, [&](cudaStream_t) {
        stream = new_stream();
        CHECK(cudaStreamDestroy(stream));
    });
    waits("graph made and uploaded", none, graph);
    waits("graph destroyed", graph, [&](cudaStream_t) { CHECK(cudaGraphExecDestroy(exec)); });
    for (size_t bytes : {size_t{8}, sizeof host}) {
        waits("copy to the device", none, [&](cudaStream_t on) {
            CHECK(cudaMemcpyAsync(memory, host, bytes, cudaMemcpyHostToDevice, on));
            CHECK(cudaStreamSynchronize(on));
        });
        waits("copy from the device", none, [&](cudaStream_t on) {
            CHECK(cudaMemcpyAsync(host, memory, bytes, cudaMemcpyDeviceToHost, on));
            CHECK(cudaStreamSynchronize(on));
        });
    }
    waits("memory filled", none, [&](cudaStream_t on) {
        CHECK(cudaMemsetAsync(memory, 0, sizeof host, on));
        CHECK(cudaStreamSynchronize(on));
    });
    waits("another kernel", none, [&](cudaStream_t on) {
        nothing<<<1, 32, 0, on>>>(Args{});
        CHECK(cudaStreamSynchronize(on));
    });
}

int main() {
    CHECK(cudaSetDevice(0));
    CHECK(cudaMalloc(&board, sizeof(Board)));
    CHECK(cudaFuncSetAttribute(meet, cudaFuncAttributeMaxDynamicSharedMemorySize, 160 << 10));
    cudaDriverEntryPointQueryResult found;
    CHECK(cudaGetDriverEntryPointByVersion("cuStreamWriteValue32", reinterpret_cast<void**>(&write_value), 12000, cudaEnableDefault, &found));
    CHECK(cudaGetDriverEntryPointByVersion("cuStreamWaitValue32", reinterpret_cast<void**>(&wait_for_value), 12000, cudaEnableDefault, &found));
    for (int ranks : {2, 4, 8}) {
        for (int graph : {0, 1, 4}) {
            for (int together : {1, 2, 4, 16, 64, 256}) run({.ranks = ranks, .graph = graph, .together = together});
        }
    }
    for (int ranks : {4, 8}) {
        for (int graph : {0, 1, 4}) {
            // A block has a multiprocessor to itself.
            for (int together : {1, 2, 16}) run({.ranks = ranks, .graph = graph, .together = together, .blocks = 16, .shared_bytes = 140 << 10});
        }
        for (int graph : {0, 4}) {
            for (int together : {1, 2}) {
                run({.ranks = ranks, .graph = graph, .together = together, .copies = true});
                run({.ranks = ranks, .graph = graph, .together = together, .crowds = true});
                if (graph > 0) run({.ranks = ranks, .graph = graph, .together = together, .makes = true});
            }
        }
        for (Between between : {Between::NOTHING, Between::EVENT, Between::EVENT_AND_WAIT, Between::TWO_STREAMS, Between::VALUE,
                                Between::PROGRAMMATIC, Between::KERNEL}) {
            for (int together : {2, 16}) run({.ranks = ranks, .graph = 0, .together = together, .between = between});
        }
    }
    what_waits();
}
