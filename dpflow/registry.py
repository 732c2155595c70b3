"""The plugin host: built-ins and third parties through one door, names checked, provenance kept."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any, TypeVar, cast

import pluggy

from dpflow import hookspecs
from dpflow.catalogue import find_file, load_catalogue
from dpflow.core.contract.calculator import Calculator
from dpflow.core.contract.estimators import Estimator, reads_across
from dpflow.core.contract.interactive import InteractiveMechanism
from dpflow.core.contract.mechanism import Mechanism
from dpflow.core.sampling.randomness import SystemSource
from dpflow.errors import InvalidInput, PluginError, UnknownName

#: Modules that register first, by the same hooks as everybody.
BUILT_INS = ("dpflow.mechanisms.built_ins",)

#: Beginning of the name of a module that is a plugin file, and of no distribution.
TRIED = "dpflow_tried_"

AnyMechanism = Mechanism[Any] | InteractiveMechanism[Any, Any]
T = TypeVar("T")


class Registered(Mapping[str, T]):
    """Registered objects of one kind by name. One that is registered by its place is imported when it
    is first looked up; that raises `PluginError` where the place does not hold it.
    """

    def __init__(self, kind: str, origin: Mapping[str, str]) -> None:
        """None yet."""
        self._kind, self._origin = kind, origin
        self._entries: dict[str, Any] = {}

    def add(self, name: str, entry: T | str) -> None:
        """Add an object, or the ``module:attribute`` where it is."""
        self._entries[name] = entry if isinstance(entry, str) else self._check(name, entry)

    def __getitem__(self, name: str) -> T:
        """The object, imported now if it is used for the first time."""
        entry = self._entries[name]
        if isinstance(entry, str):
            entry = self._entries[name] = self._check(name, self._import(name, entry))
        return cast("T", entry)

    def __contains__(self, name: object) -> bool:
        """Whether it is registered; imports nothing."""
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        """The names, in the order of registration."""
        return iter(self._entries)

    def __len__(self) -> int:
        """How many are registered."""
        return len(self._entries)

    def _import(self, name: str, place: str) -> Any:
        module, _, attribute = place.partition(":")
        try:
            found = getattr(import_module(module), attribute)
            return found() if isinstance(found, type) else found[name]
        except Exception as error:
            raise PluginError(
                f"{self._kind} {name!r} of {self._origin[name]} cannot be imported from {place}: "
                f"{type(error).__name__}"
            ) from error

    def _check(self, name: str, entry: Any) -> Any:
        if entry.name != name:
            raise PluginError(
                f"{self._kind} {name!r} of {self._origin[name]} calls itself {entry.name!r}; register it by that name"
            )
        # One unit would move more than one group's value.
        if isinstance(entry, Estimator) and reads_across(entry, SystemSource()):
            raise PluginError(
                f"estimator {name!r} of {self._origin[name]} gives a group another value after other groups were estimated, "
                f"or a row another score beside other rows; an estimator is a fixed function of one group's rows, so keep nothing "
                f"between calls and draw nothing"
            )
        return entry


class Registry:
    """Installed mechanisms, estimators and calculators. An object you pass: tests build one with
    exactly the plugins they need.

    Attributes:
        mechanisms: name to mechanism.
        estimators: name to estimator.
        calculators: name to calculator.
        origin: name to the distribution (or module) that brought it.
    """

    def __init__(self, plugins: Mapping[str, object]) -> None:
        """Register plugin objects by origin. Raises `PluginError` for a broken plugin or a name
        that two of them use.
        """
        self._manager = pluggy.PluginManager(hookspecs.PROJECT)
        self._manager.add_hookspecs(hookspecs)
        for origin, plugin in plugins.items():
            self._register_plugin(origin, plugin)
        # A misspelt hook would never be called, so it is refused here.
        self._check_hooks()
        self.origin: dict[str, str] = {}
        self.mechanisms: Mapping[str, AnyMechanism] = self._collect_objects("mechanism")
        self.estimators: Mapping[str, Estimator] = self._collect_objects("estimator")
        self.calculators: Mapping[str, Calculator] = self._collect_objects("calculator")

    @classmethod
    def load(cls) -> Registry:
        """Built-ins, every installed distribution with an entry point in the group ``dpflow``, and the files that
        the nearest ``dpflow.yml`` tries: the same object until something is installed, removed or edited.
        """
        # Distributions are written into folders of these names; others change with every data file.
        folders = [path for path in sys.path if path.endswith("-packages")]
        times = tuple(map(_changed_at, folders))
        return _load_installed((*sys.path, *times), tuple(_list_tried_files()))

    def find_mechanism(self, name: str) -> AnyMechanism:
        """The mechanism or session of this name, or `UnknownName`."""
        if name not in self.mechanisms and name in self.estimators:
            raise InvalidInput(
                f"{name!r} is an estimator, which a session such as reusable_holdout computes for every group, and no "
                f"mechanism; dpflow reference {name} explains it"
            )
        if name not in self.mechanisms:
            raise UnknownName("mechanism", name, self.mechanisms)
        return self.mechanisms[name]

    def find_estimator(self, name: str) -> Estimator:
        """The holdout estimator of this name, or `UnknownName`."""
        if not isinstance(estimator := self.estimators.get(name), Estimator):
            raise UnknownName("estimator", name, self.estimators)
        return estimator

    def find_calculator(self, name: str) -> Calculator:
        """The calculator of this name, or `UnknownName`."""
        if not isinstance(calculator := self.calculators.get(name), Calculator):
            raise UnknownName("calculator", name, self.calculators)
        return calculator

    def collect_examples(self, name: str) -> list[Mapping[str, Any]]:
        """What distributions registered for audits of a mechanism; none where it takes the standard
        ones.
        """
        return [
            example
            for registered in self._manager.hook.dpflow_register_examples()
            for example in registered.get(name, ())
        ]

    def collect_vetoes(self, plan: hookspecs.PlanView) -> list[str]:
        """Every reason a plugin gives against a plan; a plugin that fails while looking refuses
        too.
        """
        reasons = []
        for impl in self._manager.hook.dpflow_veto_plan.get_hookimpls():
            try:
                reason = impl.function(plan)
            except Exception as error:  # noqa: BLE001  fail closed, whatever the plugin did
                reason = (
                    f"{impl.plugin_name} failed while looking at the plan ({type(error).__name__})"
                )
            # Any true value is a reason: a plugin that answers oddly refuses.
            if reason:
                reasons.append(str(reason))
        return reasons

    def notify_observers(self, receipt: hookspecs.ReceiptView) -> list[str]:
        """Tell observers about a settled release; returns the names of those that failed."""
        failed = []
        for impl in self._manager.hook.dpflow_after_release.get_hookimpls():
            try:
                impl.function(receipt)
            except Exception:  # noqa: BLE001  a release that was paid for is never undone by an observer
                failed.append(impl.plugin_name)
        return failed

    def _register_plugin(self, origin: str, plugin: object) -> None:
        try:
            self._manager.register(plugin, name=origin)
        except (pluggy.PluginValidationError, ValueError) as error:
            raise PluginError(
                f"plugin {origin} does not fit the contract in dpflow.hookspecs: {error}"
            ) from None

    def _check_hooks(self) -> None:
        try:
            self._manager.check_pending()
        except pluggy.PluginValidationError as error:
            raise PluginError(
                f"a plugin implements a hook that dpflow does not have: {error}"
            ) from None

    def _collect_objects(self, kind: str) -> Registered[Any]:
        """Objects by name from one register hook, in registration order, clashes refused."""
        things = Registered[Any](kind, self.origin)
        for impl in getattr(self._manager.hook, f"dpflow_register_{kind}s").get_hookimpls():
            listed = impl.function()
            places = isinstance(listed, Mapping)
            pairs = listed.items() if places else ((thing.name, thing) for thing in listed)
            for name, entry in pairs:
                if name in self.origin:
                    raise PluginError(
                        f"{kind} {name!r} is registered by {self.origin[name]} and by {impl.plugin_name}; "
                        f"uninstall one of them"
                    )
                # Of built-ins the module says more.
                built_in = impl.plugin_name in BUILT_INS
                self.origin[name] = entry.partition(":")[0] if built_in else impl.plugin_name
                things.add(name, entry)
        return things


def _changed_at(folder: str) -> int | None:
    """When a folder was last written to; None if there is none."""
    with suppress(OSError):
        return os.stat(folder).st_mtime_ns
    return None


def import_file(path: Path) -> Any:
    """The module of one plugin file, run now; no distribution's module is hidden by it. Raises `InvalidInput`."""
    name = f"{TRIED}{path.stem}"
    spec = spec_from_file_location(name, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise InvalidInput(
            f"there is no file {path}; name a mechanism, or a .py file that registers one"
        )
    module = sys.modules[name] = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # noqa: BLE001  the author's own code, whatever it raises
        raise InvalidInput(f"{path} cannot be imported: {type(error).__name__}: {error}") from None
    return module


def _list_tried_files() -> Iterator[tuple[str, int | None]]:
    """The files of the nearest catalogue's folder of plugins, with when they changed."""
    file = find_file()
    folder = file and _find_plugins(file, _changed_at(str(file)))
    if folder is None:
        return
    if not folder.is_dir():
        raise InvalidInput(
            f"{file} tries plugins of {folder}, which is no folder; make it, or take plugins out"
        )
    for one in sorted(folder.glob("*.py")):
        yield str(one), _changed_at(str(one))


@lru_cache(maxsize=8)
def _find_plugins(file: Path, _: int | None) -> Path | None:
    """The folder of plugins that a catalogue names; read again when it changed."""
    return load_catalogue(file).plugins


@lru_cache(maxsize=1)
def _load_installed(
    _: tuple[str | int | None, ...], tried: tuple[tuple[str, Any], ...]
) -> Registry:
    files = {file: import_file(Path(file)) for file, _ in tried}
    return Registry(
        {name: import_module(name) for name in BUILT_INS} | dict(_installed_plugins()) | files
    )


def _installed_plugins() -> Iterator[tuple[str, object]]:
    """Plugin modules of installed distributions, by ``distribution version``."""
    from importlib.metadata import distributions

    for distribution in distributions():
        # Most have none of ours, and to parse them all takes long.
        listed = distribution.read_text("entry_points.txt") or ""
        for point in distribution.entry_points if hookspecs.PROJECT in listed else ():
            if point.group == hookspecs.PROJECT:
                origin = f"{distribution.metadata['Name']} {distribution.version} ({point.name})"
                try:
                    yield origin, point.load()
                except Exception as error:
                    raise PluginError(
                        f"plugin {origin} cannot be imported: {type(error).__name__}"
                    ) from error
