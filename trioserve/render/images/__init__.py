"""Images: fetched, decoded and prepared for a model's encoder.

renderer                 ImageRenderer: all of these steps, with a cache
loader                   an image's address or bytes -> pixels
address, connect, fetch  the addresses that are allowed, and the download
decode, orientation      file contents -> pixels
preprocess, processors   pixels -> the tensors that the model's encoder reads
pixtral                  the processor of Mistral 3, without torchvision
mixed                    the positions of images and embeddings among a chat's tokens
"""
