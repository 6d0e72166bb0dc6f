/* What NCCL declares for tuner plugins, versions 2 to 6: TUNER_VERSION says which. */
#ifndef NCCL_TUNER_H
#define NCCL_TUNER_H

#include <stddef.h>
#include <stdint.h>

typedef enum {
  ncclSuccess = 0,
  ncclSystemError = 2,
  ncclInternalError = 3,
  ncclInvalidUsage = 5
} ncclResult_t;

typedef enum {
  ncclFuncBroadcast = 0,
  ncclFuncReduce = 1,
  ncclFuncAllGather = 2,
  ncclFuncReduceScatter = 3,
  ncclFuncAllReduce = 4
} ncclFunc_t;

enum { LOG_WARN = 2, LOG_INFO = 3 };
enum { SUBSYSTEM_TUNING = 0x40 };
enum { TREE = 0, RING = 1, PAT = 6, ALGORITHMS = 7 };
enum { LL = 0, LL128 = 1, SIMPLE = 2, PROTOCOLS = 3 };
#define IGNORE (-1.0f)

typedef void (*logger_t)(int level, unsigned long flags, const char *file, int line, const char *format, ...);

typedef struct {
  int nNvlDomains, minRanksPerNvlDomain, maxRanksPerNvlDomain;
} domains_t;

typedef struct {
  double baseLatencies[ALGORITHMS][PROTOCOLS], hwLatencies[3][ALGORITHMS][PROTOCOLS], llMaxBws[4][3],
      perChMaxRingLL128Bws[4][3], perChMaxTreeLL128Bws[4][3], perChMaxTreeBws[4][3], perChMaxNVLSTreeBws[4][3];
} constants_t;

#if TUNER_VERSION >= 5
#define INIT_PARAMETERS                                                                            \
  void **out, uint64_t communicator, size_t nranks, size_t nnodes, logger_t logger, domains_t *domains, \
      constants_t *constants
#else
#define INIT_PARAMETERS size_t nranks, size_t nnodes, logger_t logger, void **out
#endif

#if TUNER_VERSION == 2
#define INFO_PARAMETERS                                                                               \
  void *context, ncclFunc_t collective, size_t bytes, int has_collnet, int has_nvls, int pipelined, \
      int *algorithm, int *protocol, int *channels
#elif TUNER_VERSION == 3
#define INFO_PARAMETERS                                                                                \
  void *context, ncclFunc_t collective, size_t bytes, int pipelined, float **costs, int rows, int columns, \
      int *channels
#else
#define INFO_PARAMETERS                                                                                \
  void *context, ncclFunc_t collective, size_t bytes, int pipelined, float **costs, int rows, int columns, \
      int registered, int *channels
#endif

typedef struct {
  const char *name;
  ncclResult_t (*init)(INIT_PARAMETERS);
  ncclResult_t (*getCollInfo)(INFO_PARAMETERS);
  ncclResult_t (*end)(void *context);
#if TUNER_VERSION >= 6
  ncclResult_t (*getChunkSize)(void *context, ncclFunc_t collective, size_t bytes, int algorithm, int protocol,
                               int channels, size_t *chunk);
#endif
} tuner_t;

#endif
