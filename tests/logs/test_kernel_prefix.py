"""Saved kernel logs come with many prefixes: each is taken off, and other writers are told apart."""

from datetime import UTC, datetime

import pytest

from sentinel.logs.kernel_prefix import split_prefix

XID = "NVRM: Xid (PCI:0000:3f:00): 46"


@pytest.mark.parametrize(
    "line",
    [
        XID,
        f"[   12.345678] {XID}",
        f"[   12.345678][  T123] {XID}",
        f"<3>[   12.345678] {XID}",
        f"kern  :err   : [   12.345678] {XID}",
        f"[Fri Aug 30 11:43:09 2024] {XID}",
        f"2024-08-30T11:43:09,123456+00:00 {XID}",
        f"Aug 30 11:43:09 node7 kernel: [   12.345678] {XID}",
        f"Aug 30 11:43:09 node7 kernel: {XID}",
        f"Aug  3 11:43:09.123456 node7 kernel: {XID}",
        f"2024-08-30T11:43:09.123456+00:00 node7 kernel: [   12.345678] {XID}",
        f"2024-08-30T11:43:09+0000 node7 kernel: {XID}",
        f"[   12.345678] node7 kernel: {XID}",
        f"kernel: {XID}",
        f"3,1234,12345678,-;{XID}",
        f"3,1234,12345678,-,caller=T1;{XID}\n",
        f'{{"_TRANSPORT": "kernel", "__REALTIME_TIMESTAMP": "1725018189000000", "MESSAGE": "{XID}"}}',
    ],
)
def test_the_prefix_is_taken_off(line: str) -> None:
    split = split_prefix(line)
    assert split.text == XID
    assert split.from_kernel


@pytest.mark.parametrize(
    "line",
    [
        f"Aug 30 11:43:09 node7 python[42]: {XID}",
        f"2024-08-30T11:43:09.123456+00:00 node7 sshd: {XID}",
        f"12,1234,12345678,-;{XID}",
        f"<12>[   12.345678] {XID}",
        f"user  :warn  : [   12.345678] {XID}",
        f'{{"_TRANSPORT": "syslog", "MESSAGE": "{XID}"}}',
    ],
)
def test_what_another_program_wrote_is_not_the_kernels_word(line: str) -> None:
    assert not split_prefix(line).from_kernel


def test_a_date_with_a_zone_is_exact() -> None:
    expected = datetime(2024, 8, 30, 11, 43, 9, tzinfo=UTC).timestamp()
    assert split_prefix(f"2024-08-30T11:43:09+00:00 node7 kernel: {XID}").wall_s == expected
    assert split_prefix(f"2024-08-30T11:43:09,000000+00:00 {XID}").wall_s == expected


def test_a_stamp_without_a_year_is_the_last_one_that_is_not_in_the_future() -> None:
    now = datetime(2025, 1, 2, 12, 0, 0)
    december = split_prefix(f"Dec 31 23:00:00 node7 kernel: {XID}", now.timestamp())
    january = split_prefix(f"Jan  1 23:00:00 node7 kernel: {XID}", now.timestamp())
    assert december.wall_s == datetime(2024, 12, 31, 23).timestamp()
    assert january.wall_s == datetime(2025, 1, 1, 23).timestamp()


def test_uptime_is_kept() -> None:
    assert split_prefix(f"[   12.5] {XID}").uptime_s == 12.5
    assert split_prefix(f"3,1234,12500000,-;{XID}").uptime_s == 12.5


@pytest.mark.parametrize(
    "line", ["", "[", "{", '{"MESSAGE": 7}', "Feb 30 11:43:09 a kernel: x", "[Fri Aug 99 11:43:09 2024] x"]
)
def test_nonsense_is_returned_without_an_error(line: str) -> None:
    split_prefix(line, 1e9)


def test_bytes_of_the_journal_are_read() -> None:
    assert split_prefix('{"MESSAGE": [78, 86, 82, 77], "_TRANSPORT": "kernel"}').text == "NVRM"
