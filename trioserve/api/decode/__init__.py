"""From the bytes of a body to a checked request struct. It knows no dialect.

body         reads a body, has it decoded, and finds the engine that answers it
decoder      the decoder of one kind of body
fields       the fields of all requests, and types of fields

Steps of a decoder:

payloads     images and tensors, taken out of a body before it is decoded
counting     objects, lists and fields are counted before anything is decoded
field_names  the names of fields: misspelt and refused ones
values       values that may be megabytes long, piece by piece
shapes       the values that a type can hold
errors       the messages of the JSON decoder in the words of the API, and refused values
"""
