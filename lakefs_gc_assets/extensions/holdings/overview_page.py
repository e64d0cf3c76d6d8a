"""The page of an overview: a treemap, lines over time, and a table that sorts. One file that loads nothing."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lakefs_gc_assets.collector.page import markup
from lakefs_gc_assets.collector.records.outcomes import size
from lakefs_gc_assets.extensions.holdings.overview import Overview, Standing, Totals

WIDTH, HEIGHT = 900.0, 420.0
"""Units of the treemap."""
_TILES, _FOLDERS = 60, 12
"""Maximum repositories, and folders of each, that have a tile of their own."""
_LETTER, _LINE = 7.0, 16.0
"""Room for a letter and a line of text."""
_SORT = """\
document.querySelectorAll("th button").forEach(function (button) {
  button.addEventListener("click", function () {
    var head = button.closest("th"), body = head.closest("table").tBodies[0];
    var place = head.cellIndex, up = head.getAttribute("aria-sort") === "descending";
    head.parentNode.querySelectorAll("th").forEach(function (each) { each.removeAttribute("aria-sort"); });
    head.setAttribute("aria-sort", up ? "ascending" : "descending");
    Array.from(body.rows).sort(function (one, other) {
      var a = one.cells[place].dataset.key, b = other.cells[place].dataset.key;
      if (a === "" || b === "") { return (a === "") - (b === ""); }
      var order = isNaN(a) || isNaN(b) ? a.localeCompare(b) : a - b;
      return up ? order : -order;
    }).forEach(function (row) { body.appendChild(row); });
  });
});
"""
"""Sorts a table by the column whose head is clicked; unknown values come last."""


@dataclass(frozen=True, slots=True)
class Tile:
    """A rectangle of a treemap.

    Attributes:
        name: the repository or folder; empty for all that are too small for a tile of their own.
        label: text that fits into the tile; empty if none does.
        is_folder: True inside the tile of a repository.
    """

    name: str
    bytes: int
    x: float
    y: float
    width: float
    height: float
    is_folder: bool = False

    @property
    def label(self) -> str:
        """The name and size, shortened to the tile; empty without room for it."""
        room = int(self.width / _LETTER) - 1
        return markup.shown(self.name or "others", room) if self.height > _LINE and room > 2 else ""


def render(overview: Overview) -> bytes:
    """The page of an overview, which has a script of its own and loads nothing."""
    rows = sorted(overview.rows, key=lambda row: (row.standing is Standing.VANISHED, -(row.stored_bytes or 0)))
    return markup.render(
        Path(__file__).with_name("overview.html"),
        f"{overview.time:%FT%TZ}",
        script=_SORT,
        overview=overview,
        rows=rows,
        tiles=[*treemap(overview)],
        lines={"curve": line(overview.days, "stored_bytes"), "now": line(overview.days, "garbage_bytes")},
        most=max((day.stored_bytes for day in overview.days), default=0),
        signed=signed,
        width=WIDTH,
        height=HEIGHT,
        present=Standing.READ,
    )


def signed(bytes_per_day: float) -> str:
    """A change of bytes in words."""
    return f"{'-' if bytes_per_day < 0 else '+'}{size(round(abs(bytes_per_day)))}"


def line(days: Sequence[Totals], name: str) -> str:
    """Points of a line over time, as shares of 600 units in width and 200 in height; the top is the most stored."""
    most = max(day.stored_bytes for day in days) or 1
    first, span = days[0].time, (days[-1].time - days[0].time).total_seconds() or 1
    return " ".join(
        f"{600 * (day.time - first).total_seconds() / span:.1f},{200 * (1 - getattr(day, name) / most):.1f}"
        for day in days
    )


def treemap(overview: Overview) -> Iterator[Tile]:
    """Tiles of the present repositories by stored bytes, each followed by tiles of its folders if known."""
    sizes = {
        row.repository: row.stored_bytes
        for row in overview.rows
        if row.stored_bytes and row.standing is not Standing.VANISHED
    }
    for tile in squarify(_largest(sizes, _TILES), 0, 0, WIDTH, HEIGHT):
        yield tile
        folders = overview.paths.get(tile.name, {})
        inner = (tile.x + 2, tile.y + _LINE, tile.width - 4, tile.height - _LINE - 2)
        if folders and min(inner[2:]) > _LINE:
            for each in squarify(_largest(folders, _FOLDERS), *inner):
                yield Tile(each.name, each.bytes, each.x, each.y, each.width, each.height, is_folder=True)


def _largest(sizes: Mapping[str, int], most: int) -> list[tuple[str, int]]:
    """The largest names, largest first, and the sum of the others without a name."""
    ordered = sorted(sizes.items(), key=lambda item: (-item[1], item[0]))
    rest = sum(count for _, count in ordered[most:])
    return [*ordered[:most], *([("", rest)] if rest else [])]


def squarify(sizes: Sequence[tuple[str, int]], x: float, y: float, width: float, height: float) -> Iterator[Tile]:
    """Divides a rectangle into tiles whose areas are as the sizes, in rows of tiles that are nearly square.

    The algorithm of M. Bruls, K. Huizing, J. van Wijk: Squarified Treemaps, 2000.
    """
    remaining = [each for each in sizes if each[1] > 0]
    while remaining:
        scale = width * height / sum(count for _, count in remaining)
        short = min(width, height)
        taken = 1
        while taken < len(remaining) and _worst(remaining[: taken + 1], scale, short) <= _worst(
            remaining[:taken], scale, short
        ):
            taken += 1
        row, remaining = remaining[:taken], remaining[taken:]
        thickness = sum(count for _, count in row) * scale / short if short else 0
        offset = 0.0
        for name, count in row:
            length = count * scale / thickness if thickness else 0
            if width >= height:
                yield Tile(name, count, x, y + offset, thickness, length)
            else:
                yield Tile(name, count, x + offset, y, length, thickness)
            offset += length
        if width >= height:
            x, width = x + thickness, width - thickness
        else:
            y, height = y + thickness, height - thickness


def _worst(row: Sequence[tuple[str, int]], scale: float, short: float) -> float:
    """The largest ratio of the sides of tiles in a row."""
    total = sum(count for _, count in row) * scale
    return max(max(short**2 * count * scale / total**2, total**2 / (short**2 * count * scale)) for _, count in row)
