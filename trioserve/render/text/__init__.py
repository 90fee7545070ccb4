"""Text: templates, tokenizing, detokenizing, stop strings and reasoning tags.

chat, tool_history                  messages, checked for the template
template, template_form, probing    chat templates, and what can be said of one
nesting, fields                     bounds on what a template is given
tokenizer, pieces, vocabulary       text -> token ids
detokenizer, stop                   token ids -> text, cut at stop strings
reasoning, reasoning_detokenizer    the thoughts of an answer, apart from it
"""
