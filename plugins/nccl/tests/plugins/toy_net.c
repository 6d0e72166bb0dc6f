/* A network over TCP on 127.0.0.1, as a plugin made for NCCL: NET_VERSION says for which version.
 *
 * It is slow on purpose: connecting and accepting take several calls, and every third send or receive is
 * refused the first time. And it is strict: it fails when its host breaks the contract. TOY_FAULT makes it
 * break the contract itself. toy_live and toy_inits tell a test what is left and what was called. */
#define _GNU_SOURCE
#include "nccl_net.h"

#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define NO_FAULT 0
#define LACKS_IRECV 1
#define INIT_FAILS 2
#define NO_DEVICES 3
#define TEST_FAILS 4
#define NEVER_CONNECTS 5
#define PROPERTIES_FAIL 6
#define ONLY_OFFLOAD 7
#ifndef TOY_FAULT
#define TOY_FAULT NO_FAULT
#endif

#define MAX_REQUESTS (NET_VERSION == 6 ? 8 : 32)
#define MAX_RECVS 8
#define PASTE_(a, b) a##b
#define PASTE(a, b) PASTE_(a, b)
#define TEXT_(a) #a
#define TEXT(a) TEXT_(a)

#define SAY(level, ...) log_line(level, SUBSYSTEM_NET, __FILE__, __LINE__, __VA_ARGS__)
#define FAIL(result, ...)         \
  do {                            \
    SAY(LOG_WARN, __VA_ARGS__);   \
    return result;                \
  } while (0)
/* The host breaks the contract. */
#define EXPECT(condition) \
  do {                    \
    if (!(condition)) FAIL(ncclInvalidUsage, "toy: %s does not hold in %s", #condition, __func__); \
  } while (0)

struct header {
  int tag;
  uint64_t size;
};

struct request {
  struct comm *comm;
  int used, done, n, left;
  char *data[MAX_RECVS];
  size_t sizes[MAX_RECVS]; /* capacity, then what came */
  int tags[MAX_RECVS], filled[MAX_RECVS];
  size_t moved; /* of a send: header and payload */
  uint64_t order;
};

struct comm {
  int fd, calls, regions, is_sender, broken;
  uint64_t order;
  struct request requests[32];
  struct header incoming;
  size_t header_moved, payload_moved;
  struct request *target;
  int target_index;
};

struct listener {
  int fd, calls;
};

struct region {
  struct comm *comm;
  char *data;
  size_t size;
};

struct context {
  int traffic_class;
};

/* What a handle holds; connecting keeps its state there. */
struct place {
  struct sockaddr_in address;
  void *self;
  int fd, calls;
};

static logger_t log_line;
static int live, inits;

#define EXPORT __attribute__((visibility("default")))

/* Objects that were made and not ended. */
EXPORT int PASTE(toy_live_v, NET_VERSION)(void) { return __atomic_load_n(&live, __ATOMIC_SEQ_CST); }
/* Calls of init. */
EXPORT int PASTE(toy_inits_v, NET_VERSION)(void) { return __atomic_load_n(&inits, __ATOMIC_SEQ_CST); }

static void made(int count) { __atomic_add_fetch(&live, count, __ATOMIC_SEQ_CST); }

static ncclResult_t toy_init(INIT_PARAMETERS) {
  log_line = logger;
  __atomic_add_fetch(&inits, 1, __ATOMIC_SEQ_CST);
  if (TOY_FAULT == INIT_FAILS) FAIL(ncclSystemError, "toy: no hardware of kind %d on this host", 42);
#if NET_VERSION >= 10
  void *event = &inits;
  EXPECT(profiler(&event, 0, NULL, 0, NULL) == ncclSuccess && event == NULL);
#endif
#if NET_VERSION >= 11
  struct context *context = malloc(sizeof *context);
  context->traffic_class = config->traffic_class;
  *out = context;
  made(1);
  SAY(LOG_INFO, "toy: communicator %llu, traffic class %d", (unsigned long long)communicator,
      context->traffic_class);
#endif
  SAY(LOG_INFO, "toy: version %d is up", NET_VERSION);
  return ncclSuccess;
}

#if NET_VERSION >= 11
static ncclResult_t toy_finalize(void *context) {
  EXPECT(context);
  free(context);
  made(-1);
  return ncclSuccess;
}
#endif

static ncclResult_t toy_devices(int *count) {
  *count = TOY_FAULT == NO_DEVICES ? 0 : NET_VERSION >= 7 ? 2 : 1;
  return ncclSuccess;
}

static ncclResult_t toy_properties(int device, properties_t *properties) {
  static char name[] = "toy0", other[] = "toy1", path[] = "/sys/devices/virtual/net/lo";
  EXPECT(device >= 0 && device < 2);
  if (TOY_FAULT == PROPERTIES_FAIL) return ncclInternalError;
  memset(properties, 0xA5, sizeof *properties);
  properties->name = device ? other : name;
  properties->pci_path = path;
  properties->guid = 0x70;
  properties->ptr_support = PTR_HOST;
  properties->speed = 10000;
  properties->port = 1;
  properties->latency = 2.5f;
  properties->max_comms = 1000;
  properties->max_recvs = MAX_RECVS;
#if NET_VERSION >= 7
  properties->device_type = device || TOY_FAULT == ONLY_OFFLOAD ? DEVICE_UNPACK : DEVICE_HOST;
  properties->device_version = 7;
#endif
#if NET_VERSION >= 8
  properties->reg_is_global = 0;
#endif
#if NET_VERSION >= 9
  properties->force_flush = 0;
  properties->vprops.count = 1;
  properties->vprops.devices[0] = device;
  properties->max_p2p_bytes = (size_t)1 << 29;
  properties->max_coll_bytes = 1;
#endif
#if NET_VERSION >= 11
  properties->max_multi_request_size = 1;
#endif
#if NET_VERSION >= 12
  properties->rail = 3;
  properties->plane = 1;
#endif
  return ncclSuccess;
}

static ncclResult_t toy_listen(CONTEXT_ int device, void *handle, void **out) {
  struct place place = {.address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)}, .fd = -1};
  socklen_t length = sizeof place.address;
  struct listener *listener = calloc(1, sizeof *listener);
