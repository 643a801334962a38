"""The registry of cache policies."""

from __future__ import annotations

from ridgefit.errors import BadInput
from ridgefit.runtime.draft.policies import (
    critical,
    expected,
    full,
    h2o,
    oracle,
    random_columns,
    rift_ada,
    rift_critical,
    rift_dyn,
    rift_expected,
    rift_stat,
    snapkv,
    streaming,
    swa,
)
from ridgefit.runtime.draft.policy import Policy

POLICIES: dict[str, Policy] = {
    module.POLICY.name: module.POLICY
    for module in (
        full,
        rift_stat,
        rift_dyn,
        rift_ada,
        snapkv,
        swa,
        streaming,
        h2o,
        random_columns,
        oracle,
        expected,
        rift_expected,
        critical,
        rift_critical,
    )
}


def policy_of(name: str) -> Policy:
    """A policy by its name.

    Raises:
        BadInput: there is none.
    """
    if name not in POLICIES:
        raise BadInput(f"there is no cache policy {name!r}", f"known are {', '.join(POLICIES)}")
    return POLICIES[name]
