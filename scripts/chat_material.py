"""Chat templates and vocabularies to check `tokenmill.chat` with, taken from packages of the registry.

    python -m scripts.chat_material DIR

DIR becomes: `environment/` (transformers, jinja2, gguf), `templates/*.jinja` (those of TRL and of llama.cpp),
`vocab/*.json` (llama.cpp's vocabularies as tokenizer.json files, with the control tokens of the templates added) and
`index.json`, a list of records: what each template is called, where it is from, and which vocabulary and special tokens
it is rendered with. Needs uv, and a few minutes. What is there is made again; nothing of it belongs into a repository.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

READERS = Path(__file__).resolve().parent / "readers"
# pip reads the metadata of llama-cpp-python by building it, so what builds it is there already.
BUILD = ("pip", "scikit-build-core", "cmake", "ninja")
REQUIREMENTS = ("transformers", "jinja2", "tokenizers", "gguf", "sentencepiece", "protobuf")
TRL, LLAMA_CPP = "trl==1.16.0", "llama-cpp-python==0.3.36"

# By the first pattern that is found in a template's name: its vocabulary, and the special tokens that it is given.
# Vocabularies that llama.cpp does not have are replaced by one that splits alike, with the template's tokens added.
DEEPSEEK = {"bos_token": "<｜begin▁of▁sentence｜>", "eos_token": "<｜end▁of▁sentence｜>"}  # noqa: RUF001
SENTENCES = {"bos_token": "<s>", "eos_token": "</s>"}
LLAMA = {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"}
CHATML = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
ENDOFTEXT = {"eos_token": "<|endoftext|>"}
FAMILIES: tuple[tuple[str, str, dict[str, str]], ...] = (
    ("deepseek.*llama", "llama-bpe", DEEPSEEK),
    ("deepseek", "deepseek-llm", DEEPSEEK),
    ("qwen-qwq|qwen2|mimo", "qwen2", CHATML),
    (r"qwen3[._][568]", "qwen35", CHATML),
    ("qwen", "qwen2", CHATML),
    ("gemma", "gemma-4", {"bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>"}),
    (r"phi", "phi-3", {"bos_token": "<s>", "eos_token": "<|endoftext|>"}),
    ("cohere", "command-r", {"bos_token": "<BOS_TOKEN>", "eos_token": "<|END_OF_TURN_TOKEN|>"}),
    ("hermes|smollm", "llama-bpe", {"bos_token": "<|begin_of_text|>", "eos_token": "<|im_end|>"}),
    ("llama-?3|llama3|meta-llama|functionary|firefunction", "llama-bpe", LLAMA),
    ("gpt-?oss", "llama-bpe", {"bos_token": "<|startoftext|>", "eos_token": "<|return|>"}),
    ("glm", "qwen2", {"eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>"}),
    ("mistral|devstral|ministral", "llama-bpe", SENTENCES),
    ("llava", "llama-spm", SENTENCES),
    ("idefics|smolvlm", "llama-bpe", {"bos_token": "<|im_start|>", "eos_token": "<end_of_utterance>"}),
    ("lfm", "llama-bpe", {"bos_token": "<|startoftext|>", "eos_token": "<|im_end|>"}),
    ("kimi", "qwen2", {"bos_token": "[BOS]", "eos_token": "[EOS]"}),
    ("nemotron", "llama-bpe", {"bos_token": "<s>", "eos_token": "<|im_end|>"}),
    ("minimax", "llama-bpe", {"bos_token": "]~!b[", "eos_token": "[e~["}),
    ("granite", "starcoder", {"eos_token": "<|end_of_text|>"}),
    ("solar|laguna|seed|hy3", "qwen2", {"bos_token": "<|startoftext|>", "eos_token": "<|endoftext|>"}),
    ("rwkv", "gpt-neox", ENDOFTEXT),
    ("", "llama-bpe", {"bos_token": "<s>", "eos_token": "</s>"}),
)
GENERATION = re.compile(r"\{%[-+]?\s*generation\s*[-+]?%\}")
CONTROL = re.compile(
    r"<\|[^<>|\s'\"{}]+\|?>|<[^<>|\s'\"{}]+\|>|<｜[^<>｜\s'\"{}]+｜>|\[/?[A-Z][A-Z_]+\]"  # noqa: RUF001
    r"|</?(?:think|tool_call|tool_response|tools|start_of_turn|end_of_turn|end_of_utterance|s)>"
)


def run(command: list[str], **options: object) -> str:
    """The output of a command; what it wrote is shown if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, **options)  # type: ignore[call-overload]
    if done.returncode:
        sys.exit(f"{' '.join(command[:6])} failed:\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
    return str(done.stdout)


def make_environment(folder: Path) -> str:
    """The Python of an environment with transformers."""
    if not (folder / "bin/python").exists():
        run(["uv", "venv", "--quiet", "--python", f"{sys.version_info[0]}.{sys.version_info[1]}", str(folder)])
    python = str(folder / "bin/python")
    run(["uv", "pip", "install", "--quiet", "--python", python, *REQUIREMENTS, *BUILD])
    return python


def download(python: str, folder: Path) -> None:
    """The two packages, unpacked as far as they are needed."""
    folder.mkdir(parents=True, exist_ok=True)
    pip = [python, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder)]
    run([*pip, TRL])
    run([*pip, "--no-build-isolation", "--no-binary", ":all:", LLAMA_CPP])
    (wheel,) = folder.glob("trl-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.endswith(".jinja")]
        archive.extractall(folder, names)
    (source,) = folder.glob("llama_cpp_python-*.tar.gz")
    with tarfile.open(source) as tar:
        wanted = [each for each in tar.getmembers() if re.search(r"models/(templates/.*\.jinja|.*\.gguf)$", each.name)]
        tar.extractall(folder, wanted, filter="data")


def describe(name: str, text: str, origin: str, package: str) -> dict[str, object]:
    """The record of a template."""
    vocabulary, constants = next((vocab, const) for key, vocab, const in FAMILIES if re.search(key, name))
    return {
        "name": name,
        "file": f"templates/{name}.jinja",
        "package": package,
        "origin": origin,
        "sha256": hashlib.sha256(text.encode()).hexdigest(),
        "generation": bool(GENERATION.search(text)),
        "date": "strftime_now" in text,
        "vocabulary": vocabulary,
        "constants": constants,
    }


def collect(packages: Path, out: Path) -> list[dict[str, object]]:
    """Copy the templates under names of their own, and describe them."""
    out.mkdir(parents=True, exist_ok=True)
    (models,) = packages.glob("llama_cpp_python-*/vendor/llama.cpp/models")
    records: list[dict[str, object]] = []
    for package, folder in (("trl", packages / "trl/chat_templates"), ("llama.cpp", models / "templates")):
        for path in sorted(folder.glob("*.jinja")):
            text = path.read_bytes().decode()
            origin = "patched" if package == "trl" and path.stem.endswith("_training") else "original"
            name = f"{package.replace('.', '')}-{path.stem.lower()}"
            (out / f"{name}.jinja").write_bytes(path.read_bytes())
            records.append(describe(name, text, origin, package))
    return records


def control_tokens(records: list[dict[str, object]], folder: Path) -> dict[str, list[str]]:
    """The control tokens that the templates of each vocabulary spell, in a stable order."""
    tokens: dict[str, dict[str, None]] = {}
    for record in records:
        own = tokens.setdefault(str(record["vocabulary"]), {})
        constants = record["constants"]
        assert isinstance(constants, dict)
        text = (folder / str(record["file"])).read_text(encoding="utf-8")
        own.update(dict.fromkeys([*constants.values(), *CONTROL.findall(text)]))
    return {name: sorted(own) for name, own in tokens.items()}


def main() -> int:
    """Make the material."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory")
    folder = Path(parser.parse_args().directory).resolve()
    python = make_environment(folder / "environment")
    if not list((folder / "packages").glob("llama_cpp_python-*/vendor")):
        download(python, folder / "packages")
    records = collect(folder / "packages", folder / "templates")
    (folder / "vocab").mkdir(exist_ok=True)
    (models,) = (folder / "packages").glob("llama_cpp_python-*/vendor/llama.cpp/models")
    task = {"models": str(models), "out": str(folder / "vocab"), "tokens": control_tokens(records, folder)}
    (folder / "task.json").write_text(json.dumps(task))
    program = str(READERS / "convert_gguf_vocabularies.py")
    outcomes = json.loads(run([python, program, str(folder / "task.json")]).splitlines()[-1])
    (folder / "index.json").write_text(json.dumps(records, ensure_ascii=False, indent=1) + "\n")
    for name, outcome in outcomes.items():
        print(f"{name:<16}", outcome.get("error") or f"{outcome['size']:,} ids, {len(outcome['added'])} added")
    counts = {origin: sum(each["origin"] == origin for each in records) for origin in ("original", "patched")}
    print(f"{len(records)} templates ({counts}), {sum(bool(each['generation']) for each in records)} with tags")
    return 0


if __name__ == "__main__":
    sys.exit(main())
