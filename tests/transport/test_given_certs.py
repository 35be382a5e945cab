"""Certificates that people give: judged, put in force without a restart, and no agent locked out by a new authority."""

import ssl
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519

from sentinel.metrics import declared
from sentinel.metrics.registry import Metrics
from sentinel.transport import given_certs, given_files
from sentinel.transport.certs import BUNDLE, DAY_S, Lifetimes, Unusable, pem, renewed
from sentinel.transport.given_certs import SETTLE_S, GivenCertificates, parsed, united
from sentinel.transport.given_files import MAX_AUTHORITIES, judged
from sentinel.transport.wire import SERVER_NAME, Batch
from tests.transport.given import Bundle, Busy, Clock, Mounted, at
from tests.transport.world import Raw as Agent
from tests.transport.world import World, go

pytestmark = pytest.mark.usefixtures("quick")

NOW_S = 1_800_000_000.0


@pytest.fixture
def mounted(tmp_path: Path) -> Mounted:
    return Mounted(tmp_path / "tls")


@pytest.fixture
def clock() -> Clock:
    return Clock(time.time)


def authority(name_s: float = NOW_S, life_s: float = 365 * DAY_S) -> bytes:
    """One that begins about `name_s` and ends `life_s` after."""
    return renewed({}, name_s, (), Lifetimes(authority_s=life_s))[BUNDLE]


def with_bytes(old: bytes, new: bytes) -> bytes:
    """One that is damaged."""
    der = ssl.PEM_cert_to_DER_cert(authority().decode())
    assert old in der
    return ssl.DER_cert_to_PEM_cert(der.replace(old, new, 1)).encode()


def ca_of(ca: trustme.CA) -> x509.Certificate:
    return x509.load_pem_x509_certificate(ca.cert_pem.bytes())


async def served(world: World, port: int, node: str = "node-9") -> int:
    """The serial number that an agent is shown which connects now."""
    agent = await Agent(world, port, node).connect()
    await agent.hello()
    return int(agent.channel._writer.get_extra_info("peercert")["serialNumber"], 16)


def serial(chain: bytes) -> int:
    return x509.load_pem_x509_certificates(chain)[0].serial_number


# ---------------------------------------------------------------- who is served with what


@pytest.mark.parametrize("kind", [trustme.KeyType.RSA, trustme.KeyType.ECDSA])
@pytest.mark.parametrize("given", ["root", "intermediate"])
def test_agents_that_read_the_bundle_know_the_controller_by_what_was_given(
    tmp_path: Path, mounted: Mounted, kind: trustme.KeyType, given: str
) -> None:
    async def story() -> None:
        async with World(tmp_path) as world:
            root = trustme.CA(key_type=kind)
            issuer = root.create_child_ca()
            leaf = issuer.issue_cert(SERVER_NAME, key_type=kind)
            chain = b"".join(blob.bytes() for blob in leaf.cert_chain_pems)
            trusted = root if given == "root" else issuer
            mounted.put(chain, leaf.private_key_pem.bytes(), trusted.cert_pem.bytes())
            bundle = Bundle()
            world.certificates = GivenCertificates(mounted.files, bundle)
            _, port = await world.serve()
            await bundle.reaches(world)
            assert await served(world, port) == serial(chain)
            assert world.certificates.trouble() == ""

    go(story())


def test_a_renewed_certificate_of_the_same_authority_serves_new_connections_at_the_next_look(
    tmp_path: Path, mounted: Mounted
) -> None:
    async def story() -> None:
        async with World(tmp_path) as world:
            ca, bundle = trustme.CA(), Bundle()
            first = mounted.by(ca)
            world.certificates = GivenCertificates(mounted.files, bundle)
            busy = Busy(world)
            port = await busy.serve()
            await bundle.reaches(world)
            raw = await Agent(world, port, "node-8").connect()
            await raw.hello()
            async with busy:
                second = mounted.by(ca)
                assert await served(world, port) == serial(first)
                await world.certificates.renew()
                assert await served(world, port) == serial(second)
                await busy.more()
                await raw.report(Batch())
                assert busy.connections() == [1, 1, 1], "those that there were go on"
                await busy.connect_again()
                await busy.nothing_lost()
            assert bundle.writes == 1

    go(story())


