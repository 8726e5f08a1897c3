"""One TOML table, read key by key with errors that name the file, the table and the way out."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from gemmsweep.errors import TemplateError
from gemmsweep.template.expressions import Expression, ExpressionError, parse


@dataclass(frozen=True, slots=True)
class Table:
    where: str  # "simt.cu: [launch]"
    values: Mapping[str, object]

    @staticmethod
    def of(where: str, raw: object, keys: Collection[str]) -> Table:
        """Raises TemplateError where `raw` is no table, or has a key that is not among `keys`."""
        if not isinstance(raw, dict):
            raise TemplateError(f"{where} must be a table, not {raw!r}.")
        for key in raw:
            if key not in keys:
                raise TemplateError(f"{where} has no key {key!r}. It has: {', '.join(keys)}.")
        return Table(where, raw)

    def __contains__(self, key: str) -> bool:
        return key in self.values

    def error(self, key: str, fact: str) -> TemplateError:
        return TemplateError(f"{self.where} {key}: {fact}.")

    def text(self, key: str, default: str | None = None) -> str:
        value = self._get(key, default)
        if not isinstance(value, str):
            raise self.error(key, f'must be text ({key} = "…"), not {value!r}')
        return value

    def one_of(self, key: str, allowed: tuple[str, ...], default: str | None = None) -> str:
        value = self.text(key, default)
        if value not in allowed:
            raise self.error(key, f"unknown {key} {value!r}. Choose one of: {', '.join(allowed)}")
        return value

    def flag(self, key: str, default: bool) -> bool:
        value = self._get(key, default)
        if not isinstance(value, bool):
            raise self.error(key, f"must be true or false, not {value!r}")
        return value

    def texts(self, key: str, default: tuple[str, ...] | None = None) -> tuple[str, ...]:
        value = self._get(key, default)
        if not isinstance(value, list | tuple) or not all(isinstance(item, str) for item in value):
            raise self.error(key, f'must be a list of texts ({key} = ["…"]), not {value!r}')
        if len(set(value)) < len(value) and key != "args":
            raise self.error(key, "names something twice")
        return tuple(value)

    def tables(self, key: str) -> list[object]:
        """The entries of `[[key]]`; none where it is absent."""
        value = self._get(key, [])
        if not isinstance(value, list):
            raise TemplateError(f"{self.where} {key} must be written as [[{key}]].")
        return value

    def expression(self, key: str, names: Collection[str], *, boolean: bool = False, default: str = "") -> Expression:
        """One expression over `names`; an integer may stand without quotes."""
        return self.parse(key, self._get(key, default or None), names, boolean=boolean)

    def expressions(self, key: str, names: Collection[str], *, boolean: bool = False) -> tuple[Expression, ...]:
        """A list of expressions, or a single one as a list of one; () where the key is absent."""
        value = self._get(key, [])
        items = value if isinstance(value, list) else [value]
        return tuple(self.parse(key, item, names, boolean=boolean) for item in items)

    def parse(self, key: str, raw: object, names: Collection[str], *, boolean: bool = False) -> Expression:
        """Raises TemplateError where `raw` is no expression of the wanted kind over `names`."""
        if isinstance(raw, bool) or not isinstance(raw, str | int):
            raise self.error(key, f'must be an expression ("BM * BN") or an integer, not {raw!r}')
        try:
            expression = parse(str(raw))
        except ExpressionError as error:
            raise self.error(key, str(error)) from None
        unknown = sorted(expression.names - set(names))
        if unknown:
            raise self.error(key, f"unknown name {unknown[0]!r} in '{raw}'. Known here: {', '.join(names)}")
        if expression.is_boolean != boolean:
            raise self.error(key, f"'{raw}' must be {'a comparison' if boolean else 'an integer, not a comparison'}")
        return expression

    def _get(self, key: str, default: object) -> object:
        value = self.values.get(key, default)
        if value is None:
            raise TemplateError(f"{self.where} needs {key!r}.")
        return value
