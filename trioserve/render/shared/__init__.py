"""The parts that the renderers of generation and pooling share."""
