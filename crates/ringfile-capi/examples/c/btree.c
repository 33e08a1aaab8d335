/*
 * Looks keys up in a B-tree whose pages of 4 KiB are read through a page cache. btree FOLDER builds it in a file there,
 * from the leaves up. A node is an array of pairs: key and value, or the first key of a child and its page.
 */
#include <stdio.h>
#include <string.h>

#include "ringfile.h"

enum { PAGE = 4096, PAIRS = PAGE / 16, KEYS = 200000, LOOK_UPS = 20000 };
typedef struct { uint64_t key, value; } pair;

/* Writes the nodes of one level after another. Returns the root's page, which is the last, and sets *height. */
static uint64_t build(FILE *file, int *height)
{
    static pair children[KEYS / PAIRS + 1];
    uint64_t page = 0, count = KEYS;
    for (*height = 0; *height == 0 || count > 1; ++*height) {
        uint64_t parents = 0;
        for (uint64_t at = 0; at < count; at += PAIRS, parents++) {
            pair node[PAIRS];
            memset(node, 0xff, sizeof node); /* behind the last pair, keys are larger than any that is looked up */
            for (uint64_t of = at; of < count && of < at + PAIRS; of++)
                node[of - at] = *height == 0 ? (pair){of * 3, of} : children[of];
            children[parents] = (pair){node[0].key, page++}; /* its place was read already */
            fwrite(node, PAGE, 1, file);
        }
        count = parents;
    }
    return page - 1;
}

/* Returns the place of the last pair whose key is not above `key`; the first if there is none. */
static size_t search(const pair *node, uint64_t key)
{
    size_t low = 0, high = PAIRS;
    while (high - low > 1) {
        size_t middle = (low + high) / 2;
        *(node[middle].key <= key ? &low : &high) = middle;
    }
    return low;
}

/* Returns 1 and the key's value, 0 if there is no such key, or a negative errno. */
static int look_up(const ringfile_cached_file *tree, uint64_t page, int height, uint64_t key, uint64_t *value)
{
    for (;; page = *value) {
        ringfile_cached_page node;
        int result = ringfile_cache_read(tree, page, &node); /* in memory: no lock, no system call, no copy */
        if (result < 0)
            return result;
        const pair *found = (const pair *)node.data + search(node.data, key);
        int is_there = found->key == key;
        *value = found->value;
        ringfile_cache_release(&node);
        if (--height == 0)
            return is_there;
    }
}

int main(int argc, char **argv)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/btree.bin", argc > 1 ? argv[1] : ".");
    FILE *made = fopen(path, "wb");
    if (made == NULL)
        return perror(path), 1;
    int height, wrong = 0;
    uint64_t root = build(made, &height), value, random = 1;
    if (fclose(made) != 0)
        return perror(path), 1;
    ringfile_open_options how = {.size = sizeof how};
    how.flags = RINGFILE_READ | RINGFILE_DIRECT | RINGFILE_BUFFERED_FALLBACK;
    ringfile_cache_options options = {.size = sizeof options, .bytes = root * PAGE / 2}; /* half of the tree fits */
    ringfile_cache_counts counts = {.size = sizeof counts};
    ringfile_file *file;
    ringfile_cache *cache;
    ringfile_cached_file *tree;
    if (ringfile_open(path, &how, &file) < 0 || ringfile_cache_create(&options, &cache) < 0
        || ringfile_cache_open(cache, file, PAGE, &tree) < 0)
        return fprintf(stderr, "%s\n", ringfile_last_error()), 1;
    for (int step = 0; step < LOOK_UPS; step++) {
        random = random * 6364136223846793005 + 1442695040888963407;
        uint64_t at = (random >> 33) % KEYS;
        uint64_t key = at * at / KEYS * 3 + (random >> 20) % 2; /* small ones more often; half of them are not there */
        int found = look_up(tree, root, height, key, &value);
        if (found < 0)
            return fprintf(stderr, "%s\n", ringfile_last_error()), 1;
        wrong += found != (key % 3 == 0) || (found == 1 && value != key / 3);
    }
    ringfile_cache_metrics(cache, tree, &counts);
    printf("%llu pages in %d levels, %d look-ups: %llu hits, %llu misses\n", (unsigned long long)root + 1, height,
           LOOK_UPS, (unsigned long long)counts.hits, (unsigned long long)counts.misses);
    wrong += ringfile_cache_close(tree) + ringfile_cache_free(cache) + ringfile_close(file) + remove(path);
    return puts(wrong == 0 ? "ok" : "wrong values") < 0 || wrong != 0;
}