def test_a_new_authority_is_published_first_and_serves_when_agents_have_had_time_to_read_it(
    tmp_path: Path, mounted: Mounted, clock: Clock
) -> None:
    """Agents come again in each phase: whichever bundle they have read, none is locked out."""

    async def story() -> None:
        async with World(tmp_path) as world:
            old, new, bundle = trustme.CA(), trustme.CA(), Bundle()
            first = mounted.by(old)
            world.certificates = GivenCertificates(mounted.files, bundle, now_s=clock)
            busy = Busy(world)
            port = await busy.serve()
            await bundle.reaches(world)
            async with busy:
                second = mounted.by(new)
                await world.certificates.renew()
                assert set(parsed(bundle.text)) == {ca_of(old), ca_of(new)}
                await busy.connect_again()  # with the bundle from before
                clock.ahead_s += SETTLE_S - 1
                await world.certificates.renew()
                await busy.connect_again()
                assert await served(world, port) == serial(first)
                await bundle.reaches(world)
                assert await served(world, port) == serial(first)
                clock.ahead_s += 1
                await world.certificates.renew()
                assert await served(world, port) == serial(second)
                await busy.connect_again()
                await busy.nothing_lost()
            assert world.certificates.trouble() == ""

    go(story())


def test_the_controller_that_sees_new_files_later_waits_by_when_agents_were_told(
    tmp_path: Path, clock: Clock
) -> None:
    async def story() -> None:
        old, new, bundle = trustme.CA(), trustme.CA(), Bundle()
        mounts = [Mounted(tmp_path / name) for name in ("one", "two")]
        both = [GivenCertificates(mounted.files, bundle, now_s=clock) for mounted in mounts]
        for mounted, keeper in zip(mounts, both, strict=True):
            mounted.by(old)
            await keeper.renew()
        one, two = both
        before = two.tls()
        mounts[0].by(new)
        await one.renew()
        await two.renew()
        assert set(parsed(bundle.text)) == {ca_of(old), ca_of(new)}, "none takes the other's away"
        clock.ahead_s += SETTLE_S / 2
        mounts[1].by(new)
        await two.renew()
        assert two.tls() is before, "it is out for a minute"
        clock.ahead_s += SETTLE_S / 2
        await two.renew()
        assert two.tls() is not before
        for keeper in (*both, *both):
            await keeper.renew()
        assert bundle.writes == 2, "and they do not write in turn"

    go(story())


def test_where_the_old_certificate_has_ended_nothing_waits(mounted: Mounted, clock: Clock) -> None:
    async def story() -> None:
        certificates = GivenCertificates(mounted.files, Bundle(), now_s=clock)
        mounted.by(trustme.CA(), not_after=at(clock() + 3600))
        await certificates.renew()
        before = certificates.tls()
        clock.ahead_s += 3601
        mounted.by(trustme.CA())
        await certificates.renew()
        assert certificates.tls() is not before
        assert certificates.trouble() == ""

    go(story())


# ---------------------------------------------------------------- what cannot serve

Story = Callable[[Mounted], None]


def without(mounted: Mounted) -> None:
    for path in (mounted.files.cert_file, mounted.files.key_file, mounted.files.ca_file):
        Path(path).unlink()


def no_pem(mounted: Mounted) -> None:
    mounted.put(b"x", b"y", b"")


def damaged(mounted: Mounted) -> None:
    block = b"-----BEGIN %b-----\nAAAA\n-----END %b-----\n"
    cert, key = (block.replace(b"%b", kind) for kind in (b"CERTIFICATE", b"PRIVATE KEY"))
    mounted.put(cert, key, cert)


