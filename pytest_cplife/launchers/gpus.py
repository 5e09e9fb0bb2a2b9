"""GPUs divided among the workers of xdist, so that none computes where another does."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence

VARIABLE = "CUDA_VISIBLE_DEVICES"
_CHECK = "PYTORCH_NVML_BASED_CUDA_CHECK"


def share_of(devices: Sequence[str], worker: int, workers: int) -> tuple[str, ...]:
    """The devices of `worker` among `workers`: neighbours, and none that is another's.

    Where there are fewer devices than workers, workers take turns in having one of them.
    """
    count = len(devices)
    if 0 < count < workers:
        return (devices[worker % count],)
    return tuple(devices[worker * count // workers : (worker + 1) * count // workers])


def visible_devices(environ: Mapping[str, str]) -> tuple[str, ...]:
    """The devices that `environ` lets CUDA see, by number or UUID; all of the machine's by default.

    Counting them makes no CUDA context, with which ranks could not be forked.
    """
    given = environ.get(VARIABLE)
    if given is None:
        import torch

        return tuple(map(str, range(torch.cuda.device_count())))
    devices: list[str] = []
    for name in map(str.strip, given.split(",")):
        # CUDA itself reads the list up to the first that is none.
        if not name or name.startswith("-"):
            break
        devices.append(name)
    return tuple(devices)


def count_devices() -> int:
    """How many devices CUDA lets this process see; counting them makes no context.

    Raises:
        RuntimeError: none.
    """
    import torch

    count: int = torch.cuda.device_count()
    if not count:
        built = "" if torch.version.cuda else ", which is built without CUDA"
        raise RuntimeError(f"there is no GPU to be seen by torch {torch.__version__}{built}")
    return count


def stay_forkable(environ: MutableMapping[str, str]) -> None:
    """Have ``torch.cuda.is_available()``, which test modules like to ask, leave CUDA alone."""
    environ.setdefault(_CHECK, "1")


def take_share(environ: MutableMapping[str, str], worker: int, workers: int) -> None:
    """Let CUDA see only the share of this worker, in the process and in ranks forked from it."""
    environ[VARIABLE] = ",".join(share_of(visible_devices(environ), worker, workers))
