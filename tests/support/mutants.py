"""A deliberate fault in one function, for tests that must fail because of it."""

from __future__ import annotations

import inspect
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Mutant:
    """`old` in the source of `owner.name` becomes `new`."""

    what: str
    owner: Any
    name: str
    old: str
    new: str

    @contextmanager
    def applied(self) -> Iterator[None]:
        """The faulty function in place of the right one.

        Raises:
            ValueError: The source does not contain `old` exactly once: it has changed, and so must this.
        """
        right = getattr(self.owner, self.name)
        source = textwrap.dedent(inspect.getsource(right))
        if source.count(self.old) != 1:
            raise ValueError(f"{self.what}: {self.owner.__name__}.{self.name} does not contain {self.old!r} once")
        module = sys.modules[right.__module__]
        made: dict[str, Any] = {}
        code = compile(source.replace(self.old, self.new), f"<{self.what}>", "exec", flags=_ANNOTATIONS)
        exec(code, module.__dict__, made)
        setattr(self.owner, self.name, made[self.name])
        try:
            yield
        finally:
            setattr(self.owner, self.name, right)


_ANNOTATIONS = 0x1000000  # annotations stay text, as `from __future__ import annotations` has it
