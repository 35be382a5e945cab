"""More mails than an address takes in an hour, or than a person reads at once: digests, and when they go."""

import asyncio

from msgspec import structs

from sentinel.controller.effects.mail_pace import STORM_S
from sentinel.controller.effects.notify import TOGETHER, Notifier
from sentinel.core.model import Stage, StageMail
from sentinel.core.now import Now
from sentinel.notify.compose import message_id
from tests.notify.mail_world import HOST, Book, HandClock, MailServer, a_job, an_incident, body
from tests.notify.test_mail_notifier import notifier_for, running, settings_for
from tests.waits import eventually, turns


def cluster_notifier(book, port, clock):
    settings = settings_for(port)
    return Notifier(settings, book.pending, book.record, host=HOST, clock=clock, together=TOGETHER)


def test_a_flood_becomes_a_digest():
    async def scenario():
        clock = HandClock()
        book = Book(*(an_incident(number) for number in range(1, 11)))
        with MailServer() as server:
            notifier = notifier_for(book, server.port, clock, per_hour=4)
            async with running(notifier):
                await eventually(lambda: book.states().count("sent") == 2)
                await eventually(lambda: notifier.waiting == 8)
                clock.advance(1700)
                notifier.wake()
                await turns()
                assert len(server.mails) == 2
                clock.advance(200)
                book.incidents |= {one.id: one for one in [an_incident(11)]}
                notifier.wake()
                await eventually(lambda: book.states().count("digested") == 9)
            assert len(server.mails) == 3, (
                "what comes then goes with what waited, and does not take its place"
            )
            digest = server.mails[-1][1]
        assert digest["Subject"] == "[sentinel] digest: 9 events of llama"
        assert digest["X-Sentinel-Stage"] == "digest"
        assert body(digest, "plain").count("rank 3 was lost") == 9
        assert (notifier.mails_sent, notifier.waiting) == (11, 0)

    asyncio.run(scenario())


def test_what_follows_on_a_line_of_a_digest_is_one_thread_of_its_incident():
    async def scenario():
        clock = HandClock()
        book = Book(*(an_incident(number) for number in range(1, 11)))
        with MailServer() as server:
            notifier = cluster_notifier(book, server.port, clock)
            async with running(notifier):
                await eventually(lambda: book.states() == ["digested"] * 10)
                clock.advance(2 * STORM_S)
                told = book.incidents[an_incident(4).id]
                later = tuple(StageMail(stage=one) for one in (Stage.RECOVERED, Stage.NOTICE))
                book.incidents[told.id] = structs.replace(told, mails=(*told.mails, *later))
                notifier.wake()
                await eventually(lambda: book.states().count("sent") == 2)
        ((_, digest), *followed) = server.mails
        (started,) = {mail["In-Reply-To"] for _, mail in followed}
        assert started == message_id(told, Stage.STARTED, HOST, settings_for(server.port).state_path)
        assert started != digest["Message-ID"], "ten incidents are ten threads"
        assert "In-Reply-To" not in digest

    asyncio.run(scenario())


def test_no_hour_brings_more_mails_than_the_limit_and_none_ends_untold():
    """Something happens every 90 s for two hours: half of the mails of an hour as it comes, then a few digests."""

    async def scenario():
        clock = HandClock()
        book = Book()
        with MailServer() as server:
            notifier = notifier_for(book, server.port, clock, per_hour=8)
            sent_at, told_late = [], []
            for number in range(1, 81):
                book.incidents |= {one.id: one for one in [an_incident(number)]}
                before = len(server.mails)
                await notifier._round()
                sent_at += [clock.now.mono_s] * (len(server.mails) - before)
                told_late.append(notifier.waiting)
                clock.advance(90)
            for at_s in sent_at:
                assert sum(at_s - 3600 < other <= at_s for other in sent_at) <= 8
            assert max(told_late) <= 3600 / 4 / 90, "nothing waits for longer than a quarter of an hour"
            assert len(sent_at) >= 10

    asyncio.run(scenario())


