"""Two tokenizers of the kinds that models have: byte-level with merges, and sentencepiece-like with byte fallback."""

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer

CORPUS = ["Hello world, hello there. ", "สวัสดีชาวโลก ", "你好，世界。", "emoji 😀😀👩‍👩‍👧 flags 🇩🇪 ", "naïve café "] * 8


@pytest.fixture(scope="session")
def byte_level() -> Tokenizer:
    """As GPT-2, Llama 3, Qwen and SmolLM2; merges do not respect character borders."""
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(
        vocab_size=290,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_tokens([AddedToken("<tool_call>", special=False), AddedToken("two words", special=False)])
    return tokenizer


@pytest.fixture(scope="session")
def sentencepiece() -> Tokenizer:
    """As Llama 2 and Mistral: a mark for spaces, a mark before the first word, bytes for unknown characters."""
    letters = sorted(set("▁abcdefghijklmnopqrstuvwxyzHöß世"))
    words = ["▁h", "▁he", "ll", "▁hell", "▁hello", "▁w", "▁wo"]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *letters, *words]
    merges = [("▁", "h"), ("▁h", "e"), ("l", "l"), ("▁he", "ll"), ("▁hell", "o"), ("▁", "w"), ("▁w", "o")]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    tokenizer = Tokenizer(BPE(vocabulary, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in ("<unk>", "<s>", "</s>")])
    return tokenizer
