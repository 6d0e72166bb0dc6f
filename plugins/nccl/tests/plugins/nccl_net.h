/* The contract of NCCL's network plugins, versions 6 to 12: what a plugin for tests needs of it.
 *
 * NET_VERSION says which; every type is that version's. */
#ifndef NCCL_NET_H
#define NCCL_NET_H

#include <stddef.h>
#include <stdint.h>

#if NET_VERSION < 6 || NET_VERSION > 12
#error "NET_VERSION is 6 to 12"
#endif

typedef enum {
  ncclSuccess = 0,
  ncclSystemError = 2,
  ncclInternalError = 3,
  ncclInvalidArgument = 4,
  ncclInvalidUsage = 5,
  ncclRemoteError = 6
} ncclResult_t;

enum { LOG_VERSION = 1, LOG_WARN = 2, LOG_INFO = 3, LOG_TRACE = 5 };
enum { SUBSYSTEM_NET = 0x10 };
enum { PTR_HOST = 1 };
enum { DEVICE_HOST = 0, DEVICE_UNPACK = 1 };
#define HANDLE_BYTES 128

typedef void (*logger_t)(int level, unsigned long flags, const char *file, int line, const char *format, ...);
typedef ncclResult_t (*profiler_t)(void **event, int type, void *parent, int64_t id, void *data);

typedef struct {
  int type, version;
  void *handle;
  size_t size;
  int needs_progress;
} device_handle_t;

typedef struct {
  int traffic_class;
} comm_config_t;

typedef struct {
  int count;
  int devices[NET_VERSION >= 12 ? 8 : 4];
} vprops_t;

typedef struct {
  char *name;
  char *pci_path;
  uint64_t guid;
  int ptr_support;
#if NET_VERSION >= 8
  int reg_is_global;
#endif
#if NET_VERSION >= 9
  int force_flush;
#endif
  int speed, port;
  float latency;
  int max_comms, max_recvs;
#if NET_VERSION >= 7
  int device_type, device_version;
#endif
#if NET_VERSION >= 9
  vprops_t vprops;
  size_t max_p2p_bytes, max_coll_bytes;
#endif
#if NET_VERSION >= 11
  int max_multi_request_size;
#endif
#if NET_VERSION >= 12
  int16_t rail, plane;
#endif
} properties_t;

/* Lengths of messages and of registrations. */
#if NET_VERSION >= 9
typedef size_t length_t;
#else
typedef int length_t;
#endif
#if NET_VERSION >= 8
typedef size_t region_t;
#else
typedef int region_t;
#endif

/* Parameters that only some versions have, each with the comma that it needs. */
#if NET_VERSION >= 11
#define CONTEXT_ void *context,
#else
#define CONTEXT_
#endif
#if NET_VERSION == 10
#define CONFIG_ comm_config_t *config,
#else
#define CONFIG_
#endif
#if NET_VERSION >= 7
#define _OFFLOAD , device_handle_t **offload
#else
#define _OFFLOAD
#endif
#if NET_VERSION >= 10
#define PHANDLE_ void *phandle,
#define PHANDLES_ void **phandles,
#else
#define PHANDLE_
#define PHANDLES_
#endif
#if NET_VERSION >= 11
#define INIT_PARAMETERS void **out, uint64_t communicator, comm_config_t *config, logger_t logger, profiler_t profiler
#elif NET_VERSION == 10
#define INIT_PARAMETERS logger_t logger, profiler_t profiler
#else
#define INIT_PARAMETERS logger_t logger
#endif

typedef struct {
  const char *name;
  ncclResult_t (*init)(INIT_PARAMETERS);
  ncclResult_t (*devices)(int *count);
  ncclResult_t (*get_properties)(int device, properties_t *properties);
  ncclResult_t (*listen)(CONTEXT_ int device, void *handle, void **listener);
  ncclResult_t (*connect)(CONTEXT_ int device, CONFIG_ void *handle, void **comm _OFFLOAD);
  ncclResult_t (*accept)(void *listener, void **comm _OFFLOAD);
  ncclResult_t (*reg_mr)(void *comm, void *data, region_t size, int type, void **mhandle);
  ncclResult_t (*reg_mr_dma_buf)(void *comm, void *data, size_t size, int type, uint64_t offset, int fd,
                                 void **mhandle);
  ncclResult_t (*dereg_mr)(void *comm, void *mhandle);
  ncclResult_t (*isend)(void *comm, void *data, length_t size, int tag, void *mhandle, PHANDLE_ void **request);
  ncclResult_t (*irecv)(void *comm, int n, void **data, length_t *sizes, int *tags, void **mhandles,
                        PHANDLES_ void **request);
  ncclResult_t (*iflush)(void *comm, int n, void **data, int *sizes, void **mhandles, void **request);
  ncclResult_t (*test)(void *request, int *done, int *sizes);
  ncclResult_t (*close_send)(void *comm);
  ncclResult_t (*close_recv)(void *comm);
  ncclResult_t (*close_listen)(void *listener);
#if NET_VERSION >= 7
  ncclResult_t (*get_device_mr)(void *comm, void *mhandle, void **device);
  ncclResult_t (*irecv_consumed)(void *comm, int n, void *request);
#endif
#if NET_VERSION >= 9
  ncclResult_t (*make_v_device)(int *device, vprops_t *properties);
#endif
#if NET_VERSION >= 11
  ncclResult_t (*finalize)(void *context);
  ncclResult_t (*set_net_attr)(void *context, void *attributes);
#endif
} net_t;

#endif
