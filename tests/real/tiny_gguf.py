"""Write a model file that llama.cpp loads and that answers with noise: two layers of random numbers, half a megabyte.

    python tests/real/tiny_gguf.py FILE          needs the packages gguf and numpy

The tokenizer has every byte and a few words, so any text can be read and something can be written.
"""

from __future__ import annotations

import sys
from pathlib import Path

WIDTH, HEADS, INNER, LAYERS, CONTEXT = 64, 4, 128, 2, 4096
WORDS = (
    "the", "a", "of", "to", "and", "in", "is", "it", "you", "that", "he", "was", "for", "on", "are", "with", "as",
    "his", "they", "be", "at", "one", "have", "this", "from", "or", "had", "by",
)  # fmt: skip


def write(path: Path, *, seed: int = 20261130) -> None:
    """Write the file; the same seed gives the same bytes."""
    import gguf
    import numpy as np

    special, data = ["<unk>", "<s>", "</s>"], [f"<0x{number:02X}>" for number in range(256)]
    tokens = [*special, *data, *("\N{LOWER ONE EIGHTH BLOCK}" + word for word in WORDS)]
    kinds = gguf.TokenType
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_name("sndr-noise")
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    writer.add_vocab_size(len(tokens))
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_tokenizer_model("llama")
    writer.add_token_list([token.encode() for token in tokens])
    writer.add_token_scores([0.0] * (len(tokens) - len(WORDS)) + [-1.0 - number for number in range(len(WORDS))])
    writer.add_token_types(
        [kinds.UNKNOWN, kinds.CONTROL, kinds.CONTROL, *[kinds.BYTE] * len(data), *[kinds.NORMAL] * len(WORDS)]
    )
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    numbers = np.random.default_rng(seed)

    def matrix(name: str, rows: int, columns: int) -> None:
        writer.add_tensor(f"{name}.weight", numbers.normal(0.0, 0.05, (rows, columns)).astype(np.float32))

    def scale(name: str) -> None:
        writer.add_tensor(f"{name}.weight", np.ones(WIDTH, np.float32))

    matrix("token_embd", len(tokens), WIDTH)
    matrix("output", len(tokens), WIDTH)
    scale("output_norm")
    for layer in range(LAYERS):
        block = f"blk.{layer}"
        scale(f"{block}.attn_norm")
        scale(f"{block}.ffn_norm")
        for part in ("q", "k", "v", "output"):
            matrix(f"{block}.attn_{part}", WIDTH, WIDTH)
        matrix(f"{block}.ffn_gate", INNER, WIDTH)
        matrix(f"{block}.ffn_up", INNER, WIDTH)
        matrix(f"{block}.ffn_down", WIDTH, INNER)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: tiny_gguf.py FILE")
    write(Path(sys.argv[1]))
