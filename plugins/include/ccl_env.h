/* ccl_env.h: the contract between ccl and an env plugin, a source of settings, version 1.
 *
 * A plugin is a shared library that exports one symbol: a static table named cclEnv_v1.
 *
 *     const cclEnv_v1_t cclEnv_v1 = { sizeof(cclEnv_v1_t), CCL_ENV_VERSION, "mine", init, getEnv, finalize };
 *
 * This file is enough to write one. It is C11 and C++11 and needs no other header of ccl. In Rust, use the
 * crate ccl-plugin.
 *
 * WHAT IT IS ASKED
 *   Whenever settings are read, for each communicator once or more, getEnv is asked about the name of every
 *   setting, ours (CCL_TIMEOUT) and NCCL's where there is one (NCCL_DEBUG), set or not; but for CCL_ENV_PLUGIN
 *   and CCL_CONF_FILE, which are read before there is a plugin. What it answers stands in place of the
 *   environment and of the files of settings: only what the program itself sets stands above it. The same
 *   checks apply as to any other value, and an error names the plugin. Ranks that must agree on a setting
 *   compare what each was answered.
 *
 * HOW IT GROWS
 *   The table grows only at its end; `size` says how much of it there is. A change of meaning gets a new
 *   symbol (cclEnv_v2).
 *
 * THREADS
 *   init is called once in a process, by the thread that first reads settings; getEnv by any thread, by several
 *   at the same time, between init and finalize; finalize once, when the process exits, when no call is running.
 *   After it nothing is called. A process that is killed, or was forked, is not told.
 *
 * TIME
 *   Who reads settings waits for getEnv, some two hundred times in a row. Whatever has to be fetched is fetched in init.
 *
 * ERRORS
 *   init returns 0 or a code: then the host logs it, and settings come from where they would without a plugin;
 *   the plugin is not tried again. getEnv cannot fail. C++ exceptions and Rust panics must not leave an entry.
 *
 * MEMORY
 *   Each side frees what it made. What getEnv returns stays valid and unchanged until finalize, or is `found`.
 *   Arguments are valid during the call, but for the host table: until finalize.
 *   The plugin does not change the environment of the process: other threads may be reading it.
 */
#ifndef CCL_ENV_H
#define CCL_ENV_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define CCL_ENV_VERSION 1u

#ifndef CCL_HOST_V1 /* the same in every header of a contract */
#define CCL_HOST_V1
/* Log levels. */
enum { CCL_LOG_ERROR = 1, CCL_LOG_WARN = 2, CCL_LOG_INFO = 3, CCL_LOG_DEBUG = 4, CCL_LOG_TRACE = 5 };

/* What the host gives to init. Valid until finalize of that context returns, or until init fails.
 * Both functions may be called from any thread, also from within a call of the host, and never call
 * back. */
typedef struct {
  uint32_t size;    /* bytes of this struct as the host knows it */
  uint32_t version; /* 1 */
  void *context;    /* first argument of both functions */
  /* Whether a line of this level would be kept: 0 or 1. May be null: then yes. */
  int32_t (*enabled)(void *context, int32_t level);
  /* One line, UTF-8, without a newline; copied. file may be null. */
  void (*log)(void *context, int32_t level, const char *file, uint32_t line, const char *message);
} cclHost_v1_t;
#endif

/* The table. All entries are required. */
typedef struct {
  uint32_t size;    /* sizeof(cclEnv_v1_t) when the plugin was compiled */
  uint32_t version; /* CCL_ENV_VERSION */
  const char *name; /* 1 to 63 bytes of UTF-8. Valid while loaded */

  /* Makes the plugin ready. `release` is that of ccl, "0.1.0". *context is null, may stay so, and is the first
   * argument of the other entries. A failed init leaves nothing behind. */
  int32_t (*init)(const cclHost_v1_t *host, const char *release, void **context);

  /* The value of a setting: UTF-8, ended by a NUL. `found` is what the environment says under this name, else
   * the files, else null. Returned itself it leaves that as it is; null means that the setting has no value,
   * whatever was found; so does an empty string. */
  const char *(*getEnv)(void *context, const char *name, const char *found);

  /* Ends the context, its threads included. The code stays loaded. */
  int32_t (*finalize)(void *context);
} cclEnv_v1_t;

#ifdef __cplusplus
}
#endif

#endif /* CCL_ENV_H */
