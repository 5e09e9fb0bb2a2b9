"""The calls of one rank: each runs in clean state, and is answered with what came of it."""

from __future__ import annotations

import io
import os
import pickle
import sys
import time
import traceback
from collections.abc import Callable
from types import TracebackType
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from pytest_cplife.launchers import torch_private
from pytest_cplife.launchers.base import Rank
from pytest_cplife.launchers.channel import Channel
from pytest_cplife.launchers.hygiene import Hygiene
from pytest_cplife.launchers.messages import Call, Failed, PoolSpec, Returned
from pytest_cplife.launchers.recorder import Recorder
from pytest_cplife.launchers.variables import set_environment
from pytest_cplife.mesh import MeshSpec

# How long a rank gives a collective that was not waited for before it calls its world spent.
_SETTLE_SECONDS = 0.2
# What a rank cannot do because of what the pytest process had done before it forked the rank.
_INHERITED = {
    "Cannot re-initialize CUDA in forked subprocess": (
        "the pytest process had used CUDA before it forked this rank. A test module or a conftest "
        "may have; torch.cuda.is_available() counts as use unless the environment has "
        "PYTORCH_NVML_BASED_CUDA_CHECK=1, which --cplife-device=cuda sets"
    ),
    "Unable to handle autograd's threading in combination with fork": (
        "the pytest process had computed gradients before it forked this rank, after which torch "
        "computes none in it where there is a GPU. Run tests that do so in a pytest of their own, "
        "or on a rank"
    ),
}


class ServingRank(Rank, Protocol):
    """A rank with the meshes that live as long as its world."""

    meshes: dict[MeshSpec, DeviceMesh]


class Service:
    """Answers calls, one after another, until the parent goes away."""

    def __init__(self, me: ServingRank, spec: PoolSpec, recorder: Recorder) -> None:
        self._me = me
        self._spec = spec
        self._recorder = recorder
        self._store = torch_private.WorldStore()
        self._last: Hygiene | None = None

    def serve(self, control: Channel, inherited: dict[str, str]) -> None:
        """Serve for ever.

        Raises:
            EOFError: the parent has gone.
        """
        while True:
            call: Call = control.receive_object(None)
            # The failure of a call shows what was printed in it.
            os.truncate(self._spec.log(self._me.rank), 0)
            sys.path[:] = call.sys_path
            os.chdir(call.cwd)
            wanted = {**(inherited if call.changes_only else {}), **call.environment}
            present = {name: value for name, value in wanted.items() if value is not None}
            set_environment(present, self._me.rank, self._spec)
            control.send_object(self._answer(call), None)

    def _answer(self, call: Call) -> Returned | Failed:
        me = self._me
        if self._last is not None:
            self._last.destroy_leaked(me.meshes)
        self._last = hygiene = Hygiene()
        hygiene.seed()
        self._store.renew()
        self._recorder.mark()
        try:
            fn: Callable[..., Any]
            fn, args = pickle.loads(call.payload)
            result = fn(me, *args)
            if me.device.type == "cuda":
                # What fails or hangs on the device belongs to this call, not to the next.
                torch.cuda.synchronize(me.device)
        except SystemExit as error:
            return failed("exited", error, message=f"sys.exit({error.code!r}) during the call")
        except BaseException as error:
            return failed("raised", error)
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
        try:
            payload = _packed(result)
        except Exception as error:
            kind = type(result).__name__
            return failed(
                "unserialisable", error, message=f"the result, a {kind}, cannot be sent: {error}"
            )
        ops = self._recorder.since_mark(_SETTLE_SECONDS)
        if any(op.pending for op in ops):
            # Whether it can complete is seen when every rank is back.
            return Returned(payload, ("a collective was not waited for",), ops, spent=True)
        if self._spec.grouped and not dist.is_initialized():
            note = "the world's process group had been destroyed"
            return Returned(payload, (note,), ops, spent=True)
        return Returned(payload, tuple(hygiene.restore(me.meshes)), ops, spent=False)


class _ResultPickler(pickle.Pickler):
    """Refuses what the parent could read only by using a device that it must leave alone."""

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, torch.Tensor) and obj.device.type not in ("cpu", "meta"):
            raise TypeError(
                f"there is a tensor on {obj.device} in it, and the pytest process must not use "
                "that device; return tensor.cpu()"
            )
        return NotImplemented


def _packed(result: Any) -> bytes:
    buffer = io.BytesIO()
    _ResultPickler(buffer).dump(result)
    return buffer.getvalue()


def failed(kind: Any, error: BaseException, message: str | None = None) -> Failed:
    """A failure in words alone: the exception itself may not survive the journey."""
    try:
        text = str(error) if message is None else message
    except Exception:
        text = "(the exception has no readable message)"
    hints = [hint for words, hint in _INHERITED.items() if words in text]
    return Failed(
        kind=kind,
        type_name=type(error).__name__,
        message="\n  ".join([text, *hints]),
        traceback="".join(traceback.format_exception(type(error), error, _beyond_us(error))),
        moment=time.monotonic(),
    )


def _beyond_us(error: BaseException) -> TracebackType | None:
    """The traceback from the called function on."""
    trace = error.__traceback__
    if trace is not None and trace.tb_next is not None:
        return trace.tb_next
    return trace
