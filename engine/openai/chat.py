"""Says where the client of other servers is."""

raise ImportError("engine.openai.chat is engine.remote now, with the same functions: from engine import remote.")
