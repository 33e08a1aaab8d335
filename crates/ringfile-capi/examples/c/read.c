/*
 * Reads two blocks of a file with one call, with direct I/O if the file system supports it. README.md shows the
 * function; `read FOLDER` makes a file there, and checks every byte.
 */
#include <stdio.h>
#include <string.h>

#include "ringfile.h"

static char first[16384], second[16384];

static int read_two(const char *path)
{
    ringfile_open_options options = {.size = sizeof options};
    options.flags = RINGFILE_READ | RINGFILE_DIRECT | RINGFILE_BUFFERED_FALLBACK;
    ringfile_file *file;
    if (ringfile_open(path, &options, &file) < 0) {
        fprintf(stderr, "%s\n", ringfile_last_error());
        return -1;
    }
    ringfile_read_request reads[] = {
        {.offset = 0, .data = first, .length = sizeof first},
        {.offset = 1 << 20, .data = second, .length = sizeof second},
    };
    int failed = ringfile_read_many(file, reads, 2); /* each request gets a result of its own */
    printf("%d failed; %lld and %lld bytes\n", failed, (long long)reads[0].result, (long long)reads[1].result);
    ringfile_close(file);
    return failed;
}

int main(int argc, char **argv)
{
    char path[4096], block[16384];
    snprintf(path, sizeof path, "%s/read.bin", argc > 1 ? argv[1] : ".");
    FILE *file = fopen(path, "wb");
    if (file == NULL) {
        perror(path);
        return 1;
    }
    int written = 1;
    for (int number = 0; number < 65; number++) {
        memset(block, number, sizeof block);
        written = written && fwrite(block, sizeof block, 1, file) == 1;
    }
    written = fclose(file) == 0 && written;
    int failed = written ? read_two(path) : -1;
    remove(path);
    memset(block, 64, sizeof block); /* the block at 1 MiB; the first one is zeros */
    static const char zeros[sizeof first];
    if (failed != 0 || memcmp(first, zeros, sizeof first) != 0 || memcmp(second, block, sizeof second) != 0) {
        fprintf(stderr, "wrong bytes, or a failed read\n");
        return 1;
    }
    printf("ok\n");
    return 0;
}
