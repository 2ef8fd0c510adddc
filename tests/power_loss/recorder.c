// Preloaded into a process: logs what it does to files under $RECORD_DIR, and what it writes to its
// standard output, in order, to $RECORD_LOG. Each operation takes effect under the same lock as its
// record, so the log is a history that could have been.
//
// A record: op, inode (u64), offset (u64), length (u64), size of the data (u32), data.
//   C create   W write    T truncate   A allocate   S sync a file   D sync a directory
//   R rename   L link     U unlink     M make a directory   X remove one   K told on standard output
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define FILES 65536
enum { OTHER, REGULAR, DIRECTORY };

static pthread_mutex_t lock = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
static int log_fd = -1;
static char dir[PATH_MAX];
static size_t dir_len;
static unsigned char kinds[FILES];

__attribute__((constructor)) static void start(void) {
  static int started;
  if (started) return;
  started = 1;
  const char *d = getenv("RECORD_DIR"), *l = getenv("RECORD_LOG");
  if (!d || !l || !realpath(d, dir)) return;
  dir_len = strlen(dir);
  int fd = syscall(SYS_openat, AT_FDCWD, l, O_WRONLY | O_CREAT | O_TRUNC, 0600);
  // Out of the way of the numbers that the process expects.
  log_fd = syscall(SYS_fcntl, fd, F_DUPFD, 900);
  syscall(SYS_close, fd);
  unsetenv("LD_PRELOAD");
}

static void record(char op, uint64_t inode, uint64_t at, uint64_t len, const void *data, uint32_t size) {
  if (log_fd < 0) return;
  struct __attribute__((packed)) { char op; uint64_t inode, at, len; uint32_t size; } head = {op, inode, at, len, size};
  int saved = errno;
  struct iovec parts[2] = {{&head, sizeof head}, {(void *)data, size}};
  if (syscall(SYS_writev, log_fd, parts, size ? 2 : 1) != (ssize_t)(sizeof head + size)) _exit(98);
  errno = saved;
}

static int kind(int fd) { return fd >= 0 && fd < FILES ? kinds[fd] : OTHER; }
static uint64_t inode(int fd) { struct stat s; return fstat(fd, &s) == 0 ? s.st_ino : 0; }

// The path below the directory, if it is there.
static const char *below(int at, const char *path, char *out) {
  char whole[2 * PATH_MAX], parent[PATH_MAX];
  if (!dir_len) return 0;
  if (path[0] == '/') snprintf(whole, sizeof whole, "%s", path);
  else {
    char base[PATH_MAX];
    if (at == AT_FDCWD) { if (!getcwd(base, sizeof base)) return 0; }
    else {
      char link[64];
      snprintf(link, sizeof link, "/proc/self/fd/%d", at);
      ssize_t n = readlink(link, base, sizeof base - 1);
      if (n < 0) return 0;
      base[n] = 0;
    }
    snprintf(whole, sizeof whole, "%s/%s", base, path);
  }
  for (size_t n = strlen(whole); n > 1 && whole[n - 1] == '/'; n--) whole[n - 1] = 0;
  char *slash = strrchr(whole, '/');
  if (!slash) return 0;
  *slash = 0;
  if (!realpath(whole[0] ? whole : "/", parent)) return 0;
  snprintf(out, 2 * PATH_MAX, "%s/%s", strcmp(parent, "/") ? parent : "", slash + 1);
  return strncmp(out, dir, dir_len) == 0 && out[dir_len] == '/' ? out + dir_len : 0;
}

static int open_at(int at, const char *path, int flags, mode_t mode) {
  start();
  pthread_mutex_lock(&lock);
  struct stat st;
  int existed = fstatat(at, path, &st, 0) == 0;
  int fd = syscall(SYS_openat, at, path, flags, mode), saved = errno;
  if (fd >= 0 && fd < FILES) {
    kinds[fd] = OTHER;
    char buf[2 * PATH_MAX];
    const char *name = below(at, path, buf);
    char root[PATH_MAX];
    int is_root = dir_len && realpath(path, root) && strcmp(root, dir) == 0;
    if ((name || is_root) && fstat(fd, &st) == 0) {
      kinds[fd] = S_ISDIR(st.st_mode) ? DIRECTORY : REGULAR;
      if (kinds[fd] == REGULAR && !existed) record('C', st.st_ino, 0, 0, name, strlen(name));
      else if (kinds[fd] == REGULAR && flags & O_TRUNC) record('T', st.st_ino, 0, 0, 0, 0);
    }
  }
  pthread_mutex_unlock(&lock);
  errno = saved;
  return fd;
}

