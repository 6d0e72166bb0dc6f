/* The logger that NCCL's plugins are given: a function like printf, which stable Rust cannot define.
 *
 * The contract names no plugin in a line, so there are several such functions, one for each plugin of a
 * process. They format a line if it is wanted and hand it on, whole.
 */
#include <errno.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>

#define LOGGERS 16
#define LINE_BYTES 2048

typedef void (*logger)(int level, unsigned long flags, const char *file, int line, const char *format, ...);
typedef int32_t (*wanted_fn)(uint32_t slot, int32_t level);
typedef void (*line_fn)(uint32_t slot, int32_t level, const char *file, int32_t line, const char *text);

static wanted_fn wanted;
static line_fn take;

/* errno stays as it is: a plugin may log before it reads it. */
static void hand_on(uint32_t slot, int level, const char *file, int line, const char *format, va_list arguments) {
  char text[LINE_BYTES];
  int before = errno;
  if (format && wanted(slot, level) && vsnprintf(text, sizeof text, format, arguments) >= 0)
    take(slot, level, file, line, text);
  errno = before;
}

#define LOGGER(slot)                                                                                       \
  static void log_##slot(int level, unsigned long flags, const char *file, int line, const char *format, ...) { \
    va_list arguments;                                                                                     \
    (void)flags;                                                                                           \
    va_start(arguments, format);                                                                           \
    hand_on(slot, level, file, line, format, arguments);                                                   \
    va_end(arguments);                                                                                     \
  }

LOGGER(0) LOGGER(1) LOGGER(2) LOGGER(3) LOGGER(4) LOGGER(5) LOGGER(6) LOGGER(7)
LOGGER(8) LOGGER(9) LOGGER(10) LOGGER(11) LOGGER(12) LOGGER(13) LOGGER(14) LOGGER(15)

/* Fills in the loggers, whose lines go to the two functions from then on. Called once, before any is used. */
void ccl_nccl_net_loggers(wanted_fn is_wanted, line_fn takes, logger loggers[LOGGERS]) {
  static const logger all[LOGGERS] = {log_0, log_1, log_2,  log_3,  log_4,  log_5,  log_6,  log_7,
                                      log_8, log_9, log_10, log_11, log_12, log_13, log_14, log_15};
  wanted = is_wanted;
  take = takes;
  for (int slot = 0; slot < LOGGERS; slot++) loggers[slot] = all[slot];
}
