"""The layout of a map repository: which files there are, what they may be called, and their hashes.

config.json       format, base model and its commit, splits, sizes, defaults (the Hub counts downloads by it)
ridgefit.json     the manifest of the maps, as in a maps folder
s<split>/         one format-1 folder per split, one file per layer
provenance.json   document hashes, folds, rows, penalty grid and scores, versions, device
frequencies.safetensors   token frequencies of the calibration text, if there are any
evaluation.json   results, if there are any; plots/*.png made of them
bench.json        prefill times on the publisher's machine, if there are any
SHA256SUMS        of every file above and NOTICE; never of README.md, which people and the Hub edit
README.md         the card
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
)

from ridgefit.errors import BadInput
from ridgefit.hub.strict import read_strict
from ridgefit.maps import reads_text

CONFIG = "config.json"
PROVENANCE = "provenance.json"
EVALUATION = "evaluation.json"
BENCH = "bench.json"
NOTICE = "NOTICE"
SUMS = "SHA256SUMS"
CARD = "README.md"
PLOTS = "plots"
FORMAT = "ridgefit-repository-1"
SUMS_LIMIT = 4 << 20

_BARE = r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}"
_PATH = re.compile(rf"(?:(?P<folder>s(?:0|[1-9][0-9]{{0,4}})|{PLOTS})/)?(?P<name>{_BARE})")
_SUFFIXES = {".json", ".safetensors", ".png", ".jinja", ".md"}
_PLAIN = {SUMS, NOTICE, "LICENSE"}
_LINE = re.compile(r"(?P<sha256>[0-9a-f]{64})  (?P<path>[^\n]{1,300})")
_MEND = "fetch or build the repository again"

# Files that a repository may hold and that belong to people or to the Hub, not to the artefact.
FOREIGN = frozenset({CARD, SUMS, ".gitattributes"})


Kind = Literal["maps", "recall-policy", "refresh-controller"]


class SplitConfig(BaseModel):
    """One split, as `config.json` states it.

    Attributes:
        folder: where its files are.
        layers: first late layer, and the number of layers of the model.
        in_width: columns of what is kept of a row; of a map, where all of it is read.
        out_width: rows of a map.
        features: what a map reads, with versions.
        dtype: of the maps.
        tail: suggested last rows that run every layer.
        sink_rows: suggested first rows that run every layer.
        bottleneck: `(rest_width, rank)` of what the features other than the state go through; None without.
        state_only: layers whose map reads the state alone, where others read more.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    folder: str = Field(pattern=r"^s[0-9]{1,5}$")
    layers: tuple[int, int]
    in_width: int = Field(ge=1, le=1 << 20)
    out_width: int = Field(ge=1, le=1 << 20)
    features: dict[str, int]
    dtype: Literal["bfloat16", "int8"]
    tail: int | None = Field(None, ge=1)
    sink_rows: int = Field(0, ge=0)
    bottleneck: tuple[int, int] | None = None
    state_only: tuple[int, ...] = ()

    @model_serializer(mode="wrap")
    def _plain_maps_say_nothing_new(self, plain: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Maps that read the state alone keep the bytes of their `config.json`."""
        saved: dict[str, Any] = plain(self)
        fresh = {"bottleneck": self.bottleneck, "state_only": self.state_only}
        return {name: value for name, value in saved.items() if fresh.get(name, True)}

    def shape(self, layer: int) -> tuple[int, int]:
        """Rows and columns of one layer's map."""
        return self.out_width, self.out_width if layer in self.state_only else self.in_width

    @property
    def reads(self) -> str:
        """What the maps read, for people."""
        rank = self.bottleneck[1] if self.bottleneck else None
        return reads_text(tuple(self.features), rank, len(self.state_only))

    @property
    def nbytes(self) -> int:
        """Bytes of its weights and biases in bf16, the most that its files can need."""
        rest, rank = self.bottleneck or (0, 0)
        maps = (self.layers[1] - self.layers[0]) * self.out_width * (self.in_width + 1)
        return (maps + rest * rank) * 2


class RepoConfig(BaseModel):
    """`config.json` of a repository.

    Attributes:
        format: version of this layout.
        kind: what the repository holds; all kinds share layout, hashes and loader.
        library_name: who reads it.
        base_model: Hub name.
        base_model_revision: commit of the base model that the artefact was fitted on.
        base_model_stated_by: "fit" if the fit recorded name and commit, else "publisher".
        family: architecture family.
        dims: sizes that must be equal.
        layer_kinds: one word per layer.
        dtype: compute dtype of the fit.
        config_sha256: of the base model's config.
        tokenizer_sha256: of its tokenizer.
        splits: by split layer; empty for artefacts that are not maps.
        versions: of the libraries behind the fit.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal["ridgefit-repository-1"] = "ridgefit-repository-1"
    kind: Kind = "maps"
    library_name: Literal["ridgefit"] = "ridgefit"
    base_model: str = Field(max_length=200)
    base_model_revision: str = Field(pattern=r"^[0-9a-f]{40}$")
    base_model_stated_by: Literal["fit", "publisher"]
    family: str
    dims: dict[str, int]
    layer_kinds: tuple[str, ...]
    dtype: str | None
    config_sha256: str | None
    tokenizer_sha256: str
    splits: dict[int, SplitConfig]
    versions: dict[str, JsonValue]

    @property
    def base_link(self) -> str:
        """Markdown of the base model at its commit."""
        return (
            f"[{self.base_model}](https://huggingface.co/{self.base_model}/tree/{self.base_model_revision})"
        )


def is_repository(folder: Path) -> bool:
    """Whether a folder was built as a repository; says nothing about its state."""
    return (folder / SUMS).is_file() and (folder / CONFIG).is_file()


def read_config(path: Path) -> RepoConfig:
    """Parse `config.json`.

    Raises:
        BadInput: it is missing, damaged, or of something else.
    """
    table = read_strict(path)
    if table.get("format") != FORMAT:
        raise BadInput(
            f"{path} is of format {str(table.get('format'))[:40]!r}, this ridgefit reads {FORMAT!r}",
            "give a repository that `ridgefit push` wrote, or upgrade ridgefit",
        )
    try:
        config = RepoConfig.model_validate_json(json.dumps(table), strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise BadInput(f"{path} is not readable ({where}: {first['msg']})", _MEND) from error
    for split, record in config.splits.items():
        if (
            record.folder != f"s{split}"
            or record.layers[0] != split
            or not split < record.layers[1] <= 10_000
        ):
            raise BadInput(f"{path} describes split {split} as layers {record.layers} in {record.folder}")
    return config


def judged_path(path: object, where: object) -> str:
    """A path within a repository that cannot leave it and holds no code.

    Raises:
        BadInput: it has another form, with the name.
    """
    match = _PATH.fullmatch(path) if isinstance(path, str) else None
    if match is None or ".." in match["name"]:
        raise BadInput(f"{where} names the file {str(path)[:80]!r}, which no map repository holds", _MEND)
    name, folder = match["name"], match["folder"]
    if Path(name).suffix not in _SUFFIXES and (folder or name not in _PLAIN):
        raise BadInput(f"{where} names the file {str(path)[:80]!r}, maps are safetensors and JSON", _MEND)
    if folder == PLOTS and not name.endswith(".png"):
        raise BadInput(f"{where} names the file {str(path)[:80]!r}, plots are PNG", _MEND)
    return match[0]


def sums_text(hashes: Mapping[str, str]) -> str:
    """`SHA256SUMS` as `sha256sum --check` reads it, by path."""
    return "".join(f"{hashes[path]}  {path}\n" for path in sorted(hashes))


def read_sums(path: Path) -> dict[str, str]:
    """Path -> lower-case hex sha256.

    Raises:
        BadInput: missing, too large, a malformed line, a path twice (also in other letters' case), a path
            that leaves the repository, or documentation among the paths.
    """
    try:
        if path.stat().st_size > SUMS_LIMIT:
            raise BadInput(f"{path} is too large for a list of hashes", _MEND)
        text = path.read_bytes().decode("ascii")
    except OSError as error:
        raise BadInput(f"cannot read {path} ({error.strerror or error})", _MEND) from error
    except UnicodeDecodeError as error:
        raise BadInput(f"{path} is not plain text", _MEND) from error
    hashes: dict[str, str] = {}
    if not text.endswith("\n"):
        raise BadInput(f"{path} is truncated", _MEND)
    for number, line in enumerate(text[:-1].split("\n"), start=1):
        match = _LINE.fullmatch(line)
        if match is None:
            raise BadInput(f"line {number} of {path} is not a hash and a path", _MEND)
        hashes[judged_path(match["path"], path)] = match["sha256"]
        if len(hashes) != number:
            raise BadInput(f"{path} names {match['path']} twice", _MEND)
    require_distinct(hashes, path)
    documentation = next((name for name in hashes if name.endswith(".md") or name in FOREIGN), None)
    if documentation:
        raise BadInput(f"{path} lists {documentation}, which may change without the artefact", _MEND)
    return hashes


def require_distinct(paths: Iterable[str], where: object) -> None:
    """Refuse paths that are one file on a system which ignores the case of letters.

    Raises:
        BadInput: naming the second of them.
    """
    seen: set[str] = set()
    for path in paths:
        if path.lower() in seen:
            raise BadInput(f"{where} names {path[:80]} twice in different case", _MEND)
        seen.add(path.lower())
