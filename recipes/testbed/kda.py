"""Kimi delta attention over whole rows, fast enough to train small models in plain PyTorch.

The recurrence is Kimi Linear's (arXiv 2510.26692, section 3): per channel decay, then a delta-rule write,

    S_t = (I - beta_t k_t k_t^T) diag(exp(g_t)) S_{t-1} + beta_t k_t v_t^T,     o_t = S_t^T q_t.

transformers' fallback materialises `[64, 64, width]` decays for each chunk, a gigabyte a layer here. This one
is matrix products only: blocks of 16 rows take their decays from a row of their own, so that no exponent
grows large, and four blocks are solved together before the state moves on.
"""

from __future__ import annotations

import torch
from torch import Tensor

BLOCK = 16
CHUNK = 64
SLOWEST_LOG_DECAY = -8.0  # a channel that forgets faster (to 0.03 %) is as good as erased


def chunked_kda(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    g: Tensor,
    beta: Tensor,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = True,
) -> tuple[Tensor, Tensor | None]:
    """The signature of transformers' `chunk_kimi_delta_attention`, without packed rows.

    Args:
        query: `[batch, rows, heads, width]`, as key, value and the log-decays `g`.
        key: see query.
        value: see query.
        g: log-decays, at most 0.
        beta: `[batch, rows, heads]`, write strengths.
        initial_state: `[batch, heads, width, width]`, or None for zeros.
        output_final_state: also return the last state.
        use_qk_l2norm_in_kernel: normalise queries and keys first.

    Returns:
        Outputs `[batch, rows, heads, width]` in the dtype of `query`, and the state in fp32.
    """
    with torch.autocast(query.device.type, enabled=False):
        return _chunked(
            query, key, value, g, beta, initial_state, output_final_state, use_qk_l2norm_in_kernel
        )


def _chunked(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    g: Tensor,
    beta: Tensor,
    state: Tensor | None,
    keep_state: bool,
    normalise: bool,
) -> tuple[Tensor, Tensor | None]:
    dtype, rows = query.dtype, query.shape[1]
    q, k, v, g = (part.transpose(1, 2).float() for part in (query, key, value, g))
    beta = beta.transpose(1, 2).float().unsqueeze(-1)
    if normalise:
        q, k = (part * torch.rsqrt((part * part).sum(-1, keepdim=True) + 1e-6) for part in (q, k))
    q = q * q.shape[-1] ** -0.5
    g = g.clamp(min=SLOWEST_LOG_DECAY)
    padding = -rows % CHUNK
    if padding:
        q, k, v, g, beta = (torch.nn.functional.pad(part, (0, 0, 0, padding)) for part in (q, k, v, g, beta))
    # [batch, heads, chunks, blocks, rows of a block, width]
    q, k, v, g, beta = (part.unflatten(2, (-1, CHUNK // BLOCK, BLOCK)) for part in (q, k, v, g, beta))
    within = g.cumsum(-2)
    before = torch.cat([torch.zeros_like(within[..., :1, -1, :]), within[..., :-1, -1, :].cumsum(-2)], -2)
    decay = within + before.unsqueeze(-2)  # log decay since the chunk's first row

    writes, reads = _inner_products(q, k, decay, beta)
    solved = _solve(writes, torch.cat([v * beta, k * beta * decay.exp()], -1))
    whole = decay[..., -1:, -1:, :]
    into = (q * decay.exp()).flatten(3, 4)
    out_of = (k * (whole - decay).exp()).flatten(3, 4).transpose(-1, -2)
    new, old = solved.flatten(3, 4).split([v.shape[-1], k.shape[-1]], -1)
    kept = whole.exp().squeeze(-3).transpose(-1, -2)
    if state is None:
        state = q.new_zeros(*q.shape[:2], k.shape[-1], v.shape[-1])
    outputs = []
    for chunk in range(q.shape[2]):
        written = new[:, :, chunk] - old[:, :, chunk] @ state
        outputs.append(into[:, :, chunk] @ state + reads[:, :, chunk] @ written)
        state = state * kept[:, :, chunk] + out_of[:, :, chunk] @ written
    output = torch.stack(outputs, 2).flatten(2, 3)[:, :, :rows].transpose(1, 2).to(dtype)
    return output, state if keep_state else None


def _inner_products(q: Tensor, k: Tensor, decay: Tensor, beta: Tensor) -> tuple[list[list[Tensor]], Tensor]:
    """Decayed products of a chunk's rows with earlier ones: of keys by blocks, of queries as `[64, 64]`."""
    blocks = q.shape[-3]
    ahead_of = torch.ones(BLOCK, BLOCK, dtype=torch.bool, device=q.device).triu(1)
    not_below = torch.ones(BLOCK, BLOCK, dtype=torch.bool, device=q.device).triu()
    writes: list[list[Tensor]] = []
    reads: list[Tensor] = []
    for a in range(blocks):
        here = decay[..., a, :, :]
        middle = here[..., BLOCK // 2 : BLOCK // 2 + 1, :]
        rows_q, rows_k = q[..., a, :, :], (k * beta)[..., a, :, :]
        ahead, behind = (here - middle).exp(), (k[..., a, :, :] * (middle - here).exp()).transpose(-1, -2)
        diagonal_w = ((rows_k * ahead) @ behind).masked_fill(not_below, 0.0)
        diagonal_r = ((rows_q * ahead) @ behind).masked_fill(ahead_of, 0.0)
        row_w, row_r = [diagonal_w], [diagonal_r]
        if a:
            start = decay[..., a - 1, -1:, :]
            since = (here - start).exp()
            earlier = (k[..., :a, :, :] * (start.unsqueeze(-3) - decay[..., :a, :, :]).exp()).flatten(-3, -2)
            earlier = earlier.transpose(-1, -2)
            row_w.insert(0, (rows_k * since) @ earlier)
            row_r.insert(0, (rows_q * since) @ earlier)
        if a + 1 < blocks:
            row_r.append(q.new_zeros(*q.shape[:-3], BLOCK, (blocks - a - 1) * BLOCK))
        writes.append(row_w)
        reads.append(torch.cat(row_r, -1))
    return writes, torch.cat(reads, -2)


def _solve(writes: list[list[Tensor]], right: Tensor) -> Tensor:
    """(I + W)^-1 right for strictly lower triangular W, block by block `[…, blocks, 16, width]`."""
    solved: list[Tensor] = []
    for a, row in enumerate(writes):
        rest = right[..., a, :, :]
        if a:
            rest = rest - row[0] @ torch.cat(solved, -2)
        power = -row[-1]  # (I - N)^-1 = (I + N)(I + N^2)(I + N^4)(I + N^8), since N^16 = 0
        for doubling in range(4):
            rest = rest + power @ rest
            if doubling < 3:
                power = power @ power
        solved.append(rest)
    return torch.stack(solved, -3)


def shifted_conv(
    hidden_states: Tensor, weight: Tensor, bias: Tensor | None = None, activation: str | None = None
) -> Tensor:
    """A causal convolution of each channel `[batch, channels, rows]` as a sum of shifted copies.

    cuDNN's backward pass of such convolutions is slow for a handful of taps.
    """
    taps, rows = weight.shape[-1], hidden_states.shape[-1]
    padded = torch.nn.functional.pad(hidden_states, (taps - 1, 0))
    out = sum(padded[..., at : at + rows] * weight[:, at, None] for at in range(taps))
    if bias is not None:
        out = out + bias[:, None]
    if activation == "silu":
        out = torch.nn.functional.silu(out)
    elif activation is not None:
        raise ValueError(f"no activation {activation!r} here")
    return out.to(hidden_states.dtype)