#if NET_VERSION >= 11
  EXPECT(context);
#endif
  EXPECT(device == 0);
  listener->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (listener->fd < 0 || bind(listener->fd, (struct sockaddr *)&place.address, length) ||
      listen(listener->fd, 16) || getsockname(listener->fd, (struct sockaddr *)&place.address, &length))
    FAIL(ncclSystemError, "toy: listen: %s", strerror(errno));
  memset(handle, 0, HANDLE_BYTES);
  memcpy(handle, &place, sizeof place);
  *out = listener;
  made(1);
  return ncclSuccess;
}

static struct comm *new_comm(int fd, int is_sender) {
  struct comm *comm = calloc(1, sizeof *comm);
  comm->fd = fd;
  comm->is_sender = is_sender;
  made(1);
  return comm;
}

static ncclResult_t toy_connect(CONTEXT_ int device, CONFIG_ void *handle, void **comm _OFFLOAD) {
  struct place *place = handle;
  int failure = 0;
  socklen_t length = sizeof failure;
  *comm = NULL;
  EXPECT(device == 0);
#if NET_VERSION >= 7
  EXPECT(offload && !*offload);
#endif
#if NET_VERSION >= 11
  EXPECT(context);
#endif
  if (TOY_FAULT == NEVER_CONNECTS) return ncclSuccess;
  if (!place->self) {
    if (place->address.sin_family != AF_INET) FAIL(ncclInvalidArgument, "toy: connect: no listener made this handle");
#if NET_VERSION == 10
    SAY(LOG_INFO, "toy: connect with traffic class %d", config->traffic_class);
#endif
    place->self = handle;
    place->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (place->fd < 0) FAIL(ncclSystemError, "toy: socket: %s", strerror(errno));
    if (connect(place->fd, (struct sockaddr *)&place->address, sizeof place->address) && errno != EINPROGRESS) {
      close(place->fd);
      FAIL(ncclRemoteError, "toy: connect: %s", strerror(errno));
    }
    return ncclSuccess;
  }
  /* The same handle in the same place, call after call. */
  EXPECT(place->self == handle);
  if (++place->calls < 3) return ncclSuccess;
  struct pollfd ready = {.fd = place->fd, .events = POLLOUT};
  if (poll(&ready, 1, 0) == 0) return ncclSuccess;
  if (getsockopt(place->fd, SOL_SOCKET, SO_ERROR, &failure, &length) || failure) {
    close(place->fd);
    FAIL(ncclRemoteError, "toy: connect: %s", strerror(failure));
  }
  *comm = new_comm(place->fd, 1);
  return ncclSuccess;
}

