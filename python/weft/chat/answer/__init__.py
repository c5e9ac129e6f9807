"""Parses the text that a model writes into content, reasoning and tool calls. Independent of API dialects and of the engine.

To add a tool-call format, add it to the table in `formats`, as its docstring describes.

| subject | modules |
| --- | --- |
| a format (`CallFormat`), and all known ones | `call_format`, `formats` |
| grammars, which parse calls and write the GBNF that constrains a model to them | `grammar`, `layouts`, `gbnf`, `source` |
| grammars of arguments | `arguments`, `bare`, `elements`, `values`, `harmony` |
| how the answers of one chat are parsed, and the parser | `form`, `marks`, `reader` |
| parts of an answer, by branch and as a message | `parts`, `branches`, `parsed_message` |
| the format of a template: a known one, or one derived from its samples | `detect`, `samples`, `derive`, `sample_forms` |
| tools | `tools` |
"""
