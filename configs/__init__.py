"""Fragments that experiments are made of: tags, fiddlers, parts of graphs."""
