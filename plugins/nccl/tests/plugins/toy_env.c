/* An env plugin as it is made for NCCL, for tests: ENV_VERSION says which version of the contract, 1 or 2.
 *
 * It knows CCL_SLOTS, hides CCL_HOSTID, and looks up everything else in the environment. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef void (*logger_t)(int level, unsigned long flags, const char *file, int line, const char *format, ...);

#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)
#define VERSIONED(name) JOIN(name, ENV_VERSION)
#define EXPORT __attribute__((visibility("default")))

#ifndef SLOTS
#define SLOTS "16"
#endif

static int inits;

static int started(unsigned major, unsigned minor, unsigned patch, const char *suffix, logger_t log) {
  inits++;
  if (log) log(3, 0x80, __FILE__, __LINE__, "told of release %u.%u.%u%s", major, minor, patch, suffix);
#ifdef FAILS
  if (log) log(2, 0x80, __FILE__, __LINE__, "the vault is locked");
  return 2;
#else
  return 0;
#endif
}

#if ENV_VERSION == 1
static int init(uint8_t major, uint8_t minor, uint8_t patch, const char *suffix) {
  return started(major, minor, patch, suffix, NULL);
}
#else
static int init(uint8_t major, uint8_t minor, uint8_t patch, const char *suffix, logger_t log) {
  return started(major, minor, patch, suffix, log);
}
#endif

/* Says that it was called, in a file that is looked at when the process is gone. */
static int finalize(void) {
  const char *name = getenv("TOY_ENV_SAYS");
  FILE *file = name ? fopen(name, "a") : NULL;
  if (!file) return 0;
  fprintf(file, "finalised after %d init\n", inits);
  return fclose(file) ? 2 : 0;
}

static const char *get_env(const char *name) {
#ifdef GARBAGE
  if (strcmp(name, "CCL_CHUNK_BYTES") == 0) return "12\xff\xfe";
#endif
  if (strcmp(name, "CCL_SLOTS") == 0) return SLOTS;
  if (strcmp(name, "CCL_HOSTID") == 0) return NULL;
  return getenv(name);
}

typedef struct {
  const char *name;
#if ENV_VERSION == 1
  int (*init)(uint8_t, uint8_t, uint8_t, const char *);
#else
  int (*init)(uint8_t, uint8_t, uint8_t, const char *, logger_t);
#endif
  int (*finalize)(void);
  const char *(*get_env)(const char *);
} table_t;

#ifndef GET_ENV
#define GET_ENV get_env
#endif

EXPORT const char *VERSIONED(toy_get_env_v)(const char *name) { return get_env(name); } /* also where the table lacks it */
EXPORT const table_t VERSIONED(ncclEnvPlugin_v) = {VERSIONED_NAME, init, finalize, GET_ENV};
EXPORT int VERSIONED(toy_inits_v)(void) { return inits; }