static ncclResult_t toy_accept(void *self, void **comm _OFFLOAD) {
  struct listener *listener = self;
  *comm = NULL;
#if NET_VERSION >= 7
  EXPECT(offload && !*offload);
#endif
  if (++listener->calls < 3) return ncclSuccess;
  int fd = accept4(listener->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
  if (fd >= 0) *comm = new_comm(fd, 0);
  else if (errno != EAGAIN) FAIL(ncclSystemError, "toy: accept: %s", strerror(errno));
  return ncclSuccess;
}

static ncclResult_t toy_close_listen(void *self) {
  struct listener *listener = self;
  close(listener->fd);
  free(listener);
  made(-1);
  return ncclSuccess;
}

static ncclResult_t toy_reg_mr(void *self, void *data, region_t size, int type, void **mhandle) {
  struct comm *comm = self;
  struct region *region = malloc(sizeof *region);
  EXPECT(type == PTR_HOST);
  *region = (struct region){comm, data, (size_t)size};
  comm->regions++;
  made(1);
  *mhandle = region;
  return ncclSuccess;
}

static ncclResult_t toy_dereg_mr(void *self, void *mhandle) {
  struct comm *comm = self;
  struct region *region = mhandle;
  EXPECT(region->comm == comm);
  comm->regions--;
  made(-1);
  free(region);
  return ncclSuccess;
}

static int lies_in(struct comm *comm, const void *data, size_t size, void *mhandle) {
  struct region *region = mhandle;
  return size == 0 || (region && region->comm == comm && (char *)data >= region->data &&
                       (char *)data + size <= region->data + region->size);
}

/* A free request, or none: every third call for one finds none. */
static struct request *post(struct comm *comm) {
  if (comm->calls++ % 3 == 0) return NULL;
  for (int i = 0; i < MAX_REQUESTS; i++) {
    if (comm->requests[i].used) continue;
    comm->requests[i] = (struct request){.comm = comm, .used = 1, .order = comm->order++};
    return &comm->requests[i];
  }
  return NULL;
}

/* The oldest request that is not done, and of receives that still has room for this tag. */
static struct request *oldest(struct comm *comm, const int *tag, int *index) {
  struct request *found = NULL;
  for (int i = 0; i < MAX_REQUESTS; i++) {
    struct request *request = &comm->requests[i];
    if (!request->used || request->done || (found && found->order < request->order)) continue;
    for (int j = 0; j < request->n; j++) {
      if (tag && (request->filled[j] || request->tags[j] != *tag)) continue;
      found = request;
      *index = j;
      break;
    }
  }
  return found;
}

/* What one call of the system moved: bytes, 0 for nothing now, -1 for a connection that is gone. */
static ssize_t moved(ssize_t result, int is_read) {
  if (result > 0) return result;
  if (result < 0 && (errno == EAGAIN || errno == EINTR)) return 0;
  return is_read || result < 0 ? -1 : 0;
}

static int push(struct comm *comm) {
  struct request *request;
  int index;
  while ((request = oldest(comm, NULL, &index))) {
    struct header header = {request->tags[0], request->sizes[0]};
    while (request->moved < sizeof header + request->sizes[0]) {
      int in_header = request->moved < sizeof header;
      char *from = in_header ? (char *)&header + request->moved : request->data[0] + request->moved - sizeof header;
      size_t left = (in_header ? sizeof header : sizeof header + request->sizes[0]) - request->moved;
      ssize_t sent = moved(send(comm->fd, from, left, MSG_NOSIGNAL), 0);
      if (sent <= 0) return (int)sent;
      request->moved += (size_t)sent;
    }
    request->done = 1;
  }
  return 0;
}

static int pull(struct comm *comm) {
  for (;;) {
    if (comm->header_moved < sizeof comm->incoming) {
      ssize_t got = moved(recv(comm->fd, (char *)&comm->incoming + comm->header_moved,
                               sizeof comm->incoming - comm->header_moved, 0), 1);
      if (got <= 0) return (int)got;
      comm->header_moved += (size_t)got;
      continue;
    }
    if (!comm->target) {
      comm->target = oldest(comm, &comm->incoming.tag, &comm->target_index);
      if (!comm->target) return 0;
      comm->payload_moved = 0;
      if (comm->incoming.size > comm->target->sizes[comm->target_index]) return -2;
    }
    struct request *request = comm->target;
    int index = comm->target_index;
    while (comm->payload_moved < comm->incoming.size) {
      ssize_t got = moved(recv(comm->fd, request->data[index] + comm->payload_moved,
                               comm->incoming.size - comm->payload_moved, 0), 1);
      if (got <= 0) return (int)got;
      comm->payload_moved += (size_t)got;
    }
    request->sizes[index] = comm->incoming.size;
    request->filled[index] = 1;
    if (--request->left == 0) request->done = 1;
    comm->target = NULL;
    comm->header_moved = 0;
  }
}

static ncclResult_t toy_isend(void *self, void *data, length_t size, int tag, void *mhandle, PHANDLE_ void **out) {
  struct comm *comm = self;
  EXPECT(comm->is_sender && (long long)size >= 0);
  EXPECT(lies_in(comm, data, (size_t)size, mhandle));
#if NET_VERSION >= 10
  EXPECT(!phandle);
#endif
  struct request *request = post(comm);
  *out = request;
  if (!request) return ncclSuccess;
  request->n = 1;
  request->data[0] = data;
  request->sizes[0] = (size_t)size;
  request->tags[0] = tag;
  comm->broken = push(comm);
  return ncclSuccess;
}

static ncclResult_t toy_irecv(void *self, int n, void **data, length_t *sizes, int *tags, void **mhandles,
                              PHANDLES_ void **out) {
  struct comm *comm = self;
  EXPECT(!comm->is_sender && n >= 1 && n <= MAX_RECVS);
  EXPECT(!*out);
  for (int i = 0; i < n; i++) {
    EXPECT(lies_in(comm, data[i], (size_t)sizes[i], mhandles[i]));
#if NET_VERSION >= 10
    EXPECT(!phandles[i]);
#endif
  }
  struct request *request = post(comm);
  *out = request;
  if (!request) return ncclSuccess;
  request->n = request->left = n;
  for (int i = 0; i < n; i++) {
    request->data[i] = data[i];
    request->sizes[i] = (size_t)sizes[i];
    request->tags[i] = tags[i];
  }
  return ncclSuccess;
}

static ncclResult_t toy_iflush(void *self, int n, void **data, int *sizes, void **mhandles, void **request) {
  (void)self, (void)data, (void)sizes, (void)mhandles;
  EXPECT(n >= 1);
  *request = NULL;
  return ncclSuccess;
}

static ncclResult_t toy_test(void *self, int *done, int *sizes) {
  struct request *request = self;
  struct comm *comm = request->comm;
  *done = 0;
  EXPECT(request->used);
  if (TOY_FAULT == TEST_FAILS) FAIL(ncclSystemError, "toy: the adapter of %s fell out", comm->is_sender ? "a sender" : "a receiver");
  if (!request->done) {
    int result = comm->broken ? comm->broken : comm->is_sender ? push(comm) : pull(comm);
    if (result == -2)
      FAIL(ncclInvalidUsage, "toy: a message of %llu bytes does not fit", (unsigned long long)comm->incoming.size);
    if (result < 0 && !request->done) FAIL(ncclRemoteError, "toy: the peer has closed the connection");
  }
  if (request->done) {
    *done = 1;
    request->used = 0;
    for (int i = 0; sizes && !comm->is_sender && i < request->n; i++) sizes[i] = (int)request->sizes[i];
  }
  return ncclSuccess;
}

static ncclResult_t toy_close(void *self) {
  struct comm *comm = self;
  EXPECT(comm->regions == 0);
  close(comm->fd);
  free(comm);
  made(-1);
  return ncclSuccess;
}

EXPORT const net_t PASTE(ncclNetPlugin_v, NET_VERSION) = {
    .name = "Toy" TEXT(NET_VERSION),
    .init = toy_init,
    .devices = toy_devices,
    .get_properties = toy_properties,
    .listen = toy_listen,
    .connect = toy_connect,
    .accept = toy_accept,
    .reg_mr = toy_reg_mr,
    .dereg_mr = toy_dereg_mr,
    .isend = toy_isend,
    .irecv = TOY_FAULT == LACKS_IRECV ? NULL : toy_irecv,
    .iflush = toy_iflush,
    .test = toy_test,
    .close_send = toy_close,
    .close_recv = toy_close,
    .close_listen = toy_close_listen,
#if NET_VERSION >= 11
    .finalize = toy_finalize,
#endif
};
