"""instructor: a structured answer, and one whose fields come as they are written."""

from __future__ import annotations

import asyncio

import instructor
from asked import STREAMED, STRUCTURED, City, clients, tell

from specroute import reports


async def main() -> None:
    client, sync = clients()
    with reports() as seen:
        patched = instructor.from_openai(client, mode=instructor.Mode.JSON_SCHEMA)
        city = await patched.chat.completions.create(
            model="smart",
            response_model=City,
            messages=[{"role": "user", "content": STRUCTURED}],
        )
        last: City | None = None
        async for part in patched.chat.completions.create_partial(
            model="smart",
            response_model=City,
            messages=[{"role": "user", "content": STRUCTURED}],
        ):
            last = part
        assert last is not None and last.model_dump() == city.model_dump()
        beside = instructor.from_openai(sync, mode=instructor.Mode.JSON_SCHEMA)
        again = beside.chat.completions.create(
            model="smart",
            response_model=City,
            messages=[{"role": "user", "content": STRUCTURED}],
        )
        assert again.model_dump() == city.model_dump()
        words = await client.chat.completions.create(
            model="smart", messages=[{"role": "user", "content": STREAMED}], stream=True
        )
        text = "".join([c.choices[0].delta.content or "" async for c in words])
    tell(city, text, seen)
    await client.close()
    sync.close()


asyncio.run(main())
