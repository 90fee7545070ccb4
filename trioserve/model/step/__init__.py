"""The numbers of one step: slots, tables, and the layout of its tokens."""
