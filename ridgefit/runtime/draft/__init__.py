"""A draft model's compressed cache: sizes, policies, signals and controllers (RIFT)."""

from ridgefit.runtime.draft.drafter import Drafter, Proposal, Spent
from ridgefit.runtime.draft.policies import POLICIES, policy_of
from ridgefit.runtime.draft.policy import Policy
from ridgefit.runtime.draft.settings import CacheSettings
from ridgefit.runtime.draft.signals import Signals

__all__ = ["POLICIES", "CacheSettings", "Drafter", "Policy", "Proposal", "Signals", "Spent", "policy_of"]
