/* A disk that lies, put before a process by LD_PRELOAD.

   Files below HEADGATE_DISK_ROOT are watched. HEADGATE_DISK_CONTROL names a file of 64 bytes that another process maps:

       u32 mode | u32 count of faults done | char part[56], only paths that contain it are hurt (empty: all)

   HEADGATE_DISK_JOURNAL names the undo journal. Before a write or truncation it gets what was there, and behind each
   fsync or fdatasync that has succeeded it gets a mark; so whoever reads it when the process is dead can put back what
   was not synced, as a power failure would. A record is

       u32 kind | u32 path length | u64 offset | u64 old length | u64 old file size, then path, then old bytes

   where kind 1 is a write or truncation and kind 2 a sync: all of this file in front of `offset`, a journal position,
   is on disk. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

enum { EIO_READ = 1, EIO_WRITE = 2, EIO_SYNC = 4, LIE_SYNC = 8, MISDIRECT_ONCE = 16, LOSE_ONCE = 32 };
enum { PATH_BYTES_MAX = 512, FILES_MAX = 65536, MISDIRECT_BYTES = 4096 };

struct control { uint32_t mode, done; char part[56]; };
struct record { uint32_t kind, path_length; uint64_t offset, old_length, old_size; };

static char *watched[FILES_MAX]; /* path by descriptor, NULL where not below the root */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct control none, *control = &none;
static int journal = -1;
static const char *root;

static long raw_pwrite(int fd, const void *data, size_t size, off_t at) { return syscall(SYS_pwrite64, fd, data, size, at); }
static long raw_pread(int fd, void *data, size_t size, off_t at) { return syscall(SYS_pread64, fd, data, size, at); }

__attribute__((constructor)) static void begin(void) {
    const char *at = getenv("HEADGATE_DISK_CONTROL");
    root = getenv("HEADGATE_DISK_ROOT");
    if (root == NULL || at == NULL) return;
    int fd = syscall(SYS_openat, AT_FDCWD, at, O_RDWR | O_CLOEXEC, 0);
    if (fd >= 0) {
        void *found = mmap(NULL, sizeof none, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (found != MAP_FAILED) control = found;
        syscall(SYS_close, fd);
    }
    at = getenv("HEADGATE_DISK_JOURNAL");
    if (at != NULL) journal = syscall(SYS_openat, AT_FDCWD, at, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
}

static void opened(int fd, const char *name) {
    char path[PATH_BYTES_MAX], link[64];
    if (root == NULL || fd < 0 || fd >= FILES_MAX || name == NULL) return;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, path, sizeof path - 1);
    char *kept = NULL;
    if (size > 0) {
        path[size] = 0;
        if (strncmp(path, root, strlen(root)) == 0) kept = strdup(path);
    }
    pthread_mutex_lock(&lock);
    free(watched[fd]);
    watched[fd] = kept;
    pthread_mutex_unlock(&lock);
}

static const char *path_of(int fd) { return fd >= 0 && fd < FILES_MAX ? watched[fd] : NULL; }

static int is_hurt(const char *path, uint32_t mode) {
    if (path == NULL || !(control->mode & mode)) return 0;
    return control->part[0] == 0 || strstr(path, control->part) != NULL;
}

static int fails(const char *path, uint32_t mode) {
    if (!is_hurt(path, mode)) return 0;
    __atomic_add_fetch(&control->done, 1, __ATOMIC_SEQ_CST);
    errno = EIO;
    return 1;
}

/* Takes a fault that is to happen once. */
static int once(const char *path, uint32_t mode) {
    if (!is_hurt(path, mode)) return 0;
    uint32_t before = __atomic_fetch_and(&control->mode, ~mode, __ATOMIC_SEQ_CST);
    if (!(before & mode)) return 0;
    __atomic_add_fetch(&control->done, 1, __ATOMIC_SEQ_CST);
    return 1;
}

static void append(const struct record *head, const char *path, const void *old) {
    struct iovec parts[] = {{(void *)head, sizeof *head}, {(void *)path, head->path_length}, {(void *)old, head->old_length}};
    if (head->kind == 2) parts[2].iov_len = 0;
    syscall(SYS_writev, journal, parts, 3);
}

/* Notes what is about to be overwritten; the lock is held. */
static void note(int fd, const char *path, off_t at, size_t size) {
    struct stat found;
    if (journal < 0 || fstat(fd, &found)) return;
    size_t there = at < found.st_size ? (size_t)(found.st_size - at) : 0;
    if (there > size) there = size;
    char *old = there ? malloc(there) : NULL;
    if (there && old == NULL) abort();
    ssize_t got = there ? raw_pread(fd, old, there, at) : 0;
    struct record head = {1, strlen(path), at, got > 0 ? got : 0, found.st_size};
    append(&head, path, old);
    free(old);
}

int open64(const char *name, int flags, ...) {
    va_list rest;
    va_start(rest, flags);
    int mode = va_arg(rest, int);
    va_end(rest);
    int fd = syscall(SYS_openat, AT_FDCWD, name, flags, mode);
    opened(fd, name);
    return fd;
}

int open(const char *name, int flags, ...) {
    va_list rest;
    va_start(rest, flags);
    int mode = va_arg(rest, int);
    va_end(rest);
    return open64(name, flags, mode);
}

int openat64(int directory, const char *name, int flags, ...) {
    va_list rest;
    va_start(rest, flags);
    int mode = va_arg(rest, int);
    va_end(rest);
    int fd = syscall(SYS_openat, directory, name, flags, mode);
    opened(fd, name);
    return fd;
}

int openat(int directory, const char *name, int flags, ...) {
    va_list rest;
    va_start(rest, flags);
    int mode = va_arg(rest, int);
    va_end(rest);
    return openat64(directory, name, flags, mode);
}

int close(int fd) {
    if (path_of(fd) != NULL) {
        pthread_mutex_lock(&lock);
        free(watched[fd]);
        watched[fd] = NULL;
        pthread_mutex_unlock(&lock);
    }
    return syscall(SYS_close, fd);
}

ssize_t pwritev64v2(int fd, const struct iovec *parts, int count, off64_t at, int flags) {
    const char *path = path_of(fd);
    if (path == NULL) return syscall(SYS_pwritev2, fd, parts, count, at, at >> 32 >> 16 >> 16, flags);
    if (fails(path, EIO_WRITE)) return -1;
    size_t size = 0;
    for (int i = 0; i < count; i++) size += parts[i].iov_len;
    if (once(path, LOSE_ONCE)) return size;
    if (size >= 64 && once(path, MISDIRECT_ONCE)) at += MISDIRECT_BYTES;
    pthread_mutex_lock(&lock);
    if (at >= 0) note(fd, path, at, size);
    ssize_t done = syscall(SYS_pwritev2, fd, parts, count, at, 0, flags);
    pthread_mutex_unlock(&lock);
    return done;
}

ssize_t pwritev2(int fd, const struct iovec *parts, int count, off_t at, int flags) { return pwritev64v2(fd, parts, count, at, flags); }
ssize_t pwritev(int fd, const struct iovec *parts, int count, off_t at) { return pwritev64v2(fd, parts, count, at, 0); }
ssize_t pwritev64(int fd, const struct iovec *parts, int count, off64_t at) { return pwritev64v2(fd, parts, count, at, 0); }

ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at) {
    struct iovec part = {(void *)data, size};
    return path_of(fd) == NULL ? raw_pwrite(fd, data, size, at) : pwritev64v2(fd, &part, 1, at, 0);
}

