"""What a tokenizer does to text, as ids that open a sequence and as a hash that outlives versions.

A foundation module: the corpus writes the hash into its manifest, the models put it into their identity,
and both must mean the same thing.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from ridgefit.files import canonical_json, sha256_bytes

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# Any one of these is enough; several, because a small vocabulary may miss some.
_PROBES = ("a", "0", "the", ".")
# What changes the ids of a text. Not here: truncation and padding (left behind by the last call), the
# decoder, and the post-processor, which transformers rewrites and whose effect the opening ids show.
_ENCODING_PARTS = ("normalizer", "pre_tokenizer", "model", "added_tokens")


def opening_ids(tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """Ids that the tokenizer puts in front of a text by itself: usually one BOS, or nothing.

    Found by what the tokenizer does, not by its settings, which transformers names differently from
    version to version.
    """
    for probe in _PROBES:
        bare = list(tokenizer(probe, add_special_tokens=False)["input_ids"])
        full = list(tokenizer(probe)["input_ids"])
        for start in range(len(full) - len(bare) + 1):
            if bare and full[start : start + len(bare)] == bare:
                return tuple(int(token) for token in full[:start])
    return ()


def tokenizer_sha256(tokenizer: PreTrainedTokenizerBase) -> str:
    """Hash of everything that decides which ids a text or a chat becomes.

    Covered: vocabulary and merges, normaliser, pre-tokeniser, added tokens, BOS/EOS/UNK names, opening ids
    and the chat template. Left out: class names, paths, padding, truncation, maximum length. A tokenizer
    without a `tokenizers` backend is hashed by its class name and vocabulary instead of its parts.

    Returns:
        64 lower-case hex digits, equal on every machine and after save and load.
    """
    backend: Any = getattr(tokenizer, "backend_tokenizer", None)
    parts: dict[str, Any]
    if hasattr(backend, "to_str"):
        saved = json.loads(backend.to_str())
        parts = {name: _without_defaults(saved.get(name)) for name in _ENCODING_PARTS}
        _settle_merges(parts["model"])
    else:
        parts = {"class": type(tokenizer).__name__, "vocabulary": tokenizer.get_vocab()}
    parts["special"] = {
        name: str(token)
        for name in ("bos_token", "eos_token", "unk_token")
        if (token := getattr(tokenizer, name, None)) is not None
    }
    parts["opening"] = list(opening_ids(tokenizer))
    parts["chat_template"] = getattr(tokenizer, "chat_template", None)
    return sha256_bytes(canonical_json(parts))


def _without_defaults(value: Any) -> Any:
    """Drop null, false and "" fields: new versions of `tokenizers` add such fields and no id changes."""
    if isinstance(value, dict):
        return {key: _without_defaults(inner) for key, inner in value.items() if not _is_default(inner)}
    if isinstance(value, list):
        return [_without_defaults(inner) for inner in value]
    return value


def _is_default(value: Any) -> bool:
    return value is None or value is False or value == ""  # 0 is a token id, and 0 == False


def _settle_merges(model: dict[str, Any]) -> None:
    """Write merges as pairs; before `tokenizers` 0.20 they were strings with a space between."""
    if "merges" in model:
        model["merges"] = [m.split(" ") if isinstance(m, str) else m for m in model["merges"]]
