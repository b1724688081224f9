"""A report of a store as one HTML file: what it is, what fills it, who is behind, what is wrong.

The numbers are answers of the rooms below; here they become sections, plots and a page. The notebooks
draw with the same `plots`. Needs the extra `report`: Jinja2 and matplotlib.
"""
