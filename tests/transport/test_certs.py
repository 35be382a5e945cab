"""The controller's own authority: made once, renewed in time, never in a way that locks agents out."""

import asyncio
import os
import ssl
from pathlib import Path

import pytest
from cryptography import x509

from sentinel.transport.cert_file import FileStore
from sentinel.transport.certs import (
    BUNDLE,
    CA_KEY,
    CERT,
    DAY_S,
    KEY,
    NEXT_KEY,
    NEXT_PUBLISHED,
    Certificates,
    Conflict,
    Data,
    Lifetimes,
    renewed,
)
from sentinel.transport.wire import SERVER_NAME, Batch
from tests.transport.given import Bundle, Busy
from tests.transport.world import Raw as Agent
from tests.transport.world import World, finding, go, report
from tests.waits import eventually

pytestmark = pytest.mark.usefixtures("quick")


NOW_S = 1_800_000_000.0
LIVES = Lifetimes()
# All that is made in the months that a test goes ahead counts at the real time too, by which TLS judges.
SOON = Lifetimes(authority_s=300 * DAY_S, serving_s=30 * DAY_S, overlap_s=DAY_S, backdate_s=330 * DAY_S)


def names_of(data: Data) -> list[str]:
    cert = x509.load_pem_x509_certificate(data[CERT])
    held = cert.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return held.get_values_for_type(x509.DNSName)


def authorities(data: Data) -> list[x509.Certificate]:
    return x509.load_pem_x509_certificates(data[BUNDLE])


def signed_by(data: Data) -> x509.Certificate:
    cert = x509.load_pem_x509_certificate(data[CERT])
    for authority in authorities(data):
        try:
            cert.verify_directly_issued_by(authority)
        except Exception:  # noqa: BLE001
            continue
        return authority
    raise AssertionError("signed by none of the bundle")


class Later:
    """A wall clock that a test moves. Real certificates begin at the real time, so it only moves ahead."""

    def __init__(self) -> None:
        import time

        self.ahead_s = 0.0
        self.time = time.time

    def __call__(self) -> float:
        return self.time() + self.ahead_s


def test_at_the_first_start_authority_and_certificate_are_made(tmp_path: Path) -> None:
    data = renewed({}, NOW_S, ("sentinel.svc",), LIVES)
    assert names_of(data) == [SERVER_NAME, "sentinel.svc"]
    (authority,) = authorities(data)
    assert signed_by(data) == authority
    cert = x509.load_pem_x509_certificate(data[CERT])
    assert cert.not_valid_before_utc.timestamp() == NOW_S - LIVES.backdate_s
    assert cert.not_valid_after_utc.timestamp() == NOW_S + LIVES.serving_s
    assert renewed(data, NOW_S + 3600, ("sentinel.svc",), LIVES) == data  # nothing more to do


def test_the_serving_certificate_is_renewed_when_a_third_of_its_time_is_left_and_for_other_names() -> None:
    data = renewed({}, NOW_S, (), LIVES)
    assert renewed(data, NOW_S + 19 * DAY_S, (), LIVES) == data
    later = renewed(data, NOW_S + 21 * DAY_S, (), LIVES)
    assert later[CERT] != data[CERT]
    assert later[KEY] != data[KEY]
    assert later[BUNDLE] == data[BUNDLE]
    assert names_of(renewed(data, NOW_S, ("other",), LIVES)) == ["other", SERVER_NAME]


def test_a_new_authority_is_published_first_signs_later_and_the_old_one_leaves_when_it_ends() -> None:
    data = renewed({}, NOW_S, (), LIVES)
    (old,) = authorities(data)
    near = NOW_S + 600 * DAY_S
    prepared = renewed(data, near, (), LIVES)
    assert len(authorities(prepared)) == 2
    assert signed_by(prepared) == old
    # However long it takes: not before somebody has published it, and agents had time to read it.
    assert signed_by(renewed(prepared, near + 30 * DAY_S, (), LIVES)) == old
    published = {**prepared, NEXT_PUBLISHED: b"%.0f" % near}
    assert signed_by(renewed(published, near + LIVES.overlap_s - 1, (), LIVES)) == old
    active = renewed(published, near + LIVES.overlap_s, (), LIVES)
    new = signed_by(active)
    assert new != old
    assert set(authorities(active)) == {old, new}
    assert NEXT_KEY not in active
    assert renewed(active, near + LIVES.overlap_s + 1, (), LIVES) == active
    over = renewed(active, NOW_S + LIVES.authority_s + 1, (), LIVES)
    assert authorities(over) == [new]
    assert signed_by(over) == new


