"""The page of a forecast: what other rules of retention would free, who holds what, and where it lies."""

import math
from collections.abc import Iterator, Sequence
from xml.etree.ElementTree import Element

from lakefs_gc_assets.collector.amount import Amount, size
from lakefs_gc_assets.collector.forecast import forecast
from lakefs_gc_assets.collector.forecast.forecast import Forecast, Freed, Holding, portions
from lakefs_gc_assets.collector.forecast.scenarios import Kind
from lakefs_gc_assets.collector.page import markup
from lakefs_gc_assets.collector.page.markup import element, table
from lakefs_gc_assets.storage.interface import ObjectStore

_DRAWN = 20
"""So many branches, tags and folders are drawn."""
_ROWS = 300
"""So many are told in a table: the stored frame has all of them."""
_HOLDERS = 5

_WIDTH, _HEIGHT = 700, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 80, 20, 24, 44
_LABEL_GAP, _TICK_GAP = 0.07, 34
"""Of the height between two dots that are both labelled, and of the width in units between two ticks."""
_LABEL_ROOM = 70


def write(store: ObjectStore, found: Forecast) -> None:
    """Makes and stores the page of a forecast. Raises StorageError."""
    store.put(forecast.page_key(found.forecast_id), render(found))


def render(found: Forecast) -> bytes:
    """The page of a forecast: one HTML file that loads nothing, well below 1 MB however large the repository is."""
    return markup.document(f"{found.repository}: retention", found.forecast_id, _sections(found))


def _sections(found: Forecast) -> Iterator[Element]:
    yield element("h1", f"What other rules of retention would free of {found.repository}")
    yield element(
        "p",
        f"{found.commits:,} commits hold {found.stored.objects:,} objects, {size(found.stored.bytes)}. By the rules in "
        f"force a run would free {size(found.in_force.amount.bytes)} of that. Nothing was deleted.",
        class_="ending",
    )
    yield element(
        "p",
        f"Ages count back from {found.now:%F %T}Z. What was written after {found.cutoff:%F %T}Z stays by any rules, "
        "and so does what is staged.",
        class_="soft",
    )
    yield from _rules(found)
    yield from _holders(found)
    yield from _folders(found)
    yield element("h2", "What to do next")
    yield element("p", "Write a policy, see what it would free, and what would stop a sweep by it:")
    yield element("pre", "lakefs-gc forecast --policy FILE")
    yield element("p", "Name it in collection.retention_policy, and make a dry run: it marks what the forecast said.")
    yield element("pre", "lakefs-gc run --flow committed")
    yield element(
        "p",
        f"Forecast {found.forecast_id}; all times are UTC. forecast.parquet beside this page says it to programs.",
        class_="soft",
    )


def _rules(found: Forecast) -> Iterator[Element]:
    yield element("h2", "What rules would free")
    ages = sorted((each for each in found.rules if each.scenario.days is not None), key=_days)
    if ages and _days(ages[0]) < _days(ages[-1]):
        yield curve(ages, found.in_force.amount.bytes)
    others = [each for each in found.rules if each.scenario.kind is not Kind.AGE]
    if len(others) > 1:
        drawn = [(each.scenario.name, each.amount.bytes, _words(each.amount)) for each in others]
        yield markup.bars("Bytes that each policy would free", drawn)
    rows = [
        (
            each.scenario.name,
            f"{each.scenario.commits_expired:,}",
            f"{each.amount.objects:,}",
            size(each.amount.bytes),
            _signed(each.amount.bytes - found.in_force.amount.bytes),
        )
        for each in found.rules
    ]
    heads = ("Retention", "Expired commits", "Objects freed", "Bytes freed", "Beside the rules in force")
    yield table("What a run of flow committed would mark now", heads, rows, numbers=4)
    for each in found.rules:
        for note in each.scenario.notes:
            yield element("p", f"{each.scenario.name}: {note}", class_="box")


