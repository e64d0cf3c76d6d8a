"""Other repositories of the same lakeFS server, as far as they can see or hold objects of this one.

An entry of another repository may point into this namespace: an import does that, and a copy between repositories that
copies no data. Such references count only where the other repository is named in `also_live`.
"""

from collections.abc import Collection
from dataclasses import dataclass

from lakefs_gc_assets.errors import AccessDenied, ConfigurationError, NotFound, NotSupported
from lakefs_gc_assets.lakefs.addresses import Namespace
from lakefs_gc_assets.lakefs.facts import LakeFSApi


@dataclass(frozen=True, slots=True)
class Neighbours:
    """What is known of other repositories.

    Attributes:
        nested: repositories whose namespace lies inside of this one, or around it.
        unchecked: other repositories on the same bucket whose references are not looked at.
        refusal: what the server said where it does not list repositories; None where it does.
    """

    nested: tuple[str, ...] = ()
    unchecked: tuple[str, ...] = ()
    refusal: str | None = None


def neighbours(api: LakeFSApi, own: str, namespace: Namespace, also_live: Collection[str]) -> Neighbours:
    """Looks at every repository that the user of the collector may see."""
    try:
        others = [other for other in api.repositories() if other.id != own]
    except (AccessDenied, NotFound, NotSupported) as refusal:
        return Neighbours(refusal=str(refusal))
    nested, unchecked = [], []
    for other in others:
        try:
            its = Namespace.parse(other.storage_namespace)
        except ConfigurationError:
            continue
        if (its.location.kind, its.location.bucket) != (namespace.location.kind, namespace.location.bucket):
            continue
        if its.location.key.startswith(namespace.location.key) or namespace.location.key.startswith(its.location.key):
            nested.append(other.id)
        elif other.id not in also_live:
            unchecked.append(other.id)
    return Neighbours(tuple(sorted(nested)), tuple(sorted(unchecked)))
