"""Flags, ``--help`` and config files, generated from the config dataclasses.

A field ``max_num_seqs`` is the flag ``--max-num-seqs`` and the key ``max-num-seqs`` (or
``max_num_seqs``) of a config file. Precedence: flag > file > default.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from xllm.core.config.option import OptionInfo
from xllm.core.config.root import XllmConfig
from xllm.core.utils.suggestion import suggestion

TOPICS = {f.name: typing.get_type_hints(XllmConfig)[f.name] for f in dataclasses.fields(XllmConfig)}


@dataclasses.dataclass(frozen=True, slots=True)
class Option:
    """One settable field, seen from outside."""

    topic: str
    name: str
    kind: type  # str, int, float or bool
    many: bool  # a list of ``kind``
    default: Any
    info: OptionInfo

    @property
    def flag(self) -> str:
        """``--kebab-case`` of the field's name."""
        return "--" + self.name.replace("_", "-")


def options(topics: Iterable[str] = tuple(TOPICS)) -> Iterator[Option]:
    """The options of some topics, in the order of their fields."""
    for topic in topics:
        cls = TOPICS[topic]
        hints = typing.get_type_hints(cls)
        for field in dataclasses.fields(cls):
            kind, many = _kind(hints[field.name])
            default = field.default
            if field.default_factory is not dataclasses.MISSING:
                default = field.default_factory()
            yield Option(topic, field.name, kind, many, default, field.metadata["option"])


def add_flags(
    parser: argparse.ArgumentParser,
    topics: Iterable[str] = tuple(TOPICS),
    defaults: Mapping[str, Any] | None = None,
) -> None:
    """Give a parser one group of flags per topic, and ``--config``.

    Args:
        defaults: other defaults than the fields' own, by field name; they come after the file.
    """
    parser.add_argument(
        "--config", metavar="FILE", help="YAML or JSON file with any of these options."
    )
    parser.set_defaults(_topics=tuple(topics), _defaults=dict(defaults or {}))
    for topic in topics:
        group = parser.add_argument_group(topic, TOPICS[topic].__doc__)
        for option in options([topic]):
            _add_flag(group, option)


def config_from(args: argparse.Namespace) -> XllmConfig:
    """The config that parsed flags and their config file ask for.

    Raises:
        ValueError: an unknown key or a senseless value; the message names the flag.
    """
    return make_config({**args._defaults, **explicit_values(args)})


def explicit_values(args: argparse.Namespace) -> dict[str, Any]:
    """What flags and their config file say, by field name.

    Raises:
        ValueError: as ``read_file`` has it.
    """
    known = {option.name: option for option in options(args._topics)}
    values = read_file(Path(args.config), known) if args.config else {}
    values.update({name: value for name, value in vars(args).items() if name in known})
    return values


def make_config(values: Mapping[str, Any]) -> XllmConfig:
    """A config from field values by name, whatever their topic.

    Raises:
        ValueError: an unknown name or a senseless value.
    """
    by_topic: dict[str, dict[str, Any]] = {topic: {} for topic in TOPICS}
    known = {option.name: option for option in options()}
    for name, value in values.items():
        if name not in known:
            meant = suggestion(name, known)
            raise ValueError(f"unknown option {name!r}{meant}; known: {', '.join(sorted(known))}")
        by_topic[known[name].topic][name] = value
    return XllmConfig(**{topic: TOPICS[topic](**fields) for topic, fields in by_topic.items()})


def read_file(path: Path, known: Mapping[str, Option]) -> dict[str, Any]:
    """Field values of a YAML or JSON config file.

    Raises:
        ValueError: unreadable file, unknown key, or a value of the wrong type.
    """
    try:
        text = path.read_text()
    except OSError as error:
        raise ValueError(f"--config {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ValueError(f"--config {path}: not UTF-8 text") from None
    data = _parse(path, text)
    if not isinstance(data, dict):
        raise ValueError(f"--config {path}: must hold a mapping of option names to values")
    values = {}
    for key, value in data.items():
        option = known.get(str(key).replace("-", "_"))
        if option is None:
            flags = (option.flag[2:] for option in known.values())
            meant = suggestion(str(key).replace("_", "-"), flags)
            raise ValueError(f"--config {path}: unknown option {key!r}{meant}")
        values[option.name] = _checked(path, option, value)
    return values


def _parse(path: Path, text: str) -> Any:
    if path.suffix == ".json":
        try:
            return json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"--config {path}: not JSON: {error}") from None
    try:
        import yaml
    except ImportError:
        raise ValueError(
            f"--config {path}: YAML needs PyYAML (pip install pyyaml); JSON needs nothing"
        ) from None
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(f"--config {path}: not YAML: {' '.join(str(error).split())}") from None


def _checked(path: Path, option: Option, value: Any) -> Any:
    """A value of a config file, as its field wants it."""
    if value is None and option.default is None:
        return None
    items = value if option.many and isinstance(value, list) else [value]
    for item in items:
        fits = isinstance(item, int | float) if option.kind is float else type(item) is option.kind
        if not fits or (option.kind is float and isinstance(item, bool)):
            raise ValueError(
                f"--config {path}: {option.name} must be {option.kind.__name__}, got {item!r}"
            )
    return items if option.many else value


def _kind(hint: Any) -> tuple[type, bool]:
    """The scalar type of a field's annotation, and whether it is a list of them."""
    if isinstance(hint, types.UnionType):
        (hint,) = (part for part in typing.get_args(hint) if part is not type(None))
    if typing.get_origin(hint) is list:
        return typing.get_args(hint)[0], True
    assert hint in (str, int, float, bool), hint
    return hint, False


def _add_flag(group: argparse._ArgumentGroup, option: Option) -> None:
    info = option.info
    common: dict[str, Any] = {"default": argparse.SUPPRESS, "help": _help(option)}
    if info.hidden:
        common["help"] = argparse.SUPPRESS
    if info.positional:
        group.add_argument(option.name, nargs="?", metavar=option.name.upper(), **common)
        common["help"] = argparse.SUPPRESS
    if option.kind is bool:
        group.add_argument(
            option.flag,
            *info.aliases,
            dest=option.name,
            action=argparse.BooleanOptionalAction,
            **common,
        )
        return
    if option.many:
        common["action"] = _ListAction
    elif info.choices is None:
        common["type"] = option.kind
    if info.choices is not None:
        common["choices"] = info.choices
    else:
        common["metavar"] = option.kind.__name__.upper()
    group.add_argument(option.flag, *info.aliases, dest=option.name, **common)


class _ListAction(argparse.Action):
    """Collects repeated flags; a value that is a JSON list gives several at once."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        try:
            items = json.loads(values) if values.lstrip().startswith("[") else [values]
        except ValueError:
            raise argparse.ArgumentError(self, f"not a JSON list: {values!r}") from None
        if not all(isinstance(item, str) for item in items):
            raise argparse.ArgumentError(self, f"not a list of strings: {values!r}")
        setattr(namespace, self.dest, [*getattr(namespace, self.dest, []), *items])


def _help(option: Option) -> str:
    text = option.info.help
    if option.default not in (None, [], ""):
        default = str(option.default)
        if isinstance(option.default, bool):
            default = "on" if option.default else "off"
        text = f"{text} Default: {default}."
    return text.replace("%", "%%")
