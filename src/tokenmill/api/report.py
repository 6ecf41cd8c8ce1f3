"""`tokenmill.report`: one HTML page about one store or several."""

from __future__ import annotations

import os
from collections.abc import Sequence

import msgspec

from tokenmill.analysis.card import CARD, CROISSANT, CardFields, PublicFacts, card_destination, croissant, readme
from tokenmill.analysis.destinations import REPORT, page_destination
from tokenmill.analysis.html import render
from tokenmill.analysis.statistics import Statistics
from tokenmill.api.parameters import output_text, store_paths
from tokenmill.api.stats import stats
from tokenmill.errors import UsageError
from tokenmill.executors import progress
from tokenmill.executors.outcomes import Pool
from tokenmill.humanize import Readable
from tokenmill.options import Stores, StrPath
from tokenmill.storage import Folder, folder_at
from tokenmill.store.collection import open_collection
from tokenmill.store.layout import publish_json
from tokenmill.system.arguments import checked


class ReportResult(Readable, msgspec.Struct, frozen=True):
    """The path of the page, and the statistics in it.

    `card` are the files of the dataset card, and `to_fill_in` names the fields of the card that a person has to add.
    """

    path: str
    statistics: Statistics
    card: list[str] = []
    to_fill_in: list[str] = []


@checked
def report(  # noqa: PLR0913 - the options of the command, by their names
    directory: Stores,
    *,
    out: StrPath | None = None,
    by: str | Sequence[str] = (),
    card: StrPath | None = None,
    name: str | None = None,
    license: str | None = None,  # noqa: A002 - the key of the card
    description: str | None = None,
    creator: str | None = None,
    url: str | None = None,
    published: str | None = None,
    workers: int | None = None,
    memory: str | int | None = None,
    reporter: progress.Reporter | None = None,
    executor: Pool | None = None,
) -> ReportResult:
    """Write one HTML page that shows what a complete store holds and how its run went.

    The page needs no network and no script. It replaces an older page, but no file of another kind. With `card`, a
    dataset card is written, too: `README.md` for the Hub and `croissant.json`.

    Args:
        directory: The store: a path, or an address such as `s3://bucket/run`. Several stores share one page.
        out: The path of the page. Default: `report.html` in the store, or in the last of several.
        by: Columns of text, numbers or booleans. Tokens are counted by their values; with `"host:url"`, by the hosts of
            the URLs in the column `url`. A column that the store does not keep is read from the sources again.
        card: The directory of a dataset card that describes the store. It replaces only an older card.
        name: The name of the dataset in the card. Default: the name of the store's directory.
        license: The license in the card: an id such as `"odc-by"`, or the address of its text.
        description: The description in the card. Default: a sentence with the counts.
        creator: The organization that made the dataset, for the card.
        url: The address of the dataset, for the card.
        published: The date of publication, such as `"2026-11-17"`, for the card.
        workers: The number of worker processes. Default: one per core.
        memory: The memory budget of a machine, such as `"8GB"`. Default: 70 % of the available memory.
        reporter: Receives progress and notices. Default: a bar in a terminal or notebook, otherwise nothing is shown.
        executor: Running workers to use instead of new ones.
    """
    directories = store_paths(directory)
    fields = CardFields(name, license, description, creator, url, published)
    fields.check()
    if card is None and fields != CardFields():
        raise UsageError("the fields of a card need a card", "Give its directory, too: --card DIR.")
    default = folder_at(directories[-1]).path(REPORT)
    folder, page = page_destination("--out", default if out is None else output_text(out), directories)
    card_folder = None if card is None else card_destination(directories, os.fspath(card))
    statistics = stats(directories, by=by, workers=workers, memory=memory, reporter=reporter, executor=executor)
    folder.create()
    with folder.publish(page) as file:
        file.write(render(statistics).encode())
    if card_folder is None:
        return ReportResult(folder.path(page), statistics)
    written = _write_card(card_folder, directories, statistics, fields)
    return ReportResult(folder.path(page), statistics, written, fields.missing)


def _write_card(folder: Folder, directories: Sequence[str], statistics: Statistics, fields: CardFields) -> list[str]:
    """Write both files of a card, and return their paths."""
    facts = PublicFacts(open_collection(directories), statistics, folder.root)
    folder.create()
    publish_json(folder, CROISSANT, croissant(facts, fields))
    with folder.publish(CARD) as file:
        file.write(readme(facts, fields).encode())
    return [folder.path(CARD), folder.path(CROISSANT)]
