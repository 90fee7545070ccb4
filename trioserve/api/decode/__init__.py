"""From the bytes of a body to a checked request struct.

body             reads a body, has it decoded, and finds the engine that answers it
schema           the table of decoders: one for each request struct
decoder          the decoder of one endpoint's bodies
requests         the structs of generating and tokenizing requests
messages         the structs of conversations
pooling_requests the structs of requests to models that pool

Decoders of single fields:

counting         objects, lists and fields are counted before anything is decoded
pieces           lists of a body, item by item
lazy_fields      fields that may be megabytes long
pooling_inputs   texts, token ids and chats that are pooled
free_form        fields that may hold any JSON
payloads         images and tensors, taken out of a body before it is decoded
unsupported      fields that are not implemented, with their neutral values
errors           the messages of the JSON decoder in the words of the API

From structs to the arguments of the renderer and the engine:

message_mappings messages in the renderer's form, and template options
sampling         SamplingParams
"""
