"""Images: fetched, decoded and prepared for a model's encoder.

media                    an image's address or bytes -> pixels
address, connect, fetch  where an image may come from, and its download
decode, orientation      file formats -> RGB
preprocess, processors   pixels -> the tensor that the model's encoder reads
images                   all of it for one prompt, with a cache
mixed                    the places of images and embeddings among a chat's tokens
"""
