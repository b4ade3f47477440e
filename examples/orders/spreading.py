"""Shows how a change comes to the documents of very many orders, by what `viewtail status` and the stores say."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Group

from examples import running, screen
from examples.comparing import Stores
from viewtail.demo.process import DemoError, Run
from viewtail.operations.status import FanOutStatus, read
from viewtail.sources import read_position

ROWS_A_LOOK = 2000
LOOK_EVERY_S = 0.02
WITHIN_S = 120.0

FanOuts = Sequence[FanOutStatus]


@dataclass(slots=True)
class Spreading:
    """A text that the lines of some orders have since a commit."""

    stores: Stores
    orders: Sequence[int]
    column: str  # of a line in a document
    text: str
    began_at: float = field(default_factory=time.monotonic)
    _done: dict[str, int] = field(default_factory=dict)  # by view

    def show_until(self, run: Run, is_reached: Callable[[FanOuts], bool]) -> None:
        """What `viewtail status` says of fan-outs; raises DemoError where one goes back, or it takes too long."""
        with screen.area() as area:
            while True:
                run.require_running()
                fan_outs = self._under_way()
                self._never_back(fan_outs)
                is_last = is_reached(fan_outs)
                area.show(
                    Group(*(screen.bar(each.view, each.done, max(len(self.orders), each.done)) for each in fan_outs)),
                    [f"written: {', '.join(f'{each.view} {each.done:,}' for each in fan_outs)}"] if fan_outs else [],
                    is_last=is_last,
                )
                if is_last:
                    return
                if time.monotonic() - self.began_at > WITHIN_S:
                    raise DemoError(f"not every document shows {self.text} after {WITHIN_S:.0f} s.\n{run.log_tail()}")
                time.sleep(LOOK_EVERY_S)

    def is_everywhere(self) -> bool:
        """Whether every one of the orders shows the text, in Redis and in Elasticsearch."""
        return self._in_redis() == self._in_elasticsearch() == len(self.orders)

    def _under_way(self) -> FanOuts:
        pipelines = read(self.stores.mysql, running.DATABASE, read_position)
        return [fan_out for pipeline in pipelines for fan_out in pipeline.fan_outs]

    def _never_back(self, fan_outs: FanOuts) -> None:
        for each in fan_outs:
            if each.done < (before := self._done.get(each.view, 0)):
                raise DemoError(f"{each.view} went back from {before:,} orders to {each.done:,}")
            self._done[each.view] = each.done

    def _in_redis(self) -> int:
        text, count = self.text.encode(), 0
        for at in range(0, len(self.orders), ROWS_A_LOOK):
            keys = [f"order:{order}" for order in self.orders[at : at + ROWS_A_LOOK]]
            documents: Any = self.stores.redis.mget(keys)
            count += sum(document is not None and text in document for document in documents)
        return count

    def _in_elasticsearch(self) -> int:
        client = self.stores.elasticsearch
        assert client is not None
        client.indices.refresh(index="orders")
        phrase = {"match_phrase": {f"lines.{self.column}": self.text}}
        return int(client.count(index="orders", query=phrase)["count"])
