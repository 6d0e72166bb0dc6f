// What the kernels and the emulator share: the running fiber, and the list of kernels.

#include "ccl_device.h"

extern "C" {

__thread CclEmuThread* ccl_emu_current = nullptr;

static CclEmuKernel* known = nullptr;

void ccl_emu_register(CclEmuKernel* kernel) {
    kernel->next = known;
    known = kernel;
}

const CclEmuKernel* ccl_emu_kernels() { return known; }

void ccl_emu_enter(CclEmuThread* fiber) { ccl_emu_current = fiber; }
}
