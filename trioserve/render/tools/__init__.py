"""Splits the text of a model into its answer and its tool calls.

A call is text in the format of the model's family. Each family has a scanner in a file of
its own: hermes.py, mistral.py and others; families.py lists them.

scanner            ToolScanner, the base of all scanners
cursor             a cursor over text that comes in pieces
writer             collects the results of a scanner, and drops the whitespace around calls
json_reader        follows JSON that comes in pieces
json_calls         calls that are JSON objects with a name and arguments
nested_values      lists and objects that are like JSON without being JSON
pythonic_calls     calls as Python writes them
typed_values       values without quotes, which become JSON by the schema of their parameter
tool_table         the tools of a request
call_form          the text around calls and answers
forced_calls       grammars of calls, and of answers whose text has a form
arguments_grammar  arguments that are not one JSON object, in such grammars
nested_grammar     the same for objects and lists that are like JSON
schema_cases       the cases and types of a JSON schema
lark               pieces of such grammars
detokenizer        a detokenizer with a scanner behind it

A scanner reads each character once. It never searches a text again from its beginning, and
no part of it takes longer for a longer text. Its output depends on the text alone,
not on the pieces in which the text comes.

Text that only looks like a call stays text. A call begins when its name and the beginning of
its arguments are known, because clients get arguments while the model writes them. If the
call breaks later, its arguments end there, and the rest of it is text.
"""