def other_key(mounted: Mounted) -> None:
    ca = trustme.CA()
    one, two = ca.issue_cert(SERVER_NAME), ca.issue_cert(SERVER_NAME)
    mounted.put(one.cert_chain_pems[0].bytes(), two.private_key_pem.bytes(), ca.cert_pem.bytes())


def other_name_that_has_ended_by_somebody_else(mounted: Mounted) -> None:
    now_s = time.time()
    past = {"not_before": at(now_s - 2 * DAY_S), "not_after": at(now_s - DAY_S)}
    leaf = trustme.CA().issue_cert("sentinel.example.com", **past)
    mounted.put(leaf.cert_chain_pems[0].bytes(), leaf.private_key_pem.bytes(), trustme.CA().cert_pem.bytes())


def only_another_name(mounted: Mounted) -> None:
    mounted.by(trustme.CA(), "sentinel.example.com")


def not_yet(mounted: Mounted) -> None:
    mounted.by(trustme.CA(), not_before=at(time.time() + DAY_S))


def passphrase_and_too_many(mounted: Mounted) -> None:
    leaf = trustme.CA().issue_cert(SERVER_NAME)
    key = serialization.load_pem_private_key(leaf.private_key_pem.bytes(), None)
    locked = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"secret"),
    )
    many = b"".join(authority(NOW_S + number) for number in range(MAX_AUTHORITIES + 1))
    mounted.put(leaf.cert_chain_pems[0].bytes(), locked, many)


def another_kind_of_key(mounted: Mounted) -> None:
    ca = trustme.CA()
    leaf = ca.issue_cert(SERVER_NAME)
    key = ed25519.Ed25519PrivateKey.generate().private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    mounted.put(leaf.cert_chain_pems[0].bytes(), key, ca.cert_pem.bytes())


def without_what_stands_between(mounted: Mounted) -> None:
    root = trustme.CA()
    leaf = root.create_child_ca().issue_cert(SERVER_NAME)
    mounted.put(leaf.cert_chain_pems[0].bytes(), leaf.private_key_pem.bytes(), root.cert_pem.bytes())


BAD: dict[Story, list[tuple[str, str, str]]] = {
    without: [
        ("certFile", "no file that can be read (No such file or directory)", "a chain in PEM"),
        ("keyFile", "no file that can be read (No such file or directory)", "an RSA or EC key in PEM"),
        ("caFile", "no file that can be read (No such file or directory)", "1 to 16 certificates"),
    ],
    no_pem: [
        ("certFile", "no certificate in PEM", "a chain in PEM"),
        ("keyFile", "no private key in PEM", "an RSA or EC key in PEM"),
        ("caFile", "no certificate in PEM", "1 to 16 certificates"),
    ],
    damaged: [
        ("certFile", "a damaged certificate", "a chain in PEM"),
        ("keyFile", "a damaged key", "an RSA or EC key in PEM"),
        ("caFile", "a damaged certificate", "1 to 16 certificates"),
    ],
    other_key: [("keyFile", "another key", "the first in certFile")],
    other_name_that_has_ended_by_somebody_else: [
        ("certFile", "a certificate whose DNS names are: sentinel.example.com", SERVER_NAME),
        ("certFile", "one that ended ", "one that counts now"),
        ("caFile", "what makes agents refuse ", "its authority"),
    ],
    only_another_name: [("certFile", "a certificate whose DNS names are: ", SERVER_NAME)],
    not_yet: [("certFile", "one that begins ", "one that counts now")],
    passphrase_and_too_many: [
        ("keyFile", "a key with a passphrase", "without a passphrase"),
        ("caFile", "17 certificates", "1 to 16 certificates"),
    ],
    another_kind_of_key: [("keyFile", "a key of another kind", "an RSA or EC key")],
    without_what_stands_between: [("caFile", "what makes agents refuse ", "its authority")],
}


