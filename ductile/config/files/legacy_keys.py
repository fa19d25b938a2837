"""Keys of the original implementation: aliases, keys without effect, and unsupported features.

Translates a tree to current keys with a warning for each change, so that `sections` defines only current keys.
"""

from attrs import frozen

from ductile.core.errors import Complaint
from ductile.core.formats.strict_yaml import YamlNode

_PRIVILEGES = "Ductile runs plugins as its own user; use a service account and the sandboxing of your service manager"
_VAULT = "Ductile has no vault; store secrets in tokens.yaml or pass them as ${NAME} from the environment"
_REFUSED = {
    "accounts": _PRIVILEGES,
    "secrets": _VAULT,
    "service.unconfined": _PRIVILEGES,
    "api.management_socket": _VAULT,
}
_REFUSED_IN_PLUGINS = {
    "run_as": _PRIVILEGES,
    "requires_vault": _VAULT,
    "schedule": "use `schedules:` with a list of entries",
}
_IGNORED_IN_PLUGINS = ("description",)


@frozen
class Translated:
    """A tree that contains only current keys."""

    root: YamlNode
    errors: tuple[Complaint, ...]
    warnings: tuple[Complaint, ...]


def translate(root: YamlNode) -> Translated:
    """Return `root` with legacy keys renamed or removed. Unsupported keys are reported as errors."""
    errors: list[Complaint] = []
    warnings: list[Complaint] = []
    if not isinstance(root.value, dict):
        return Translated(root, (), ())
    members = {name: node for name, node in root.value.items() if not name.startswith("x-")}
    if "database" in members:
        members["state"] = _under(members.get("state"), members.pop("database"))
    for name in ("log_level", "log_format"):
        if name in members:
            node = members.pop(name)
            warnings.append(Complaint(f"is deprecated; use service.{name}", name, node.mark))
            members["service"] = _under(members.get("service"), YamlNode({name: node}, node.mark))
    for path, reason in _REFUSED.items():
        errors += _refuse(members, path, reason)
    if "tcc_paths" in members:
        warnings.append(Complaint("has no effect", "tcc_paths", members["tcc_paths"].mark))
    plugins = members.get("plugins")
    if plugins is not None and isinstance(plugins.value, dict):
        entries = {name: _entry(name, entry, errors, warnings) for name, entry in plugins.value.items()}
        members["plugins"] = YamlNode(entries, plugins.mark)
    return Translated(YamlNode(members, root.mark), tuple(errors), tuple(warnings))


def _entry(name: str, entry: YamlNode, errors: list[Complaint], warnings: list[Complaint]) -> YamlNode:
    if not isinstance(entry.value, dict):
        return entry
    path, members = f"plugins.{name}", dict(entry.value)
    for key, reason in _REFUSED_IN_PLUGINS.items():
        if key in members:
            errors.append(Complaint(f"is not supported: {reason}", f"{path}.{key}", members.pop(key).mark))
    for key in _IGNORED_IN_PLUGINS:
        if key in members:
            warnings.append(Complaint("has no effect; move it to the manifest", f"{path}.{key}", members.pop(key).mark))
    if "timeout" in members:
        node = members.pop("timeout")
        both = YamlNode({"poll": node, "handle": node}, node.mark)
        warnings.append(Complaint("is deprecated; use timeouts.poll and timeouts.handle", f"{path}.timeout", node.mark))
        members["timeouts"] = _under(members.get("timeouts"), both)
    if "max_attempts" in members:
        node = members.pop("max_attempts")
        warnings.append(Complaint("is deprecated; use retry.max_attempts", f"{path}.max_attempts", node.mark))
        members["retry"] = _under(members.get("retry"), YamlNode({"max_attempts": node}, node.mark))
    return YamlNode(members, entry.mark)


def _under(main: YamlNode | None, fallback: YamlNode) -> YamlNode:
    """Return `main`, with missing members added from `fallback`."""
    if main is None or main.value is None:
        return fallback
    if not isinstance(main.value, dict) or not isinstance(fallback.value, dict):
        return main
    return YamlNode({**fallback.value, **main.value}, main.mark)


def _refuse(members: dict[str, YamlNode], path: str, reason: str) -> list[Complaint]:
    section, _, key = path.rpartition(".")
    if not section:
        node = members.pop(key, None)
    else:
        holder = members.get(section)
        if holder is None or not isinstance(holder.value, dict) or key not in holder.value:
            return []
        node = holder.value[key]
        members[section] = YamlNode({name: value for name, value in holder.value.items() if name != key}, holder.mark)
    return [Complaint(f"is not supported: {reason}", path, node.mark)] if node is not None else []
