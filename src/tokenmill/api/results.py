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
from tokenmill.api.inspect import DocumentInfo, SkippedRange, StoreInfo
from tokenmill.api.locate import LocateResult
from tokenmill.api.plan import PlanResult
from tokenmill.api.prepare_targets import PrepareResult
from tokenmill.api.report import ReportResult
from tokenmill.api.status import StatusResult
from tokenmill.api.tokenizers import TokenizerFamily, TokenizerInfo
from tokenmill.api.upgrade import UpgradeResult
from tokenmill.api.verify import VerifyResult
from tokenmill.doctor.causes import Check, Finding
from tokenmill.doctor.examining.examination import Examination
from tokenmill.doctor.watching.command import LeftoverProcess, Watched
from tokenmill.doctor.watching.deaths import Death
from tokenmill.exports.formats.protocol import FileLayout, FormatSpec, ReaderLimits, ScriptDefaults
from tokenmill.exports.locator import LocatedDocument, TextContext
from tokenmill.exports.result import ExportedSplit, ExportResult
from tokenmill.exports.trace import ShardLocation
from tokenmill.loader.changes import RecipeChange
from tokenmill.loader.overview import MixResult, MixSource, MixStage, MixTotal
from tokenmill.pipeline.bench.forecast import Cell, Corpus, Forecast
from tokenmill.pipeline.bench.result import BenchResult
from tokenmill.pipeline.bench.timing import Steps
from tokenmill.pipeline.planning.estimate import Estimate
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
    "Check",
    "ControlTokens",
    "Corpus",
    "DatasetInfo",
    "DatasetListing",
    "Death",
    "Document",
    "DocumentInfo",
    "DuplicateGroup",
    "Duplicates",
    "EndRecord",
    "EraseResult",
    "Estimate",
    "Examination",
    "ExportResult",
    "ExportedSplit",
    "FileLayout",
    "Finding",
    "FinishResult",
    "Forecast",
    "FormatSpec",
    "History",
    "Ignored",
    "LeftoverProcess",
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
    "ReaderLimits",
    "RecipeChange",
    "ReportResult",
    "ScriptDefaults",
    "ShardLocation",
    "SkippedRange",
    "SkippedRow",
    "SkippedRows",
    "Statistics",
    "StatusResult",
    "Steps",
    "StoreInfo",
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
    "Watched",
    "WorkerMemory",
]
