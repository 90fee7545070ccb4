"""The endpoints of models that pool: embeddings, labels, scores, and Cohere's dialect.

    requests    what clients may send
    inputs      fields that may be megabytes long
    schema      JSON in, requests out
    responses   what clients get
    serving     what all endpoints do alike
    vectors     POST /v1/embeddings and /pooling
    labels      POST /classify
    scores      POST /score and /rerank
    cohere      POST /v2/embed and /v1/embed

Numbers are written by renderer workers, text by text; what is left for an answer is to
put the pieces together.
"""
