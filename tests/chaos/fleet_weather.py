"""What the way between a controller and its API server does to requests: a seeded choice for each of them."""

import json
import random
from collections.abc import Callable
from enum import StrEnum

from tests.kubernetes.proxy import Fault

REFUSALS = (409, 429, 500, 503)


class Weather(StrEnum):
    CALM = "calm"
    SLOW = "slow"
    REFUSING = "refusing"  # 409, 429 with Retry-After, 500, 503
    LOSSY = "lossy"  # connections lost before or after the request was done
    REPEATING = "repeating"  # each write is done twice
    BLIND = "blind"  # watches end at once, with 410, or fall behind
    STORM = "storm"  # all of it


def refusal(code: int) -> Fault:
    reasons = {409: "Conflict", 429: "TooManyRequests", 500: "InternalError", 503: "ServiceUnavailable"}
    body = {"kind": "Status", "code": code, "reason": reasons[code], "message": "said by the proxy"}
    headers = {"Retry-After": "1"} if code in (429, 503) else {}
    return Fault(answer=code, body=json.dumps(body), headers=headers)


def expired() -> Fault:
    status = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"}
    return Fault(line=json.dumps({"type": "ERROR", "object": status}).encode())


def weather(kind: Weather, rng: random.Random) -> Callable[[str, str], Fault | None]:
    """For `Proxy.weather`. `rng` is this proxy's own. Watches have the method WATCH."""

    def draw(method: str, path: str) -> Fault | None:
        chance = rng.random()
        if kind is Weather.CALM or chance < 0.5:
            return None
        one = rng.choice(list(Weather)[1:-1]) if kind is Weather.STORM else kind
        if method == "WATCH":
            if one in (Weather.BLIND, Weather.LOSSY):
                return rng.choice([expired(), Fault(lose_request=True), refusal(rng.choice(REFUSALS[1:]))])
            return None
        if one is Weather.SLOW:
            return Fault(delay_s=rng.choice([0.05, 0.3, 1.5]))
        if one is Weather.REFUSING:
            return refusal(rng.choice(REFUSALS[1:] if method == "GET" else REFUSALS))
        if one is Weather.LOSSY:
            return rng.choice([Fault(lose_request=True), Fault(lose_reply=True)])
        if one is Weather.REPEATING and method in ("PATCH", "POST", "DELETE"):
            return Fault(repeat=True)
        return None

    return draw
