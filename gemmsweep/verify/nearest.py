"""Which config of a template a problem is checked with: the defaults, else what is nearest to them and breaks no rule."""

from __future__ import annotations

from dataclasses import dataclass, field

from gemmsweep.feasible import rules_broken, search
from gemmsweep.model import Config, DeviceInfo, Problem
from gemmsweep.template.declaration import Template

FRUITLESS = 2  # long searches without a find, after which this dtype and layout get the defaults alone
LONG = 100  # configs tried


@dataclass
class Nearest:
    """Looks once per problem; a search takes up to half a second, and problems like one that has none have none either."""

    template: Template
    device: DeviceInfo
    _found: dict[Problem, Config | None] = field(default_factory=dict)
    _fruitless: dict[tuple[str, str], int] = field(default_factory=dict)

    def __call__(self, problem: Problem) -> Config | None:
        """The config, whatever its accuracy; None where there is none, or a search would be one too many."""
        if problem not in self._found:
            self._found[problem] = self._look(problem)
        return self._found[problem]

    def _look(self, problem: Problem) -> Config | None:
        default = self.template.defaults()
        if not rules_broken(self.template, problem, self.device, default):
            return default
        kind = (problem.dtype, problem.layout)
        if self._fruitless.get(kind, 0) >= FRUITLESS:
            return None
        config, tried = search(self.template, problem, self.device, rules_broken)
        if config is None and tried >= LONG:
            self._fruitless[kind] = self._fruitless.get(kind, 0) + 1
        return config
