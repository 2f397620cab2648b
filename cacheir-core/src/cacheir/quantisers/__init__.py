"""From a quantiser's name to formats by weight, and models that were quantised with the help of a text."""
