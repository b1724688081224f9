"""How Sphinx makes pages of this folder; `make docs`."""

from rmq_store import __version__

project = "rmqstore"
author = "the rmqstore authors"
release = version = __version__
extensions = ["myst_parser", "sphinx.ext.autodoc"]
# Headings of these levels can be linked to, as on a forge.
myst_heading_anchors = 3
# Options keep their hyphens: smart quotes would show --append with a dash.
smartquotes = False
# The hosts of links are not asked: a build needs no network. Everything within has to be there.
nitpicky = False
autodoc_typehints = "description"
autodoc_member_order = "bysource"
autodoc_class_signature = "separated"
html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["pages.css"]
html_title = f"rmqstore {version}"
html_show_sourcelink = False
html_show_copyright = False
suppress_warnings: list[str] = []
