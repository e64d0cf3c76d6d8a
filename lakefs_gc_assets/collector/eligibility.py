"""Why an unreferenced object is kept all the same.

Listing and references only say that an object is not referenced; whether it may go depends on its age by two measures,
on its name and, for objects uploaded in parts, on having been seen before.
"""

from enum import StrEnum

MULTIPART_ETAG = r"^[0-9a-f]{32}-[0-9]+$"
"""ETag of an S3 object uploaded in parts: its LastModified may be the moment the upload began."""

PLAIN_ETAG = r"^[0-9a-f]{32}$"
"""ETag that is the MD5 of the content."""

EMPTY_MD5 = "d41d8cd98f00b204e9800998ecf8427e"
"""MD5 of the content of an object of size 0, whatever its ETag says."""

MULTIPART_SIGHTING_SECONDS = 3600
"""An object uploaded in parts must have been listed this long ago by an earlier run."""


class Kept(StrEnum):
    """Reasons to keep an unreferenced object; the report counts each."""

    YOUNG = "too young by LastModified or by its name"
    UNRECOGNISED = "a name that lakeFS never makes"
    MULTIPART = "uploaded in parts and not yet seen by an earlier run"
    OTHER_WINDOW = "outside of the run's windows"
    HIDDEN_STAGED = "staged with the content of a committed object"
    UNCERTAIN = "may be staged with the content of a committed object: more to ask than collection.hidden_suspect_limit"
    UNASKABLE = "may be staged with the content of a committed object, at a path that is no text"
