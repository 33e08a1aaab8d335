/* Writes a file, makes it durable, and reads 16 places of it with one call: first FOLDER. */
#include <stdio.h>
#include <string.h>

#include "ringfile.h"

enum { BLOCK = 4096, BLOCKS = 64, READS = 16 };
static char blocks[BLOCKS][BLOCK], found[READS][BLOCK];

static int failed(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, ringfile_last_error());
    return 1;
}

int main(int argc, char **argv)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/first.bin", argc > 1 ? argv[1] : ".");
    ringfile_open_options options = {.size = sizeof options};
    options.flags = RINGFILE_READ | RINGFILE_WRITE | RINGFILE_CREATE | RINGFILE_TRUNCATE;
    ringfile_file *file;
    if (ringfile_open(path, &options, &file) < 0)
        return failed("open");
    for (int number = 0; number < BLOCKS; number++)
        memset(blocks[number], number, BLOCK);
    if (ringfile_write(file, blocks, sizeof blocks, 0) < 0 || ringfile_sync_data(file) < 0)
        return failed("write");
    ringfile_read_request reads[READS];
    for (int index = 0; index < READS; index++)
        reads[index] = (ringfile_read_request){
            .offset = (uint64_t)(index * 37 % BLOCKS) * BLOCK, .data = found[index], .length = BLOCK};
    if (ringfile_read_many(file, reads, READS) != 0)
        return failed("read");
    for (int index = 0; index < READS; index++)
        if (reads[index].result != BLOCK || memcmp(found[index], blocks[index * 37 % BLOCKS], BLOCK) != 0)
            return fprintf(stderr, "wrong bytes\n"), 1;
    ringfile_close(file);
    remove(path);
    return puts("ok") < 0;
}