def _holders(found: Forecast) -> Iterator[Element]:
    yield element("h2", "Who holds it")
    order = sorted(found.holdings, key=lambda each: (-each.in_all.bytes, each.title))
    shown = [each for each in order if each.in_all.objects][:_DRAWN]
    if shown:
        parts = [(each.title, each.alone.bytes, each.shared.bytes, _held_in_words(each)) for each in shown]
        yield stacked(
            "Bytes that each branch and tag holds: first what no other one has, then what others have as well", parts
        )
    rows = [
        (
            each.title,
            f"{each.holder.commits:,}",
            f"{each.in_all.objects:,}",
            size(each.in_all.bytes),
            size(each.alone.bytes),
            size(each.shared.bytes),
            _if_deleted(found, each),
            _head(each),
        )
        for each in order[:_ROWS]
    ]
    heads = ("Branch or tag", "Commits", "Objects", "Bytes", "Held alone", "Shared", "If deleted", "Head")
    yield table("What commits hold that the rules in force keep", heads, rows)
    if more := len(order) - len(rows):
        yield element("p", f"{more:,} more are in forecast.parquet.", class_="soft")
    yield element(
        "p",
        "If deleted: what a run would free beside what it frees anyway, were the branch or tag deleted now.",
        class_="soft",
    )
    if found.undecided:
        yield element(
            "p",
            "There is more to ask for than collection.hidden_suspect_limit: deletions may free more than that.",
            class_="box",
        )


def _folders(found: Forecast) -> Iterator[Element]:
    told = found.by_folder
    if told is None:
        return
    yield element("h2", "Where it lies")
    drawn = [(each.title, each.stored.bytes, _words(each.stored)) for each in told.largest[:_DRAWN]]
    if told.others is not None:
        name = f"({told.other_folders:,} smaller ones)"
        drawn.append((name, told.others.stored.bytes, _words(told.others.stored)))
    yield markup.bars(f"Bytes by folder, {told.depth} deep", drawn)
    rows = []
    for each in told.largest:
        holders = portions(found, each)
        named = [f"{holding.title} {size(portion.in_all.bytes)}" for holding, portion in holders[:_HOLDERS]]
        if more := len(holders) - len(named):
            named.append(f"{more:,} more")
        rows.append((each.title, f"{each.stored.objects:,}", size(each.stored.bytes), ", ".join(named)))
    yield table("What each folder holds, and who has it", ("Folder", "Objects", "Bytes", "Held by"), rows)
    yield element("p", "An object that is in several folders counts in each of them.", class_="soft")


