"""Documents to framed tokens, as the job wants them: as they are, rearranged for fill-in-the-middle, after a prefix."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokenmill.sources.documents import Documents, SourceFile
from tokenmill.store.job import Job
from tokenmill.tokenization.document_hash import FIM_KEY, PREFIX_KEY, document_keys, in_sample
from tokenmill.tokenization.engines.protocol import Encoded, framed, reframed
from tokenmill.tokenization.fim import Rearrangement, encode_layout, plan_layout
from tokenmill.tokenization.tokenizer import Tokenizer


def encode_documents(file: SourceFile, present: Documents, job: Job, tokenizer: Tokenizer) -> Encoded:
    """The framed tokens of documents of a file, none of which is null."""
    if job.fim_rate is None and present.prefix is None:
        encoded = tokenizer.encode_pieces(present.text, present.trained)
    else:
        source, how = np.array([file.identity], np.uint64), rearrangement(job)
        layout = plan_layout(present.text, document_keys(job.fim_seed ^ FIM_KEY, source, present.rows), how)
        prefix = present.prefix
        if prefix is not None:
            is_chosen = in_sample(document_keys(PREFIX_KEY, source, present.rows), job.prefix_rate)
            prefix = pc.if_else(pa.array(is_chosen), prefix, pa.scalar(None, pa.large_string()))
        encoded = encode_layout(layout, tokenizer.encode, prefix, () if how is None else how.tokens)
    if job.has_ids:
        return reframed(encoded, job.stored_frame, (job.begin, job.end))
    return framed(encoded, job.begin, job.end)


def rearrangement(job: Job) -> Rearrangement | None:
    """How the documents of a job are rearranged; None if they are not."""
    if job.fim_rate is None:
        return None
    ids = tuple(job.tokenizer.added_tokens[token] for token in job.fim_tokens)
    return Rearrangement(job.fim_rate, job.fim_spm, job.fim_split, ids)
