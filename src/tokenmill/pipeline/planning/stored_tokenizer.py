"""The tokenizer of a run that is resumed: from the store, so that a moved branch or a missing Hub changes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tokenmill.errors import CorruptStore, StoreError
from tokenmill.store.run import read_run, read_vocabulary
from tokenmill.tokenizers import hub_models
from tokenmill.tokenizers.resolve import Vocabulary

if TYPE_CHECKING:
    from tokenmill.storage import Folder


def stored_vocabulary(folder: Folder, tokenizer: Any) -> Vocabulary | None:
    """The tokenizer of the run in a directory, if it was resolved from the same name of a model on the Hub.

    A vocabulary that the store has lost is fetched again, at the commit of the run.
    """
    if not isinstance(tokenizer, str) or hub_models.is_local(tokenizer):
        return None
    model = hub_models.parse(tokenizer)
    if model is None:
        return None
    try:
        run = read_run(folder)
    except StoreError:  # it is read again, and the error is raised, when the run is opened
        return None
    if run is None or not model.is_origin_of(run.job.tokenizer):
        return None
    spec = run.job.tokenizer
    try:
        return Vocabulary(spec, read_vocabulary(folder, spec))
    except CorruptStore:
        return hub_models.from_hub(model.at(str(spec.commit)))
