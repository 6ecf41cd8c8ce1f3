"""Check all files of an export in workers."""

from __future__ import annotations

from tokenmill.executors import progress
from tokenmill.exports.verify import CheckByteRange, byte_ranges
from tokenmill.pipeline.verify_store import Checks
from tokenmill.storage import Folder


def check_export(export: Folder, checks: Checks) -> int:
    """Compare each file with its checksums; return the number of files."""
    ranges = byte_ranges(export)
    checks.report.begin(f"verify {export.root}", sum(item.bytes for item in ranges), 0, checks.workers)
    step = progress.Step()
    for done in checks.run(CheckByteRange(export.root), ranges, lambda item: item.name):
        step = progress.Step(step.text_bytes + done.value, step.tokens, step.units + 1)
        checks.report.advance(done.value, step)
    return len({item.name for item in ranges})
