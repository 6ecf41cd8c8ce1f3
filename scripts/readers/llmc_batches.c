/* Read one shard of llm.c's uint16 layout with the demands of its data loader, and write each batch to stdout.
 *
 *     llmc_batches ROWS COLUMNS FILE
 *
 * A batch is ROWS * COLUMNS + 1 tokens (the last one is only a target), and the next starts ROWS * COLUMNS further on.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

enum { MAGIC = 20240520, VERSION = 1, HEADER_WORDS = 256 };

static void refuse(const char *why, long long found) {
    fprintf(stderr, "%s (%lld)\n", why, found);
    exit(1);
}

int main(int argc, char **argv) {
    if (argc != 4) refuse("usage: llmc_batches ROWS COLUMNS FILE", argc);
    const long step = atol(argv[1]) * atol(argv[2]);
    FILE *shard = fopen(argv[3], "rb");
    if (!shard) refuse("cannot open the shard", 0);

    int32_t header[HEADER_WORDS];
    if (fread(header, sizeof header, 1, shard) != 1) refuse("no whole header", 0);
    if (header[0] != MAGIC) refuse("bad magic", header[0]);
    if (header[1] != VERSION) refuse("bad version", header[1]);
    const int64_t tokens = header[2];
    if (tokens < step + 1) refuse("less than a batch", tokens);

    if (fseek(shard, 0, SEEK_END)) refuse("cannot seek", 0);
    const int64_t bytes = ftell(shard);
    if (bytes != (int64_t)sizeof header + tokens * (int64_t)sizeof(uint16_t)) refuse("the size is not that of the header", bytes);

    uint16_t *batch = malloc((step + 1) * sizeof *batch);
    for (int64_t start = 0; start + step + 1 <= tokens; start += step) {
        if (fseek(shard, (int)(sizeof header + start * sizeof *batch), SEEK_SET)) refuse("cannot seek", start);
        if (fread(batch, sizeof *batch, step + 1, shard) != (size_t)step + 1) refuse("short read", start);
        fwrite(batch, sizeof *batch, step + 1, stdout);
    }
    free(batch);
    fclose(shard);
    return 0;
}