#define OPEN(at)                                   \
  mode_t mode = 0;                                 \
  if (flags & (O_CREAT | __O_TMPFILE)) {           \
    va_list rest;                                  \
    va_start(rest, flags);                         \
    mode = va_arg(rest, mode_t);                   \
    va_end(rest);                                  \
  }                                                \
  return open_at(at, path, flags, mode);
int open(const char *path, int flags, ...) { OPEN(AT_FDCWD) }
int open64(const char *path, int flags, ...) { OPEN(AT_FDCWD) }
int openat(int at, const char *path, int flags, ...) { OPEN(at) }
int openat64(int at, const char *path, int flags, ...) { OPEN(at) }

int close(int fd) {
  if (fd == log_fd && fd >= 0) return 0;
  if (fd >= 0 && fd < FILES) kinds[fd] = OTHER;
  return syscall(SYS_close, fd);
}

ssize_t write(int fd, const void *buf, size_t len) {
  start();
  if (fd != 1 && kind(fd) != REGULAR) return syscall(SYS_write, fd, buf, len);
  pthread_mutex_lock(&lock);
  ssize_t done = syscall(SYS_write, fd, buf, len);
  if (done > 0 && fd == 1) record('K', 0, 0, done, buf, done);
  else if (done > 0) record('W', inode(fd), lseek(fd, 0, SEEK_CUR) - done, done, buf, done);
  pthread_mutex_unlock(&lock);
  return done;
}

static ssize_t write_at(int fd, const void *buf, size_t len, off_t at) {
  start();
  pthread_mutex_lock(&lock);
  ssize_t done = syscall(SYS_pwrite64, fd, buf, len, at);
  if (done > 0 && kind(fd) == REGULAR) record('W', inode(fd), at, done, buf, done);
  pthread_mutex_unlock(&lock);
  return done;
}
ssize_t pwrite(int fd, const void *buf, size_t len, off_t at) { return write_at(fd, buf, len, at); }
ssize_t pwrite64(int fd, const void *buf, size_t len, off64_t at) { return write_at(fd, buf, len, at); }

ssize_t writev(int fd, const struct iovec *parts, int count) {
  if (kind(fd) != REGULAR && fd != 1) return syscall(SYS_writev, fd, parts, count);
  ssize_t sum = 0;
  pthread_mutex_lock(&lock);
  for (int i = 0; i < count; i++) {
    ssize_t done = write(fd, parts[i].iov_base, parts[i].iov_len);
    if (done < 0) { if (!sum) sum = -1; break; }
    sum += done;
    if (done < (ssize_t)parts[i].iov_len) break;
  }
  pthread_mutex_unlock(&lock);
  return sum;
}

static int cut(int fd, off_t len) {
  pthread_mutex_lock(&lock);
  int done = syscall(SYS_ftruncate, fd, len);
  if (done == 0 && kind(fd) == REGULAR) record('T', inode(fd), len, 0, 0, 0);
  pthread_mutex_unlock(&lock);
  return done;
}
int ftruncate(int fd, off_t len) { return cut(fd, len); }
int ftruncate64(int fd, off64_t len) { return cut(fd, len); }

