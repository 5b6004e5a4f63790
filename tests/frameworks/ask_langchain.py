"""langchain-openai: a structured answer and a streamed one, async and sync."""

from __future__ import annotations

import asyncio

from asked import STREAMED, STRUCTURED, City, clients, tell
from langchain_openai import ChatOpenAI

from specroute import reports


async def main() -> None:
    client, sync = clients()
    with reports() as seen:
        model = ChatOpenAI(
            model="smart",
            api_key="unused",
            client=sync.chat.completions,
            root_client=sync,
            async_client=client.chat.completions,
            root_async_client=client,
        )
        structured = model.with_structured_output(City, method="json_schema")
        city = await structured.ainvoke(STRUCTURED)
        assert await asyncio.to_thread(structured.invoke, STRUCTURED) == city
        text = "".join([str(c.content) async for c in model.astream(STREAMED)])
        assert "".join(str(c.content) for c in model.stream(STREAMED)) == text
    assert isinstance(city, City)
    tell(city, text, seen)
    await client.close()
    sync.close()


asyncio.run(main())
