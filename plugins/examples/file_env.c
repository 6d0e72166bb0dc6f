/* file_env: a whole env plugin in C. It takes settings from the file that FILE_ENV names, a NAME=VALUE per line; a
 * line with a name alone means that the setting has no value, whatever the environment says.
 *
 *     cc -shared -fPIC -Iplugins/include plugins/examples/file_env.c -o libccl-env-file.so
 *     FILE_ENV=cluster.conf CCL_ENV_PLUGIN=file ccl doctor
 */
#include "ccl_env.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifndef FILE_ENV_VERSION /* tests build plugins of the wrong version */
#define FILE_ENV_VERSION CCL_ENV_VERSION
#endif
#ifndef FILE_ENV_NAME /* and others that know their file */
#define FILE_ENV_NAME getenv("FILE_ENV")
#endif

/* One line of the file. Nothing changes after init, so threads need no lock. */
typedef struct line {
  struct line *next;
  char *value; /* null: a name alone */
  char name[];
} line_t;

static void say(const cclHost_v1_t *host, int32_t level, const char *text) {
  if (!host->enabled || host->enabled(host->context, level))
    host->log(host->context, level, __FILE__, __LINE__, text);
}

static int32_t finalize(void *context) {
  for (line_t *line = context; line;) {
    line_t *next = line->next;
    free(line);
    line = next;
  }
  return 0;
}

static line_t *parse(const char *text) {
  size_t bytes = strcspn(text, "\r\n");
  line_t *line = malloc(sizeof *line + bytes + 1);
  if (!line) return NULL;
  memcpy(line->name, text, bytes);
  line->name[bytes] = 0;
  line->value = strchr(line->name, '=');
  if (line->value) *line->value++ = 0;
  return line;
}

/* Everything is read here: who reads settings waits for getEnv. */
static int32_t init(const cclHost_v1_t *host, const char *release, void **context) {
  (void)release;
  const char *name = FILE_ENV_NAME;
  FILE *file = name ? fopen(name, "r") : NULL;
  if (!file) {
    say(host, CCL_LOG_ERROR, name ? "expected to read the file that FILE_ENV names" : "FILE_ENV is not set");
    return 2; /* a system call failed; any code but 0 will do */
  }
  line_t *lines = NULL;
  char text[4096];
  while (fgets(text, sizeof text, file)) {
    if (text[0] == '#' || strcspn(text, "\r\n") == 0) continue;
    line_t *line = parse(text);
    if (!line) break;
    line->next = lines;
    lines = line;
  }
  fclose(file);
  say(host, CCL_LOG_INFO, "settings come from the file of FILE_ENV");
  *context = lines;
  return 0;
}

/* Strings stay where they are until finalize. */
static const char *get_env(void *context, const char *name, const char *found) {
  for (const line_t *line = context; line; line = line->next)
    if (strcmp(line->name, name) == 0) return line->value;
  return found;
}

const cclEnv_v1_t cclEnv_v1 = {sizeof(cclEnv_v1_t), FILE_ENV_VERSION, "file", init, get_env, finalize};
