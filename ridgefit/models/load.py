"""From a folder, a bundled name or a Hub name to a model, its tokenizer and its port."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn

from ridgefit.errors import BadInput
from ridgefit.files import names_a_path
from ridgefit.models.decoder import LoadedDecoder
from ridgefit.models.hub import fetched
from ridgefit.models.identity import public_name
from ridgefit.models.latent import LATENT_FAMILIES, LatentModel, unknown_family
from ridgefit.models.port import Port
from ridgefit.models.registry import port_of, require_family
from ridgefit.models.weights import require_finite, require_whole_weights

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

BUNDLED = "bundled:"
ROTATED_TWIN = "kimi_linear_rotated"
_BUNDLED_FOLDER = Path(__file__).parents[1] / "bundled"
_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
_FILES = ("*.json", "*.safetensors", "*.model", "*.txt", "*.jinja", "*.tiktoken")
# One of these holds a vocabulary. Without any, transformers makes an empty tokenizer and says nothing.
_VOCABULARIES = ("tokenizer.json", "tokenizer.model", "vocab.*", "spiece.model", "tekken.json", "*.tiktoken")


@dataclass(frozen=True)
class LoadedModel:
    """A model ready for inference.

    Attributes:
        model: in eval mode, without gradients.
        tokenizer: its tokenizer.
        port: what ridgefit may do with it.
        ref: the reference it was loaded by, without a revision.
        revision: commit on the Hub, None for a folder.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    port: Port
    ref: str
    revision: str | None

    def identity(self) -> dict[str, Any]:
        """`Port.identity` with the tokenizer's hash and the reference it was loaded by."""
        return _referred(self.port.identity(self.tokenizer), self.ref, self.revision)


@dataclass(frozen=True)
class LoadedLatent:
    """A model with a latent cache, ready for inference.

    Attributes:
        model: in eval mode, without gradients.
        tokenizer: its tokenizer.
        latent: its latent layers.
        ref: the reference it was loaded by, without a revision.
        revision: commit on the Hub, None for a folder.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    latent: LatentModel
    ref: str
    revision: str | None

    def identity(self) -> dict[str, Any]:
        """`LatentModel.identity` with the tokenizer's hash and the reference it was loaded by."""
        return _referred(self.latent.identity(self.tokenizer), self.ref, self.revision)


def _referred(identity: dict[str, Any], ref: str, revision: str | None) -> dict[str, Any]:
    return {**identity, "name": public_name(ref), "revision": revision}


def load_model(
    ref: str,
    *,
    dtype: str = "auto",
    device: str = "auto",
    attention: str = "sdpa",
    trust_remote_code: bool = False,
    check_weights: bool = False,
) -> LoadedModel:
    """Load a causal language model that ridgefit has a port for.

    Args:
        ref: a local folder, "bundled:NAME", or "org/name[@revision]" on the Hub.
        dtype: "bfloat16", "float16", "float32", or "auto" for the checkpoint's own.
        device: "cpu", "cuda", "cuda:N", "mps", or "auto" for CUDA when there is one.
        attention: transformers' attention implementation.
        trust_remote_code: run Python code that the model repository ships.
        check_weights: look at every weight for entries that are not finite numbers.

    Raises:
        BadInput: one sentence that names the reason: missing, gated or unreachable model, unknown family,
            damaged or missing weights, attention or device that is not there.
    """
    model, tokenizer, name, commit = _loaded(ref, dtype, device, attention, trust_remote_code, require_family)
    if check_weights:
        require_finite(model)
    return LoadedModel(model, tokenizer, port_of(model), name, commit)


def load_latent(
    ref: str,
    *,
    dtype: str = "auto",
    device: str = "auto",
    attention: str = "sdpa",
    trust_remote_code: bool = False,
) -> LoadedLatent:
    """Load a causal language model with a latent cache; arguments as `load_model`.

    Raises:
        BadInput: see `load_model`; also a family without a latent cache.
    """
    found = _loaded(ref, dtype, device, attention, trust_remote_code, _require_latent)
    model, tokenizer, name, commit = found
    return LoadedLatent(model, tokenizer, LatentModel(model), name, commit)


