"""The engines that encode text: gigatoken, tiktoken, Hugging Face tokenizers."""
