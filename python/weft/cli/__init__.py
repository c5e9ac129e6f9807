"""The command line: parses flags, variables and the configuration file, and runs the commands.

`weft/settings/__init__.py` has the steps to add a setting. To add a flag that is no setting:

- An option of one command, as `--streams` of `bench`: add a `Flag` to the `options` of the command in `commands.py`. Its name is
  the keyword by which `Command.function` receives the value.
- A flag that prints something and exits, as `--list-devices`: add its names and its description to `OUTPUT_REQUESTS` in
  `arguments.py`, and print it in `print_output` of `outputs.py`.
- A flag of llama-server without an effect here: add it to `flags_without_setting.json`, under its reason. The fields of an entry
  are described by `AcceptedFlag` in `flags_without_setting.py`, and its meanings by `Meaning`.

Help, completion and suggestions for misspelled flags know it by now. Then print the page of all flags:
`python scripts/flag_table.py > docs/reference/flags.md`.
"""
