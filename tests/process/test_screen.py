"""Cutting output into lines, against a dull model that sees all of it at once."""

from byteps.launcher.screen import Cutter, Piece
from hypothesis import given
from hypothesis import strategies as st


def lines_of(chunks):
    cutter = Cutter()
    pieces = [piece for chunk in chunks for piece in cutter.feed(chunk)] + cutter.finish()
    return [piece.text for piece in pieces if not piece.is_progress]


def model(data):
    """What a line shows is what was drawn last on it, '\\r\\n' being one end."""
    *whole, rest = data.replace(b"\r\n", b"\n").split(b"\n")
    shown = [next(filter(None, reversed(line.split(b"\r"))), b"") for line in [*whole, rest]]
    return shown if shown[-1].strip() else shown[:-1]


@given(st.lists(st.sampled_from([b"a", b"bc", b"\n", b"\r", b"\r\n", b"", b" "]), max_size=30))
def test_lines_do_not_depend_on_how_the_bytes_arrive(chunks):
    data = b"".join(chunks)
    assert (
        lines_of(chunks) == lines_of([data]) == lines_of([data[i : i + 1] for i in range(len(data))]) == model(data)
    )


def test_a_bar_is_shown_while_it_is_drawn():
    cutter = Cutter()
    assert cutter.feed(b"\r10%") == [Piece(True, b"10%")]
    assert cutter.feed(b"\r20%") == [Piece(True, b"10%"), Piece(True, b"20%")]
    assert cutter.feed(b"\n") == [Piece(False, b"20%")]


def test_a_bar_that_cleans_up_after_itself_leaves_no_line():
    cutter = Cutter()
    cutter.feed(b"\r10%")
    cutter.feed(b"\r   \r")
    assert cutter.finish() == []


def test_a_very_long_line_is_cut_and_nothing_is_lost():
    data = b"x" * 1_000_000
    pieces = lines_of([data[i : i + 4096] for i in range(0, len(data), 4096)])
    assert b"".join(pieces) == data and len(pieces) > 1
