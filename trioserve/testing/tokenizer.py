"""Tiny tokenizers for tests, trained in milliseconds and the same every time.

Both can encode every text. One writes bytes as characters (as GPT-2, Llama 3 and SmolLM
do), the other falls back to byte tokens (as Llama 2 and Gemma do).
"""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import (
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)
from tokenizers.processors import TemplateProcessing

# Enough words, spaces and line ends for useful merges. The umlauts and the Chinese
# words also give tokens with more than one character beyond ASCII.
_CORPUS = (
    "The quick brown fox jumps over the lazy dog. The dog sleeps on and on.",
    "Paris is the capital of France, and Rome is the capital of Italy.",
    "Once upon a time there was a little server that never waited for anyone.",
    "def main():\n    return [1, 2, 3]\n\n\nif True:\n    main()",
    "Zwölf größere Bücher für schöne Übungen. 你好世界, 你好朋友!",
    "Answer the following questions: who wrote it, when, where, and why?",
    "Weather reports expected heavy rain; nobody brought umbrellas to town.",
    "Structured concurrency means that every task belongs to some nursery.",
)

IM_START = "<|im_start|>"
IM_END = "<|im_end|>"

# Texts that one of the tokenizers reads as a special token or as a space.
NOT_PLAIN = (IM_START, IM_END, "<unk>", "<s>", "</s>", "\u2581")

CHATML_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] "
    "+ '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def tiny_tokenizer(folder: Path, *, vocab_size: int = 512) -> Path:
    """Save a byte-level BPE tokenizer with a ChatML template; every text round-trips.

    Args:
      vocab_size: tokens in all, from 258 (the bytes and two special tokens) to 520.

    Returns:
      The folder, in Hugging Face layout.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[IM_START, IM_END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_CORPUS, trainer)
    return _save(
        tokenizer,
        folder,
        vocab_size=vocab_size,
        eos_token=IM_END,
        chat_template=CHATML_TEMPLATE,
    )


def tiny_sentencepiece_tokenizer(folder: Path, *, vocab_size: int = 512) -> Path:
    """Save a BPE tokenizer as Llama 2 has it: U+2581 for spaces and byte fallback.

    It begins texts with <s> and has no chat template.

    Args:
      vocab_size: tokens in all, from 400 (bytes, special tokens, letters) to 600.

    Returns:
      The folder, in Hugging Face layout.
    """
    special = ["<unk>", "<s>", "</s>"]
    tokenizer = Tokenizer(_train_fallback_model(special, vocab_size))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    tokenizer.add_special_tokens(special)
    tokenizer.post_processor = TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 1)]
    )
    return _save(
        tokenizer, folder, vocab_size=vocab_size, bos_token="<s>", eos_token="</s>"
    )


def _train_fallback_model(special: list[str], vocab_size: int) -> models.BPE:
    # A separate tokenizer trains the merges. Its trainer adds given tokens only as
    # special ones, so the byte tokens are special there. In the model they are not.
    byte_tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=special + byte_tokens,
        show_progress=False,
    )
    trained.train_from_iterator(_CORPUS, trainer)
    model = json.loads(trained.to_str())["model"]
    return models.BPE(
        vocab=model["vocab"],
        merges=[tuple(pair) for pair in model["merges"]],
        byte_fallback=True,
        unk_token=special[0],
        fuse_unk=True,
    )


def _save(
    tokenizer: Tokenizer,
    folder: Path,
    *,
    vocab_size: int,
    eos_token: str,
    bos_token: str | None = None,
    chat_template: str | None = None,
) -> Path:
    if tokenizer.get_vocab_size() != vocab_size:
        raise ValueError(
            f"the corpus gives {tokenizer.get_vocab_size()} tokens, not {vocab_size}"
        )
    # Imported here because it takes seconds.
    from transformers import PreTrainedTokenizerFast

    wrapped = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer, eos_token=eos_token, bos_token=bos_token
    )
    wrapped.chat_template = chat_template
    wrapped.save_pretrained(folder)
    return folder
