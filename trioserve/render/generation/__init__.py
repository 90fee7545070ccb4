"""The renderer of models that generate text.

renderer    prompts and chats in, engine inputs out
loading     tokenizer, template and image processor of a model's folder
"""
