from pathlib import Path

from tests.scenarios.processes import Program
from tests.scenarios.travel import TOOLS


def test_a_booking_lost_between_effect_and_record_is_found_by_the_probe_and_not_repeated(tmp_path: Path) -> None:
    trip = Program("travel", tmp_path, "probed")
    trip.killed("play", at="after book_flight")
    assert [call.state for call in trip.report("trip-7").calls if call.tool == "book_flight"] == ["started"]
    trip.recover()

    report = trip.report("trip-7")
    assert report.state == "committed"
    (flight,) = [call for call in report.calls if call.tool == "book_flight"]
    assert (flight.state, flight.attempt, flight.result) == ("succeeded", 1, "F-1")
    assert {tool: len(trip.world.standing(tool)) for tool in TOOLS} == dict.fromkeys(TOOLS, 1)
    assert len(trip.world.entries("book_flight")) == 1
    trip.assert_agrees(TOOLS)
    trip.assert_quiet()


def test_without_probe_and_key_the_booking_stays_in_doubt_until_a_person_says_so(tmp_path: Path) -> None:
    trip = Program("travel", tmp_path, "bare")
    trip.killed("play", at="after book_flight")
    trip.recover()

    report = trip.report("trip-7")
    assert (report.state, [call.tool for call in report.doubts]) == ("blocked", ["book_flight"])
    assert {tool: len(trip.world.standing(tool)) for tool in TOOLS} == {
        "hold_hotel": 1,
        "book_flight": 1,
        "charge": 0,
        "email_itinerary": 0,
    }
    assert trip.world.undone("hold_hotel") == []
    assert trip.world.undone("book_flight") == []
    trip.assert_quiet()

    assert trip.play("resolve") == "committed"
    assert {tool: len(trip.world.standing(tool)) for tool in TOOLS} == dict.fromkeys(TOOLS, 1)
    trip.assert_agrees(TOOLS)
    trip.assert_quiet()
