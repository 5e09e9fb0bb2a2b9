"""A small sequence model: the serial original, and the same code on a mesh.

It has one of everything that a lifecycle trips over: dimensions that do not divide (13, 10,
7), a tied pair, a one-element parameter, a frozen one, one that never gets a gradient,
persistent and non-persistent buffers of several dtypes, dropout, two layers of the same
shapes, and a head (`aux_head`) that nobody has ported to the mesh yet.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .topology import Topology


@dataclass(frozen=True)
class ModelConfig:
    """The model's constructor arguments, as a checkpoint keeps them."""

    vocabulary: int = 13
    length: int = 11
    width: int = 12
    heads: int = 4
    hidden: int = 10
    bottleneck: int = 7
    blocks: int = 2
    dropout: float = 0.1


class Dropout(nn.Dropout):
    """Dropout that draws from a generator it is given, never from a global stream.

    Over ``tp`` activations are replicated, so their masks must be the same there, whatever
    the ranks' global streams are; and on a CPU mesh DTensor would give every shard one mask.
    """

    def forward(self, x: Tensor, noise: torch.Generator | None = None) -> Tensor:
        if noise is None or self.p == 0.0:
            return x
        kept = torch.rand(x.shape, generator=noise, device=x.device) >= self.p
        return x * kept / (1.0 - self.p)


class Attention(nn.Module):
    """Causal attention: queries stay where they are, keys and values are gathered over ``cp``.

    The rows of `qkv` are ordered by head, so that cutting them over ``tp`` cuts between heads.
    """

    def __init__(self, config: ModelConfig, topology: Topology) -> None:
        super().__init__()
        self.topology = topology
        self.length = config.length
        self.head_width = config.width // config.heads
        self.qkv = nn.Linear(config.width, 3 * config.width, bias=False)
        self.out = nn.Linear(config.width, config.width, bias=False)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        on = self.topology
        x = on.enter_tensor_parallel(x)
        rows = on.use(self.qkv.weight)
        heads = rows.shape[0] // (3 * self.head_width)  # this rank's, under tensor parallelism
        qkv = F.linear(x, rows).reshape(*x.shape[:-1], heads, 3, self.head_width)
        query = qkv[..., 0, :]
        key, value = on.gather_sequence(qkv[..., 1:, :], self.length).unbind(-2)
        scores = torch.einsum("bqhe,bkhe->bhqk", query, key) / self.head_width**0.5
        weights = scores.masked_fill(~mask, float("-inf")).softmax(-1)
        mixed = torch.einsum("bhqk,bkhe->bqhe", weights, value).flatten(-2)
        return on.leave_tensor_parallel(F.linear(mixed, on.use(self.out.weight)))


class MLP(nn.Module):
    """width, hidden, bottleneck, width; the first two products are cut over ``tp``."""

    def __init__(self, config: ModelConfig, topology: Topology) -> None:
        super().__init__()
        self.topology = topology
        self.up = nn.Linear(config.width, config.hidden)
        self.mid = nn.Linear(config.hidden, config.bottleneck)
        self.down = nn.Linear(config.bottleneck, config.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        on = self.topology
        x = on.enter_tensor_parallel(x)
        x = F.gelu(F.linear(x, on.use(self.up.weight), on.use(self.up.bias)))
        x = on.leave_tensor_parallel(F.linear(x, on.use(self.mid.weight)))
        # The bias comes after the sum over tp, or it would be added once per rank.
        return F.linear(F.gelu(x + on.use(self.mid.bias)), on.use(self.down.weight))


class Block(nn.Module):
    """Pre-norm attention and MLP with residual dropout."""

    def __init__(self, config: ModelConfig, topology: Topology) -> None:
        super().__init__()
        self.topology = topology
        self.norm1 = nn.LayerNorm(config.width)
        self.attention = Attention(config, topology)
        self.norm2 = nn.LayerNorm(config.width)
        self.mlp = MLP(config, topology)
        self.dropout = Dropout(config.dropout)

    def forward(self, x: Tensor, mask: Tensor, noise: torch.Generator | None) -> Tensor:
        x = x + self.dropout(self.attention(self._norm(self.norm1, x), mask), noise)
        x = x + self.dropout(self.mlp(self._norm(self.norm2, x)), noise)
        return x

    def _norm(self, norm: nn.LayerNorm, x: Tensor) -> Tensor:
        on = self.topology
        return F.layer_norm(x, x.shape[-1:], on.use(norm.weight), on.use(norm.bias))


class SequenceModel(nn.Module):
    """Next-token logits for this rank's part of a batch of token sequences."""

    positions: Tensor
    forwards: Tensor
    causal: Tensor

    def __init__(self, config: ModelConfig, topology: Topology | None = None) -> None:
        super().__init__()
        self.config = config
        self.topology = topology = topology or Topology()
        self.embedding = nn.Embedding(config.vocabulary, config.width)
        self.mask_token = nn.Parameter(torch.zeros(config.width))  # this task masks nothing
        self.blocks = nn.ModuleList(Block(config, topology) for _ in range(config.blocks))
        self.scale = nn.Parameter(torch.ones(1))
        self.prior = nn.Parameter(torch.linspace(-0.1, 0.1, config.vocabulary), requires_grad=False)
        self.head = nn.Linear(config.width, config.vocabulary, bias=False)
        self.head.weight = self.embedding.weight
        self.aux_head = nn.Linear(config.width, 5).requires_grad_(False)
        angles = torch.outer(torch.arange(config.length), 0.5 ** torch.arange(config.width))
        self.register_buffer("positions", angles.sin())
        self.register_buffer("forwards", torch.zeros((), dtype=torch.int64))
        square = torch.ones(config.length, config.length, dtype=torch.bool)
        self.register_buffer("causal", square.tril(), persistent=False)

    def forward(self, tokens: Tensor, recycles: int = 1) -> Tensor:
        """Logits for `tokens` of shape ``(batch, sequence)``, both this rank's part."""
        noise: torch.Generator | None = None
        if self.training:
            self.forwards += 1
            noise = torch.Generator(tokens.device).manual_seed(self._shared_seed())
        on = self.topology
        # Not the placeholder's: what is not computed with is not gathered.
        parts = [*self.parameters(recurse=False), *self.embedding.parameters()]
        with on.gathered([*parts, *self.blocks.parameters()]):
            x = F.embedding(tokens, on.use(self.embedding.weight))
            x = x + on.local_positions(self.positions)
            mask = on.local_positions(self.causal)
            for _ in range(recycles):
                for block in self.blocks:
                    x = block(x, mask, noise)
            logits = F.linear(x, on.use(self.head.weight))
            return logits * on.use(self.scale) + on.use(self.prior)

    def _shared_seed(self) -> int:
        """One draw from this rank's global stream, the same for ranks that share activations."""
        return self.topology.broadcast(int(torch.randint(2**62, ()).item()), "tp")


def build_model(config: ModelConfig, topology: Topology | None = None, seed: int = 0) -> nn.Module:
    """The model with the initial weights of `seed`; no global random stream notices."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return SequenceModel(config, topology)
