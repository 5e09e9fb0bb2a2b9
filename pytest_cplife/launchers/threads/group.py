"""A process group of a cooperative world: gloo underneath, matched calls above it.

Every operation of :class:`torch.distributed.ProcessGroup` that a program can reach is here once:
what its members must agree on, and how gloo does it. Waiting happens in :class:`RankWork`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from pytest_cplife.launchers.threads import private
from pytest_cplife.launchers.threads.ledger import Circle, Letter, Part, Signature
from pytest_cplife.launchers.threads.scene import Scene, scene
from pytest_cplife.launchers.threads.work import RankWork, SeveralWorks

if TYPE_CHECKING:

    class _ProcessGroup:
        """torch declares every operation with overloads that say the same in two ways."""

        def __init__(self, rank: int, size: int) -> None: ...

        def size(self) -> int: ...
else:
    from torch.distributed import ProcessGroup as _ProcessGroup

Tensors = Sequence[Tensor]


class RankGroup(_ProcessGroup):
    """One member's handle of a process group; stands in for `ProcessGroupGloo`.

    Creating it is collective, as with gloo: it returns when every member has arrived.
    """

    supports_splitting = False
    supports_coalescing = False
    supports_time_estimate = False

    def __init__(
        self, store: private.Store, rank: int, size: int, timeout: timedelta | None = None
    ) -> None:
        super().__init__(rank, size)
        self._scene: Scene = scene()
        self._me = self._scene.current_rank()
        self._group_rank = rank
        self._name = self._description = ""
        self.options = SimpleNamespace(_timeout=timeout, global_ranks_in_group=[], group_name="")
        self._circle: Circle = self._scene.circle(store, rank, size)
        self._circle.members[rank] = self._me
        self._scene.turns.wait(self._me, lambda: self._circle.complete, self._circle.creation_text)

    # Identity.

    @property
    def group_name(self) -> str:
        return self._name

    @property
    def pg_name(self) -> str:
        return self._name

    @property
    def group_desc(self) -> str:
        return self._description

    @property
    def _device_types(self) -> list[torch.device]:
        # Counting makes no context, with which no ranks could be forked later.
        kinds = ("cpu", "cuda") if torch.cuda.device_count() else ("cpu",)
        return [torch.device(kind) for kind in kinds]

    def _set_group_name(self, name: str) -> None:
        self._name = name
        self._circle.name = name

    def _set_group_desc(self, description: str) -> None:
        self._description = description

    def getGroupName(self) -> str:
        return self._name

    def getGroupDesc(self) -> str:
        return self._description

    def getBackendName(self) -> str:
        # Asked in C++, where DDP would look for gloo's own object under "gloo".
        return "cooperative gloo"

    def name(self) -> str:
        return "gloo"

    def _get_backend_name(self) -> str:
        return "gloo"

    def _get_backend(self, device: torch.device) -> RankGroup:
        # Operations on the backend itself would bypass the turns.
        return self

    def _set_sequence_number_for_group(self) -> None:
        """The ledger counts."""

    def _get_sequence_number_for_group(self) -> int:
        return self._circle.number(self._group_rank)

    def shutdown(self) -> None:
        """Nothing of this member waits in gloo."""

    def abort(self) -> None:
        """As `shutdown`."""

    def set_timeout(self, timeout: timedelta) -> None:
        self.options._timeout = timeout

    # Collectives.

    def _call(self, signature: Signature, start: Callable[[Any], Any], result: Any) -> RankWork:
        self._scene.turns.check(self._me, lambda: f"{signature.name} on {self._circle.text()}")
        part, call = self._circle.enter(self._group_rank, signature, start)
        return RankWork(self._scene.turns, self._me, part, call.text, result)

    def allreduce(self, tensors: Tensors | Tensor, opts: Any = None) -> RankWork:
        tensors, opts = _listed(tensors), _reduction(opts, private.AllreduceOptions)
        return self._call(
            _signature("all_reduce", tensors, op=opts),
            lambda g: g.allreduce(tensors, opts),
            tensors,
        )

    def allreduce_coalesced(self, tensors: Tensors, opts: Any = None) -> RankWork:
        opts = _reduction(opts, private.AllreduceCoalescedOptions)
        return self._call(
            _signature("all_reduce_coalesced", tensors, op=opts),
            lambda g: g.allreduce_coalesced(tensors, opts),
            tensors,
        )

    def reduce(self, tensors: Tensors | Tensor, opts: Any = None) -> RankWork:
        tensors, opts = _listed(tensors), _reduction(opts, private.ReduceOptions)
        return self._call(
            _signature("reduce", tensors, op=opts, root=opts.rootRank),
            lambda g: g.reduce(tensors, opts),
            tensors,
        )

    def broadcast(self, tensors: Tensors | Tensor, opts: Any = None) -> RankWork:
        tensors = _listed(tensors)
        if not isinstance(opts, private.BroadcastOptions):
            opts, root = private.BroadcastOptions(), opts
            opts.rootRank = root or 0
        return self._call(
            _signature("broadcast", tensors, root=opts.rootRank),
            lambda g: g.broadcast(tensors, opts),
            tensors,
        )

    def allgather(self, outputs: Any, inputs: Tensors | Tensor, opts: Any = None) -> RankWork:
        if isinstance(inputs, Tensor):
            outputs, inputs = [outputs], [inputs]
        opts = opts or private.AllgatherOptions()
        return self._call(
            _signature("all_gather", inputs), lambda g: g.allgather(outputs, inputs, opts), outputs
        )

    def allgather_coalesced(self, outputs: Any, inputs: Tensors, opts: Any = None) -> RankWork:
        opts = opts or private.AllgatherOptions()
        return self._call(
            _signature("all_gather_coalesced", inputs),
            lambda g: g.allgather_coalesced(outputs, inputs, opts),
            outputs,
        )

    def all_gather_single(self, output: Tensor, input: Tensor, opts: Any = None) -> RankWork:
        opts = opts or private.AllgatherOptions()
        return self._call(
            _signature("all_gather_into_tensor", [input]),
            lambda g: g._allgather_base(output, input, opts),
            [output],
        )

    _allgather_base = all_gather_single

    def all_gather_single_coalesced(
        self, outputs: Tensors, inputs: Tensors, opts: Any = None
    ) -> RankWork:
        opts = opts or private.AllgatherOptions()
        return self._call(
            _signature("all_gather_into_tensor_coalesced", inputs),
            lambda g: SeveralWorks(
                [g._allgather_base(o, i, opts) for o, i in zip(outputs, inputs, strict=True)]
            ),
            outputs,
        )

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def gather(self, outputs: Any, inputs: Tensors | Tensor, opts: Any = None) -> RankWork:
        inputs = _listed(inputs)
        opts = opts or private.GatherOptions()
        return self._call(
            _signature("gather", inputs, root=opts.rootRank),
            lambda g: g.gather(outputs, inputs, opts),
            outputs,
        )

    def scatter(self, outputs: Tensors | Tensor, inputs: Any, opts: Any = None) -> RankWork:
        outputs = _listed(outputs)
        opts = opts or private.ScatterOptions()
        return self._call(
            _signature("scatter", outputs, root=opts.rootRank),
            lambda g: g.scatter(outputs, inputs, opts),
            outputs,
        )

    def reduce_scatter(self, outputs: Tensors | Tensor, inputs: Any, opts: Any = None) -> RankWork:
        if isinstance(outputs, Tensor):
            outputs, inputs = [outputs], [inputs]
        opts = _reduction(opts, private.ReduceScatterOptions)
        flat = [tensor for tensors in inputs for tensor in tensors]
        return self._call(
            _signature("reduce_scatter", flat, op=opts),
            lambda g: g.reduce_scatter(outputs, inputs, opts),
            outputs,
        )

    def reduce_scatter_single(self, output: Tensor, input: Tensor, opts: Any = None) -> RankWork:
        opts = _reduction(opts, private.ReduceScatterOptions)
        return self._call(
            _signature("reduce_scatter_tensor", [input], op=opts),
            lambda g: g._reduce_scatter_base(output, input, opts),
            [output],
        )

    _reduce_scatter_base = reduce_scatter_single

    def reduce_scatter_single_coalesced(
        self, outputs: Tensors, inputs: Tensors, opts: Any = None
    ) -> RankWork:
        opts = _reduction(opts, private.ReduceScatterOptions)
        return self._call(
            _signature("reduce_scatter_tensor_coalesced", inputs, op=opts),
            lambda g: SeveralWorks(
                [g._reduce_scatter_base(o, i, opts) for o, i in zip(outputs, inputs, strict=True)]
            ),
            outputs,
        )

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> RankWork:
        opts = opts or private.AllToAllOptions()
        signature = Signature(
            "all_to_all",
            agreed=(inputs[0].dtype,),
            shown=tuple((t.shape, t.dtype) for t in inputs),
            sent=tuple(t.numel() for t in inputs),
            expected=tuple(t.numel() for t in outputs),
        )
        return self._call(signature, lambda g: g.alltoall(outputs, inputs, opts), outputs)

    def all_to_all_single(
        self,
        output: Tensor,
        input: Tensor,
        output_splits: Sequence[int] = (),
        input_splits: Sequence[int] = (),
        opts: Any = None,
    ) -> RankWork:
        opts = opts or private.AllToAllOptions()
        splits = list(output_splits or ()), list(input_splits or ())
        signature = Signature(
            "all_to_all_single",
            agreed=(input.dtype,),
            shown=((input.shape, input.dtype),),
            sent=_portions(input, splits[1], self.size()),
            expected=_portions(output, splits[0], self.size()),
        )
        return self._call(
            signature, lambda g: g.alltoall_base(output, input, *splits, opts), [output]
        )

    alltoall_base = all_to_all_single

    def barrier(self, opts: Any = None) -> RankWork:
        # That all have come is all there is to it.
        return self._call(Signature("barrier", moves=False), lambda g: None, [])

    def monitored_barrier(
        self, timeout: timedelta | None = None, wait_all_ranks: bool = False
    ) -> None:
        self._call(Signature("monitored_barrier", moves=False), lambda g: None, []).wait()

    # Messages.

    def send(self, tensors: Tensors, target: int, tag: int = 0) -> RankWork:
        to = self._circle.members[target]
        part, work = self._message(
            lambda g: g.send(tensors, target, tag), f"send to rank {to} (tag {tag})"
        )
        self._circle.mail.send(self._group_rank, target, tag, _letter(part, tensors))
        return work

    def recv(self, tensors: Tensors, source: int, tag: int = 0) -> RankWork:
        return self._receive(
            tensors, source, tag, f"recv from rank {self._circle.members[source]} (tag {tag})"
        )

    def recv_anysource(self, tensors: Tensors, tag: int = 0) -> RankWork:
        return self._receive(tensors, None, tag, f"recv from any rank (tag {tag})")

    def _receive(self, tensors: Tensors, source: int | None, tag: int, text: str) -> RankWork:
        part, work = self._message(lambda g: g[0].recv(tensors, g[1], tag), text)
        self._circle.mail.receive(source, self._group_rank, tag, _letter(part, tensors))
        return work

    def _message(self, start: Callable[[Any], Any], text: str) -> tuple[Part, RankWork]:
        def place() -> str:
            return f"{text} on {self._circle.text()}"

        self._scene.turns.check(self._me, place)
        part = Part(start)
        return part, RankWork(self._scene.turns, self._me, part, place, [])


def _listed(tensors: Tensors | Tensor) -> Tensors:
    return [tensors] if isinstance(tensors, Tensor) else tensors


def _letter(part: Part, tensors: Tensors) -> Letter:
    return Letter(part, sum(t.numel() for t in tensors), tensors[0].dtype)


def _reduction(opts: Any, kind: Callable[[], Any]) -> Any:
    """Options with a reduce operation; torch also takes the bare operation in their place."""
    if opts is None:
        return kind()
    if hasattr(opts, "reduceOp"):
        return opts
    made = kind()
    made.reduceOp = opts
    return made


def _signature(
    name: str, tensors: Tensors, *, op: Any = None, root: int | None = None
) -> Signature:
    agreed: list[object] = [(t.numel(), t.dtype) for t in tensors]
    shown: list[object] = [(t.shape, t.dtype) for t in tensors]
    if op is not None:
        operation = str(op.reduceOp.op).rpartition(".")[2]
        agreed.append(operation)
        shown.insert(0, operation.lower())
    if root is not None:
        agreed.append(root)
        shown.insert(0, f"root {root}")
    return Signature(name, tuple(agreed), tuple(shown))


def _portions(tensor: Tensor, splits: Sequence[int], size: int) -> tuple[int, ...]:
    """Elements for each member: rows as `splits` says, or equal shares."""
    if not splits:
        return (tensor.numel() // size,) * size
    row = tensor[0].numel() if tensor.shape[0] else 0
    return tuple(rows * row for rows in splits)
