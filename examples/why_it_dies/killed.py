"""Hangs: a worker is killed; the Pool starts another, but the row is lost, and the parent waits for it."""

import multiprocessing
import subprocess
import time


def tokenize(text: str) -> list[int]:
    """The tokens of one text, slowly."""
    time.sleep(0.1)
    return list(text.encode())


if __name__ == "__main__":
    with multiprocessing.Pool(2) as pool:
        victim = multiprocessing.active_children()[0].pid
        subprocess.Popen(["sh", "-c", f"sleep 0.55; kill -9 {victim}"])
        print(sum(map(len, pool.imap(tokenize, ["some text"] * 30))), "tokens")