ssize_t pwrite(int fd, const void *data, size_t size, off_t at) { return pwrite64(fd, data, size, at); }

ssize_t write(int fd, const void *data, size_t size) {
    const char *path = path_of(fd);
    if (path == NULL) return syscall(SYS_write, fd, data, size);
    if (fails(path, EIO_WRITE)) return -1;
    pthread_mutex_lock(&lock);
    off_t at = lseek(fd, 0, SEEK_CUR);
    if (at >= 0) note(fd, path, at, size);
    ssize_t done = syscall(SYS_write, fd, data, size);
    pthread_mutex_unlock(&lock);
    return done;
}

ssize_t writev(int fd, const struct iovec *parts, int count) {
    const char *path = path_of(fd);
    if (path == NULL) return syscall(SYS_writev, fd, parts, count);
    ssize_t done = pwritev64v2(fd, parts, count, lseek(fd, 0, SEEK_CUR), 0);
    if (done > 0) lseek(fd, done, SEEK_CUR);
    return done;
}

int ftruncate64(int fd, off64_t size) {
    const char *path = path_of(fd);
    if (path == NULL) return syscall(SYS_ftruncate, fd, size);
    if (fails(path, EIO_WRITE)) return -1;
    pthread_mutex_lock(&lock);
    note(fd, path, size, SSIZE_MAX);
    int done = syscall(SYS_ftruncate, fd, size);
    pthread_mutex_unlock(&lock);
    return done;
}

int ftruncate(int fd, off_t size) { return ftruncate64(fd, size); }

static int synced(int fd, long number) {
    const char *path = path_of(fd);
    if (path == NULL) return syscall(number, fd);
    if (fails(path, EIO_SYNC)) return -1;
    if (is_hurt(path, LIE_SYNC)) return 0;
    pthread_mutex_lock(&lock);
    off_t at = journal < 0 ? 0 : lseek(journal, 0, SEEK_CUR);
    pthread_mutex_unlock(&lock);
    int done = syscall(number, fd);
    if (done == 0 && journal >= 0) {
        struct record head = {2, strlen(path), at, 0, 0};
        pthread_mutex_lock(&lock);
        append(&head, path, NULL);
        pthread_mutex_unlock(&lock);
    }
    return done;
}

int fdatasync(int fd) { return synced(fd, SYS_fdatasync); }
int fsync(int fd) { return synced(fd, SYS_fsync); }

ssize_t pread64(int fd, void *data, size_t size, off64_t at) {
    if (fails(path_of(fd), EIO_READ)) return -1;
    return raw_pread(fd, data, size, at);
}

ssize_t pread(int fd, void *data, size_t size, off_t at) { return pread64(fd, data, size, at); }

ssize_t preadv64(int fd, const struct iovec *parts, int count, off64_t at) {
    if (fails(path_of(fd), EIO_READ)) return -1;
    return syscall(SYS_preadv, fd, parts, count, at, 0);
}

ssize_t preadv(int fd, const struct iovec *parts, int count, off_t at) { return preadv64(fd, parts, count, at); }