@pytest.mark.parametrize("bad", BAD, ids=lambda story: story.__name__)
def test_all_that_is_wrong_is_told_at_once_with_file_found_and_expected(mounted: Mounted, bad: Story) -> None:
    bad(mounted)
    with pytest.raises(Unusable) as told:
        judged(mounted.files, time.time())
    problems = str(told.value).split("; certificates.")
    paths = {"certFile": "tls.crt", "keyFile": "tls.key", "caFile": "ca.crt"}
    assert len(problems) == len(BAD[bad]), problems
    for problem, (name, found, expected) in zip(problems, BAD[bad], strict=True):
        head, _, tail = problem.removeprefix("certificates.").partition(": found ")
        assert head.split() == [name, str(Path(mounted.files.cert_file).parent / paths[name])]
        assert tail.startswith(found)
        assert expected in tail.partition(", expected ")[2]


def test_bad_files_leave_in_force_what_was_and_are_told_until_good_ones_come(
    tmp_path: Path, mounted: Mounted, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        async with World(tmp_path) as world:
            ca, bundle = trustme.CA(), Bundle()
            first = mounted.by(ca)
            certificates = world.certificates = GivenCertificates(mounted.files, bundle, now_s=clock)
            _, port = await world.serve()
            await bundle.reaches(world)
            mounted.by(ca, "sentinel.example.com")
            bundle.data = None  # and somebody takes the bundle away
            assert not await certificates.look(), "it is looked at again soon"
            assert certificates.failures == 1
            assert await served(world, port) == serial(first)
            assert set(parsed(bundle.text)) == {ca_of(ca)}
            assert "DNS names are: sentinel.example.com" in certificates.trouble()
            assert "certificates that cannot serve were given; that in force ends" in certificates.trouble()
            metrics = Metrics()
            certificates.measure(metrics)
            text = metrics.render().decode()
            assert f"{declared.CERTIFICATE_FAILURES.name} 1" in text
            assert f'{declared.CERTIFICATE_END.name}{{certificate="serving"}}' in text
            assert f'{declared.CERTIFICATE_END.name}{{certificate="authority"}}' in text
            second = mounted.by(ca)
            await certificates.renew()
            assert certificates.trouble() == ""
            assert await served(world, port) == serial(second)

    go(story())


def test_with_bad_files_at_the_start_nothing_is_published(mounted: Mounted) -> None:
    async def story() -> None:
        bundle = Bundle()
        certificates = GivenCertificates(mounted.files, bundle)
        mounted.by(trustme.CA(), "sentinel.example.com")
        with pytest.raises(Unusable, match="DNS names"):
            await certificates.renew()
        with pytest.raises(RuntimeError):
            certificates.tls()
        assert bundle.data is None
        mounted.by(trustme.CA())
        await certificates.renew()
        certificates.tls()

    go(story())


@pytest.mark.parametrize(
    ("life_s", "quiet_s"), [(90 * DAY_S, 83 * DAY_S), (4 * DAY_S, 3 * DAY_S), (4 * 3600, 3 * 3600)]
)
def test_it_is_told_when_a_quarter_of_its_life_is_left_at_most_seven_days(
    mounted: Mounted, clock: Clock, life_s: float, quiet_s: float
) -> None:
    async def story() -> None:
        begin_s = clock()
        mounted.by(trustme.CA(), not_before=at(begin_s), not_after=at(begin_s + life_s))
        certificates = GivenCertificates(mounted.files, Bundle(), now_s=clock)
        clock.ahead_s = 1
        await certificates.renew()
        clock.ahead_s = quiet_s - 1
        assert certificates.trouble() == ""
        clock.ahead_s = quiet_s + 1
        ends = at(certificates.ends_wall_s)
        assert certificates.trouble() == (
            f"the certificate that agents know it by ends {ends:%Y-%m-%d %H:%M} UTC, and no newer one was given"
        )

    go(story())


def test_files_that_are_exchanged_while_they_are_read_are_read_again(
    mounted: Mounted, monkeypatch: pytest.MonkeyPatch
) -> None:
    ca = trustme.CA()
    mounted.by(ca)
    read, left = given_files._text, [True]

    def exchanged(path: str) -> bytes | OSError:
        text = read(path)
        if path == mounted.files.cert_file and left:
            left.pop()
            mounted.by(ca)
        return text

    monkeypatch.setattr(given_files, "_text", exchanged)
    judged(mounted.files, time.time())
    assert not left


# ---------------------------------------------------------------- the bundle


def test_what_agents_were_told_before_stays_until_it_ends_and_what_is_no_certificate_goes() -> None:
    own, ended, lasting = authority(), authority(NOW_S, 10 * DAY_S), authority(NOW_S, 20 * DAY_S)
    # Only OpenSSL minds the first, of whom the name is no UTF-8: and then refuses the whole file.
    spoilt = [
        with_bytes(b"Sentinel", b"\xffentinel"),
        with_bytes(b"\xa0\x03\x02\x01\x02", b"\xa0\x03\x02\x01\x09"),
    ]
    x509.load_pem_x509_certificate(spoilt[0])
    there = b"".join((b"garbage\n", *spoilt, ended, b"-----BEGIN CERTIFICATE-----\nAA\n", lasting))
    made = united(parsed(own), there, NOW_S + 15 * DAY_S)
    assert [pem(one) for one in made] == [own, lasting], "the longest-lasting first"
    assert united(parsed(own), b"\xff\x00 of somebody else", NOW_S) == parsed(own)
    assert united(parsed(ended), b"", NOW_S + 15 * DAY_S) == parsed(ended), "what is given always is in"


def test_of_too_many_authorities_those_that_end_first_go_and_never_one_that_is_given() -> None:
    lives = [(number + 2) * DAY_S for number in range(MAX_AUTHORITIES + 3)]
    there = [authority(NOW_S, life_s) for life_s in lives]
    own = parsed(authority(NOW_S, DAY_S))
    made = united(own, b"".join(there), NOW_S)
    assert len(made) == MAX_AUTHORITIES
    assert [pem(one) for one in made] == [*reversed(there[-(MAX_AUTHORITIES - 1) :]), pem(own[0])]
    assert united(own, b"".join(map(pem, made)), NOW_S) == made


def test_an_authority_is_withdrawn_by_deleting_the_bundle(mounted: Mounted, clock: Clock) -> None:
    async def story() -> None:
        old, new, bundle = trustme.CA(), trustme.CA(), Bundle()
        certificates = GivenCertificates(mounted.files, bundle, now_s=clock)
        for ca in (old, new):
            mounted.by(ca)
            await certificates.renew()
        assert set(parsed(bundle.text)) == {ca_of(old), ca_of(new)}
        bundle.data = None
        await certificates.renew()
        assert set(parsed(bundle.text)) == {ca_of(new)}
        clock.ahead_s += SETTLE_S
        before = certificates.tls()
        await certificates.renew()
        assert certificates.tls() is not before

    go(story())


def test_the_store_that_fails_leaves_in_force_what_was(mounted: Mounted) -> None:
    async def story() -> None:
        bundle = Bundle()
        mounted.by(trustme.CA())
        certificates = GivenCertificates(mounted.files, bundle)
        await certificates.renew()
        before = certificates.tls()

        async def away() -> None:
            raise OSError("the API server is away")

        bundle.get = away  # type: ignore[assignment]
        mounted.by(trustme.CA())
        with pytest.raises(OSError, match="away"):
            await certificates.renew()
        assert certificates.tls() is before

    go(story())


def test_a_look_is_soon_enough_and_the_wait_longer_than_a_kubelet_takes() -> None:
    assert given_certs.LOOK_S <= 30
    assert timedelta(seconds=SETTLE_S) >= timedelta(seconds=90 + given_certs.LOOK_S)
