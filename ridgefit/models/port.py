"""What a model family lets us do: run layers over rows, write a layer's cache from that layer's input."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal, NamedTuple, cast

import torch
from torch import Tensor, nn

from ridgefit.errors import BadInput
from ridgefit.models.call import cache_keyword, default_positions
from ridgefit.models.gated import GatedMlp
from ridgefit.models.identity import config_sha256, public_name
from ridgefit.models.linear import WriteMetric, linearised
from ridgefit.models.masks import COLUMNS_ONLY, SUPPORTED, as_mask, visible
from ridgefit.models.norms import normed
from ridgefit.models.rowcache import RowCache
from ridgefit.models.rows import Rows
from ridgefit.tokens import tokenizer_sha256

LayerKind = Literal["full_attention", "sliding_attention"]
KINDS: tuple[LayerKind, ...] = ("full_attention", "sliding_attention")
Rotary = tuple[Tensor, Tensor]


class Written(NamedTuple):
    """What a layer writes for some rows: keys and values `[…, kv_heads, rows, head_dim]`."""

    keys: Tensor
    values: Tensor


class Port(GatedMlp):
    """The Llama scheme; a family's file overrides only what differs.

    The scheme: a layer norms its input, projects it to queries, keys and values with separate linear
    layers, rotates queries and keys, attends, adds. Everything here calls the model's own modules.

    Args:
        model: the whole model.
        decoder: its text decoder, which owns `layers` and `rotary_emb`.
        config: the decoder's config.

    Attributes:
        layers: decoder layers in order.
        n_layers: how many.
        hidden: width of the hidden state.
        vocab: vocabulary size.
        heads: query heads of a layer.
        kv_heads: key and value heads of a layer.
        head_dim: width of a head.
        qk_norm: whether keys are normalised before rotary.

    Raises:
        BadInput: the model lacks a module the port needs, or has a layer kind it does not know.
    """

    family: ClassVar[str] = ""
    qk_norm: ClassVar[bool] = False
    needs: ClassVar[tuple[str, ...]] = (
        "input_layernorm",
        "self_attn.q_proj",
        "self_attn.k_proj",
        "self_attn.v_proj",
    )

    def __init__(self, model: nn.Module, decoder: nn.Module, config: Any) -> None:
        self.model = model
        self.decoder = decoder
        self.config = config
        self.layers: Sequence[nn.Module] = list(cast("nn.ModuleList", decoder.layers))
        self.n_layers = len(self.layers)
        self.hidden = int(config.hidden_size)
        self.vocab = int(config.vocab_size)
        self._require_modules()
        self.heads = int(config.num_attention_heads)
        self.kv_heads = int(config.num_key_value_heads)
        self.head_dim = int(self._attention(0).head_dim)
        self._kinds = tuple(self._kind(layer) for layer in range(self.n_layers))

    # What differs between families

    def _kind(self, layer: int) -> LayerKind:
        """Kind of a layer, from the config."""
        kinds = getattr(self.config, "layer_types", None)
        kind = kinds[layer] if kinds else "full_attention"
        if kind not in KINDS:
            raise BadInput(
                f"layer {layer} of this {self.family} model is of kind {kind!r}, which ridgefit cannot fill",
                f"known kinds: {', '.join(KINDS)}",
            )
        return cast("LayerKind", kind)

    def _read(self, layer: int, inputs: Tensor) -> Tensor:
        """What the projections of `layer` read, given its input."""
        return normed(self._block(layer).input_layernorm, inputs)

    def _project(self, layer: int, read: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values `[…, rows, kv_heads * head_dim]`, before any norm."""
        attention = self._attention(layer)
        return attention.k_proj(read), attention.v_proj(read)

    def _norm_keys(self, layer: int, keys: Tensor) -> Tensor:
        """Keys `[…, rows, kv_heads, head_dim]` after the layer's key norm, if it has one."""
        del layer
        return keys

    def _project_queries(self, layer: int, read: Tensor) -> Tensor:
        """Queries `[…, rows, heads * head_dim]`, before any norm."""
        return cast("Tensor", self._attention(layer).q_proj(read))

    def _norm_queries(self, layer: int, queries: Tensor) -> Tensor:
        """Queries `[…, rows, heads, head_dim]` after the layer's query norm, if it has one."""
        del layer
        return queries

    def _rotates(self, layer: int) -> bool:
        """Whether `layer` rotates its queries and keys."""
        del layer
        return True

    def position_embeddings(self, layer: int, hidden: Tensor, position_ids: Tensor) -> Rotary:
        """Cosines and sines `[samples or 1, rows, width]` for `layer` at `position_ids`."""
        del layer
        rotary_emb = cast("Any", self.decoder).rotary_emb
        return cast("Rotary", rotary_emb(hidden, position_ids))

    # What all families share

    @property
    def device(self) -> torch.device:
        """Where the first layer is."""
        return self.layer_device(0)

    @property
    def dtype(self) -> torch.dtype:
        """Compute dtype."""
        return next(self.decoder.parameters()).dtype

    @property
    def attention(self) -> str:
        """transformers' name of the attention function in use."""
        return str(self.config._attn_implementation)

    def layer_device(self, layer: int) -> torch.device:
        """Where `layer` is; with a device map, layers differ."""
        return next(self.layers[layer].parameters()).device

    def kind(self, layer: int) -> LayerKind:
        """Full or sliding attention."""
        return self._kinds[layer]

    def window(self, layer: int) -> int | None:
        """Columns that a row of `layer` sees, its own included; None for all before it."""
        return int(self.config.sliding_window) if self.kind(layer) == "sliding_attention" else None

    def written(self, layer: int, inputs: Tensor) -> Written:
        """What `layer` writes for rows whose layer inputs are `inputs`.

        Args:
            layer: layer number.
            inputs: `[…, rows, hidden]`, the hidden state entering the layer (true or predicted).

        Returns:
            Keys after the key norm and before rotary, and values, `[…, kv_heads, rows, head_dim]`.
        """
        keys, values = self._project(layer, self._read(layer, inputs))
        heads = (*inputs.shape[:-1], self.kv_heads, self.head_dim)
        return Written(
            self._norm_keys(layer, keys.view(heads)).transpose(-3, -2),
            values.view(heads).transpose(-3, -2),
        )

    def queries(self, layer: int, inputs: Tensor, position_embeddings: Rotary) -> Tensor:
        """What `layer` asks for rows whose layer inputs are `inputs`.

        Returns:
            Queries after norm and rotary, `[batch, heads, rows, head_dim]`.
        """
        found = self._project_queries(layer, self._read(layer, inputs))
        heads = (*inputs.shape[:-1], self.heads, self.head_dim)
        normal = self._norm_queries(layer, found.view(heads)).transpose(-3, -2)
        return self.rotate(layer, normal, position_embeddings)

    def score_scale(self, layer: int) -> float:
        """Factor of query times key before the softmax in `layer`."""
        return float(self._attention(layer).scaling)

    def write_metric(self, layer: int, rows: Tensor) -> WriteMetric:
        """`written` as two matrices, linearised around typical rows; see `linear.linearised`.

        Args:
            layer: layer number.
            rows: `[rows, hidden]` true inputs of the layer, in the model's dtype.
        """
        return linearised(
            lambda inputs: self._read(layer, inputs),
            lambda read: self._project(layer, read),
            lambda keys: self._norm_keys(layer, keys),
            rows,
            (self.kv_heads, self.head_dim),
        )

    def rotate(self, layer: int, keys: Tensor, position_embeddings: Rotary) -> Tensor:
        """Keys, or queries, after rotary, as they stand in the cache; unchanged in a layer without rotary.

        Args:
            layer: layer number.
            keys: `[batch, heads or kv_heads, rows, head_dim]`.
            position_embeddings: cosines and sines `[batch or 1, rows, width]`, width at most head_dim.
        """
        if not self._rotates(layer):
            return keys
        cos, sin = (part.unsqueeze(-3) for part in position_embeddings)
        width = cos.shape[-1]
        turned = keys[..., :width]
        half = width // 2
        swapped = torch.cat((-turned[..., half:], turned[..., :half]), dim=-1)
        turned = (turned * cos + swapped * sin).to(keys.dtype)
        return turned if width == self.head_dim else torch.cat((turned, keys[..., width:]), dim=-1)

    def write(self, layer: int, inputs: Tensor, position_embeddings: Rotary) -> Written:
        """`written` followed by `rotate`: rows as they stand in the cache."""
        keys, values = self.written(layer, inputs)
        return Written(self.rotate(layer, keys, position_embeddings), values)

    def run_layers(
        self,
        start: int,
        stop: int,
        hidden: Tensor,
        *,
        position_ids: Tensor | None = None,
        valid: Tensor | None = None,
        cache: Any = None,
    ) -> Tensor:
        """Run the stock layers [start, stop) over all rows of a prompt.

        Args:
            start: first layer.
            stop: one past the last layer.
            hidden: `[batch, rows, hidden]` entering layer `start`.
            position_ids: `[batch or 1, rows]`; counted from 0 if absent.
            valid: `[batch, rows]` bool, False for left padding.
            cache: an empty cache to write to.

        Returns:
            Hidden state entering layer `stop`.
        """
        rows = Rows.everything(hidden.shape[1])
        positions = default_positions(rows.total, hidden.device) if position_ids is None else position_ids
        for layer in range(start, stop):
            hidden = self._run(layer, hidden, rows, positions, valid, cache)
        return hidden

    def run_rows(
        self,
        layer: int,
        hidden: Tensor,
        rows: Rows,
        keys: Tensor,
        values: Tensor,
        *,
        position_ids: Tensor | None = None,
        valid: Tensor | None = None,
    ) -> Tensor:
        """Run one stock layer over some rows of a prompt, attending to the cache of all of it.

        Args:
            layer: layer number.
            hidden: `[batch, rows, hidden]` of `rows` only, entering the layer.
            rows: which columns they are.
            keys: `[batch, kv_heads, columns, head_dim]` after rotary, other rows in place; written to.
            values: the same for values.
            position_ids: `[batch or 1, columns]` of the whole prompt; counted from 0 if absent.
            valid: `[batch, columns]` bool, False for left padding.

        Returns:
            `[batch, rows, hidden]` leaving the layer.
        """
        positions = default_positions(rows.total, hidden.device) if position_ids is None else position_ids
        return self._run(layer, hidden, rows, positions, valid, RowCache(rows, keys, values))

    def check_attention(self) -> None:
        """Refuse an attention function whose masks the port cannot make.

        Raises:
            BadInput: naming the function in use and those that work.
        """
        if self.attention not in SUPPORTED:
            raise BadInput(
                f"the model runs attention {self.attention!r}, for which ridgefit makes no masks",
                f"load it with one of {', '.join(SUPPORTED)}",
            )

    def identity(self, tokenizer: Any = None) -> dict[str, Any]:
        """What a fingerprint needs to know again: JSON values only.

        Args:
            tokenizer: adds its hash when given.

        Returns:
            family, name and revision as transformers knows them, dimensions, layer kinds, window, dtype and
            the hash of the config without the settings that do not change what the model computes.
        """
        found: dict[str, Any] = {
            "family": self.family,
            "name": public_name(str(getattr(self.config, "_name_or_path", "") or "")),
            "revision": getattr(self.config, "_commit_hash", None),
            "n_layers": self.n_layers,
            "hidden": self.hidden,
            "vocab": self.vocab,
            "kv_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "qk_norm": self.qk_norm,
            "layer_kinds": list(self._kinds),
            "window": next(
                (self.window(layer) for layer in range(self.n_layers) if self.window(layer)), None
            ),
            "dtype": str(self.dtype).removeprefix("torch."),
            "config_sha256": config_sha256(self.config),
        }
        if tokenizer is not None:
            found["tokenizer_sha256"] = tokenizer_sha256(tokenizer)
        return found

    def _block(self, layer: int) -> Any:
        return self.layers[layer]

    def _attention(self, layer: int) -> Any:
        return self._block(layer).self_attn

    def _run(
        self, layer: int, hidden: Tensor, rows: Rows, positions: Tensor, valid: Tensor | None, cache: Any
    ) -> Tensor:
        """One stock layer over `rows`, with a mask that is true to their columns."""
        if self.attention in COLUMNS_ONLY:
            mask = None if valid is None else valid.to(hidden.device)
        else:
            seen = visible(rows, window=self.window(layer), valid=valid, device=hidden.device)
            mask = as_mask(seen, self.attention, hidden.dtype)
        positions = rows.take(positions, dim=1)
        output = self._block(layer)(
            hidden,
            attention_mask=mask,
            position_embeddings=self.position_embeddings(layer, hidden, positions),
            position_ids=positions,
            **({} if cache is None else {cache_keyword(self._attention(layer)): cache}),
        )
        return cast("Tensor", output)

    def _require_modules(self) -> None:
        for layer, block in enumerate(self.layers):
            for name in self.needs:
                if not _has(block, name):
                    raise BadInput(
                        f"layer {layer} of this {self.family} model has no {name}, which its port calls",
                        "install the transformers version that pyproject.toml names",
                    )


def _has(module: nn.Module, path: str) -> bool:
    target: Any = module
    for name in path.split("."):
        target = getattr(target, name, None)
    return target is not None
