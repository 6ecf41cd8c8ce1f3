"""What a job takes on the nodes of a cluster: time, requests, network, and the limit that is reached first."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from tokenmill.humanize import Readable
from tokenmill.pipeline.planning.estimate import START_SECONDS, Estimate

# Requests to object storage: of a unit for its rows, one that looks for its part, and one that writes it; of a file for
# its footer, when the plan is made and by each worker that reads the file (at most once for each of its units); and the
# names that a listing returns.
PLAN_READS = 3
FOOTER_READS = 2
LISTED_NAMES = 1000

# How often each node lists the parts: when it starts, and when its own units are done.
LISTINGS = 2

# The requests that S3 takes in a second for names that it keeps together, as Amazon states them: those of the sources,
# and those of the parts. One driver dispatches more units (`benchmarks.million_units`), so it never is the limit.
PREFIX_READS = 5500
PREFIX_WRITES = 3500

# Dollars for a request: S3 Standard in us-east-1, list price of November 2026.
READ_DOLLARS = 0.40e-6
WRITE_DOLLARS = 5e-6


class ClusterEstimate(Readable, msgspec.Struct, frozen=True):
    """What a job takes on several nodes, with sources and store in object storage.

    Attributes:
        nodes: The nodes.
        cores: The cores of each node.
        seconds: The time.
        one_node_seconds: The time on one of these nodes.
        core_hours: The time of all cores that work.
        limit: What bounds the time: `cores`, `units` (there are fewer than cores), `reads` (what S3 takes for the
            sources in a second) or `writes` (the same for the parts).
        reads: The requests that read.
        writes: The requests that write.
        listings: The requests that list names.
        dollars: The price of the requests, by the list price of S3.
        read_bits: The bits that each node reads in a second, at most.
        written_bits: The bits that each node writes in a second, at most.
    """

    nodes: int
    cores: int
    seconds: Estimate
    one_node_seconds: Estimate
    core_hours: Estimate
    limit: str
    reads: int
    writes: int
    listings: int
    dollars: float
    read_bits: float
    written_bits: float


@dataclass(frozen=True, slots=True)
class Workload:
    """The figures of a job. `seconds` is the time of all cores together."""

    files: int
    units: int
    source_bytes: int
    store_bytes: float
    seconds: Estimate

    def on(self, nodes: int, cores: int) -> ClusterEstimate:
        """What the job takes on so many nodes of so many cores."""
        footers = min(self.files * nodes * cores, self.units)
        source_reads = self.units + PLAN_READS * self.files + FOOTER_READS * footers
        reads, writes = source_reads + self.units, self.units
        listings = LISTINGS * nodes * -(-self.units // LISTED_NAMES)
        bounds = {"reads": source_reads / PREFIX_READS, "writes": writes / PREFIX_WRITES}
        fast, slow = (
            {"cores": work / (nodes * cores), "units": work / max(self.units, 1), **bounds}
            for work in (self.seconds.low, self.seconds.high)
        )
        seconds = Estimate(*(round(START_SECONDS + max(each.values()), 1) for each in (fast, slow)))
        return ClusterEstimate(
            nodes=nodes,
            cores=cores,
            seconds=seconds,
            one_node_seconds=seconds if nodes == 1 else self.on(1, cores).seconds,
            core_hours=Estimate(*(round(each / 3600, 2) for each in (self.seconds.low, self.seconds.high))),
            limit=max(slow, key=slow.__getitem__),
            reads=reads,
            writes=writes,
            listings=listings,
            dollars=round(reads * READ_DOLLARS + (writes + listings) * WRITE_DOLLARS, 2),
            read_bits=round(8 * self.source_bytes / nodes / seconds.low),
            written_bits=round(8 * self.store_bytes / nodes / seconds.low),
        )
