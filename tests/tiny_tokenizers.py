"""Small real tokenizers, trained where they are needed: no network, no fixtures."""

import base64
import functools
import io
import pathlib

TEXT = [
    "The quick brown fox jumps over the lazy dog. " * 3,
    "Sphinx of black quartz, judge my vow; pack my box with five dozen jugs.",
    "naïve café, 日本語 🚀 and some\nnewlines\n\nhere",
    "numbers 1234567890 and punctuation !?.,;:-()[]{}",
] * 5
END = "<|endoftext|>"


@functools.cache
def hugging_face_json(template: bool = True) -> str:
    """Byte-level BPE of 400 ids; with a template, truncation and padding as traps."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
    from tokenizers.trainers import BpeTrainer

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made.train_from_iterator(
        TEXT,
        BpeTrainer(
            vocab_size=400,
            special_tokens=[END],
            initial_alphabet=alphabet,
            show_progress=False,
        ),
    )
    if template:
        made.post_processor = processors.TemplateProcessing(
            single=f"{END} $A {END}", special_tokens=[(END, made.token_to_id(END))]
        )
        made.enable_truncation(5)
        made.enable_padding(length=7)
    return made.to_str()


def write_hugging_face(folder: pathlib.Path) -> pathlib.Path:
    """A `tokenizer.json`."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "tokenizer.json"
    path.write_text(hugging_face_json(), encoding="utf-8")
    return path


@functools.cache
def sentence_piece_model(*, dummy_prefix: bool = False) -> bytes:
    """A unigram model of 320 pieces that falls back to bytes and keeps all space."""
    import sentencepiece

    proto = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXT),
        model_writer=proto,
        vocab_size=320,
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        add_dummy_prefix=dummy_prefix,
        allow_whitespace_only_pieces=True,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    return proto.getvalue()


def write_tiktoken(path: pathlib.Path) -> pathlib.Path:
    """Ranks of the bytes and of some words."""
    tokens = [bytes([i]) for i in range(256)]
    tokens += [b"th", b"the", b" q", b" qu", b"ick", b"\xe6\x97", b"\xe6\x97\xa5"]
    path.write_bytes(
        b"".join(
            b"%s %d\n" % (base64.b64encode(token), rank)
            for rank, token in enumerate(tokens)
        )
    )
    return path
