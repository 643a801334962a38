"""A tiny random model with a byte tokenizer: right for equalities, useless for scores."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from ridgefit.models import LoadedModel, port_of


def byte_tokenizer(chat_template: str | None = None) -> PreTrainedTokenizerFast:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    core = Tokenizer(models.BPE(vocab={byte: i for i, byte in enumerate(alphabet)}, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core)
    tokenizer.chat_template = chat_template
    return tokenizer


@pytest.fixture(scope="session")
def tiny() -> LoadedModel:
    torch.manual_seed(5)
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=6,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=2048,
        eos_token_id=None,
        bos_token_id=None,
    )
    model = LlamaForCausalLM(config).eval().requires_grad_(False)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() == 2:
                weight.mul_(6)  # sharp enough that arms differ in their most likely token
        model.lm_head.weight.mul_(4)  # and that losing the prefix costs some tokens 2 nats
    return LoadedModel(model, byte_tokenizer(), port_of(model), "tiny", None)


@pytest.fixture(scope="session")
def documents(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six documents of three domains, one of them too short."""
    rng = random.Random(2)
    path = tmp_path_factory.mktemp("text") / "documents.jsonl"
    lines = []
    for number, domain in enumerate(["code", "prose", "code", "prose", "chat", "prose"]):
        length = 40 if number == 3 else 400
        text = "".join(rng.choice("abcdefgh \n") for _ in range(length))
        lines.append(json.dumps({"text": text, "domain": domain, "source": f"source {number}"}))
    path.write_text("\n".join(lines) + "\n")
    return path