def test_what_many_jobs_have_at_once_is_told_at_once_and_in_one_mail():
    """Whose jobs a storm hits does not learn of the last of them an hour later; what follows the digest is told
    a minute after it, in one mail too, and what happens when the storm is over by itself again."""

    async def scenario():
        clock = HandClock()
        book = Book(*(an_incident(number) for number in range(1, 51)))
        with MailServer() as server:
            notifier = cluster_notifier(book, server.port, clock)
            async with running(notifier):
                await eventually(lambda: book.states().count("digested") == 50)
                book.incidents |= {one.id: one for one in (an_incident(51), an_incident(52))}
                notifier.wake()
                await eventually(lambda: notifier.waiting == 2)
                clock.advance(STORM_S - 1)
                await notifier._round()
                assert len(server.mails) == 1
                clock.advance(1)
                notifier.wake()
                await eventually(lambda: book.states().count("digested") == 52)
                clock.advance(STORM_S)
                book.incidents |= {one.id: one for one in (an_incident(53), an_incident(54))}
                notifier.wake()
                await eventually(lambda: book.states().count("sent") == 2)
            subjects = [str(mail["Subject"]) for _, mail in server.mails[:2]]
            stages = [str(mail["X-Sentinel-Stage"]) for _, mail in server.mails]
        assert subjects == [f"[sentinel] digest: {count} events of llama" for count in (50, 2)]
        assert stages == ["digest"] * 2 + ["started"] * 2

    asyncio.run(scenario())


def test_a_storm_that_comes_one_by_one_is_a_digest_a_minute():
    """500 things, one a third of a second: by themselves they would use up the mails of the hour at once."""

    async def scenario():
        clock = HandClock()
        book = Book()
        with MailServer() as server:
            notifier = cluster_notifier(book, server.port, clock)
            for number in range(1, 501):
                book.incidents |= {one.id: one for one in [an_incident(number)]}
                await notifier._round()
                clock.advance(1 / 3)
            waits_s = await notifier._round()
            assert notifier.waiting > 0
            assert waits_s <= STORM_S
            clock.advance(waits_s)
            await notifier._round()
            stages = [str(mail["X-Sentinel-Stage"]) for _, mail in server.mails]
        assert stages == ["started"] * (TOGETHER + 1) + ["digest"] * 3
        assert set(book.states()) == {"sent", "digested"}

    asyncio.run(scenario())


def test_who_is_told_of_many_owners_jobs_gets_no_more_than_his_limit_and_holds_up_no_owner():
    """Of 40 jobs of as many owners, each with the team's address. Five of another owner came just before."""

    async def scenario():
        clock = HandClock()
        jobs = {f"llama-{number:04}": ("first@example.com", "team@example.com") for number in range(1, 6)}
        jobs |= {
            f"llama-{number:04}": (f"o-{number}@example.com", "team@example.com") for number in range(6, 46)
        }
        book = Book(*map(an_incident, range(1, 6)))

        def pending():
            return [(incident, a_job(emails=jobs[incident.id])) for incident, _ in book.pending()]

        with MailServer() as server:
            notifier = Notifier(
                settings_for(server.port, per_hour=20),
                pending,
                book.record,
                host=HOST,
                clock=clock,
                together=TOGETHER,
            )
            await notifier._round()
            clock.advance(5)
            book.incidents |= {one.id: one for one in map(an_incident, range(6, 46))}
            book.incidents |= {one.id: one for one in [an_incident(46)]}
            jobs["llama-0046"] = ("alone@example.com",)
            await notifier._round()
            got = [address for addresses, _ in server.mails for address in addresses]
        assert got.count("team@example.com") == 10, "half of his hour goes as it comes"
        assert got.count("alone@example.com") == 1

    asyncio.run(scenario())


def test_a_few_mails_before_a_storm_do_not_delay_its_digest():
    async def scenario():
        book = Book(an_incident(1), an_incident(2))
        with MailServer() as server:
            notifier = cluster_notifier(book, server.port, HandClock())
            await notifier._round()
            book.incidents |= {one.id: one for one in map(an_incident, range(3, 10))}
            await notifier._round()
        assert book.states() == ["sent"] * 2 + ["digested"] * 7

    asyncio.run(scenario())


def test_one_mail_over_the_limit_is_sent_as_itself_when_there_is_room():
    async def scenario():
        clock = HandClock()
        book = Book(an_incident(1), an_incident(2))
        with MailServer() as server:
            notifier = notifier_for(book, server.port, clock, per_hour=1)
            async with running(notifier):
                await eventually(lambda: book.states() == ["sent", "waiting"] and notifier.waiting == 1)
                clock.advance(3601)
                notifier.wake()
                await eventually(lambda: book.states() == ["sent", "sent"])

    asyncio.run(scenario())


