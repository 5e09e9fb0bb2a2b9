"""What torch 2.13 does that a lifecycle has to live with, and which planted fault walks into it.

By number: names of planted faults, or why there is none. And the public reports that no planted
fault can stand for.
"""

from __future__ import annotations

HARMLESS = "What torch does here is right, so that there is nothing to walk into."

TRAPS: dict[str, tuple[str, ...] | str] = {
    "state made by a hidden step at the first save": ("NaiveExport", "ExportsAtStart"),
    "hooks of that hidden step": ("NaiveExport",),
    "empty state between backward and step": "A save there that trusts it resumes without moments,"
    " which no run does: SAVE-11 looks at what goes on after such a save.",
    "loops over mixed parameters raise": ("LoopsOverAllAtOnce",),
    "plain moments are accepted and fail at the next step": ("PlainMomentsFailLate",),
    "ranks with different optimizer state": ("ShardsOfTwoFiles",),
    "state mapped by position": ("NumbersByPosition", "NamesByPosition", "ByPosition"),
    "groups that were merged or split": ("LastGroupWins", "GroupsByPosition"),
    "state of a wrong shape": ("AnySize",),
    "an optimizer without state": ("ExpectsState",),
    "a parameter of the optimizer that the model has not": ("OptimizerOfOldParameters",),
    "the setter rewrites what it is given": ("ConvertsInPlace",),
    "from_local of uneven shards": ("RemadeFromLocal", "UnevenLastShard"),
    "whole tensors cut into uneven strided shards": ("CutsWithoutOffsets", "StridedOrder"),
    "assignment drops DTensors": ("ReplacesDTensor",),
    "replicas that have parted are saved from one rank": ("DriftingReplica",),
    "shards draw the same noise": ("OneSeedForAll", "OneStreamUntilLoad"),
    "a version that is never checked": ("ReadsNoVersion",),
    "an overwrite without a moment at which it is whole": ("MakesRoom", "RemovesTooEarly"),
    "an overwrite that fails tears the checkpoint": ("PartByPart", "WritesInPlace"),
    "unknown keys and holes are silent, dtypes narrow": (
        "AsksForItsOwn",
        "ReadsWhatIsListed",
        "CastsAsItCopies",
    ),
    "no checksums": ("NoChecksums",),
    "sharded into plain tensors": HARMLESS,
    "from N ranks to M": HARMLESS,
    "values that differ by rank under one key": ("CommonFromTheFirst",),
    "empty mappings disappear": "No trainer here keeps one; what an adapter's own conversion makes"
    " of them is FUZZ-01's to see.",
    "tensors of an asynchronous save": HARMLESS,
    "names of another file format": "The suite reads no format of another library by itself.",
    "NumPy's state under weights_only": ("KeepsNumpysState",),
    "DTensors out of a file without a group": ("ReadsShardsAsWeights", "HalvesDTensors"),
    "pickles that run": ("UnpicklesMetadata", "ObjectsAmongTensors", "UnpicklesAnything"),
    "views drag their storage": ("ViewOfAFusedBuffer", "FlatFile"),
}

NOT_PLANTED: dict[str, str] = {
    "B80": "It takes a process with several devices; ranks of the suite have one each.",
    "B128": "It takes a GPU: two streams race for one buffer.",
}
