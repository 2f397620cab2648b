"""The IR: types, graphs and modules, their text, their rules, and the ways to change them."""
