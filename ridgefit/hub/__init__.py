"""Map repositories: built, judged, published, fetched and looked at."""

from __future__ import annotations

from ridgefit.hub.build import Base, base_of, build_repository, data_sets, opened, without_places
from ridgefit.hub.calls import Hub, asked
from ridgefit.hub.card import About
from ridgefit.hub.check import check_repository
from ridgefit.hub.controller import build_controller_repository, is_controller
from ridgefit.hub.download import PullReport, local_maps, pull
from ridgefit.hub.layout import RepoConfig, is_repository, read_config
from ridgefit.hub.licence import Licence, licence_of
from ridgefit.hub.policy import build_policy_repository, is_policy
from ridgefit.hub.reference import RepoRef, names_repository
from ridgefit.hub.summary import look
from ridgefit.hub.upload import FileChange, PushReport, Target, push

__all__ = [
    "About",
    "Base",
    "FileChange",
    "Hub",
    "Licence",
    "PullReport",
    "PushReport",
    "RepoConfig",
    "RepoRef",
    "Target",
    "asked",
    "base_of",
    "build_controller_repository",
    "build_policy_repository",
    "build_repository",
    "check_repository",
    "data_sets",
    "is_controller",
    "is_policy",
    "is_repository",
    "licence_of",
    "local_maps",
    "look",
    "names_repository",
    "opened",
    "pull",
    "push",
    "read_config",
    "without_places",
]
