"""Other repositories of the same lakeFS server, as far as they can see or hold objects of this one.

An entry of another repository may point into this namespace: an import does that, and a copy between repositories that
copies no data. Such references count only where the other repository is named in `also_live`.
"""

from collections.abc import Collection
from dataclasses import dataclass

from lakefs_gc_assets.errors import AccessDenied, ConfigurationError, NotFound, NotSupported
from lakefs_gc_assets.lakefs.addresses import Location, Namespace
from lakefs_gc_assets.lakefs.api.models import LakeFSApi


@dataclass(frozen=True, slots=True)
class Neighbours:
    """What is known of other repositories.

    Attributes:
        nested: repositories whose namespace lies inside of this one, or around it.
        unchecked: other repositories that are on the same bucket, or may be, whose references are not looked at.
        refusal: what the server said where it does not list repositories; None where it does.
    """

    nested: tuple[str, ...] = ()
    unchecked: tuple[str, ...] = ()
    refusal: str | None = None


def neighbours(api: LakeFSApi, own: str, namespace: Namespace, also_live: Collection[str]) -> Neighbours:
    """Compares the storage namespace of every repository that the user of the collector may see with this one's.

    Args:
        own: id of this repository.
        also_live: ids of repositories whose references are checked.
    Raises:
        LakeFSError: the server fails; that it refuses to list repositories is stated in the result.
    """
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
        if not its.location.may_share_bucket(namespace.location):
            continue
        if _overlap(its.location, namespace.location):
            nested.append(other.id)
        elif other.id not in also_live:
            unchecked.append(other.id)
    return Neighbours(tuple(sorted(nested)), tuple(sorted(unchecked)))


def _overlap(one: Location, other: Location) -> bool:
    """Whether one lies inside of the other; all of a bucket counts only where both name the same one."""
    if one.bucket != other.bucket and not (one.key and other.key):
        return False
    return one.key.startswith(other.key) or other.key.startswith(one.key)