static int allocate(int fd, int mode, off_t at, off_t len) {
  pthread_mutex_lock(&lock);
  int done = syscall(SYS_fallocate, fd, mode, at, len);
  if (done == 0 && kind(fd) == REGULAR) record('A', inode(fd), at, len, &mode, sizeof mode);
  pthread_mutex_unlock(&lock);
  return done;
}
int fallocate(int fd, int mode, off_t at, off_t len) { return allocate(fd, mode, at, len); }
int fallocate64(int fd, int mode, off64_t at, off64_t len) { return allocate(fd, mode, at, len); }
int posix_fallocate(int fd, off_t at, off_t len) { return allocate(fd, 0, at, len) == 0 ? 0 : errno; }
int posix_fallocate64(int fd, off64_t at, off64_t len) { return allocate(fd, 0, at, len) == 0 ? 0 : errno; }

// `sync_file_range` is left alone: it promises nothing.
static int sync_fd(int fd, long number) {
  pthread_mutex_lock(&lock);
  int done = syscall(number, fd);
  if (done == 0 && kind(fd) != OTHER) record(kind(fd) == DIRECTORY ? 'D' : 'S', inode(fd), 0, 0, 0, 0);
  pthread_mutex_unlock(&lock);
  return done;
}
int fsync(int fd) { return sync_fd(fd, SYS_fsync); }
int fdatasync(int fd) { return sync_fd(fd, SYS_fdatasync); }

static void record_two(char op, const char *from, const char *to) {
  char both[4 * PATH_MAX];
  int len = snprintf(both, sizeof both, "%s%c%s", from, 0, to);
  record(op, 0, 0, 0, both, len);
}

static int rename_at(int a, const char *from, int b, const char *to, unsigned flags) {
  pthread_mutex_lock(&lock);
  char x[2 * PATH_MAX], y[2 * PATH_MAX];
  const char *old = below(a, from, x), *new = below(b, to, y);
  int done = syscall(SYS_renameat2, a, from, b, to, flags);
  if (done == 0 && old && new) record_two('R', old, new);
  pthread_mutex_unlock(&lock);
  return done;
}
int rename(const char *from, const char *to) { return rename_at(AT_FDCWD, from, AT_FDCWD, to, 0); }
int renameat(int a, const char *from, int b, const char *to) { return rename_at(a, from, b, to, 0); }
int renameat2(int a, const char *from, int b, const char *to, unsigned flags) { return rename_at(a, from, b, to, flags); }

static int link_at(int a, const char *from, int b, const char *to, int flags) {
  pthread_mutex_lock(&lock);
  char x[2 * PATH_MAX], y[2 * PATH_MAX];
  const char *old = below(a, from, x), *new = below(b, to, y);
  int done = syscall(SYS_linkat, a, from, b, to, flags);
  if (done == 0 && old && new) record_two('L', old, new);
  pthread_mutex_unlock(&lock);
  return done;
}
int link(const char *from, const char *to) { return link_at(AT_FDCWD, from, AT_FDCWD, to, 0); }
int linkat(int a, const char *from, int b, const char *to, int flags) { return link_at(a, from, b, to, flags); }

static int unlink_at(int at, const char *path, int flags) {
  pthread_mutex_lock(&lock);
  char buf[2 * PATH_MAX];
  const char *name = below(at, path, buf);
  int done = syscall(SYS_unlinkat, at, path, flags);
  if (done == 0 && name) record(flags & AT_REMOVEDIR ? 'X' : 'U', 0, 0, 0, name, strlen(name));
  pthread_mutex_unlock(&lock);
  return done;
}
int unlink(const char *path) { return unlink_at(AT_FDCWD, path, 0); }
int unlinkat(int at, const char *path, int flags) { return unlink_at(at, path, flags); }
int rmdir(const char *path) { return unlink_at(AT_FDCWD, path, AT_REMOVEDIR); }

static int mkdir_at(int at, const char *path, mode_t mode) {
  pthread_mutex_lock(&lock);
  char buf[2 * PATH_MAX];
  int done = syscall(SYS_mkdirat, at, path, mode);
  const char *name = below(at, path, buf);
  if (done == 0 && name) record('M', 0, 0, 0, name, strlen(name));
  pthread_mutex_unlock(&lock);
  return done;
}
int mkdir(const char *path, mode_t mode) { return mkdir_at(AT_FDCWD, path, mode); }
int mkdirat(int at, const char *path, mode_t mode) { return mkdir_at(at, path, mode); }
