"""What Prometheus' expressions ask for: metrics, their labels, and the values that a label is compared with."""

from __future__ import annotations

import re
from dataclasses import dataclass

OF_PROMETHEUS = frozenset({"job", "instance"})  # labels that its scrape adds


@dataclass(frozen=True, slots=True)
class Sample:
    """One line of a metrics page."""

    name: str
    labels: dict[str, str]


def samples(page: str) -> list[Sample]:
    """Those of a page in Prometheus' text format."""
    found = []
    for name, labels in re.findall(r"^(\w+)(?:\{(.*)\})? \S+$", page, re.MULTILINE):
        found.append(Sample(name, dict(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', labels))))
    return found


def missing(expression: str, shown_labels: str, served: list[Sample]) -> list[str]:
    """What the expression, and the labels that are shown of its result, need and is not among what was served."""
    found = []
    asked = re.findall(r"(viewtail_\w+)(?:\{([^}]*)\})?", expression)
    grouped = [label for group in re.findall(r"\bby \(([^)]*)\)", expression) for label in re.split(r",\s*", group)]
    shown = re.findall(r"\{\{\s*(?:\$labels\.)?(\w+)\s*\}\}", shown_labels)
    for name, selector in asked:
        ours = [sample for sample in served if sample.name == name]
        if not ours:
            found.append(name)
            continue
        compared = re.findall(r'(\w+)\s*(=~|!~|!=|=)\s*"([^"]*)"', selector)
        for label, _, value in compared:
            values = {sample.labels.get(label) for sample in ours}
            if label not in OF_PROMETHEUS and (None in values or ("$" not in value and value not in values)):
                found.append(f"{name}{{{label}={value}}}")
        for label in {*grouped, *shown} - OF_PROMETHEUS:
            if any(label not in sample.labels for sample in ours):
                found.append(f"{name}{{{label}}}")
    return found if asked else [f"no metric of viewtail's in {expression!r}"]
