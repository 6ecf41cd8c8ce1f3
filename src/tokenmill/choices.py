"""What options with a fixed set of values can be, as types."""

from __future__ import annotations

from typing import Literal

EngineName = Literal["auto", "gigatoken", "tiktoken", "tokenizers"]
BadDocumentAction = Literal["quarantine", "fail"]
Dedup = Literal["exact", "none"]
FimSplit = Literal["character", "line"]
# The arrays of a batch.
Field = Literal[
    "input_ids",
    "labels",
    "tokens",
    "position_ids",
    "cu_seqlens",
    "document_ids",
    "source_ids",
    "loss_mask",
    "trained_tokens",
]
EndTokenPosition = Literal["appended", "prepended"]
Mask = Literal["labels", "weights", "ignore"]
Null = Literal["skip", "empty"]
Packing = Literal["concat", "best-fit", "whole"]
Shuffle = Literal["full", "window", "none"]
Prefilled = Literal["mask", "train"]
Special = Literal["text", "parse", "refuse"]
Split = Literal["train", "val"]
Stdin = Literal["jsonl", "text"]
Tail = Literal["keep", "drop", "merge"]
TemplateSpecial = Literal["parse", "text"]
Turns = Literal["whole", "each"]
TokenType = Literal["uint16", "int32", "uint32"]
