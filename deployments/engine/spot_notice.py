"""Waits for the word that a spot machine is to be taken away: the cloud says so on a page of the machine's own
metadata, two minutes before.

The page is AWS's (instance metadata, version 2: a token first), or any other that speaks alike: 404 while there is no
notice, else 200 with a JSON object that has an `action`. Whatever else is said, or nothing, is no notice: a fleet that
drains because somebody moved a page would be worse.
"""

import asyncio
import json
import logging
from urllib.parse import urlsplit

import aiohttp

logger = logging.getLogger(__name__)

EVERY_S = 5.0
"""As often as AWS recommends."""
_ANSWER_S = 2.0
_TOKEN_PATH = "/latest/api/token"
_TOKEN_TTL_S = 21_600
_MAX_BYTES = 4_096


async def spot_notice(url: str, every_s: float = EVERY_S) -> str:
    """Returns the notice at `url`, as soon as there is one. What goes wrong on the way is logged once for each kind."""
    token = ""
    reported: set[str] = set()
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_ANSWER_S)) as session:
        while True:
            try:
                token = token or await _token(session, url)
                async with session.get(url, headers={"X-aws-ec2-metadata-token": token} if token else {}) as response:
                    status, body = response.status, await response.content.read(_MAX_BYTES)
            except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
                status, body, trouble = 0, b"", f"{url} does not answer: {error!r}"
            else:
                trouble = f"{url} answered {status}, which is no notice"
            if status == 200 and _is_notice(body):
                return body.decode(errors="replace")
            if status == 401:
                token = ""  # it has run out
            elif status != 404 and trouble not in reported:
                reported.add(trouble)
                logger.warning("%s", trouble)
            await asyncio.sleep(every_s)


async def _token(session: aiohttp.ClientSession, url: str) -> str:
    """The token that the page wants; none from a server that gives out none."""
    parts = urlsplit(url)
    headers = {"X-aws-ec2-metadata-token-ttl-seconds": str(_TOKEN_TTL_S)}
    async with session.put(f"{parts.scheme}://{parts.netloc}{_TOKEN_PATH}", headers=headers) as response:
        return (await response.text()).strip() if response.status == 200 else ""


def _is_notice(body: bytes) -> bool:
    try:
        content = json.loads(body)
    except ValueError:
        return False
    return isinstance(content, dict) and "action" in content
