"""Dies: each worker may take 256 MB of address space, as `ulimit -v` or a batch system sets it, and wants more."""

import multiprocessing
import resource

cache = []


def tokenize(text: str) -> list[int]:
    """The tokens of one text, with a cache that only grows: 4 MB a text."""
    cache.append(text * 400_000)
    return list(text.encode())


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_AS, (256 << 20, 256 << 20))
    with multiprocessing.Pool(4) as pool:
        print(sum(map(len, pool.map(tokenize, ["some text."] * 400))), "tokens")
