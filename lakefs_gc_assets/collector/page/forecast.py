"""The page of a forecast: bytes that other retention rules would free, by rule, branch, tag and folder."""

import math
from collections.abc import Iterator, Sequence
from xml.etree.ElementTree import Element

from lakefs_gc_assets.collector.forecast.forecast import Forecast, Freed, Holding, page_key, portions
from lakefs_gc_assets.collector.page import markup
from lakefs_gc_assets.collector.page.markup import element, table
from lakefs_gc_assets.collector.records.outcomes import size
from lakefs_gc_assets.errors import counted
from lakefs_gc_assets.storage.interface import ObjectStore

_ROWS = 300
"""Maximum rows of a table; the stored frame has all of them."""
_HOLDERS = 5

_WIDTH, _HEIGHT = 700, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 80, 20, 24, 44
_LABEL_GAP, _TICK_GAP = 0.07, 34
"""Minimum distance of two labelled dots, as a share of the height, and of two ticks, in units of the drawing."""
_LABEL_ROOM = 70


def write(store: ObjectStore, forecast: Forecast) -> None:
    """Makes and stores the page of a forecast. Raises StorageError."""
    store.put(page_key(forecast.forecast_id), render(forecast))


def render(forecast: Forecast) -> bytes:
    """The page of a forecast: one HTML file that loads nothing, well below 1 MB however large the repository is."""
    return markup.document(f"{forecast.repository}: retention", forecast.forecast_id, _sections(forecast))


def _sections(forecast: Forecast) -> Iterator[Element]:
    yield element("h1", f"Forecast of retention rules for {forecast.repository}")
    yield element(
        "p",
        f"{counted(forecast.commits, 'commits hold')} {counted(forecast.stored.objects, 'objects')}, "
        f"{size(forecast.stored.bytes)}. By the rules in force a run would free {size(forecast.in_force.amount.bytes)} "
        f"of that{_priced(forecast)}. Nothing was deleted.",
        class_="ending",
    )
    yield element(
        "p",
        f"Ages count back from {forecast.now:%F %T}Z. Objects written after {forecast.cutoff:%F %T}Z and staged "
        "objects stay by any rules.",
        class_="soft",
    )
    yield from _rules(forecast)
    yield from _holders(forecast)
    yield from _folders(forecast)
    yield from _storage_classes(forecast)
    yield element("h2", "Next steps")
    yield element("p", "Write a policy, and see the bytes that it would free and the guards that would stop a sweep:")
    yield element("pre", "lakefs-gc forecast --policy FILE")
    yield element(
        "p", "Name it in collection.retention_policy, and make a dry run: it marks the objects of the forecast."
    )
    yield element("pre", "lakefs-gc run --flow committed")
    yield element(
        "p",
        f"Forecast {forecast.forecast_id}; all times are UTC. forecast.parquet beside this page has it for programs.",
        class_="soft",
    )


def _rules(forecast: Forecast) -> Iterator[Element]:
    yield element("h2", "What rules would free")
    ages = sorted((freed for freed in forecast.rules if freed.scenario.days is not None), key=_days)
    if ages and _days(ages[0]) < _days(ages[-1]):
        yield curve(ages, forecast.in_force.amount.bytes)
    rows = [
        (
            freed.scenario.name,
            f"{freed.scenario.commits_expired:,}",
            f"{freed.amount.objects:,}",
            size(freed.amount.bytes),
            _signed(freed.amount.bytes - forecast.in_force.amount.bytes),
            *([cost(forecast, freed.amount.bytes)] if forecast.prices.price_per_gb_month else []),
        )
        for freed in forecast.rules
    ]
    heads = ("Retention", "Expired commits", "Objects freed", "Bytes freed", "Beside the rules in force", "Cost")
    lengths = [freed.amount.bytes for freed in forecast.rules]
    yield markup.bars("What a run of flow committed would mark now", heads[: len(rows[0])], rows, lengths)
    for freed in forecast.rules:
        for note in freed.scenario.notes:
            yield element("p", f"{freed.scenario.name}: {note}", class_="box")


def _holders(forecast: Forecast) -> Iterator[Element]:
    yield element("h2", "Bytes by branch and tag")
    order = sorted(forecast.holdings, key=lambda holding: (-holding.in_all.bytes, holding.title))
    rows = [
        (
            holding.title,
            f"{holding.holder.commits:,}",
            f"{holding.in_all.objects:,}",
            size(holding.in_all.bytes),
            size(holding.alone.bytes),
            size(holding.shared.bytes),
            _if_deleted(forecast, holding),
            _head(holding),
        )
        for holding in order[:_ROWS]
    ]
    heads = ("Branch or tag", "Commits", "Objects", "Bytes", "Held alone", "Shared", "If deleted", "Head")
    yield markup.bars(
        "What commits hold that the rules in force keep; a bar is what is held alone, then what is shared",
        heads,
        rows,
        [(holding.alone.bytes, holding.shared.bytes) for holding in order[:_ROWS]],
        words=1,
    )
    if more := len(order) - len(rows):
        yield element("p", f"{more:,} more are in forecast.parquet.", class_="soft")
    yield element(
        "p",
        "If deleted: additional bytes that a run would free if the branch or tag were deleted now.",
        class_="soft",
    )
    if forecast.undecided:
        yield element(
            "p",
            "More objects need a check than collection.hidden_suspect_limit allows: deletions may free more than that.",
            class_="box",
        )


