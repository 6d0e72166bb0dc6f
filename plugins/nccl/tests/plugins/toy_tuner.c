/* A tuner as a plugin made for NCCL: TUNER_VERSION says for which version.
 *
 * It wants one algorithm for each collective, in the protocol LL, and has no opinion on sizes above 1 MiB. It is strict:
 * it fails when its host breaks the contract. TOY_FAULT makes it fail by itself. toy_tuner_live and toy_tuner_inits tell
 * a test what is left and what was called. */
#include "nccl_tuner.h"

#include <stdlib.h>
#include <unistd.h>

#define NO_FAULT 0
#define LACKS_INFO 1
#define INIT_FAILS 2
#define INFO_FAILS 3
#define NEVER_RETURNS 4
#define WANTS_NVLS 5
#ifndef TOY_FAULT
#define TOY_FAULT NO_FAULT
#endif

#define PASTE_(a, b) a##b
#define PASTE(a, b) PASTE_(a, b)
#define TEXT_(a) #a
#define TEXT(a) TEXT_(a)
#define SAY(level, ...) log_line(level, SUBSYSTEM_TUNING, __FILE__, __LINE__, __VA_ARGS__)
#define FAIL(result, ...)       \
  do {                          \
    SAY(LOG_WARN, __VA_ARGS__); \
    return result;              \
  } while (0)
/* The host breaks the contract. */
#define EXPECT(condition) \
  do {                    \
    if (!(condition)) FAIL(ncclInvalidUsage, "toy: %s does not hold in %s", #condition, __func__); \
  } while (0)
#define EXPORT __attribute__((visibility("default")))

struct context {
  size_t nranks;
};

static logger_t log_line;
static int live, inits;

/* Contexts that were made and not ended. */
EXPORT int PASTE(toy_tuner_live_v, TUNER_VERSION)(void) { return __atomic_load_n(&live, __ATOMIC_SEQ_CST); }
/* Calls of init. */
EXPORT int PASTE(toy_tuner_inits_v, TUNER_VERSION)(void) { return __atomic_load_n(&inits, __ATOMIC_SEQ_CST); }

static ncclResult_t toy_init(INIT_PARAMETERS) {
  log_line = logger;
  __atomic_add_fetch(&inits, 1, __ATOMIC_SEQ_CST);
  if (TOY_FAULT == INIT_FAILS) FAIL(ncclSystemError, "toy: no file number %d", 42);
  EXPECT(nranks > 1 && nnodes > 0);
#if TUNER_VERSION >= 5
  EXPECT(communicator != 0 && domains->nNvlDomains == (int)nnodes);
  EXPECT(domains->minRanksPerNvlDomain > 0 && domains->maxRanksPerNvlDomain <= (int)nranks);
  constants->perChMaxNVLSTreeBws[3][2] = 1.0; /* the last of them */
#endif
  struct context *context = malloc(sizeof *context);
  if (!context) return ncclSystemError;
  context->nranks = nranks;
  *out = context;
  __atomic_add_fetch(&live, 1, __ATOMIC_SEQ_CST);
  SAY(LOG_INFO, "toy: tuner of %d ranks", (int)nranks);
  return ncclSuccess;
}

static int wanted(ncclFunc_t collective) {
  if (collective == ncclFuncAllReduce || collective == ncclFuncBroadcast) return TREE;
  if (collective == ncclFuncAllGather || collective == ncclFuncReduceScatter) return PAT;
  return RING;
}

static ncclResult_t toy_info(INFO_PARAMETERS) {
  struct context *c = context;
  if (TOY_FAULT == INFO_FAILS && bytes >= 65536) FAIL(ncclInternalError, "toy: no idea of %d bytes", (int)bytes);
  if (TOY_FAULT == NEVER_RETURNS) sleep(60);
  EXPECT(c->nranks > 1 && collective <= ncclFuncAllReduce && pipelined == 1 && *channels == 0);
  if (bytes > 1 << 20) return ncclSuccess;
  int row = TOY_FAULT == WANTS_NVLS ? 4 : wanted(collective);
#if TUNER_VERSION == 2
  EXPECT(!has_collnet && !has_nvls && *algorithm == -1 && *protocol == -1);
  *algorithm = row;
  *protocol = LL;
#else
  EXPECT(rows == ALGORITHMS && columns == PROTOCOLS);
  float(*table)[PROTOCOLS] = (float(*)[PROTOCOLS])costs;
  EXPECT(table[4][SIMPLE] == IGNORE);
#if TUNER_VERSION >= 4
  EXPECT(registered == 0 || registered == 1);
#endif
  if (table[row][LL] != IGNORE || TOY_FAULT == WANTS_NVLS) table[row][LL] = 0;
#endif
  *channels = 3;
  return ncclSuccess;
}

#if TUNER_VERSION >= 6
static ncclResult_t toy_chunk(void *context, ncclFunc_t collective, size_t bytes, int algorithm, int protocol,
                              int channels, size_t *chunk) {
  (void)context;
  EXPECT(*chunk > 0 && channels > 0 && protocol < PROTOCOLS);
  if (bytes <= 1 << 20 && algorithm == wanted(collective)) *chunk = 8200;
  return ncclSuccess;
}
#endif

static ncclResult_t toy_end(void *context) {
  free(context);
  __atomic_sub_fetch(&live, 1, __ATOMIC_SEQ_CST);
  return ncclSuccess;
}

EXPORT const tuner_t PASTE(ncclTunerPlugin_v, TUNER_VERSION) = {
    "Toy" TEXT(TUNER_VERSION),
    toy_init,
    TOY_FAULT == LACKS_INFO ? NULL : toy_info,
    toy_end,
#if TUNER_VERSION >= 6
    toy_chunk,
#endif
};
