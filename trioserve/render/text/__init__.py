"""Text: templates, tokenizing, detokenizing, stop strings and reasoning tags.

loading                             a model's folder -> tokenizer and chat template
chat, tool_history                  checks messages, and converts them for the template
template, template_form, probing    runs chat templates, and finds out their features
nesting, fields                     limits on the values that a template receives
tokenizer, pieces, vocabulary       text -> token ids
id_decoder                          token ids -> text, all at once
detokenizer, stop                   token ids -> text as they come, up to a stop string
reasoning, reasoning_detokenizer    separates the reasoning of an answer from its text
"""
