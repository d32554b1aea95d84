/* Between a process and its C library: syncs that stand still while a file exists, and clocks that jump.
 *
 * INTERPOSE_STALL_NAME   a part of the path of the files whose fsync stands still ...
 * INTERPOSE_STALL_FILE   ... while this file exists; each one that does adds a byte to <this file>.hits
 * INTERPOSE_CLOCK_FILE   two numbers: seconds added to the wall clock, and to the clock that counts suspended time
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static void stand_still(int fd) {
  const char *name = getenv("INTERPOSE_STALL_NAME"), *file = getenv("INTERPOSE_STALL_FILE");
  char link[64], path[PATH_MAX], hits[PATH_MAX];
  if (!name || !file || access(file, F_OK)) return;
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t length = readlink(link, path, sizeof path - 1);
  if (length < 0) return;
  path[length] = 0;
  if (!strstr(path, name)) return;
  snprintf(hits, sizeof hits, "%s.hits", file);
  int out = open(hits, O_WRONLY | O_CREAT | O_APPEND, 0600);
  if (out >= 0) {
    if (write(out, "x", 1) != 1) abort();
    close(out);
  }
  for (int n = 0; n < 12000 && !access(file, F_OK); n++) usleep(10000);
}

int fsync(int fd) {
  static int (*real)(int);
  if (!real) real = dlsym(RTLD_NEXT, "fsync");
  stand_still(fd);
  return real(fd);
}

int fdatasync(int fd) {
  static int (*real)(int);
  if (!real) real = dlsym(RTLD_NEXT, "fdatasync");
  stand_still(fd);
  return real(fd);
}

int clock_gettime(clockid_t clock, struct timespec *now) {
  static int (*real)(clockid_t, struct timespec *);
  if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
  int result = real(clock, now);
  const char *file = getenv("INTERPOSE_CLOCK_FILE");
  if (result || !file || (clock != CLOCK_REALTIME && clock != CLOCK_BOOTTIME)) return result;
  FILE *in = fopen(file, "r");
  if (!in) return result;
  long wall = 0, boot = 0;
  if (fscanf(in, "%ld %ld", &wall, &boot) == 2) now->tv_sec += clock == CLOCK_REALTIME ? wall : boot;
  fclose(in);
  return result;
}
