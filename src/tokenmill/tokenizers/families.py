"""The families of tokenizers that people train with: which engine encodes them, and how fast.

`scripts/tokenizer_families.py` compares the engines and measures `times_reference`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Family:
    """A family of tokenizers.

    Attributes:
        name: The models.
        tokenizer: An example for `--tokenizer`.
        engine: The engine that `--engine auto` uses.
        times_reference: The speed of that engine on one core, divided by that of the reference.
        end: The text of the end token of the base model.
        begin: The text of the token that the tokenizer's own template puts before a document, if it does.
    """

    name: str
    tokenizer: str
    engine: str
    times_reference: float
    end: str
    begin: str | None = None


FAMILIES = (
    Family("GPT-2", "gpt2", "gigatoken", 6, "<|endoftext|>"),
    Family("GPT-3.5, GPT-4", "cl100k_base", "gigatoken", 7, "<|endoftext|>"),
    Family("GPT-4o", "o200k_base", "gigatoken", 6, "<|endoftext|>"),
    Family("gpt-oss", "openai/gpt-oss-20b", "gigatoken", 21, "<|return|>"),
    Family("Llama 3", "meta-llama/Llama-3.1-8B", "gigatoken", 21, "<|end_of_text|>", "<|begin_of_text|>"),
    Family("Llama 4", "meta-llama/Llama-4-Scout-17B-16E", "gigatoken", 21, "<|end_of_text|>", "<|begin_of_text|>"),
    Family("Qwen 2.5, Qwen 3", "Qwen/Qwen3-8B-Base", "gigatoken", 21, "<|endoftext|>"),
    Family("Qwen 3.5", "Qwen/Qwen3.5-35B-A3B", "gigatoken", 21, "<|im_end|>"),
    Family(
        "DeepSeek V3",
        "deepseek-ai/DeepSeek-V3",
        "gigatoken",
        23,
        "<\uff5cend\u2581of\u2581sentence\uff5c>",
        "<\uff5cbegin\u2581of\u2581sentence\uff5c>",
    ),
    Family("Mistral (tekken)", "mistralai/Mistral-Nemo-Base-2407", "gigatoken", 19, "</s>", "<s>"),
    Family("Nemotron", "nvidia/Nemotron-H-8B-Base-8K", "gigatoken", 19, "</s>", "<s>"),
    Family("GLM 4.5", "zai-org/GLM-4.5", "gigatoken", 19, "<|endoftext|>"),
    Family("SmolLM, SmolLM 2", "HuggingFaceTB/SmolLM2-1.7B", "gigatoken", 19, "<|endoftext|>"),
    Family("SmolLM 3", "HuggingFaceTB/SmolLM3-3B-Base", "gigatoken", 19, "<|end_of_text|>"),
    Family("StarCoder 2", "bigcode/starcoder2-7b", "gigatoken", 18, "<|endoftext|>"),
    Family("Phi-4", "microsoft/phi-4", "gigatoken", 24, "<|im_end|>"),
    Family("OLMo 2, OLMo 3", "allenai/OLMo-2-1124-7B", "gigatoken", 24, "<|endoftext|>"),
    Family("GPT-NeoX, Pythia", "EleutherAI/pythia-6.9b", "gigatoken", 22, "<|endoftext|>"),
    Family("nanochat", "tokenizer.json", "gigatoken", 20, "<|bos|>"),
    Family("Llama 2", "meta-llama/Llama-2-7b-hf", "tokenizers", 1, "</s>", "<s>"),
    Family("Mistral 7B v0.3", "mistralai/Mistral-7B-v0.3", "tokenizers", 1, "</s>", "<s>"),
    Family("Gemma 3", "google/gemma-3-4b-pt", "tokenizers", 1, "<eos>", "<bos>"),
)
