"""OpenAI's wire format and this package's own records, each made of the other.

Knows: Chat Completions requests, responses and streams. Does not know: transports, models; nothing here needs the
`openai` package. Its door is `engine.openai.chat`.
"""
