/* A wall clock that is a year ahead in every other second and a year behind in those between:
     gcc -shared -fPIC -o clock.so scripts/jumping_clock.c -ldl
     LD_PRELOAD=$PWD/clock.so python -m rl_plasticity.train ... */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/time.h>
#include <time.h>

int clock_gettime(clockid_t clock, struct timespec *t) {
  static int (*real)(clockid_t, struct timespec *);
  if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
  int result = real(clock, t);
  if (clock == CLOCK_REALTIME) t->tv_sec += t->tv_sec % 2 ? 31536000 : -31536000;
  return result;
}

time_t time(time_t *to) {
  struct timespec t;
  clock_gettime(CLOCK_REALTIME, &t);
  if (to) *to = t.tv_sec;
  return t.tv_sec;
}

int gettimeofday(struct timeval *restrict to, void *restrict zone) {
  struct timespec t;
  clock_gettime(CLOCK_REALTIME, &t);
  to->tv_sec = t.tv_sec;
  to->tv_usec = t.tv_nsec / 1000;
  return 0;
}
