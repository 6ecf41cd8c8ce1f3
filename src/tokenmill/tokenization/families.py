"""The families of tokenizers that people train with: which engine encodes them, and how fast.

`scripts/tokenizer_families.py` compares the engines and measures `times_reference`.
"""

from __future__ import annotations

import msgspec

from tokenmill.humanize import Readable


class TokenizerFamily(Readable, msgspec.Struct, frozen=True):
    """A family of tokenizers: its models, an example for `--tokenizer`, and the engine that `--engine auto` uses.

    `times_reference` is the speed of that engine on one core, divided by that of the reference. `eot` is the text of
    the end token of the base model, and `bos` that of the token that the tokenizer's template puts before a document.
    """

    family: str
    tokenizer: str
    engine: str
    times_reference: float
    eot: str
    bos: str | None = None


FAMILIES = (
    TokenizerFamily("GPT-2", "gpt2", "gigatoken", 6, "<|endoftext|>"),
    TokenizerFamily("GPT-3.5, GPT-4", "cl100k_base", "gigatoken", 7, "<|endoftext|>"),
    TokenizerFamily("GPT-4o", "o200k_base", "gigatoken", 6, "<|endoftext|>"),
    TokenizerFamily("gpt-oss", "openai/gpt-oss-20b", "gigatoken", 21, "<|return|>"),
    TokenizerFamily("Llama 3", "meta-llama/Llama-3.1-8B", "gigatoken", 21, "<|end_of_text|>", "<|begin_of_text|>"),
    TokenizerFamily(
        "Llama 4", "meta-llama/Llama-4-Scout-17B-16E", "gigatoken", 21, "<|end_of_text|>", "<|begin_of_text|>"
    ),
    TokenizerFamily("Qwen 2.5, Qwen 3", "Qwen/Qwen3-8B-Base", "gigatoken", 21, "<|endoftext|>"),
    TokenizerFamily("Qwen 3.5", "Qwen/Qwen3.5-35B-A3B", "gigatoken", 21, "<|im_end|>"),
    TokenizerFamily(
        "DeepSeek V3",
        "deepseek-ai/DeepSeek-V3",
        "gigatoken",
        23,
        "<\uff5cend\u2581of\u2581sentence\uff5c>",
        "<\uff5cbegin\u2581of\u2581sentence\uff5c>",
    ),
    TokenizerFamily("Mistral (tekken)", "mistralai/Mistral-Nemo-Base-2407", "gigatoken", 19, "</s>", "<s>"),
    TokenizerFamily("Nemotron", "nvidia/Nemotron-H-8B-Base-8K", "gigatoken", 19, "</s>", "<s>"),
    TokenizerFamily("GLM 4.5", "zai-org/GLM-4.5", "gigatoken", 19, "<|endoftext|>"),
    TokenizerFamily("SmolLM, SmolLM 2", "HuggingFaceTB/SmolLM2-1.7B", "gigatoken", 19, "<|endoftext|>"),
    TokenizerFamily("SmolLM 3", "HuggingFaceTB/SmolLM3-3B-Base", "gigatoken", 19, "<|end_of_text|>"),
    TokenizerFamily("StarCoder 2", "bigcode/starcoder2-7b", "gigatoken", 18, "<|endoftext|>"),
    TokenizerFamily("Phi-4", "microsoft/phi-4", "gigatoken", 24, "<|im_end|>"),
    TokenizerFamily("OLMo 2, OLMo 3", "allenai/OLMo-2-1124-7B", "gigatoken", 24, "<|endoftext|>"),
    TokenizerFamily("GPT-NeoX, Pythia", "EleutherAI/pythia-6.9b", "gigatoken", 22, "<|endoftext|>"),
    TokenizerFamily("nanochat", "tokenizer.json", "gigatoken", 20, "<|bos|>"),
    TokenizerFamily("Llama 2", "meta-llama/Llama-2-7b-hf", "gigatoken", 5, "</s>", "<s>"),
    TokenizerFamily("Mistral 7B v0.3", "mistralai/Mistral-7B-v0.3", "gigatoken", 5, "</s>", "<s>"),
    TokenizerFamily("Gemma 3", "google/gemma-3-4b-pt", "gigatoken", 5, "<eos>", "<bos>"),
)
