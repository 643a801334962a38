"""Recall policies on a model: `with recall.applied(model): model.generate(**inputs)`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import nn

from ridgefit.errors import BadInput
from ridgefit.maps.fingerprint import Fingerprint
from ridgefit.maps.recall import PolicyManifest, RecallPolicy, RecallSettings
from ridgefit.models.latent import ROTATED, LatentModel
from ridgefit.models.latenthooks import LatentHooks
from ridgefit.runtime.recall.reader import PolicyReader
from ridgefit.runtime.recall.report import RecallReport


class Recall:
    """A policy, ready to be applied.

    Args:
        policy: settings and thresholds.
    """

    def __init__(self, policy: RecallPolicy) -> None:
        self.policy = policy

    @classmethod
    def load(cls, folder: str | Path) -> Recall:
        """From a policy folder.

        Raises:
            BadInput: it is not one.
        """
        return cls(RecallPolicy.load(Path(folder)))

    @classmethod
    def of_prompts(cls, model: nn.Module, settings: RecallSettings) -> Recall:
        """A policy that finds its thresholds in each prompt, for this model.

        Raises:
            BadInput: the model has no latent cache.
        """
        given = settings.model_copy(update={"thresholds": "prompt"})
        fingerprint = Fingerprint.of(LatentModel(model).identity())
        return cls(RecallPolicy(PolicyManifest(settings=given, fingerprint=fingerprint)))

    def check(self, model: nn.Module, tokenizer: Any = None) -> list[str]:
        """Compare the policy with a model.

        Returns:
            One line per difference that does not forbid the use.

        Raises:
            BadInput: another model, or a rotated branch where the policy is not marked as a control.
        """
        latent = LatentModel(model)
        lines = self.policy.check(latent.identity(tokenizer))
        require_premise(latent.branch_spread(), control=self.policy.settings.control)
        return lines

    @contextmanager
    def applied(self, model: nn.Module, *, several: bool = False) -> Iterator[RecallReport]:
        """Read the model's cache through the policy until the block ends.

        Prompts are read densely. Rows are parted at the first step of one row, so that it does not matter in
        how many pieces a prompt came. State lives on the cache: a copy carries it, beams reorder it, and a
        later turn goes on with it.

        Args:
            model: in eval mode, with sdpa attention.
            several: see `PolicyReader`.

        Yields:
            What the policy does, by layer, filled as it goes.

        Raises:
            BadInput: see `check`.
        """
        self.check(model)
        latent = LatentModel(model)
        reader = PolicyReader(self.policy, latent.layers, several=several)
        hooks = LatentHooks(latent, reader)
        hooks.attach()
        try:
            yield reader.report
        finally:
            hooks.detach()


def require_premise(spread: dict[int, float], *, control: bool) -> None:
    """Refuse rows whose branch is rotated: how they rank would change with every step.

    Args:
        spread: of `LatentModel.branch_spread`.
        control: the policy is marked as a control arm.

    Raises:
        BadInput: the branch of some layer is rotated, and it is no control; or it is one and none is rotated.
    """
    layer = max(spread, key=lambda index: spread[index])
    if spread[layer] > ROTATED and not control:
        raise BadInput(
            f"the branch of layer {layer} is rotated: one vector's copies differ by {spread[layer]:.2f} of "
            "their length from position to position, and recall policies need them equal",
            "pass --control to measure it as a control arm",
        )
