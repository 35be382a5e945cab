"""Whether the API server answers an agent."""

from pathlib import Path

import pytest

from sentinel.transport.api_server import address_of_pods, answers, context
from sentinel.transport.credentials import CredentialError
from tests.transport.api_stand_in import ApiServer
from tests.transport.world import go


def test_a_refusal_is_an_answer_and_silence_is_none(tmp_path: Path) -> None:
    async def story() -> None:
        api = ApiServer(tmp_path)
        await api.serve()
        address = f"127.0.0.1:{api.port}"
        assert await answers(address, str(api.ca)) == ""
        api.says = b"SSH-2.0-OpenSSH_9.2\r\n"
        assert "not an answer of an API server" in await answers(address, str(api.ca))
        api.says = b""  # and it ends the connection
        assert await answers(address, str(api.ca))
        await api.close()
        assert "Connect call failed" in await answers(address, str(api.ca))

    go(story())


def test_who_is_not_the_api_server_is_not_taken_for_it(tmp_path: Path) -> None:
    async def story() -> None:
        (tmp_path / "other").mkdir()
        api, other = ApiServer(tmp_path), ApiServer(tmp_path / "other")
        await api.serve()
        assert "certificate verify failed" in await answers(f"127.0.0.1:{api.port}", str(other.ca))
        assert not api.asked
        await api.close()

    go(story())


def test_one_that_says_nothing_is_left(tmp_path: Path) -> None:
    async def story() -> None:
        api = ApiServer(tmp_path)
        await api.serve(tls=False)  # never greets
        assert "does not answer" in await answers(f"127.0.0.1:{api.port}", str(api.ca), within_s=0.2)
        await api.close()

    go(story())


def test_a_pod_is_told_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    assert address_of_pods() == ""
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "6443")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
    assert address_of_pods() == "10.96.0.1:6443"
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    assert address_of_pods() == "[fd00::1]:6443"


def test_without_an_authority_nobody_can_be_known(tmp_path: Path) -> None:
    with pytest.raises(CredentialError, match=r"no certificate authority in .*/absent"):
        context(str(tmp_path / "absent"))
