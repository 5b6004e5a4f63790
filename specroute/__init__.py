"""specroute: a drop-in ``openai.AsyncOpenAI`` that speculates across APIs and says what it did."""
