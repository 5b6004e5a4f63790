"""pydantic-ai: a structured answer and a streamed one."""

from __future__ import annotations

import asyncio

from asked import STREAMED, STRUCTURED, City, clients, tell
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.profiles.openai import OpenAIModelProfile
from pydantic_ai.providers.openai import OpenAIProvider

from specroute import reports


async def main() -> None:
    client, sync = clients()
    with reports() as seen:
        model = OpenAIChatModel(
            "smart",
            provider=OpenAIProvider(openai_client=client),
            profile=OpenAIModelProfile(supports_json_schema_output=True),
        )
        city = (await Agent(model, output_type=NativeOutput(City)).run(STRUCTURED)).output
        async with Agent(model).run_stream(STREAMED) as result:
            text = "".join([piece async for piece in result.stream_text(delta=True)])
    tell(city, text, seen)
    await client.close()
    sync.close()


asyncio.run(main())
