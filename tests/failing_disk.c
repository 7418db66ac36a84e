/* A disk whose n-th change fails, for a process with it in LD_PRELOAD, and for its children.

Calls that make or change a file below `root` are counted. The n-th of them, or it and all later,
sets `errno` and changes nothing; `close` closes its file and reports the error. The counts are in
the file $FAILING_DISK, which each process maps. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

struct disk {
  long calls, failing, log_size;
  int error, is_full, is_on;
  char root[PATH_MAX], log[1 << 22]; /* a line for each call: its name and its file's */
};
static struct disk *disk;

__attribute__((constructor)) static void map(void) {
  const char *path = getenv("FAILING_DISK");
  int fd = path ? open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600) : -1;
  if (fd < 0 || ftruncate(fd, sizeof *disk)) return;
  disk = mmap(NULL, sizeof *disk, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (disk == MAP_FAILED) disk = NULL;
  close(fd);
}

void disk_start(const char *root, long failing, int error, int is_full) {
  snprintf(disk->root, PATH_MAX, "%s/", root);
  memset(disk->log, 0, sizeof disk->log);
  disk->calls = disk->log_size = 0;
  disk->failing = failing, disk->error = error, disk->is_full = is_full, disk->is_on = 1;
}

const char *disk_stop(void) {
  disk->is_on = 0;
  return disk->log;
}

static int fails(const char *name, const char *path) {
  size_t start = strlen(disk->root);
  char line[PATH_MAX];
  if (strncmp(path, disk->root, start)) return 0;
  int size = snprintf(line, sizeof line, "%s %s\n", name, path + start);
  long number = __sync_add_and_fetch(&disk->calls, 1);
  long end = __sync_fetch_and_add(&disk->log_size, size);
  if (end + size < (long)sizeof disk->log) memcpy(disk->log + end, line, size);
  if (number != disk->failing && !(disk->is_full && number > disk->failing)) return 0;
  errno = disk->error;
  return 1;
}

/* A path, or with NULL the file of the descriptor `folder`. */
static int fails_at(const char *name, int folder, const char *path) {
  char link[64], whole[2 * PATH_MAX];
  if (!disk || !disk->is_on) return 0;
  if (path && path[0] == '/') return fails(name, path);
  if (folder == AT_FDCWD) snprintf(link, sizeof link, "/proc/self/cwd");
  else snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
  ssize_t size = readlink(link, whole, PATH_MAX);
  if (size < 0) return 0;
  snprintf(whole + size, PATH_MAX, path ? "/%s" : "", path);
  return fails(name, whole);
}

static int is_written(int fd) { return (fcntl(fd, F_GETFL) & O_ACCMODE) != O_RDONLY; }

#define REAL(name) static __typeof__(name) *real; if (!real) real = dlsym(RTLD_NEXT, #name)
#define OF(type, failed, name, parameters, folder, path, arguments) \
  type name parameters { REAL(name); return fails_at(#name, folder, path) ? failed : real arguments; }
#define OF_FILE(type, name, parameters, arguments) OF(type, -1, name, parameters, fd, NULL, arguments)
#define OF_PATH(name, parameters, folder, arguments) OF(int, -1, name, parameters, folder, path, arguments)

OF_FILE(ssize_t, write, (int fd, const void *data, size_t size), (fd, data, size))
OF_FILE(ssize_t, pwrite, (int fd, const void *data, size_t size, off_t at), (fd, data, size, at))
OF_FILE(ssize_t, pwrite64, (int fd, const void *data, size_t size, off64_t at), (fd, data, size, at))
OF_FILE(ssize_t, writev, (int fd, const struct iovec *data, int count), (fd, data, count))
OF_FILE(ssize_t, sendfile, (int fd, int from, off_t *at, size_t size), (fd, from, at, size))
OF_FILE(ssize_t, sendfile64, (int fd, int from, off64_t *at, size_t size), (fd, from, at, size))
OF_FILE(ssize_t, copy_file_range, (int from, off64_t *at, int fd, off64_t *to, size_t size, unsigned flags), (from, at, fd, to, size, flags))
OF_FILE(int, fsync, (int fd), (fd))
OF_FILE(int, fdatasync, (int fd), (fd))
OF_FILE(int, ftruncate, (int fd, off_t size), (fd, size))
OF_FILE(int, ftruncate64, (int fd, off64_t size), (fd, size))
OF_PATH(mkdir, (const char *path, mode_t mode), AT_FDCWD, (path, mode))
OF_PATH(rename, (const char *path, const char *to), AT_FDCWD, (path, to))

int close(int fd) {
  REAL(close);
  int failed = disk && disk->is_on && is_written(fd) && fails_at("close", fd, NULL);
  int done = real(fd);
  if (failed) errno = disk->error;
  return failed ? -1 : done;
}

/* The C library's own writers do not call the functions above through a symbol. */
static int stream_fails(const char *name, FILE *file) {
  int failed = disk && disk->is_on && file && is_written(fileno(file)) && fails_at(name, fileno(file), NULL);
  if (failed) file->_flags |= 0x20; /* for `ferror` */
  return failed;
}
size_t fwrite(const void *data, size_t size, size_t count, FILE *file) {
  REAL(fwrite);
  return stream_fails("fwrite", file) ? 0 : real(data, size, count, file);
}
int fflush(FILE *file) {
  REAL(fflush);
  return stream_fails("fflush", file) ? EOF : real(file);
}
int fclose(FILE *file) {
  REAL(fclose);
  int failed = stream_fails("fclose", file), done = real(file);
  if (failed) errno = disk->error;
  return failed ? EOF : done;
}

/* A file that is made takes room, too. */
#define OPEN(name, parameters, folder, arguments) \
  int name parameters { \
    REAL(name); \
    va_list rest; \
    va_start(rest, flags); \
    mode_t mode = flags & (O_CREAT | __O_TMPFILE) ? va_arg(rest, mode_t) : 0; \
    va_end(rest); \
    return (flags & O_CREAT) && fails_at(#name, folder, path) ? -1 : real arguments; \
  }
OPEN(open, (const char *path, int flags, ...), AT_FDCWD, (path, flags, mode))
OPEN(open64, (const char *path, int flags, ...), AT_FDCWD, (path, flags, mode))
OPEN(openat, (int fd, const char *path, int flags, ...), fd, (fd, path, flags, mode))
OPEN(openat64, (int fd, const char *path, int flags, ...), fd, (fd, path, flags, mode))
#define OPEN_STREAM(name) OF(FILE *, NULL, name, (const char *path, const char *mode), AT_FDCWD, mode[0] == 'r' ? "/" : path, (path, mode))
OPEN_STREAM(fopen)
OPEN_STREAM(fopen64)