def curve(ages: Sequence[Freed], in_force: int) -> Element:
    """The bytes that a retention of so many days would free, as a curve over days; beside it those by the rules in
    force as a line.

    Args:
        ages: of two different ages at the least, in order.
    """
    most = max(in_force, *(each.amount.bytes for each in ages)) or 1
    first, last = (math.log1p(_days(ages[place])) for place in (0, -1))

    def across(days: int) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * (math.log1p(days) - first) / (last - first)

    def down(count: int) -> float:
        return _TOP + (_HEIGHT - _TOP - _BOTTOM) * (1 - count / most)

    title = "Bytes that a retention of so many days would free, for all branches alike"
    spoken = "; ".join(f"{each.scenario.name}: {size(each.amount.bytes)}" for each in ages)
    drawing = element(
        "svg",
        role="img",
        viewBox=f"0 0 {_WIDTH} {_HEIGHT}",
        aria_label=f"{title}. {spoken}; rules in force: {size(in_force)}",
    )
    for share in (0, 0.5, 1):
        height = down(round(most * share))
        drawing.append(_line("grid", _LEFT, height, _WIDTH - _RIGHT, height))
        drawing.append(_text(size(round(most * share)), _LEFT - 8, height + 4, "end"))
    height = down(in_force)
    drawing.append(_line("now", _LEFT, height, _WIDTH - _RIGHT, height))
    # Shorter periods free more, so there is room on the left, where the curve does not begin there.
    below = abs(height - down(ages[0].amount.bytes)) < 2 * _LABEL_GAP * _HEIGHT and height < _HEIGHT / 2
    drawing.append(_text(f"rules in force: {size(in_force)}", _LEFT + 6, height + (16 if below else -6), "start"))
    dots = [(across(_days(each)), down(each.amount.bytes), each) for each in ages]
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y, _ in dots)
    drawing.append(element("polyline", class_="curve", points=points))
    ticked, labelled = -math.inf, math.inf
    for x, y, each in dots:
        drawing.append(element("circle", class_="bar", cx=f"{x:.1f}", cy=f"{y:.1f}", r="4"))
        if x - ticked >= _TICK_GAP:
            drawing.append(_text(f"{_days(each):,}", x, _HEIGHT - _BOTTOM + 18, "middle"))
            ticked = x
        if abs(y - labelled) >= _LABEL_GAP * _HEIGHT:
            near_edge = x > _WIDTH - _RIGHT - _LABEL_ROOM
            drawing.append(_text(size(each.amount.bytes), x, y - 8, "end" if near_edge else "start"))
            labelled = y
    drawing.append(_text("days of retention; exact at the dots", (_LEFT + _WIDTH) / 2, _HEIGHT - 6, "middle"))
    return element("figure", element("figcaption", title), drawing)


def stacked(title: str, rows: Sequence[tuple[str, int, int, str]]) -> Element:
    """Bars of two parts one below the other as a figure, each with its name before it and what it says behind it.

    Args:
        rows: name, length of both parts in one unit, and words for them.
    """
    names, behind, row = 210, 230, 22
    room, longest = _WIDTH - names - behind, max(first + second for _, first, second, _ in rows) or 1
    spoken = "; ".join(f"{name}: {words}" for name, _, _, words in rows)
    drawing = element("svg", role="img", viewBox=f"0 0 {_WIDTH} {len(rows) * row}", aria_label=f"{title}. {spoken}")
    for place, (name, first, second, words) in enumerate(rows):
        top, at = place * row, float(names)
        drawing.append(_text(markup.shown(name, 30), names - 8, top + 15, "end"))
        for kind, length in (("bar", first), ("kept", second)):
            # What is there is not drawn as nothing.
            width = max(room * length / longest, 2) if length else 0
            drawing.append(
                element("rect", class_=kind, x=f"{at:.1f}", y=str(top + 4), width=f"{width:.1f}", height=str(row - 8))
            )
            at += width
        drawing.append(_text(words, at + 6, top + 15, "start"))
    return element("figure", element("figcaption", title), drawing)


def _line(kind: str, x1: float, y1: float, x2: float, y2: float) -> Element:
    return element("line", class_=kind, x1=f"{x1:.1f}", y1=f"{y1:.1f}", x2=f"{x2:.1f}", y2=f"{y2:.1f}")


def _text(words: str, x: float, y: float, anchor: str) -> Element:
    return element("text", words, x=f"{x:.1f}", y=f"{y:.1f}", text_anchor=anchor)


def _days(freed: Freed) -> int:
    days = freed.scenario.days
    assert days is not None
    return days


def _words(amount: Amount) -> str:
    return f"{amount.objects:,}, {size(amount.bytes)}"


def _held_in_words(holding: Holding) -> str:
    return f"{size(holding.alone.bytes)} alone, {size(holding.shared.bytes)} shared"


def _if_deleted(found: Forecast, holding: Holding) -> str:
    more = found.more_if_deleted(holding)
    return "" if more is None else _signed(more.bytes)


def _signed(count: int) -> str:
    return f"-{size(-count)}" if count < 0 else size(count)


def _head(holding: Holding) -> str:
    made_at = holding.holder.head_made_at
    return "" if made_at is None else f"{made_at:%F}" + (", stale" if holding.holder.stale else "")