def load_decoder(
    ref: str,
    *,
    dtype: str = "auto",
    device: str = "auto",
    attention: str = "sdpa",
    trust_remote_code: bool = False,
) -> LoadedDecoder:
    """Load a causal language model that is only decoded, as a target or a draft; arguments as `load_model`.

    Raises:
        BadInput: see `load_model`; no family is refused here, caches that cannot be taken back are later.
    """
    return LoadedDecoder(*_loaded(ref, dtype, device, attention, trust_remote_code, lambda _: None))


def _loaded(
    ref: str,
    dtype: str,
    device: str,
    attention: str,
    trust_remote_code: bool,
    require: Callable[[Any], None],
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase, str, str | None]:
    """Model, tokenizer, name and commit; `require` refuses a config before any weight is read."""
    name, revision = split_revision(ref)
    folder, commit = find_model(ref, trust_remote_code=trust_remote_code)
    place = device_of(device)
    require(_config(folder, trust_remote_code))
    require_whole_weights(folder)
    tokenizer = _tokenizer(folder, trust_remote_code)
    model = _model(folder, dtype, attention, trust_remote_code)
    model = cast("PreTrainedModel", model.to(place).eval().requires_grad_(False))
    # As transformers does itself for a model it has fetched: fingerprints name the model, not a cache folder.
    model.config._name_or_path, model.config._commit_hash = public_name(name), commit
    return model, tokenizer, name if revision else ref, commit


def _require_latent(config: Any) -> None:
    family = getattr(config.get_text_config(decoder=True), "model_type", "")
    if family not in LATENT_FAMILIES:
        raise unknown_family(family)


def split_revision(ref: str) -> tuple[str, str | None]:
    """ "org/name@revision" -> name and revision; a folder keeps its @ signs."""
    name, at, revision = ref.rpartition("@")
    if not at or _is_folder(ref):
        return ref, None
    return name, revision


def find_model(ref: str, *, trust_remote_code: bool = False) -> tuple[Path, str | None]:
    """The folder that holds a model, downloaded if it has to be, and its commit.

    Raises:
        BadInput: it is not there, or is no model folder.
    """
    commit = None
    if ref.startswith(BUNDLED):
        folder = _BUNDLED_FOLDER / ref.removeprefix(BUNDLED)
        if not (folder / "config.json").is_file() or folder.parent != _BUNDLED_FOLDER:
            known = sorted(path.parent.name for path in _BUNDLED_FOLDER.glob("*/config.json"))
            raise BadInput(
                f"there is no bundled model {folder.name!r}", f"bundled are: {', '.join(known) or 'none'}"
            )
    elif _is_folder(ref):
        folder = Path(ref).expanduser()
    else:
        folder, commit = _download(ref, trust_remote_code)
    if not folder.is_dir():
        raise BadInput(
            f"model folder {folder} does not exist", "give a folder or a Hub name org/name[@revision]"
        )
    if not (folder / "config.json").is_file():
        raise BadInput(
            f"{folder} is no model folder: it has no config.json", "give the folder of a saved model"
        )
    return folder, commit


def _is_folder(ref: str) -> bool:
    """Whether a reference means the file system: it exists, or cannot be a Hub name."""
    return Path(ref).expanduser().exists() or names_a_path(ref)


def _download(ref: str, trust_remote_code: bool) -> tuple[Path, str | None]:
    """Fetch a snapshot: configuration, tokenizer and safetensors, never pickles."""
    from huggingface_hub import snapshot_download

    name, revision = split_revision(ref)
    patterns = [*_FILES, "*.py"] if trust_remote_code else list(_FILES)
    folder = fetched(name, revision, partial(snapshot_download, allow_patterns=patterns))
    commit = folder.name if folder.parent.name == "snapshots" else None
    return folder, commit


