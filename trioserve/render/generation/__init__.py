"""The renderer of models that generate text.

renderer    Renderer: prompts and chats in, engine inputs out
chat        a conversation's images and tensors, and the prompt with all of it
loading     a model's folder -> Renderer
"""
