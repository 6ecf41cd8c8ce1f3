"""The list of the records that the public functions return, and of the records in their fields."""

from tokenmill.analysis.history import History, Pause, WorkerMemory
from tokenmill.analysis.read_log import LoggedFailure
from tokenmill.analysis.statistics import (
    BadRowReason,
    Breakdown,
    DuplicateGroup,
    Duplicates,
    LengthBin,
    Lengths,
    Provenance,
    SkippedRows,
    Statistics,
    TokenCount,
    TokenShare,
    VocabularyUse,
)
from tokenmill.api.datasets import DatasetInfo, DatasetListing, VersionInfo
from tokenmill.api.erase_result import EraseResult
from tokenmill.api.finish import FinishResult
from tokenmill.api.locate import LocateResult
from tokenmill.api.plan import PlanResult
from tokenmill.api.prepare_targets import PrepareResult
from tokenmill.api.report import ReportResult
from tokenmill.api.status import StatusResult
from tokenmill.api.tokenizers import TokenizerFamily, TokenizerInfo
from tokenmill.api.upgrade import UpgradeResult
from tokenmill.api.verify import VerifyResult
from tokenmill.exports.locator import LocatedDocument, TextContext
from tokenmill.exports.result import ExportedSplit, ExportResult
from tokenmill.exports.trace import ShardLocation
from tokenmill.loader.changes import RecipeChange
from tokenmill.loader.overview import MixResult, MixSource, MixStage, MixTotal
from tokenmill.pipeline.bench.forecast import Cell, Corpus, Forecast
from tokenmill.pipeline.bench.result import BenchResult
from tokenmill.pipeline.bench.timing import Steps
from tokenmill.sources import Ignored
from tokenmill.store.control_counts import ControlTokens
from tokenmill.store.heartbeats import EndRecord
from tokenmill.store.part import PartContent, SkippedRow
from tokenmill.store.reader import Document, StoreSlice

__all__ = [
    "BadRowReason",
    "BenchResult",
    "Breakdown",
    "Cell",
    "ControlTokens",
    "Corpus",
    "DatasetInfo",
    "DatasetListing",
    "Document",
    "DuplicateGroup",
    "Duplicates",
    "EndRecord",
    "EraseResult",
    "ExportResult",
    "ExportedSplit",
    "FinishResult",
    "Forecast",
    "History",
    "Ignored",
    "LengthBin",
    "Lengths",
    "LocateResult",
    "LocatedDocument",
    "LoggedFailure",
    "MixResult",
    "MixSource",
    "MixStage",
    "MixTotal",
    "PartContent",
    "Pause",
    "PlanResult",
    "PrepareResult",
    "Provenance",
    "RecipeChange",
    "ReportResult",
    "ShardLocation",
    "SkippedRow",
    "SkippedRows",
    "Statistics",
    "StatusResult",
    "Steps",
    "StoreSlice",
    "TextContext",
    "TokenCount",
    "TokenShare",
    "TokenizerFamily",
    "TokenizerInfo",
    "UpgradeResult",
    "VerifyResult",
    "VersionInfo",
    "VocabularyUse",
    "WorkerMemory",
]
