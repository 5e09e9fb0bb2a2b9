"""The map from properties of the lifecycle to rules: ``python -m tests.properties``.

Reads ``docs/properties.toml`` and writes the table ``docs/properties.md``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parent.parent / "docs"
DATA = DOCS / "properties.toml"
TABLE = DOCS / "properties.md"
VERDICTS = ("not yet", "cannot")

_KEYS = {
    "property": {
        *("number", "title", "group", "rules", "open", "verdict", "reason"),
        *("tested", "weak", "contrary"),
    },
    "beyond": {"rule", "reason"},
}


@dataclass(frozen=True, slots=True)
class Property:
    """One property of the lifecycle, and what the suite makes of it.

    Attributes:
        rules: ids of the rules that decide it.
        open: what of it none of them sees, "" where that is nothing.
        verdict: one of `VERDICTS` where there are no rules, else "".
        reason: why there are none.
        tested: codes of the systems whose own tests assert it on values.
        weak: of those whose tests could pass on a broken trainer.
        contrary: of those whose code does the opposite, or refuses.
    """

    number: int
    title: str
    group: str
    rules: tuple[str, ...] = ()
    open: str = ""
    verdict: str = ""
    reason: str = ""
    tested: tuple[str, ...] = ()
    weak: tuple[str, ...] = ()
    contrary: tuple[str, ...] = ()

    @property
    def state(self) -> str:
        """``mapped``, ``in part``, ``not yet`` or ``cannot``."""
        return self.verdict or ("in part" if self.open else "mapped")


@dataclass(frozen=True, slots=True)
class PropertyMap:
    """All properties, and the rules that answer for none of them.

    Attributes:
        systems: names by code of the systems whose own tests are told.
        beyond: why there is a rule that answers for no property, by its id.
    """

    systems: Mapping[str, str]
    properties: tuple[Property, ...]
    beyond: Mapping[str, str]


def read_map(path: Path = DATA) -> PropertyMap:
    """The map in the file `path`.

    Raises:
        ValueError: an entry has a key that is unknown.
    """
    data = _toml().loads(path.read_text(encoding="utf-8"))
    for table, known in _KEYS.items():
        for entry in data[table]:
            unknown = sorted(entry.keys() - known)
            if unknown:
                raise ValueError(f"{path.name}: {table} {entry} has unknown {_listed(unknown)}")
    return PropertyMap(
        systems=data["systems"],
        properties=tuple(_property(entry) for entry in data["property"]),
        beyond={entry["rule"]: entry["reason"] for entry in data["beyond"]},
    )


def _property(entry: Mapping[str, Any]) -> Property:
    values: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in entry.items()
    }
    return Property(**values)


def _toml() -> Any:
    try:
        return import_module("tomllib")
    except ModuleNotFoundError:
        return import_module("tomli")  # Python 3.10, where pytest itself needs it


def table(what: PropertyMap) -> str:
    """The map as a page of the documentation."""
    return "\n".join(_lines(what)) + "\n"


def _lines(what: PropertyMap) -> Iterator[str]:
    properties = what.properties
    number = {
        state: sum(each.state == state for each in properties)
        for state in ("mapped", "in part", *VERDICTS)
    }
    yield "# Properties of the lifecycle, and who decides them"
    yield ""
    yield "<!-- Written by python -m tests.properties from properties.toml. -->"
    yield ""
    yield f"Of {len(properties)} properties of a sharded model's lifecycle:"
    yield ""
    yield (
        f"- **{number['mapped'] + number['in part']} are mapped** to rules that decide them on"
        f" values; of {number['in part']} of these some part is still open, told in the row,"
    )
    yield f"- **{number['not yet']} not yet**: a rule could decide them, and none does,"
    yield f"- **{number['cannot']} cannot** be decided by a suite that sees a trainer from outside."
    yield ""
    yield (
        "A rule judges what the trainer has and the adapter declares. Where a row speaks of uneven"
        " or strided shards, of bfloat16, of a GPU or of another mesh, its rules decide it for"
        " trainers that have these; of what a trainer does not have a pass says nothing."
    )
    yield ""
    untested = [each for each in properties if not each.tested]
    yield (
        f"None of {len(what.systems)} other systems tests {len(untested)} of them on values;"
        f" {sum(bool(each.rules) for each in untested)} of those are mapped here. The systems:"
        f" {_listed([f'{code} = {name}' for code, name in what.systems.items()])}. *Weakly*: a"
        " test there could pass on a broken trainer. *Contrary*: the code there does the"
        " opposite, or refuses."
    )
    for group in dict.fromkeys(each.group for each in properties):
        yield ""
        yield f"## {group.capitalize()}"
        yield ""
        yield "| # | property | rules, or why there are none | tested elsewhere |"
        yield "|---|---|---|---|"
        for each in properties:
            if each.group == group:
                yield f"| {each.number} | {each.title} | {_answer(each)} | {_elsewhere(each)} |"
    yield ""
    yield "## Rules beyond the properties"
    yield ""
    yield "| rule | what it is there for |"
    yield "|---|---|"
    for rule, reason in what.beyond.items():
        yield f"| {rule} | {reason} |"


def _answer(each: Property) -> str:
    if each.verdict:
        return f"**{each.verdict}**: {each.reason}"
    return _listed(each.rules) + (f". *Open*: {each.open}" if each.open else "")


def _elsewhere(each: Property) -> str:
    parts = [
        _listed(each.tested) or "none",
        f"weakly {_listed(each.weak)}" if each.weak else "",
        f"contrary {_listed(each.contrary)}" if each.contrary else "",
    ]
    return "; ".join(part for part in parts if part)


def _listed(items: Sequence[str]) -> str:
    return ", ".join(items)


def main() -> None:
    TABLE.write_text(table(read_map()), encoding="utf-8")


if __name__ == "__main__":
    main()