def test_every_day_for_ten_years_an_agent_that_reads_the_bundle_once_in_six_days_can_connect() -> None:
    data: dict[str, bytes] = {}
    bundle = b""
    for day in range(0, 3650, 3):
        now_s = NOW_S + day * DAY_S
        data = renewed(data, now_s, (), LIVES)
        if NEXT_KEY in data:
            data.setdefault(NEXT_PUBLISHED, b"%.0f" % now_s)
        if day % 6 == 0:
            bundle = data[BUNDLE]
        signer = signed_by(data)
        assert signer in x509.load_pem_x509_certificates(bundle)
        for cert in (signer, x509.load_pem_x509_certificate(data[CERT])):
            assert cert.not_valid_before_utc.timestamp() < now_s < cert.not_valid_after_utc.timestamp()


@pytest.mark.parametrize("field", [BUNDLE, CA_KEY, CERT])
def test_a_damaged_record_is_made_anew(tmp_path: Path, field: str) -> None:
    async def story() -> None:
        store = FileStore(str(tmp_path / "certs"))
        published: list[bytes] = []

        async def publish(bundle: bytes) -> None:
            published.append(bundle)

        first = Certificates(store, publish)
        await first.renew()
        stored = await store.get()
        assert stored is not None
        await store.put({**stored[0], field: b"damaged"}, stored[1])
        second = Certificates(store, publish)
        await second.renew()
        second.tls()
        found = await store.get()
        assert found is not None
        signed_by(found[0])
        assert published[-1] == found[0][BUNDLE]

    go(story())


def test_two_controllers_that_start_at_once_have_one_authority(tmp_path: Path) -> None:
    async def story() -> None:
        bundles: list[bytes] = []

        async def publish(bundle: bytes) -> None:
            bundles.append(bundle)

        all_have_read = asyncio.Barrier(4)

        class Remote(FileStore):
            """One whose first answer comes when all have asked, so that all of them read before one writes."""

            async def get(self) -> tuple[Data, str] | None:
                found = await super().get()
                if found is None:
                    await all_have_read.wait()
                return found

        both = [Certificates(Remote(str(tmp_path / "certs")), publish) for _ in range(4)]
        async with asyncio.timeout(120):
            await asyncio.gather(*(one.renew() for one in both))
        assert len(set(bundles)) == 1
        assert len({one._data[CERT] for one in both}) == 1

    go(story())


def test_a_write_over_somebody_elses_is_refused(tmp_path: Path) -> None:
    async def story() -> None:
        store = FileStore(str(tmp_path / "certs"))
        await store.put({"a": b"1"}, None)
        with pytest.raises(Conflict):
            await store.put({"a": b"2"}, None)
        found = await store.get()
        assert found is not None
        await store.put({"a": b"2"}, found[1])
        with pytest.raises(Conflict):
            await store.put({"a": b"3"}, found[1])
        assert os.stat(tmp_path / "certs").st_mode & 0o777 == 0o600

    go(story())


def test_the_bundle_is_published_at_each_look_for_somebody_may_have_taken_it_away(tmp_path: Path) -> None:
    async def story() -> None:
        told: list[bytes] = []

        async def publish(bundle: bytes) -> None:
            told.append(bundle)

        keeper = Certificates(FileStore(str(tmp_path / "certs")), publish)
        for _ in range(3):
            await keeper.renew()
        assert len(told) == 3
        assert len(set(told)) == 1

    go(story())


def test_an_authority_that_could_not_be_published_never_signs(tmp_path: Path) -> None:
    async def story() -> None:
        clock, broken = Later(), False

        async def publish(bundle: bytes) -> None:
            if broken:
                raise OSError("the API server is away")

        store = FileStore(str(tmp_path / "certs"))
        certificates = Certificates(store, publish, now_s=clock)
        await certificates.renew()
        old = signed_by(certificates._data)
        broken = True
        for _ in range(5):
            clock.ahead_s += 125 * DAY_S
            try:
                await certificates.renew()
            except OSError:
                pass
            assert signed_by(certificates._data) == old
        broken = False
        await certificates.renew()
        clock.ahead_s += LIVES.overlap_s + 1
        await certificates.renew()
        assert signed_by(certificates._data) != old

    go(story())