def cost(forecast: Forecast, count: int) -> str:
    """The cost of bytes for a month, as if they were of the classes that a run listed; empty without prices."""
    by_class = {name: amount.bytes for name, amount in forecast.listed.amounts.items()} if forecast.listed else {}
    total = sum(by_class.values())
    return markup.cost(forecast.prices, total or count, by_class, count / total if total else 1)


def _priced(forecast: Forecast) -> str:
    words = cost(forecast, forecast.in_force.amount.bytes)
    return f", which cost {words}" if words else ""


def _storage_classes(forecast: Forecast) -> Iterator[Element]:
    listed = forecast.listed
    if listed is None:
        return
    yield element("h2", "Storage classes")
    rows = [(name, f"{amount.objects:,}", size(amount.bytes)) for name, amount in listed.amounts.items()]
    title = f"Objects by storage class, as run {listed.run_id} listed them on {listed.ended_at:%F}"
    yield table(title, ("Class", "Objects", "Bytes"), rows, numbers=2)
    words = (
        "A forecast lists nothing: costs take what rules would free to be of these classes, by their share of bytes."
    )
    yield element("p", words, class_="soft")


def _folders(forecast: Forecast) -> Iterator[Element]:
    by_folder = forecast.by_folder
    if by_folder is None:
        return
    yield element("h2", "Bytes by folder")
    rows = []
    for folder in by_folder.largest:
        holders = portions(forecast, folder)
        named = [f"{holding.title} {size(portion.in_all.bytes)}" for holding, portion in holders[:_HOLDERS]]
        if more := len(holders) - len(named):
            named.append(f"{more:,} more")
        rows.append((folder.title, f"{folder.stored.objects:,}", size(folder.stored.bytes), ", ".join(named)))
    lengths = [folder.stored.bytes for folder in by_folder.largest]
    if by_folder.others is not None:
        others = by_folder.others.stored
        rows.append((f"({by_folder.other_folders:,} smaller ones)", f"{others.objects:,}", size(others.bytes), ""))
        lengths.append(others.bytes)
    heads = ("Folder", "Objects", "Bytes", "Held by")
    yield markup.bars(
        f"Objects and bytes by folder, {by_folder.depth} deep, and their holders", heads, rows, lengths, words=1
    )
    yield element("p", "An object that is in several folders counts in each of them.", class_="soft")


def curve(ages: Sequence[Freed], in_force: int) -> Element:
    """A curve of the bytes that a retention period would free, over its days; a line shows the rules in force.

    Args:
        ages: results for at least two different ages, in order.
    """
    most = max(in_force, *(freed.amount.bytes for freed in ages)) or 1
    first, last = (math.log1p(_days(ages[place])) for place in (0, -1))

    def across(days: int) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * (math.log1p(days) - first) / (last - first)

    def down(count: int) -> float:
        return _TOP + (_HEIGHT - _TOP - _BOTTOM) * (1 - count / most)

    title = "Bytes that a retention of so many days would free, for all branches alike"
    spoken = "; ".join(f"{freed.scenario.name}: {size(freed.amount.bytes)}" for freed in ages)
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
    dots = [(across(_days(freed)), down(freed.amount.bytes), freed) for freed in ages]
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y, _ in dots)
    drawing.append(element("polyline", class_="curve", points=points))
    ticked, labelled = -math.inf, math.inf
    for x, y, freed in dots:
        drawing.append(element("circle", class_="bar", cx=f"{x:.1f}", cy=f"{y:.1f}", r="4"))
        if x - ticked >= _TICK_GAP:
            drawing.append(_text(f"{_days(freed):,}", x, _HEIGHT - _BOTTOM + 18, "middle"))
            ticked = x
        if abs(y - labelled) >= _LABEL_GAP * _HEIGHT:
            near_edge = x > _WIDTH - _RIGHT - _LABEL_ROOM
            drawing.append(_text(size(freed.amount.bytes), x, y - 8, "end" if near_edge else "start"))
            labelled = y
    drawing.append(_text("days of retention; exact at the dots", (_LEFT + _WIDTH) / 2, _HEIGHT - 6, "middle"))
    return element("figure", element("figcaption", title), drawing)


def _line(kind: str, x1: float, y1: float, x2: float, y2: float) -> Element:
    return element("line", class_=kind, x1=f"{x1:.1f}", y1=f"{y1:.1f}", x2=f"{x2:.1f}", y2=f"{y2:.1f}")


def _text(words: str, x: float, y: float, anchor: str) -> Element:
    return element("text", words, x=f"{x:.1f}", y=f"{y:.1f}", text_anchor=anchor)


def _days(freed: Freed) -> int:
    days = freed.scenario.days
    assert days is not None
    return days


def _if_deleted(forecast: Forecast, holding: Holding) -> str:
    more = forecast.more_if_deleted(holding)
    return "" if more is None else _signed(more.bytes)


def _signed(count: int) -> str:
    return f"-{size(-count)}" if count < 0 else size(count)


def _head(holding: Holding) -> str:
    made_at = holding.holder.head_made_at
    return "" if made_at is None else f"{made_at:%F}" + (", stale" if holding.holder.stale else "")
