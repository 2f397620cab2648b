"""Writers of one graph for people and other tools; each file has one, named by a ``ExporterSpec`` of core's plugin."""
