"""The store keeps tensors bit for bit, and its digests tell them apart."""

from __future__ import annotations

import multiprocessing
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch

from pytest_cplife.evidence.store import TensorStore

DTYPES = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2fnuz,
    torch.complex32,
    torch.complex64,
    torch.complex128,
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.uint16,
    torch.int32,
    torch.uint32,
    torch.int64,
    torch.uint64,
]


@pytest.fixture
def store(tmp_path: Path) -> TensorStore:
    return TensorStore(tmp_path)


def junk(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Random bytes as a tensor: NaN payloads, infinities and denormals among them."""
    count = int(np.prod(shape)) * dtype.itemsize
    raw = random.Random(str(dtype)).randbytes(count)
    if dtype is torch.bool:
        raw = bytes(byte & 1 for byte in raw)
    if not raw:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(bytearray(raw), dtype=dtype).reshape(shape)


def bits(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def back(store: TensorStore, tensor: torch.Tensor) -> torch.Tensor:
    return store.get(store.put(tensor), str(tensor.dtype), tuple(tensor.shape))


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (1,), (3, 5), (0, 4)], ids=str)
def test_every_dtype_comes_back_bit_for_bit(
    store: TensorStore, dtype: torch.dtype, shape: tuple[int, ...]
) -> None:
    tensor = junk(shape, dtype)
    seen = back(store, tensor)
    assert (seen.dtype, seen.shape) == (tensor.dtype, tensor.shape)
    assert bits(seen) == bits(tensor)


def test_bits_that_compare_equal_are_kept_apart(store: TensorStore) -> None:
    zeros = [torch.tensor([0.0]), torch.tensor([-0.0])]
    assert len({store.put(zero) for zero in zeros}) == 2
    assert torch.signbit(back(store, zeros[1])).item()
    payloads = torch.tensor([0x7FC00000, 0x7FC00001], dtype=torch.int32).view(torch.float32)
    assert len({store.put(payload) for payload in payloads}) == 2
    assert bits(back(store, payloads)) == bits(payloads)


@pytest.mark.parametrize(
    "view",
    [
        torch.arange(12.0).reshape(3, 4).t(),
        torch.arange(12.0)[::3],
        torch.arange(12.0).reshape(3, 4)[:, 1:3],
        torch.arange(3.0).expand(4, 3),
        torch.arange(12.0)[4:8],
        torch.arange(16.0).reshape(1, 2, 2, 4).to(memory_format=torch.channels_last),
        torch.complex(torch.arange(3.0), torch.ones(3)).conj(),
        torch.complex(torch.arange(3.0), torch.ones(3)).conj().imag,
    ],
    ids=["t", "step", "column", "expand", "slice", "channels last", "conjugate", "negative"],
)
def test_views_are_stored_by_value(store: TensorStore, view: torch.Tensor) -> None:
    plain = view.clone(memory_format=torch.contiguous_format).resolve_conj().resolve_neg()
    assert store.put(view) == store.put(plain)
    assert torch.equal(back(store, view), plain)


def test_a_digest_covers_shape_and_dtype(store: TensorStore) -> None:
    zeros = [
        torch.zeros(4),
        torch.zeros(2, 2),
        torch.zeros(1, 4),
        torch.zeros(4, dtype=torch.int32),
        torch.zeros(0),
        torch.zeros(0, 3),
        torch.zeros(()),
        torch.zeros(1),
    ]
    assert len({store.put(zero) for zero in zeros}) == len(zeros)


def test_without_keep_a_tensor_is_only_named(store: TensorStore, tmp_path: Path) -> None:
    tensor = torch.arange(3.0)
    digest = store.put(tensor, keep=False)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(FileNotFoundError):
        store.get(digest, "torch.float32", (3,))
    assert store.put(tensor) == digest


def test_what_is_equal_is_stored_once(store: TensorStore, tmp_path: Path) -> None:
    for _ in range(3):
        store.put(torch.arange(5.0))
    assert len([path for path in tmp_path.rglob("*") if path.is_file()]) == 1


def test_what_was_read_is_the_readers_own(store: TensorStore) -> None:
    digest = store.put(torch.zeros(3))
    store.get(digest, "torch.float32", (3,)).fill_(7)
    assert store.get(digest, "torch.float32", (3,)).tolist() == [0, 0, 0]


def test_the_tensor_and_the_random_streams_are_left_alone(store: TensorStore) -> None:
    tensor = torch.arange(3.0, requires_grad=True)
    before = torch.get_rng_state(), random.getstate()
    store.put(tensor * 2)
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1] == random.getstate()
    assert tensor.grad is None


def test_tensors_without_bytes_of_their_own_are_refused(store: TensorStore) -> None:
    with pytest.raises(TypeError, match="sparse"):
        store.put(torch.eye(3).to_sparse())


def write_all(store: TensorStore) -> None:
    for size in range(1, 120):
        store.put(torch.full((size, 50), float(size)))


def test_two_processes_write_the_same_contents_at_once(store: TensorStore) -> None:
    fork = multiprocessing.get_context("fork")
    writers = [fork.Process(target=write_all, args=(store,)) for _ in range(2)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(30)
    assert [writer.exitcode for writer in writers] == [0, 0]
    for size in range(1, 120):
        tensor = torch.full((size, 50), float(size))
        digest = store.put(tensor, keep=False)
        assert torch.equal(store.get(digest, "torch.float32", (size, 50)), tensor)
    # Nothing half-written is left behind under another name.
    assert all(len(path.name) == 30 for path in store.root.rglob("*") if path.is_file())


def test_threads_of_one_process_write_at_once(store: TensorStore) -> None:
    """Ranks may be threads, which share a process id."""
    tensor = torch.arange(200_000.0)
    with ThreadPoolExecutor(8) as pool:
        for _ in range(20):
            digests = set(pool.map(store.put, [tensor] * 8))
            assert len(digests) == 1
            (file,) = (path for path in store.root.rglob("*") if path.is_file())
            assert file.stat().st_size == tensor.numel() * 4
            file.unlink()


@pytest.mark.parametrize("tensor", [torch.arange(2.0)[::2], torch.zeros(0, 4)[:, ::2]])
def test_a_stride_that_no_element_needs(store: TensorStore, tensor: torch.Tensor) -> None:
    """torch calls these contiguous, and refuses all the same to view them as bytes."""
    digest = store.put(tensor)
    assert torch.equal(store.get(digest, "torch.float32", tuple(tensor.shape)), tensor)
