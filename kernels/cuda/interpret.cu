// The interpreter's kernels: see interpret.h. Which of them, variants.h says.
#include "interpret.h"
#include "variants.h"

#define PROTOCOL_simple PROTOCOL_SIMPLE
#define PROTOCOL_ll PROTOCOL_LL
#define PROTOCOL_ll128 PROTOCOL_LL128

#define CCL_INTERPRET(dtype, op, protocol) CCL_INTERPRET_NAMED(dtype, op, protocol)
#define CCL_INTERPRET_NAMED(dtype, op, protocol)                                                       \
    CCL_KERNEL(ccl_interpret_##dtype##_##op##_##protocol, LaunchArgs, MOST_THREADS) {                  \
        interpret<dtype_##dtype, op_##op, PROTOCOL_##protocol>(args);                                  \
    }

CCL_INTERPRET_VARIANTS(CCL_INTERPRET)