def _config(folder: Path, trust_remote_code: bool) -> Any:
    from transformers import AutoConfig

    _register_own(folder)
    try:
        return AutoConfig.from_pretrained(folder, trust_remote_code=trust_remote_code)
    except Exception as error:
        raise _unreadable(folder, trust_remote_code, error) from error


def _register_own(folder: Path) -> None:
    """Tell transformers of a family that only ridgefit has, where the folder's model is of one."""
    if f'"{ROTATED_TWIN}"' in (folder / "config.json").read_text(encoding="utf-8", errors="replace"):
        from ridgefit.models.kimi_linear_rotated import register

        register()


def _unreadable(folder: Path, trust_remote_code: bool, error: Exception) -> BadInput:
    """Why transformers could not make a config, told by the file itself where it can be read."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        family, remote = config.get("model_type"), "auto_map" in config
    except (ValueError, AttributeError, OSError):
        return BadInput(
            f"{folder / 'config.json'} is not a model config ({_line(error)})", "save the model again"
        )
    if remote and not trust_remote_code:
        return BadInput(
            f"the model in {folder} needs Python code that it ships",
            "read that code, then pass --trust-remote-code",
        )
    return BadInput(
        f"transformers cannot read the config of model family {family!r} in {folder} ({_line(error)})",
        "install a newer transformers, or use a model of a known family",
    )


def _tokenizer(folder: Path, trust_remote_code: bool) -> PreTrainedTokenizerBase:
    from transformers import AutoTokenizer

    if not any(next(folder.glob(pattern), None) for pattern in _VOCABULARIES):
        raise BadInput(
            f"{folder} has no tokenizer", "save the tokenizer beside the model with save_pretrained"
        )
    try:
        return cast(
            "PreTrainedTokenizerBase",
            AutoTokenizer.from_pretrained(folder, trust_remote_code=trust_remote_code),
        )
    except Exception as error:
        raise BadInput(
            f"{folder} has no tokenizer that transformers can load ({_line(error)})",
            "save the tokenizer beside the model with save_pretrained",
        ) from error


def _model(folder: Path, dtype: str, attention: str, trust_remote_code: bool) -> nn.Module:
    from transformers import AutoModelForCausalLM

    if dtype != "auto" and dtype not in _DTYPES:
        raise BadInput(f"dtype {dtype!r} is not known", f"use auto, {', '.join(_DTYPES)}")
    try:
        model, found = AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=_DTYPES.get(dtype, "auto"),
            attn_implementation=attention,
            use_safetensors=True,
            trust_remote_code=trust_remote_code,
            output_loading_info=True,
        )
    except ImportError as error:
        raise BadInput(
            f"attention {attention!r} is not installed ({_line(error)})",
            "use --attention sdpa, or install it",
        ) from error
    except Exception as error:
        raise BadInput(
            f"transformers could not load the model in {folder} ({_line(error)})",
            "check the folder, or download the model again",
        ) from error
    missing = sorted(found["missing_keys"]) + sorted(str(key[0]) for key in found["mismatched_keys"])
    if missing:
        raise BadInput(
            f"{folder} lacks {len(missing)} weights of the model, {missing[0]} first",
            "download the model again; a model with weights made up at random is of no use",
        )
    return cast("nn.Module", model)


def device_of(name: str) -> torch.device:
    """The device of a `--device`; "auto" is CUDA when there is one.

    Raises:
        BadInput: it is unknown, or not on this machine.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        place = torch.device(name)
    except RuntimeError as error:
        raise BadInput(f"device {name!r} is not known", "use auto, cpu, cuda, cuda:N or mps") from error
    if place.type == "cuda" and (place.index or 0) >= torch.cuda.device_count():
        raise BadInput(f"device {name!r} is not on this machine", "use --device cpu or auto")
    if place.type == "mps" and not torch.backends.mps.is_available():
        raise BadInput("device 'mps' is not on this machine", "use --device cpu or auto")
    return place


def _line(error: Exception) -> str:
    """First line of an error, short enough for a sentence."""
    lines = str(error).strip().splitlines()
    return (lines[0] if lines else type(error).__name__).rstrip(".")[:200]