def test_rotation_drops_no_connection_and_new_connections_get_the_new_certificate(tmp_path: Path) -> None:
    """The old authority's agents and the new one's both connect while the bundle has both."""

    async def story() -> None:
        async with World(tmp_path) as world:
            clock = Later()
            world.certificates = Certificates(
                FileStore(str(tmp_path / "certs")), world.publish, lifetimes=SOON, now_s=clock
            )
            server, port = await world.serve()
            old_bundle = world.bundle.read_bytes()
            agent = world.client(port)
            world.run(agent)
            await eventually(world.full)
            raw = await Agent(world, port, "node-2").connect()
            await raw.hello()
            first = raw.channel._writer.get_extra_info("peercert")["serialNumber"]
            clock.ahead_s += 230 * DAY_S
            await world.certificates.renew()  # published: the bundle has both
            clock.ahead_s += 2 * DAY_S
            await world.certificates.renew()  # signs
            assert world.bundle.read_bytes() != old_bundle
            await raw.report(Batch())
            agent.send(report(finding()))
            await eventually(world.numbered)
            assert agent.status.connections == 1
            fresh = await Agent(world, port, "node-3").connect()
            await fresh.hello()
            assert fresh.channel._writer.get_extra_info("peercert")["serialNumber"] != first
            assert server.connected == 3
            world.bundle.write_bytes(old_bundle)
            with pytest.raises(Exception, match="certificate verify failed"):  # why publishing comes first
                await Agent(world, port, "node-4").connect()

    go(story())


def test_while_agents_report_the_authority_is_exchanged_and_nothing_is_lost(tmp_path: Path) -> None:
    """They connect again in each phase, with the bundle of the phase before: the kubelet is late."""

    async def story() -> None:
        async with World(tmp_path) as world:
            clock = Later()
            bundle = Bundle()

            async def publish(text: bytes) -> None:
                bundle.data = {BUNDLE: text}

            certificates = world.certificates = Certificates(
                FileStore(str(tmp_path / "certs")), publish, lifetimes=SOON, now_s=clock
            )
            busy = Busy(world)
            await busy.serve()
            await bundle.reaches(world)
            async with busy:
                old = signed_by(certificates._data)
                clock.ahead_s += 230 * DAY_S
                await certificates.renew()
                await busy.connect_again()
                assert len(authorities(certificates._data)) == 2
                assert signed_by(certificates._data) == old
                await bundle.reaches(world)
                clock.ahead_s += 2 * DAY_S
                await certificates.renew()
                assert signed_by(certificates._data) != old
                await busy.connect_again()
                clock.ahead_s += 80 * DAY_S
                await certificates.renew()
                await busy.connect_again()
                assert old not in authorities(certificates._data)
                await bundle.reaches(world)
                await busy.connect_again()
                await busy.nothing_lost()

    go(story())


def test_an_agent_takes_up_a_new_bundle_without_a_restart(tmp_path: Path) -> None:
    async def story() -> None:
        (tmp_path / "new").mkdir()
        async with World(tmp_path) as world, World(tmp_path / "new", world.issuer) as new:
            server, port = await world.serve()
            agent = world.client(port, answer_s=2.0)
            world.run(agent)
            await eventually(world.full)
            await server.close()
            await eventually(lambda: not agent.status.address)
            await new.serve(epoch=2, port=port)
            await eventually(lambda: "certificate verify failed" in agent.status.problem)
            world.bundle.write_bytes(new.bundle.read_bytes())
            await eventually(new.full)

    go(story())


def test_only_tls_1_3_is_spoken(tmp_path: Path) -> None:
    async def story() -> None:
        async with World(tmp_path) as world:
            _, port = await world.serve()
            context = ssl.create_default_context(cafile=str(world.bundle))
            context.maximum_version = ssl.TLSVersion.TLSv1_2
            with pytest.raises((ssl.SSLError, ConnectionError)):
                await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname=SERVER_NAME)

    go(story())


def test_the_store_that_fails_is_asked_again_and_what_is_in_force_stays(tmp_path: Path) -> None:
    async def story() -> None:
        async def publish(bundle: bytes) -> None:
            pass

        class Broken(FileStore):
            broken = False

            async def get(self) -> tuple[Data, str] | None:
                if self.broken:
                    raise OSError("the API server is away")
                return await super().get()

        store = Broken(str(tmp_path / "certs"))
        certificates = Certificates(store, publish)
        await certificates.renew()
        context = certificates.tls()
        store.broken = True
        assert not await certificates.look(), "it is looked at again soon"
        assert certificates.failures == 1
        assert certificates.tls() is context
        store.broken = False
        assert await certificates.look()

    go(story())
