"""Chats: from messages to a prompt, and from generated text to messages. Every API that takes messages uses this package.

The modules in the order in which a chat passes through them:

1. `conversation` has the messages and the options of a chat. `request` makes them of the arguments of `Engine.chat`; each HTTP
   API makes them of its bodies.
2. `pipeline` turns a chat into a `ChatPrompt`. It reads the options (`request_options`), moves lines that change with every
   request (`volatile`), describes tools to models whose templates do not (`tool_descriptions`), and converts messages
   (`messages`).
3. `template` renders the messages, in a `sandbox`; `builtin` has templates for models without one. `continuation` continues an
   answer. `control_tokens` and `segment_tokenizer` keep text of clients from becoming control tokens.
4. `output_constraint` constrains answers to the calls that the format and the tools allow (`call_grammar_cache`).
5. `answer` parses the generated text. `stream` returns it as deltas, `completion` as whole messages, also for forks
   (`branch_texts`).

Steps 2 and 3 block: `request` and the server run them on a worker thread unless a chat is short.
"""
