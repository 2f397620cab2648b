"""Writers of programs and graphs for people and other tools; an ``ExporterSpec`` of core's plugin names each."""
