"""A causal language model that is only decoded: any family whose cache can be taken back."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import nn

from ridgefit.errors import BadInput
from ridgefit.models.identity import config_sha256, public_name
from ridgefit.tokens import tokenizer_sha256

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

_ENTRIES = 256


@dataclass(frozen=True)
class LoadedDecoder:
    """A target or a draft, ready for inference; hybrids with recurrent layers too.

    Attributes:
        model: in eval mode, without gradients.
        tokenizer: its tokenizer.
        ref: the reference it was loaded by, without a revision.
        revision: commit on the Hub, None for a folder.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    ref: str
    revision: str | None

    def identity(self) -> dict[str, Any]:
        """What a controller or a result must know again: JSON values only."""
        config = self.model.config.get_text_config(decoder=True)
        return {
            "family": str(config.model_type),
            "name": public_name(self.ref),
            "revision": self.revision,
            "layers": int(config.num_hidden_layers),
            "vocab": int(config.vocab_size),
            "dtype": str(self.model.dtype).removeprefix("torch."),
            "config_sha256": config_sha256(config),
            "tokenizer_sha256": tokenizer_sha256(self.tokenizer),
            "weights_sample_sha256": weights_sample_sha256(self.model),
        }

    @property
    def positions(self) -> int | None:
        """Positions the model was made for, where it says so."""
        found = getattr(self.model.config.get_text_config(decoder=True), "max_position_embeddings", None)
        return None if found is None else int(found)


def weights_sample_sha256(model: nn.Module) -> str:
    """Hash of up to 256 evenly spaced entries of every weight.

    A config does not tell two trainings of one architecture apart, and reading every weight of a large
    model takes longer than a small evaluation.
    """
    digest = hashlib.sha256()
    for name, weight in sorted(model.state_dict().items()):
        flat = weight.detach().reshape(-1)
        taken = flat[:: max(1, flat.numel() // _ENTRIES)].cpu().double()
        digest.update(name.encode() + taken.numpy().tobytes())
    return digest.hexdigest()


def require_one_tokenizer(target: LoadedDecoder, draft: LoadedDecoder) -> None:
    """Refuse a draft whose ids mean other tokens than the target's.

    Raises:
        BadInput: the first token they disagree about.
    """
    left, right = target.tokenizer.get_vocab(), draft.tokenizer.get_vocab()
    if left == right:
        return
    odd = next(token for token in sorted({*left, *right}) if left.get(token) != right.get(token))
    raise BadInput(
        f"target and draft have different vocabularies: token {odd!r} has id {left.get(odd)} in the target's "
        f"and {right.get(odd)} in the draft's",
        "use a draft with the target's tokenizer",
    )