def test_at_the_end_of_a_run_the_rest_of_a_flood_is_told_in_one_mail():
    async def scenario():
        book = Book(*(an_incident(number) for number in range(1, 11)))
        with MailServer() as server:
            assert await notifier_for(book, server.port, per_hour=4).flush(30) == 0
            assert len(server.mails) == 3
        assert (book.states().count("sent"), book.states().count("digested")) == (2, 8)

    asyncio.run(scenario())


def test_a_digest_that_one_of_two_gets_is_retried_for_the_other_alone():
    async def scenario():
        asked = []

        def on_rcpt(address):
            asked.append(address)
            return "451 later" if address == "b@example.com" and asked.count(address) == 2 else None

        clock = HandClock()
        book = Book(
            *(an_incident(number) for number in range(1, 4)),
            job=a_job(emails=("a@example.com", "b@example.com")),
        )
        with MailServer(on_rcpt=on_rcpt) as server:
            notifier = notifier_for(book, server.port, clock, per_hour=1)
            async with running(notifier):
                await eventually(lambda: book.states().count("sent") == 1 and notifier.waiting == 2)
                clock.advance(3601)
                notifier.wake()
                await eventually(lambda: book.mail(2).done == ("a@example.com",))
                assert book.states() == ["sent", "waiting", "waiting"]
                clock.advance(3601)
                notifier.wake()
                await eventually(lambda: book.states() == ["sent", "digested", "digested"])
            assert [recipients for recipients, _ in server.mails] == [
                ["a@example.com", "b@example.com"],
                ["a@example.com"],
                ["b@example.com"],
            ]

    asyncio.run(scenario())


def mails_of(book):
    return [mail for incident in book.incidents.values() for mail in incident.mails]


async def all_tried(notifier, book):
    await eventually(lambda: notifier.waiting == book.states().count("waiting"))
    await turns()
    await notifier.rest(30)


def test_leaders_that_follow_each_other_in_a_storm_send_no_more_in_an_hour_than_one_would():
    async def scenario():
        clock, book, times = HandClock(), Book(), []
        with MailServer() as server:
            chosen = settings_for(server.port, per_hour=4)
            for number in range(24):  # a new leader every five minutes, and more to tell each time
                new = range(10 * number + 1, 10 * number + 4)
                book.incidents |= {one.id: one for one in map(an_incident, new)}
                notifier = Notifier(
                    chosen, book.pending, book.record, host=HOST, clock=clock, together=TOGETHER
                )
                notifier.count(mails_of(book))
                async with running(notifier):
                    await all_tried(notifier, book)
                times += [clock.now.wall_s] * (len(server.mails) - len(times))
                clock.advance(300)
        assert all(later - first >= 3600 for first, later in zip(times, times[4:], strict=False)), times
        assert len(times) == 5, "two as they come, then one in half an hour"
        assert book.states().count("digested") > 50

    asyncio.run(scenario())


def test_a_successor_counts_a_digest_once_and_a_mail_of_a_clock_that_is_ahead_as_one_of_now():
    async def scenario():
        clock = HandClock()
        book = Book(*(an_incident(number) for number in range(1, 11)))
        with MailServer() as server:
            assert await notifier_for(book, server.port, clock, per_hour=4).flush(30) == 0
            assert len(server.mails) == 3  # two as they came, and a digest of eight
            book.incidents |= {one.id: one for one in map(an_incident, range(11, 14))}
            clock.now = Now(mono_s=50.0, wall_s=clock.now.wall_s - 100.0)  # of another machine
            notifier = notifier_for(book, server.port, clock, per_hour=4)
            notifier.count(mails_of(book))
            async with running(notifier):
                await eventually(lambda: notifier.waiting == 3)
                clock.advance(1790)
                notifier.wake()
                await turns()
                assert len(server.mails) == 3
                clock.advance(20)
                notifier.wake()
                await eventually(lambda: notifier.waiting == 0)
            assert len(server.mails) == 4

    asyncio.run(scenario())
