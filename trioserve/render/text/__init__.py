"""Text: templates, tokenizing, detokenizing, stop strings and reasoning tags.

loading                             a model's folder -> ModelTokenizer
model_tokenizer                     ModelTokenizer: tokenizer, special tokens, templates
tokenizer_reading                   reads a tokenizer without transformers
tokenizer_files                     the small files of a tokenizer
rebuilt_tokenizers                  tokenizers that transformers builds anew
chat, tool_history                  checks messages, and converts them for the template
template, template_form, probing    runs chat templates, and finds out their features
rendering, sandbox                  a run of a template, in the sandbox of transformers
tokenizer, pieces, vocabulary       text -> token ids, and back
detokenizer, stop                   token ids -> text as they come, up to a stop string
reasoning, reasoning_detokenizer    separates the reasoning of an answer from its text
"""
